"""Registration of the format ``v2`` and the record type ``message``. Factories are imported when a store selects them."""

from __future__ import annotations

from collections.abc import Iterable

from msgstore import hookimpl
from msgstore.contract import Capability, RecordTypeDescriptor, SegmentFormatDescriptor


@hookimpl
def msgstore_segment_formats() -> Iterable[SegmentFormatDescriptor]:
    return [
        SegmentFormatDescriptor(
            name="v2",
            contract=(1, 0),
            factory="msgstore_format_v2.format:SegmentFormatV2",
            extension=".sqs",
            generation=2,
            capabilities=frozenset(
                {Capability.SELF_DESCRIBING, Capability.COMPACTABLE, Capability.TYPED_RECORDS, Capability.VERBATIM}
            ),
            summary="RabbitMQ's shared message store, typed records and explicit holes (.sqs)",
        )
    ]


@hookimpl
def msgstore_record_types() -> Iterable[RecordTypeDescriptor]:
    return [
        RecordTypeDescriptor(
            name="message",
            contract=(1, 0),
            factory="msgstore_format_v2.message:MessageRecord",
            format="v2",
            assigned_byte=3,
            capabilities=frozenset({Capability.FRAMED}),
            summary="MESSAGE: type, size, id, body",
        )
    ]
