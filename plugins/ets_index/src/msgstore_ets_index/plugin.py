"""Registration of the index ``ets``."""

from __future__ import annotations

from msgstore import hookimpl
from msgstore.contract import IndexDescriptor


@hookimpl
def msgstore_indexes() -> list[IndexDescriptor]:
    return [
        IndexDescriptor(
            name="ets",
            contract=(1, 0),
            factory="msgstore_ets_index.index:EtsIndex",
            summary="in memory, saved at a clean shutdown; rebuilt by a scan after a crash",
        )
    ]
