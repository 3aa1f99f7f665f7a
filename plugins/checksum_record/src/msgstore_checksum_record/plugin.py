"""Registration of the record type ``checksum``. The factory is imported when a store selects the record type."""

from __future__ import annotations

from collections.abc import Iterable

from msgstore import hookimpl
from msgstore.contract import Capability, RecordTypeDescriptor


@hookimpl
def msgstore_record_types() -> Iterable[RecordTypeDescriptor]:
    return [
        RecordTypeDescriptor(
            name="checksum",
            contract=(1, 0),
            factory="msgstore_checksum_record.record:ChecksumRecord",
            format="v2",
            assigned_byte=4,
            capabilities=frozenset({Capability.FRAMED}),
            summary="MESSAGE_WITH_CHECKSUM: type, size, id, CRC-32C, body",
        )
    ]
