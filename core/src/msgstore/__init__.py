"""msgstore: a pluggable, log-structured, reference-counted message store.

::

    import msgstore

    with msgstore.open_store("data/orders", index="lmdb") as store, store.client("worker-1") as client:
        client.write(msg_id, body)

What is not needed to write a plugin is imported at first use: a bare ``import msgstore`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from msgstore.contract import (
    BrokenPlugin,
    ConfigError,
    CorruptRecord,
    DuplicatePlugin,
    IncompatiblePlugin,
    MessageNotFound,
    MessageTooLarge,
    MsgStoreError,
    PluginError,
    StoreClosed,
    StoredBody,
    StoreError,
    StoreIOError,
    StoreLocked,
    StoreMismatch,
    StoreReadOnly,
    UnknownPlugin,
)
from msgstore.hookspecs import hookimpl

if TYPE_CHECKING:
    from msgstore.engine.client import Client
    from msgstore.engine.opening import Stores, load_config, open_store
    from msgstore.engine.store import Store
    from msgstore.plugins.catalogue import Catalogue, load_catalogue

__version__ = "0.1.0"

_LATE = {
    "Catalogue": "msgstore.plugins.catalogue",
    "Client": "msgstore.engine.client",
    "Store": "msgstore.engine.store",
    "Stores": "msgstore.engine.opening",
    "load_catalogue": "msgstore.plugins.catalogue",
    "load_config": "msgstore.engine.opening",
    "open_store": "msgstore.engine.opening",
}

__all__ = [
    "BrokenPlugin",
    "Catalogue",
    "Client",
    "ConfigError",
    "CorruptRecord",
    "DuplicatePlugin",
    "IncompatiblePlugin",
    "MessageNotFound",
    "MessageTooLarge",
    "MsgStoreError",
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
    "UnknownPlugin",
    "hookimpl",
    "load_catalogue",
    "load_config",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module 'msgstore' has no attribute {name!r}")
