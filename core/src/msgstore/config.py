"""Configuration: one TOML file, checked key by key. Reading it loads no plugin and opens no store."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from msgstore.contract import ConfigError, Duration, Size
from msgstore.files import stat_regular_file
from msgstore.option_values import (
    Backend,
    Durability,
    FsyncEvery,
    is_elsewhere,
    nearest,
    refuse_unknown,
    structure,
    table_of,
    typed,
)

OnLegacy = Literal["read", "migrate", "refuse"]
Reads = Literal["pread", "mmap"]


def _backend(name: str) -> Any:
    return attrs.field(default=Backend(name, named=False))


@attrs.frozen(kw_only=True)
class StoreConfig:
    """One table ``[stores.NAME]``, or the keywords of ``open_store``."""

    path: Path
    """The directory, relative to the file (for ``open_store``: to the working directory). ``~`` is expanded. Opening the store
    for writing creates it."""
    index: Backend = _backend("ets")
    """The index. Opening with another index than last time copies entries and counts."""
    format: Backend = _backend("v2")
    """The format of new segments. Existing segments are read by their extension. Refused if the directory has segments of a
    newer format."""
    record: str = "message"
    """The record type of new messages, in typed formats. A type whose byte the format assigns need not be bound."""
    body: Backend = _backend("raw")
    """The codec between client bodies and stored bodies. If not named: the codec that the directory remembers. Once there are
    segments, no other codec can write."""
    gc: Backend = _backend("half-empty")
    """The GC policy."""
    erase: bool = False
    """Overwrite removed messages with zeros before the file system reuses their space. Segments are then collected by copying,
    and the old file is overwritten before it is deleted."""
    gc_interval: Duration = Duration(1.0)
    """Time between two calls of the policy by a background thread. It also calls the policy when a segment is full, and when
    much was removed. 0: no thread; only ``compact()`` collects. Commands of the command line never collect in the
    background."""
    observers: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict, repr=False)
    """Options of observers by entry point, for the member ``options`` of their events. They are not checked, and passed as they
    are written, paths too; only ``{ env = "NAME" }`` and ``{ file = "PATH" }`` become text."""
    on_legacy: OnLegacy = "read"
    """Treatment of segments of an older format than ``format``: ``"read"`` reads them, ``"refuse"`` refuses to open for
    writing, ``"migrate"`` rewrites them at opening, and also those of another format of the same generation."""
    adopt: bool = False
    """Open for writing a directory that a broker wrote: one with segments and without ``msgstore.json``. Released RabbitMQ
    reads the result as long as all segments are ``*.rdq``. Also, take a backend of another distribution than the one that
    ``msgstore.json`` names."""
    durability: Durability = "os"
    """The meaning of a confirm: ``"os"``, passed to the operating system; ``"fsync"``, synced to disk; ``{ fsync_every =
    "100ms" }``, passed to the operating system, and a sync begins within about that time, rarely up to a second later."""
    reads: Reads = "pread"
    """How messages are read: ``"pread"``, one system call each, or ``"mmap"``, from mappings of the segments. Mappings are
    about twice as fast if the files are in memory."""
    file_size_limit: Size = Size(16 * 2**20)
    """A segment of this size receives no more records. The last record may exceed the limit."""
    large_message: Size = Size(4_000_000)
    """A body of at least this size gets its own segment, so that its removal frees the space at once."""
    sync_interval: Duration = Duration(0.2)
    """Time between the first change and the flush that confirms it; a shorter ``fsync_every`` replaces it. ``durability`` says
    what is synced. The flush runs on a thread: beside threads that never wait, it begins and ends later. 0: every call flushes
    before it returns; an ``on_confirm`` that always writes then lets a call flush for ever."""
    max_unconfirmed: Size = Size(64 * 2**20)
    """Limit of uncommitted bytes: those written that no commit of the index covers, confirmed or not. Each message counts as
    its body plus 1 KiB. A writer that comes near the limit flushes before it continues. With ``fsync_every`` this flush
    commits only beyond the limit. More than 128 clients may exceed it by up to 256 KiB each."""
    shared_cache: Size = Size(16 * 2**20)
    """Bytes of cached bodies of messages with several references, so that all readers get one object. 0: no cache."""
    where: str = attrs.field(default="", eq=False)
    """Start of error messages: file and table, or the call."""
    last_opened: frozenset[str] = attrs.field(default=frozenset(), eq=False)
    """Keys with the value of the last opening, which nobody has given now."""

    def at(self, key: str) -> str:
        """Return the begin of an error about a key."""
        return f"{self.path} (as last opened) {key}" if key in self.last_opened else f"{self.where} {key}"

    @property
    def fsync_every(self) -> float | None:
        """Seconds between syncs, or None if every flush syncs or none does."""
        return self.durability.fsync_every if isinstance(self.durability, FsyncEvery) else None


@attrs.frozen
class Config:
    """Content of a configuration file."""

    file: Path
    stores: Mapping[str, StoreConfig] = attrs.field(factory=dict)
    """One table per store. ``open`` and the command line take its name."""
    vhosts: Mapping[str, Any] = attrs.field(factory=dict)
    """One table per vhost with queues. The distribution ``msgstore-queues`` checks them."""
    disabled: tuple[str, ...] = ()
    """Entry points of the group ``msgstore`` that are not loaded: ``"NAME"`` or ``"DISTRIBUTION:NAME"``. ``msgstore plugins
    --json`` lists the names. A disabled observer receives no events. A name that is not installed is refused."""
    wrong: Mapping[str, ConfigError] = attrs.field(factory=dict)
    """Errors of the other tables by store. Each stops its own store only."""

    @property
    def names(self) -> list[str]:
        """Names of all stores."""
        return [*self.stores, *self.wrong]

    def store(self, name: str) -> StoreConfig:
        """Return the configuration of a store. Raises ConfigError for a wrong one, and for an unknown name."""
        if name in self.wrong:
            raise self.wrong[name]
        if name not in self.stores:
            raise ConfigError(
                f"{self.file}: there is no table [stores.{name}]. "
                f"Stores: {', '.join(self.names) or 'none'}{nearest(name, self.names)}"
                f"{'. Message stores of a vhost need a table of their own here' if self.vhosts else ''}"
            )
        return self.stores[name]

    def find(self, given: str | Path) -> StoreConfig | None:
        """Return the configuration of the store with this name or directory, or None. Raises ConfigError for a wrong one."""
        if str(given) in self.names:
            return self.store(str(given))
        place = os.path.realpath(given)
        return next((one for one in self.stores.values() if os.path.realpath(one.path) == place), None)

    def is_vhost(self, directory: Path) -> bool:
        """Return True for the directory of a vhost of the file."""
        paths = [
            self.file.parent / str(keys["path"])
            for keys in self.vhosts.values()
            if isinstance(keys, Mapping) and "path" in keys
        ]
        return os.path.realpath(directory) in map(os.path.realpath, paths)


def read_config(path: str | Path) -> Config:
    """Read the file ``path``, and check each table. Store paths become relative to its directory. Raises ConfigError for the
    file as a whole: wrong tables of stores are in the result."""
    path = Path(path)
    try:
        stat_regular_file(path)  # a pipe can be read once only, and several parts of a command read the file
        with path.open("rb") as stream:
            table = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: cannot be read as TOML: it is nested too deeply") from error
    for kind in ("source", "sink"):
        if f"{kind}s" in table:
            raise ConfigError(f"{path}: [{kind}s]: options of a {kind} are given on the command line, with --{kind}-option")
    refuse_unknown(table, ["disabled", "stores", "vhosts"], f"{path}: top level")
    stores, wrong = {}, {}
    for name, keys in table_of(table.get("stores", {}), f"{path}: [stores]").items():
        where = f"{path}: [stores.{name}]"
        try:
            stores[name] = store_config(table_of(keys, where), where, path.parent)
        except ConfigError as error:
            wrong[name] = error
    vhosts = table_of(table.get("vhosts", {}), f"{path}: [vhosts]")
    return Config(path, stores, vhosts, tuple(typed(list[str], table.get("disabled", []), f"{path}: disabled")), wrong)


def store_config(table: Mapping[str, Any], where: str, base: Path) -> StoreConfig:
    """Check the keys of one store. ``where`` begins each error. ``base`` is the directory of a relative path. Raises
    ConfigError."""
    refuse_unknown(table, [name for name in attrs.fields_dict(StoreConfig) if name not in ("where", "last_opened")], where)
    if "path" not in table:
        raise ConfigError(f"{where}: the key 'path' is missing. Write path = \"directory of the store\".")
    if isinstance(given := table.get("record"), Mapping):  # a store may bind several: byte and options belong to the format
        name, form = given.get("use", "NAME"), table.get("format") or "v2"
        form = form.get("use", "v2") if isinstance(form, Mapping) else form
        bound = f"{{ byte = {given.get('byte', 128)}, ... }}" if given.keys() - {"use", "byte"} else given.get("byte", 128)
        raise ConfigError(
            f"{where} record: {dict(given)!r} is not a name. Write record = {json.dumps(name, default=str)} and "
            f'format = {{ use = "{form}", records = {{ {name} = {bound} }} }}.'
        )
    observers = {}
    for name, options in table_of(table.get("observers", {}), f"{where} observers").items():
        place = f"{where} observers {name}"
        observers[name] = {
            key: typed(str, value, f"{place} {key}", base) if is_elsewhere(value) else value
            for key, value in table_of(options, place).items()
        }
    return attrs.evolve(structure(StoreConfig, table, where, base), where=where, observers=observers)
