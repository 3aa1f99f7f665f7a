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

if TYPE_CHECKING:  # ``as``: type checkers take a name that is imported so for a public one
    from msgstore.contract.bodies import StoredBody as StoredBody
    from msgstore.contract.errors import BodyRefused as BodyRefused
    from msgstore.contract.errors import BrokenPlugin as BrokenPlugin
    from msgstore.contract.errors import ConfigError as ConfigError
    from msgstore.contract.errors import CorruptRecord as CorruptRecord
    from msgstore.contract.errors import MessageNotFound as MessageNotFound
    from msgstore.contract.errors import MessageTooLarge as MessageTooLarge
    from msgstore.contract.errors import MsgStoreError as MsgStoreError
    from msgstore.contract.errors import NotAdopted as NotAdopted
    from msgstore.contract.errors import PluginError as PluginError
    from msgstore.contract.errors import StoreClosed as StoreClosed
    from msgstore.contract.errors import StoreError as StoreError
    from msgstore.contract.errors import StoreIOError as StoreIOError
    from msgstore.contract.errors import StoreLocked as StoreLocked
    from msgstore.contract.errors import StoreMismatch as StoreMismatch
    from msgstore.contract.errors import StoreReadOnly as StoreReadOnly
    from msgstore.engine.client import Client as Client
    from msgstore.engine.opening import Stores as Stores
    from msgstore.engine.opening import load_config as load_config
    from msgstore.engine.opening import open_store as open_store
    from msgstore.engine.store import Store as Store
    from msgstore.hookspecs import hookimpl as hookimpl
    from msgstore.plugins.catalogue import Catalogue as Catalogue
    from msgstore.plugins.catalogue import load_catalogue as load_catalogue

if os.name != "posix":
    raise ImportError("msgstore runs on Linux and macOS: elsewhere its file locks and syncs have not been tried")

__version__ = "0.1.0"

_NAMES = {
    "msgstore.contract.bodies": "StoredBody",
    "msgstore.contract.errors": "BodyRefused BrokenPlugin ConfigError CorruptRecord MessageNotFound MessageTooLarge "
    "MsgStoreError NotAdopted PluginError StoreClosed StoreError StoreIOError StoreLocked StoreMismatch StoreReadOnly",
    "msgstore.engine.client": "Client",
    "msgstore.engine.opening": "Stores load_config open_store",
    "msgstore.engine.store": "Store",
    "msgstore.hookspecs": "hookimpl",
    "msgstore.plugins.catalogue": "Catalogue load_catalogue",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Public name to the module that defines it."""

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'msgstore' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
