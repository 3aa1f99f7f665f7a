"""Configuration: one TOML file, checked key by key. Reading it loads no plugin and opens no store.

:func:`structure` checks the options of a plugin against the attrs class of its descriptor. It runs when a store that selects
the plugin is opened, and in ``msgstore config check``. Its errors have the same form: file, table, key, and the nearest known
key.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
import tomllib
import typing
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import attrs
import cattrs

from msgstore.contract import ConfigError, Duration, Size
from msgstore.files import stat_regular_file
from msgstore.units import parse_duration, parse_size

T = TypeVar("T")

OnLegacy = Literal["read", "migrate", "refuse"]
Reads = Literal["pread", "mmap"]


@attrs.frozen
class FsyncEvery:
    """Durability ``{ fsync_every = "100ms" }``: a sync of confirmed messages begins at most about this time later."""

    fsync_every: Duration
    """Longest time from the confirm to the begin of the sync, rarely up to a second more."""


Durability = Literal["os", "fsync"] | FsyncEvery


@attrs.frozen
class Backend:
    """Selection of a backend: a name, or a table with ``use`` and the backend's own options."""

    name: str
    options: Mapping[str, Any] = attrs.field(factory=dict, hash=False, repr=False)
    named: bool = attrs.field(default=True, eq=False, repr=False)
    """False if the configuration names none and this is the default, or what the directory remembers."""
    base: Path = attrs.field(default=Path(), repr=False)
    """Directory of the configuration file. Paths among the options are relative to it."""


def backend_of(given: str | Backend) -> Backend:
    """Return the backend that a command line names: NAME, or a JSON object with ``use`` and options. Raises ConfigError."""
    if isinstance(given, Backend):
        return given
    if not given.lstrip().startswith("{"):
        return Backend(given)
    try:  # the text may hold a secret: no error shows it
        return _structure_backend(json.loads(given), Path())
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"a backend's options are not JSON: {error}") from None
    except ValueError:
        raise ConfigError('a backend with options is a JSON object with the member "use", its name') from None


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
    "100ms" }``, passed to the operating system, and a sync begins at most about that time later."""
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
    before it returns."""
    max_unconfirmed: Size = Size(64 * 2**20)
    """Limit of uncommitted bytes: those written that no commit of the index covers, confirmed or not. Each message counts as
    its body plus 1 KiB. A writer that comes near the limit flushes before it continues. With ``fsync_every`` this flush
    commits only beyond the limit. More than 128 clients may exceed it by 256 KiB each."""
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
            )
        return self.stores[name]

    def find(self, given: str | Path) -> StoreConfig | None:
        """Return the configuration of the store with this name or directory, or None. Raises ConfigError for a wrong one."""
        if str(given) in self.names:
            return self.store(str(given))
        place = os.path.realpath(given)
        return next((one for one in self.stores.values() if os.path.realpath(one.path) == place), None)


def read_config(path: str | Path) -> Config:
    """Read the file ``path``, and check each table. Store paths become relative to its directory. Raises ConfigError for the
    file as a whole: wrong tables of stores are in the result."""
    path = Path(path)
    try:
        with path.open("rb") as stream:
            table = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: cannot be read as TOML: it is nested too deeply") from error
    refuse_unknown(table, ["disabled", "stores"], f"{path}: top level")
    stores, wrong = {}, {}
    for name, keys in _tables(table.get("stores", {}), f"{path}: [stores]").items():
        where = f"{path}: [stores.{name}]"
        try:
            stores[name] = store_config(_tables(keys, where), where, path.parent)
        except ConfigError as error:
            wrong[name] = error
    return Config(path, stores, tuple(_typed(list[str], table.get("disabled", []), f"{path}: disabled")), wrong)


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
    for name, options in _tables(table.get("observers", {}), f"{where} observers").items():
        place = f"{where} observers {name}"
        observers[name] = {
            key: _typed(str, value, f"{place} {key}", base) if _is_elsewhere(value) else value
            for key, value in _tables(options, place).items()
        }
    return attrs.evolve(structure(StoreConfig, table, where, base), where=where, observers=observers)


def structure(options: type[T], table: Mapping[str, Any], where: str, base: Path | None = None) -> T:
    """Return ``table`` as an instance of the attrs class ``options``. Raises ConfigError with ``where`` and the key.

    A member that is an attrs class is a table. With ``base``, which only a configuration or a command line has, paths become
    relative to it, ``~`` is expanded, and for text there may be ``{ env = "NAME" }``, an environment variable, or ``{ file =
    "PATH" }``, a file, without the line break at its end.
    """
    fields = attrs.fields_dict(cast("type[attrs.AttrsInstance]", options))
    refuse_unknown(table, fields, where)
    missing = [name for name, field in fields.items() if field.default is attrs.NOTHING and name not in table]
    if missing:
        raise ConfigError(f"{where}: the key {missing[0]!r} is missing")
    place, values = where, {}
    try:
        hints = _hints(cast("Hashable", options))
        for name, value in table.items():
            place = f"{where} {name}"
            values[name] = _typed(hints[name], value, place, base)
        place = where
        try:
            return options(**values)
        except (TypeError, ValueError) as error:  # a validator of the class itself
            raise ConfigError(f"{where}: {error}") from error
    except ConfigError:
        raise
    except Exception as error:  # of a plugin's class, such as annotations that cannot be resolved
        raise ConfigError(
            f"{place}: the class of options {options.__module__}.{options.__qualname__} cannot be used: "
            f"{type(error).__name__}: {error}"
        ) from error


@functools.cache
def _hints(options: Hashable) -> dict[str, Any]:
    """Return the type hints of a class. Cached: compiling annotations is slow, and every opening needs those of all its
    plugins."""
    return typing.get_type_hints(options)


def _tables(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {value!r} is not a table")
    return value


def refuse_unknown(table: Mapping[str, Any], known: typing.Iterable[str], where: str) -> None:
    """Raise ConfigError with the nearest known key if ``table`` has an unknown one."""
    known = list(known)
    for key in table:
        if key not in known:
            hint = nearest(key, known) or f". Known keys: {', '.join(known) or 'none'}"
            raise ConfigError(f"{where}: unknown key {key!r}{hint}")


def nearest(name: object, known: typing.Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the known one that is nearest, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1) if isinstance(name, str) else []
    return f". Did you mean {near[0]!r}?" if near else ""


def _typed(kind: Any, value: object, where: str, base: Path | None = None) -> Any:
    if typing.get_origin(kind) is list and not isinstance(value, list | tuple):  # text would be split into letters
        raise ConfigError(f'{where}: {_kind(value)} is not a list. Write it in brackets, as in ["a", "b"].')
    try:
        return _converter(base).structure(value, kind)
    except ConfigError as error:  # of a nested table: it begins with the key in that table
        raise ConfigError(f"{where}{error}") from error.__cause__
    except AttributeError:  # cattrs takes anything for a mapping
        raise ConfigError(f"{where}: {_kind(value)} is not a table") from None
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _exactly(kind: Callable[[Any], object], noun: str, *kinds: type) -> Any:
    def check(value: object, _: object) -> object:
        if type(value) not in (kinds or (kind,)):
            raise ValueError(f"{value!r} is not {noun}")
        return kind(value)

    return check


def _is_literal(kind: object) -> bool:
    return typing.get_origin(kind) is Literal


def _literal(value: object, kind: Any) -> object:
    choices = typing.get_args(kind)
    if value not in choices:
        raise ValueError(f"{value!r} is not one of {', '.join(map(repr, choices))}{nearest(value, choices)}")
    return value


def _structure_durability(value: object, _: object) -> Any:
    if isinstance(value, FsyncEvery) or value in ("os", "fsync"):
        return value
    if isinstance(value, Mapping) and list(value) == ["fsync_every"]:
        every = parse_duration(value["fsync_every"])
        if not every:
            raise ValueError('fsync_every = 0 syncs after every flush. Write durability = "fsync".')
        return FsyncEvery(every)
    near = nearest(value, ("os", "fsync"))
    raise ValueError(f"""{value!r} is not one of 'os', 'fsync', {{ fsync_every = "100ms" }}{near}""")


def _structure_backend(value: object, base: Path) -> Backend:
    if isinstance(value, Backend):
        return value
    if isinstance(value, str) and not value.lstrip().startswith("{"):  # JSON that is not valid may hold a secret
        return Backend(value)
    if isinstance(value, Mapping) and isinstance(value.get("use"), str):
        options = {key: option for key, option in value.items() if key != "use"}
        return Backend(value["use"], options, base=base if options else Path())
    raise ValueError(f'{_kind(value)} is neither a name nor a table with the key use, such as {{ use = "NAME" }}')


def _kind(value: object) -> str:
    """Return what an error says of a value that may hold a secret."""
    if isinstance(value, Mapping):
        return f"a table with the keys {', '.join(map(str, value))}"
    return {str: "text", int: "an integer", list: "a list"}.get(type(value), f"a {type(value).__name__}")


def _path(value: object, base: Path | None) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"{value!r} is not a path")
    if "\0" in str(value):
        raise ValueError(f"{value!r} is not a path: it contains a NUL character")
    try:
        return Path(value) if base is None else base / Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{str(value)!r}: there is no such user. Write the full directory.") from error


_MAX_FILE = 2**20
"""Bytes of a file that an option names: a key, not a device."""


def _is_elsewhere(value: object) -> bool:
    return isinstance(value, Mapping) and list(value) in (["env"], ["file"])


def _text(value: object, base: Path | None) -> str:
    if isinstance(value, str):
        return value
    if base is None or not (isinstance(value, Mapping) and _is_elsewhere(value)):
        known = """, { env = "NAME" } or { file = "PATH" }""" if base is not None and isinstance(value, Mapping) else ""
        raise ValueError(f"{_kind(value)} is not text{known}")
    [(source, name)] = value.items()  # what must not be in the configuration file
    if source == "env" and isinstance(name, str):
        if name not in os.environ:
            raise ValueError(f"the environment variable {name} is not set")
        return os.environ[name]
    path = _path(name, base)
    try:
        if stat_regular_file(path)[0] > _MAX_FILE:
            raise ValueError(f"{path}: is larger than {_MAX_FILE} bytes")
        return path.read_text(encoding="utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not text in UTF-8") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from error


def _nested(value: object, kind: type[T], base: Path | None) -> T:
    if not isinstance(value, Mapping):
        raise TypeError(f"{_kind(value)} is not a table")
    return structure(kind, value, "", base)


@functools.cache
def _converter(base: Path | None) -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)  # the first error, as itself
    converter.register_structure_hook_func(attrs.has, lambda value, kind: _nested(value, kind, base))
    converter.register_structure_hook(Size, lambda value, _: parse_size(value))
    converter.register_structure_hook(Duration, lambda value, _: parse_duration(value))
    converter.register_structure_hook(Backend, lambda value, _: _structure_backend(value, base or Path()))
    converter.register_structure_hook(Path, lambda value, _: _path(value, base))
    converter.register_structure_hook(int, _exactly(int, "an integer"))
    converter.register_structure_hook(bool, _exactly(bool, "true or false"))
    converter.register_structure_hook(float, _exactly(float, "a number", float, int))
    converter.register_structure_hook(str, lambda value, _: _text(value, base))
    converter.register_structure_hook_func(_is_literal, _literal)
    converter.register_structure_hook_func(lambda kind: kind == Durability, _structure_durability)
    return converter
