"""Registration of the index ``lmdb``."""

from __future__ import annotations

import attrs

from msgstore import hookimpl
from msgstore.contract import Capability, IndexDescriptor, Size


@attrs.frozen
class LmdbOptions:
    map_size: Size = Size(64 * 2**20)
    """Initial size of the LMDB map in bytes; at least 1 MiB. It doubles when it is full."""


@hookimpl
def msgstore_indexes() -> list[IndexDescriptor]:
    return [
        IndexDescriptor(
            name="lmdb",
            contract=(1, 0),
            factory="msgstore_lmdb_index.index:LmdbIndex",
            options=LmdbOptions,
            capabilities=frozenset({Capability.PERSISTENT, Capability.LIVE_READS}),
            summary="persistent, one LMDB transaction per commit; reference counts survive a crash",
        )
    ]
