"""msgstore: a pluggable, log-structured, reference-counted message store.

::

    import msgstore

    with msgstore.open_store("data/orders", index="lmdb") as store, store.client("worker-1") as client:
        client.write(msg_id, body)

Each public name is imported on first use, so a bare ``import msgstore`` is cheap.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msgstore.contract.bodies import StoredBody
    from msgstore.contract.errors import (
        BodyRefused,
        BrokenPlugin,
        ConfigError,
        CorruptRecord,
        MessageNotFound,
        MessageTooLarge,
        MsgStoreError,
        NotAdopted,
        PluginError,
        StoreClosed,
        StoreError,
        StoreIOError,
        StoreLocked,
        StoreMismatch,
        StoreReadOnly,
    )
    from msgstore.engine.client import Client
    from msgstore.engine.opening import Stores, load_config, open_store
    from msgstore.engine.store import Store
    from msgstore.hookspecs import hookimpl
    from msgstore.plugins.catalogue import Catalogue, load_catalogue

if os.name != "posix":
    raise ImportError("msgstore runs on Linux and macOS: elsewhere its file locks and syncs have not been tried")

__version__ = "0.1.0"

_MODULE_OF = {
    "Catalogue": "msgstore.plugins.catalogue",
    "Client": "msgstore.engine.client",
    "Store": "msgstore.engine.store",
    "StoredBody": "msgstore.contract.bodies",
    "Stores": "msgstore.engine.opening",
    "hookimpl": "msgstore.hookspecs",
    "load_catalogue": "msgstore.plugins.catalogue",
    "load_config": "msgstore.engine.opening",
    "open_store": "msgstore.engine.opening",
}
"""Public name to the module that defines it. Every other public name is in ``msgstore.contract.errors``."""

__all__ = [
    "BodyRefused",
    "BrokenPlugin",
    "Catalogue",
    "Client",
    "ConfigError",
    "CorruptRecord",
    "MessageNotFound",
    "MessageTooLarge",
    "MsgStoreError",
    "NotAdopted",
    "PluginError",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreIOError",
    "StoreLocked",
    "StoreMismatch",
    "StoreReadOnly",
    "StoredBody",
    "Stores",
    "hookimpl",
    "load_catalogue",
    "load_config",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'msgstore' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF.get(name, "msgstore.contract.errors")), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
