"""What this distribution registers. Light: the modules that do the work are imported when a store selects them."""

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
            leftover_extensions=(".rdt",),  # what RabbitMQ before 3.13 moved into while it combined two segments
            generation=1,
            capabilities=frozenset({Capability.FRAMED}),
            summary="RabbitMQ's shared message store, as it was before typed records (.rdq)",
        )
    ]
