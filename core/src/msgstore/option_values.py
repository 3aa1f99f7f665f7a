"""Values of options: checks the options of a store or of a plugin against the attrs class of its descriptor.

:func:`structure` runs when a store that selects the plugin is opened, and in ``msgstore config check``. Its errors have the
form of all errors about a configuration: file, table, key, and the nearest known key.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import attrs
import cattrs

from msgstore.contract import ConfigError, Duration, Size
from msgstore.error_texts import first_line, said
from msgstore.files import stat_regular_file
from msgstore.units import parse_duration, parse_size

T = TypeVar("T")


@attrs.frozen
class FsyncEvery:
    """Durability ``{ fsync_every = "100ms" }``: confirmed messages are synced a little later."""

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
    shorthands: Mapping[str, str] = attrs.field(factory=dict, eq=False, repr=False)
    """Name of an option to the word for it on the command line, such as ``--max-age``."""

    def structure(self, options: type[T], what: str, option: str) -> T:
        """Return the options as an instance of their class, for ``what``, such as "the source lines". Raises ConfigError."""
        for name, word in self.shorthands.items():
            if name not in attrs.fields_dict(cast("type[attrs.AttrsInstance]", options)):
                raise ConfigError(f"{word}: {what} has no such option")
        return structure(options, self.options, what, self.base, option)


class GivenText(str):
    """VALUE of an option NAME=VALUE on a command line. The type of the option decides how it is read."""

    __slots__ = ()

    def read(self, kind: Any) -> object:
        """Return a table if the value begins with ``{``. Else return a JSON string as its text; the value itself for an option
        that is text, a path, a name or a choice; and for another option its JSON, or the value if it is none."""
        if self.lstrip().startswith("{"):
            return _parse_table(self)
        try:
            found = json.loads(self)
        except (ValueError, RecursionError):
            return str(self)
        is_text = any(one in (str, Path, Backend) or _is_literal(one) for one in _alternatives(kind))
        return str(self) if is_text and not isinstance(found, str) else found


def _parse_table(given: str) -> object:
    """Parse a table as JSON or as a configuration file has it. Raises ValueError, which shows nothing of it: a secret may be in
    it."""
    with suppress(ValueError, RecursionError):
        return json.loads(given)
    with suppress(ValueError, RecursionError):
        parsed = tomllib.loads(f"table = {given.strip()}")
        if list(parsed) == ["table"]:
            return parsed["table"]
    raise ValueError('begins with "{", and is no table, neither { NAME = VALUE } as in a configuration file, nor JSON')


def backend_of(given: str | Backend) -> Backend:
    """Return the backend that a command line names: NAME, or a table with ``use`` and options, as in a configuration file or in
    JSON. Raises ConfigError."""
    if isinstance(given, Backend):
        return given
    try:
        return _structure_backend(_parse_table(given) if given.lstrip().startswith("{") else given, Path())
    except ValueError as error:
        raise ConfigError(f"a backend: {error}") from None


def structure(options: type[T], table: Mapping[str, Any], where: str, base: Path | None = None, option: str = "") -> T:
    """Return ``table`` as an instance of the attrs class ``options``. Raises ConfigError with ``where`` and the key.

    A member that is an attrs class is a table. With ``base``, which only a configuration or a command line has, paths become
    relative to it, ``~`` is expanded, and for text there may be ``{ env = "NAME" }``, an environment variable, or ``{ file =
    "PATH" }``, a file, without the line break at its end. ``option`` is what gives the keys on a command line.
    """
    fields = attrs.fields_dict(cast("type[attrs.AttrsInstance]", options))
    refuse_unknown(table, fields, where)
    missing = [name for name, field in fields.items() if field.default is attrs.NOTHING and name not in table]
    if missing:
        hint = f". Add {option} {missing[0]}=VALUE" if option else ""
        raise ConfigError(f"{where}: the key {missing[0]!r} is missing{hint}")
    values = typed_values(options, table, where, base)
    try:
        return options(**values)
    except (TypeError, ValueError) as error:  # a validator of the class itself
        raise ConfigError(f"{where}: {said(error)}") from error
    except Exception as error:
        raise _unusable(options, where, error) from error


def typed_values(options: type[Any], table: Mapping[str, Any], where: str, base: Path | None) -> dict[str, Any]:
    """Return the values of some keys as the attrs class ``options`` takes them. Raises ConfigError for the first wrong one."""
    refuse_unknown(table, attrs.fields_dict(options), where)
    place, values = where, {}
    try:
        hints = _hints(cast("Hashable", options))
        for name, value in table.items():
            place = f"{where} {name}"
            try:
                values[name] = typed(hints[name], value, place, base)
            except Exception:
                check_type(name, hints[name])  # of the plugin
                raise
    except ConfigError:
        raise
    except Exception as error:  # of a plugin's class, such as annotations that cannot be resolved
        raise _unusable(options, place, error) from error
    return values


def checks_of_keys(
    options: type[Any], table: Mapping[str, Any], where: str, base: Path | None, others: tuple[str, ...] = ()
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield ``where`` with a check of each key alone, also in nested tables, so that one error does not hide the others.

    ``others``: keys that the table may have beside the options.
    """
    fields, hints = attrs.fields_dict(options), dict[str, Any]()
    with suppress(Exception):  # a plugin's annotations may raise anything; ``typed_values`` reports it
        hints = _hints(cast("Hashable", options))
    for key, value in table.items():
        for kind in _alternatives(hints.get(key)) if isinstance(value, Mapping) else ():
            if attrs.has(kind) and kind is not Backend:
                yield from ((where, check) for _, check in checks_of_keys(kind, value, f"{where} {key}", base))
        if key in fields:
            yield where, partial(typed_values, options, {key: value}, where, base)
        else:
            yield where, partial(refuse_unknown, {key: value}, [*others, *fields], where)


def _unusable(options: type, place: str, error: Exception) -> ConfigError:
    name = f"{options.__module__}.{options.__qualname__}"
    return ConfigError(f"{place}: the class of options {name} cannot be used: {first_line(error)}")


@functools.cache
def _hints(options: Hashable) -> dict[str, Any]:
    """Return the type hints of a class. Cached: compiling annotations is slow, and every opening needs those of all its
    plugins."""
    return typing.get_type_hints(options)


def check_type(name: str, kind: Any) -> None:
    """Raise TypeError for an annotation for which a configuration has no value, or which a frozen class should not have."""
    is_usable = not _parts(kind) & {bytes, bytearray, dict, frozenset, list, set}
    for one in {kind, *_alternatives(kind)} - {type(None)}:
        try:
            _converter(None).structure(object(), one)
        except Exception as error:  # another one says that this is no value of a known type
            is_usable &= not isinstance(error, cattrs.StructureHandlerNotFoundError)
    if not is_usable:
        shown = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else kind
        known = "int, float, bool, str, Literal, Path, Size, Duration, tuple[str, ...], or an attrs class, each also | None"
        raise TypeError(f"the option {name!r} cannot be a {shown}, but {known}. For bytes take hexadecimal text")


def _parts(kind: Any) -> set[Any]:
    """Return a type, and the types in it."""
    return {kind, typing.get_origin(kind)}.union(*map(_parts, () if _is_literal(kind) else typing.get_args(kind)))


def table_of(value: object, where: str) -> Mapping[str, Any]:
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


def typed(kind: Any, value: object, where: str, base: Path | None = None) -> Any:
    if isinstance(value, GivenText):
        try:
            value = value.read(kind)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}. Write text that begins so in double quotes, as JSON does.") from None
    lists = {typing.get_origin(one) for one in _alternatives(kind)} & {list, tuple}
    is_none = value is None and type(None) in _alternatives(kind)
    if lists and not (is_none or isinstance(value, list | tuple)):  # text would be split into letters
        raise ConfigError(f'{where}: {_kind(value)} is not a list. Write it in brackets, as in ["a", "b"].')
    try:
        return _converter(base).structure(value, kind)
    except ConfigError as error:  # of a nested table: it begins with the key in that table
        raise ConfigError(f"{where}{error}") from error.__cause__
    except AttributeError:  # cattrs takes anything for a mapping
        raise ConfigError(f"{where}: {_kind(value)} is not a table") from None
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ConfigError(f"{where}: {said(error)}") from error


def _exactly(kind: Callable[[Any], object], noun: str, *kinds: type) -> Any:
    def check(value: object, _: object) -> object:
        if type(value) not in (kinds or (kind,)):
            raise ValueError(f"{_shown(value)} is not {noun}")
        return kind(value)

    return check


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types of ``X | Y``, or the type itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


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
    if isinstance(value, str) and not set(value) & set("{}[]=\"'"):  # a table that is not valid may hold a secret
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


def _shown(value: object) -> str:
    """Return a value as an error shows it. A table or a list may hold a secret."""
    return _kind(value) if isinstance(value, Mapping | list) else repr(value)


def _in_unit(parse: Callable[[Any], object], noun: str) -> Any:
    def check(value: object, _: object) -> object:
        if isinstance(value, Mapping | list):
            raise ValueError(f"{_shown(value)} is not a {noun}")  # noqa: TRY004 - as for a wrong text
        return parse(value)

    return check


def _path(value: object, base: Path | None) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"{_shown(value)} is not a path")
    if "\0" in str(value):
        raise ValueError(f"{value!r} is not a path: it contains a NUL character")
    try:
        return Path(value) if base is None else base / Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{str(value)!r}: there is no such user. Write the full directory.") from error


_MAX_FILE = 2**20
"""Bytes of a file that an option names: a key, not a device."""


def is_elsewhere(value: object) -> bool:
    return isinstance(value, Mapping) and list(value) in (["env"], ["file"])


def _text(value: object, base: Path | None) -> str:
    if isinstance(value, str):
        return value
    if base is None or not (isinstance(value, Mapping) and is_elsewhere(value)):
        known = """, { env = "NAME" } or { file = "PATH" }""" if base is not None and isinstance(value, Mapping) else ""
        raise ValueError(f"{_kind(value)} is not text{known}")
    [(source, name)] = value.items()  # what must not be in the configuration file
    if source == "env":
        if not isinstance(name, str):
            raise ValueError(f"{_shown(name)} is not the name of an environment variable")
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


def with_texts(value: object, base: Path) -> object:
    """Return the value of an option, with the texts that it takes from the environment or from files in their places."""
    if isinstance(value, GivenText) and value.lstrip().startswith("{"):
        with suppress(ValueError):  # ``structure`` reports it
            value = _parse_table(value)
    if isinstance(value, Backend):
        return [value.name, with_texts(value.options, value.base)]
    if isinstance(value, Mapping):
        with suppress(ValueError):  # a table of the plugin's own
            if is_elsewhere(value):
                return _text(value, base)
        return {key: with_texts(member, base) for key, member in value.items()}
    return [with_texts(member, base) for member in value] if isinstance(value, list) else value


def option_digests(backend: Backend, salt: bytes, without: Collection[str] = ()) -> dict[str, str]:
    """Return a hash of each option, its secrets included, to find out later whether another value is given. The hashes are slow
    to guess, because a file has them."""
    options = {name: with_texts(value, backend.base) for name, value in backend.options.items() if name not in without}
    return {
        name: hashlib.scrypt(
            json.dumps([name, value], sort_keys=True, default=repr).encode(), salt=salt, n=2**12, r=8, p=1, dklen=32
        ).hex()
        for name, value in options.items()
    }


def _nested(value: object, kind: type[T], base: Path | None) -> T:
    if not isinstance(value, Mapping):
        raise TypeError(f"{_kind(value)} is not a table")
    return structure(kind, value, "", base)


@functools.cache
def _converter(base: Path | None) -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)  # the first error, as itself
    converter.register_structure_hook_func(attrs.has, lambda value, kind: _nested(value, kind, base))
    converter.register_structure_hook(Size, _in_unit(parse_size, "size"))
    converter.register_structure_hook(Duration, _in_unit(parse_duration, "time"))
    converter.register_structure_hook(Backend, lambda value, _: _structure_backend(value, base or Path()))
    converter.register_structure_hook(Path, lambda value, _: _path(value, base))
    converter.register_structure_hook(int, _exactly(int, "an integer"))
    converter.register_structure_hook(bool, _exactly(bool, "true or false"))
    converter.register_structure_hook(float, _exactly(float, "a number", float, int))
    converter.register_structure_hook(str, lambda value, _: _text(value, base))
    converter.register_structure_hook_func(_is_literal, _literal)
    converter.register_structure_hook_func(lambda kind: kind == Durability, _structure_durability)
    return converter
