"""Registration of the format ``v1``. Imports no implementation: the factory is imported when a store selects the format."""

from __future__ import annotations

from collections.abc import Iterable

from msgstore import hookimpl
from msgstore.contract import Capability, SegmentFormatDescriptor


@hookimpl
def msgstore_segment_formats() -> Iterable[SegmentFormatDescriptor]:
    return [
        SegmentFormatDescriptor(
            name="v1",
            contract=(1, 0),
            factory="msgstore_format_v1.format:SegmentFormatV1",
            extension=".rdq",
            leftover_extensions=(".rdt",),  # RabbitMQ before 3.13 copied records into such a file to combine two segments
            generation=1,
            capabilities=frozenset({Capability.FRAMED}),
            summary="RabbitMQ's shared message store, as it was before typed records (.rdq)",
        )
    ]
