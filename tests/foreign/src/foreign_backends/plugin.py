"""Registration of the format ``ledger``."""

from __future__ import annotations

from msgstore import hookimpl
from msgstore.contract import Capability, SegmentFormatDescriptor


@hookimpl
def msgstore_segment_formats() -> list[SegmentFormatDescriptor]:
    return [
        SegmentFormatDescriptor(
            name="ledger",
            contract=(1, 0),
            factory="foreign_backends.ledger:LedgerFormat",
            extension=".ledger",
            generation=1,  # as v1: a store that writes v2 migrates ledgers
            capabilities=frozenset({Capability.SELF_DESCRIBING, Capability.COMPACTABLE, Capability.VERBATIM}),
            summary="header of 4 KiB, keys of any length, checksums",
        )
    ]
