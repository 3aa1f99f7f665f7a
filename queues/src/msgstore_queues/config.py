"""Configuration: tables ``[vhosts.NAME]`` of the file that also has ``[stores.NAME]``, checked key by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

import msgstore
from msgstore.config import Config as FileConfig
from msgstore.config import store_config
from msgstore.contract import ConfigError
from msgstore.option_values import nearest, refuse_unknown, structure, table_of
from msgstore_queues.catalogue import load_catalogue
from msgstore_queues.options import QueueOptions, VHostOptions
from msgstore_queues.vhost import VHost

Progress = Callable[[int, int], object]


@attrs.frozen(kw_only=True)
class VHostConfig(VHostOptions):
    """One table ``[vhosts.NAME]``."""

    path: Path
    """The directory, relative to the file. Several vhosts may share it: each has its own directory in it."""
    name: str = ""
    """Name of the vhost. Default: the name of the table."""
    where: str = attrs.field(default="", eq=False)
    """Start of error messages: file and table."""


_KEYS = [key for key in attrs.fields_dict(VHostConfig) if key != "where"]


@attrs.frozen
class Config:
    """The vhosts of a configuration file."""

    file: Path
    stores: msgstore.Stores
    """The other tables of the file."""
    vhosts: Mapping[str, VHostConfig]
    wrong: Mapping[str, ConfigError]
    """Errors of the other tables by name. Each stops its own vhost only."""

    @property
    def names(self) -> list[str]:
        """Names of all tables."""
        return [*self.vhosts, *self.wrong]

    def vhost(self, name: str) -> VHostConfig:
        """Return the configuration of a vhost. Raises ConfigError for a wrong one, and for an unknown name."""
        if name in self.wrong:
            raise self.wrong[name]
        if name not in self.vhosts:
            known = ", ".join(self.names) or "none"
            raise ConfigError(f"{self.file}: there is no table [vhosts.{name}]. Vhosts: {known}{nearest(name, self.names)}")
        return self.vhosts[name]

    def open(self, name: str, *, progress: Progress | None = None) -> VHost:
        """Open the vhost of the table ``[vhosts.NAME]``. ``progress(done, total)`` is called during a recovery.

        Raises ConfigError, PluginError, StoreLocked, StoreError.
        """
        config = self.vhost(name)
        return VHost(
            config.path, config.name, config, load_catalogue(), where=config.where, base=self.file.parent, progress=progress,
            open_store=partial(self._open_store, f"{config.where} store", progress),
        )  # fmt: skip

    def _open_store(
        self, where: str, progress: Progress | None, path: Path, *, refcounts: Any = None, **keys: Any
    ) -> msgstore.Store:
        """Open a message store of a vhost, without the plugins that the file disables."""
        store = store_config({"path": path.absolute(), **keys}, where, self.file.parent)
        stores = attrs.evolve(self.stores, config=FileConfig(self.file, {"store": store}))
        return stores.open("store", refcounts=refcounts, progress=progress)


def load_config(path: str | Path) -> Config:
    """Read a configuration file. Raises ConfigError for the file as a whole; a wrong table only when its vhost is opened."""
    stores = msgstore.load_config(path)
    file, vhosts, wrong = stores.config.file, {}, {}
    for name, keys in stores.config.vhosts.items():
        where = f"{file}: [vhosts.{name}]"
        try:
            vhosts[name] = vhost_config(name, table_of(keys, where), where, file.parent)
        except ConfigError as error:
            wrong[name] = error
    return Config(file, stores, vhosts, wrong)


def vhost_config(name: str, table: Mapping[str, Any], where: str, base: Path) -> VHostConfig:
    """Check the keys of one vhost and of its queues. ``base`` is the directory of relative paths. Raises ConfigError."""
    refuse_unknown(table, _KEYS, where)
    if "path" not in table:
        raise ConfigError(f"{where}: the key 'path' is missing. Write path = \"directory of the vhosts\".")
    found = attrs.evolve(structure(VHostConfig, {"name": name, **table}, where, base), where=where)
    structure(QueueOptions, found.defaults, f"{where} defaults", base)
    for queue, keys in found.queues.items():
        structure(QueueOptions, keys, f"{where} queue {queue!r}", base)
    return found
