"""Registration of the format ``ledger`` and the index ``sqlite``."""

from __future__ import annotations

import attrs

from msgstore import hookimpl
from msgstore.contract import Capability, IndexDescriptor, SegmentFormatDescriptor, Size


@attrs.frozen
class SqliteOptions:
    cache: Size = Size(2 * 2**20)
    """Maximum size of the pages that each of the two connections keeps in memory, in bytes."""


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


@hookimpl
def msgstore_indexes() -> list[IndexDescriptor]:
    return [
        IndexDescriptor(
            name="sqlite",
            contract=(1, 0),
            factory="foreign_backends.sqlite:SqliteIndex",
            options=SqliteOptions,
            capabilities=frozenset({Capability.PERSISTENT}),
            summary="persistent, one SQLite transaction per commit",
        )
    ]
