"""Check of a table ``[vhosts.NAME]``: every key, and the backends that it names. Opens nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from msgstore.cli.config_check import Check, check_store, errors_of
from msgstore.contract import PluginError
from msgstore.contract.descriptors import Descriptor
from msgstore.option_values import Backend, checks_of_keys, structure
from msgstore_queues.catalogue import Catalogue, make
from msgstore_queues.config import Config, vhost_config
from msgstore_queues.directories import PERSISTENT, vhost_path
from msgstore_queues.options import QueueOptions


def check_vhost(config: Config, name: str, catalogue: Catalogue) -> list[str]:
    """Return what is wrong with a table, one error for each key, or else for each backend that it selects. Opens nothing."""
    base, where = config.file.parent, f"{config.file}: [vhosts.{name}]"
    keys = config.stores.config.vhosts[name]
    store = keys.get("store") if isinstance(keys, Mapping) else None
    errors = errors_of(_checks_of_keys(config, name))
    errors += check_store({"path": ".", **store}, f"{where} store", base, None) if isinstance(store, Mapping) else []
    if errors:
        return errors
    found = config.vhost(name)
    path = vhost_path(found.path, found.name) / PERSISTENT
    errors = check_store({"path": path.absolute(), **found.store_keys}, f"{where} store", base, config.stores.catalogue)
    return [*errors, *errors_of(_checks_of_backends(config, name, catalogue))]


def _checks_of_keys(config: Config, name: str) -> Iterator[Check]:
    """Yield a check for each key alone, so that an error in one does not hide the others; last, one of the whole table."""
    keys, where, base = config.stores.config.vhosts[name], f"{config.file}: [vhosts.{name}]", config.file.parent
    for key, value in keys.items() if isinstance(keys, Mapping) else ():
        tables: list[Mapping[str, Any]] = [{key: value}]
        if key == "defaults" and isinstance(value, Mapping):
            tables = [{key: {one: value[one]}} for one in value]
        if key == "queues" and isinstance(value, Mapping):
            queues = {queue: options for queue, options in value.items() if isinstance(options, Mapping)}
            tables = [{key: {queue: {one: options[one]}}} for queue, options in queues.items() for one in options]
        for table in tables:
            yield where, partial(vhost_config, name, {"path": ".", **table}, where, base)
    yield where, partial(config.vhost, name)


def _checks_of_backends(config: Config, name: str, catalogue: Catalogue) -> Iterator[Check]:
    found, base = config.vhost(name), config.file.parent
    tables = {f"queue {queue!r}": {**found.defaults, **keys} for queue, keys in found.queues.items()}
    for what, keys in {"defaults": found.defaults, **tables}.items():
        where = f"{found.where} {what}"
        options = structure(QueueOptions, keys, where, base)
        selected: list[tuple[str, Backend, Callable[[str, str], Descriptor]]] = [
            (f"{where} backing", options.backing, catalogue.backing),
            (f"{where} index", options.index, catalogue.index),
        ]
        for at, backend, find in selected:
            with suppress(PluginError):  # ``_make`` reports it
                yield from checks_of_keys(find(backend.name, where).options, backend.options, at, backend.base)
            yield where, partial(_make, find, backend, where, at)


def _make(find: Callable[[str, str], Descriptor], backend: Backend, where: str, at: str) -> None:
    make(find(backend.name, where), backend, at)
