"""The configuration: one TOML file, checked key by key. Reading it loads no plugin and opens no store.

A plugin's own options are checked by :func:`structure` against the attrs class on its descriptor, when the store that selects
it is opened (or by ``msgstore config check``), with the same errors: file, table, key, and the nearest known key.
"""

from __future__ import annotations

import difflib
import functools
import json
import tomllib
import typing
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import attrs
import cattrs

from msgstore.contract import ConfigError, Duration, Size
from msgstore.units import parse_duration, parse_size

T = TypeVar("T")

OnLegacy = Literal["read", "migrate", "refuse"]
Reads = Literal["pread", "mmap"]


@attrs.frozen
class FsyncEvery:
    """``{ fsync_every = "100ms" }``: what is confirmed is synced that much later."""

    fsync_every: Duration
    """At most this long after it was confirmed."""


Durability = Literal["os", "fsync"] | FsyncEvery


@attrs.frozen
class Backend:
    """A backend as it is selected: a name, or a table with ``use`` and the backend's own options."""

    name: str
    options: Mapping[str, Any] = attrs.field(factory=dict)
    named: bool = attrs.field(default=True, eq=False, repr=False)
    """False if it is the default of a configuration that names none."""


def _backend(name: str) -> Any:
    return attrs.field(default=Backend(name, named=False))


@attrs.frozen(kw_only=True)
class StoreConfig:
    """One table ``[stores.NAME]``, or the keywords of ``open_store``. Defaults are those of the documentation."""

    path: Path
    """The directory. Relative to the file (for ``open_store``: to the working directory); ``~`` is expanded. Made when the
    store is opened for writing."""
    index: Backend = _backend("ets")
    """Where ids are looked up. Opening with another index than last time takes entries and counts over."""
    format: Backend = _backend("v2")
    """What new segments are written in. Found segments are read by their extension. Refused if the directory has segments of a
    newer format."""
    record: str = "message"
    """The record type of new messages, in formats that have types. One whose byte the format assigns need not be bound."""
    body: Backend = _backend("raw")
    """The codec between what clients see and what is stored. Not named: the one that the directory remembers; once there are
    segments, no other one writes."""
    gc: Backend = _backend("half-empty")
    """The policy that says what is collected."""
    erase: bool = False
    """Overwrite the bytes of what was removed with zeros before the file system gets them back: segments are collected by
    copying, and zeros are written over the old file before it goes."""
    gc_interval: Duration = Duration(1.0)
    """How often a thread asks the policy what to collect; it also looks when a segment is full, and when much was removed. 0:
    nothing is collected but by ``compact()``, and there is no thread. Commands of the command line collect only what they are
    told to."""
    on_legacy: OnLegacy = "read"
    """What becomes of segments of an older format than ``format``: ``"read"`` reads them, ``"migrate"`` rewrites them at
    opening, ``"refuse"`` refuses to open for writing."""
    adopt: bool = False
    """Open a directory for writing that a broker wrote: one with segments and without ``msgstore.json``. Released RabbitMQ
    reads the result as long as all segments are ``*.rdq``. Changes nothing for any other directory."""
    durability: Durability = "os"
    """What confirmed means: ``"os"``, handed to the operating system; ``"fsync"``, synced to the disk;
    ``{ fsync_every = "100ms" }``, handed to the operating system, and synced that much later at most."""
    reads: Reads = "pread"
    """How messages are read: ``"pread"``, a system call each, or ``"mmap"``, from mappings of the segments: about twice as fast
    when the files are in memory."""
    file_size_limit: Size = Size(16 * 2**20)
    """A segment that has reached it takes no more records. The record that reaches it may go beyond it."""
    large_message: Size = Size(4_000_000)
    """A body of at least this size gets a segment of its own, so that its removal frees the space at once."""
    sync_interval: Duration = Duration(0.2)
    """After a first change a flush follows within this time. 0: every call flushes before it returns, and there is no
    thread."""
    max_unconfirmed: Size = Size(64 * 2**20)
    """So much may be written and not confirmed, with every durability, each message counted with 1 KiB beside its body. A
    writer that comes there flushes before it goes on."""
    shared_cache: Size = Size(16 * 2**20)
    """Bodies with several references that are kept in memory, so that all their readers get one object. 0: none are."""
    where: str = attrs.field(default="", eq=False)
    """What error messages begin with: file and table, or the call."""

    @property
    def fsync_every(self) -> float | None:
        """Seconds between syncs; None if each flush syncs, or none does."""
        return self.durability.fsync_every if isinstance(self.durability, FsyncEvery) else None


@attrs.frozen
class Config:
    file: Path
    stores: Mapping[str, StoreConfig] = attrs.field(factory=dict)
    """One table a store; its name is what ``open`` and the command line take."""
    disabled: tuple[str, ...] = ()
    """Entry points of the group ``msgstore`` that are not loaded: ``"NAME"`` or ``"DISTRIBUTION:NAME"``. ``msgstore plugins
    --json`` shows them. An observer that is named here is not told of anything. One that is not installed is refused."""

    def store(self, name: str) -> StoreConfig:
        """Raises ConfigError naming the stores that there are."""
        if name not in self.stores:
            raise ConfigError(
                f"{self.file}: there is no table [stores.{name}]; "
                f"stores: {', '.join(self.stores) or 'none'}{_nearest(name, self.stores)}"
            )
        return self.stores[name]


def read_config(path: str | Path) -> Config:
    """Read and check ``path``. Relative store paths are relative to the file. Raises ConfigError."""
    path = Path(path)
    try:
        with path.open("rb") as stream:
            table = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: is not TOML that can be read: it is nested too deeply") from error
    refuse_unknown(table, ["disabled", "stores"], f"{path}: top level")
    stores = _tables(table.get("stores", {}), f"{path}: [stores]")
    return Config(
        path,
        {
            name: store_config(_tables(keys, f"{path}: [stores.{name}]"), f"{path}: [stores.{name}]", path.parent)
            for name, keys in stores.items()
        },
        tuple(_typed(list[str], table.get("disabled", []), f"{path}: disabled")),
    )


def store_config(table: Mapping[str, Any], where: str, base: Path) -> StoreConfig:
    """Check one store's keys. ``where`` begins each error; ``base`` is what a relative path is relative to."""
    refuse_unknown(table, [name for name in attrs.fields_dict(StoreConfig) if name != "where"], where)
    if "path" not in table:
        raise ConfigError(f'{where}: the key path is missing; write path = "directory of the store"')
    if isinstance(table.get("record"), Mapping):
        raise ConfigError(_record_as_table(table["record"], table.get("format"), where))
    config = structure(StoreConfig, table, where)
    try:
        path = base / config.path.expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{where} path: {str(config.path)!r}: there is no such user; write the directory in full") from error
    return attrs.evolve(config, path=path, where=where)


def structure(options: type[T], table: Mapping[str, Any], where: str) -> T:
    """``table`` as the attrs class ``options``. Raises ConfigError with ``where`` and the key."""
    fields = attrs.fields_dict(cast("type[attrs.AttrsInstance]", options))
    refuse_unknown(table, fields, where)
    missing = [name for name, field in fields.items() if field.default is attrs.NOTHING and name not in table]
    if missing:
        raise ConfigError(f"{where}: the key {missing[0]} is missing")
    with _usable(options, where):
        hints = _hints(cast("Hashable", options))
    values = {}
    for name, value in table.items():
        with _usable(options, f"{where} {name}"):
            values[name] = _typed(hints[name], value, f"{where} {name}")
    with _usable(options, where):
        try:
            return options(**values)
        except (TypeError, ValueError) as error:  # a validator of the class itself
            raise ConfigError(f"{where}: {error}") from error


@functools.cache
def _hints(options: Hashable) -> dict[str, Any]:
    """Of a class. To find them each annotation is compiled, and every opening asks for those of all its plugins."""
    return typing.get_type_hints(options)


@contextmanager
def _usable(options: type, where: str) -> Iterator[None]:
    """Around what a plugin's class decides: an annotation may name nothing that there is, and a validator may fail."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{where}: the class of options {options.__module__}.{options.__qualname__} cannot be used: "
            f"{type(error).__name__}: {error}"
        ) from error


def _record_as_table(given: Mapping[str, Any], form: object, where: str) -> str:
    """What to write instead: a record type's byte and options are the format's, as a store may bind several."""
    name = given.get("use", "NAME")
    form = form.get("use") if isinstance(form, Mapping) else form
    byte = given.get("byte", 128)
    bound = f"{{ byte = {byte}, ... }}" if given.keys() - {"use", "byte"} else byte
    return (
        f"{where} record: {dict(given)!r} is not a name; write record = {json.dumps(name, default=str)} and "
        f'format = {{ use = "{form or "v2"}", records = {{ {name} = {bound} }} }}'
    )


def _tables(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {value!r} is not a table")
    return value


def refuse_unknown(table: Mapping[str, Any], known: typing.Iterable[str], where: str) -> None:
    """Raises ConfigError with the nearest known key."""
    known = list(known)
    for key in table:
        if key not in known:
            hint = _nearest(key, known) or f"; known keys: {', '.join(known) or 'none'}"
            raise ConfigError(f"{where}: unknown key {key!r}{hint}")


def _nearest(name: str, known: typing.Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _typed(kind: Any, value: object, where: str) -> Any:
    if typing.get_origin(kind) is list and not isinstance(value, list | tuple):  # text would be taken apart into letters
        raise ConfigError(f"{where}: {value!r} is not a list; write [{json.dumps(value, default=str)}]")
    try:
        return _converter.structure(value, kind)
    except cattrs.BaseValidationError as error:
        raise ConfigError(f"{where}: {'; '.join(_leaves(error))}") from error
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _leaves(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [str(error)]


def _exactly(kind: type, noun: str) -> Any:
    def check(value: object, _: object) -> object:
        if type(value) is not kind:
            raise ValueError(f"{value!r} is not {noun}")
        return value

    return check


def _number(value: object, _: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")  # noqa: TRY004 - as for every wrong value
    return float(value)


def _is_literal(kind: object) -> bool:
    return typing.get_origin(kind) is Literal


def _literal(value: object, kind: Any) -> object:
    choices = typing.get_args(kind)
    if value not in choices:
        near = _nearest(value, choices) if isinstance(value, str) else ""
        raise ValueError(f"{value!r} is not one of {', '.join(map(repr, choices))}{near}")
    return value


def _structure_durability(value: object, _: object) -> Any:
    if isinstance(value, FsyncEvery):
        return value
    if isinstance(value, Mapping) and list(value) == ["fsync_every"]:
        every = parse_duration(value["fsync_every"])
        if not every:
            raise ValueError('fsync_every = 0 syncs after every flush: write durability = "fsync"')
        return FsyncEvery(every)
    if isinstance(value, str) and value in ("os", "fsync"):
        return value
    near = _nearest(value, ("os", "fsync")) if isinstance(value, str) else ""
    raise ValueError(f"""{value!r} is not one of 'os', 'fsync', {{ fsync_every = "100ms" }}{near}""")


def _structure_backend(value: object, _: object) -> Backend:
    if isinstance(value, Backend):
        return value
    if isinstance(value, str):
        return Backend(value)
    if isinstance(value, Mapping) and isinstance(value.get("use"), str):
        return Backend(value["use"], {key: option for key, option in value.items() if key != "use"})
    raise ValueError(f'{value!r} is neither a name nor a table with the key use, such as {{ use = "NAME" }}')


def _structure_path(value: object, _: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"{value!r} is not a path")
    if "\0" in str(value):
        raise ValueError(f"{value!r} is not a path: no name has a NUL character in it")
    return Path(value)


_converter = cattrs.Converter()
_converter.register_structure_hook(Size, lambda value, _: parse_size(value))
_converter.register_structure_hook(Duration, lambda value, _: parse_duration(value))
_converter.register_structure_hook(Backend, _structure_backend)
_converter.register_structure_hook(Path, _structure_path)
_converter.register_structure_hook(int, _exactly(int, "an integer"))
_converter.register_structure_hook(bool, _exactly(bool, "true or false"))
_converter.register_structure_hook(float, _number)
_converter.register_structure_hook(str, _exactly(str, "text"))
_converter.register_structure_hook_func(_is_literal, _literal)
_converter.register_structure_hook_func(lambda kind: kind == Durability, _structure_durability)
