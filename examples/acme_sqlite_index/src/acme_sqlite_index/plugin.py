"""Registration of the index ``sqlite``. The factory is imported when a store selects the index."""

from __future__ import annotations

from msgstore import hookimpl
from msgstore.contract import Capability, IndexDescriptor


@hookimpl
def msgstore_indexes() -> list[IndexDescriptor]:
    return [
        IndexDescriptor(
            name="sqlite",
            contract=(1, 0),
            factory="acme_sqlite_index.index:SqliteIndex",
            capabilities=frozenset({Capability.PERSISTENT}),
            summary="persistent, in memory and in one SQLite file",
        )
    ]
