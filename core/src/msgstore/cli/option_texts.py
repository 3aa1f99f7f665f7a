"""Options of a backend as people read them: types and defaults as in a configuration file, in Markdown; and what a command
prints if options are missing or may be wrong."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import attrs

from msgstore.cli import output
from msgstore.contract import Duration, NoOptions, RecordTypeDescriptor, Size
from msgstore.directory import has_settings
from msgstore.jobs.reading.chains import INVALID_BODY
from msgstore.jobs.reports import SpanReport
from msgstore.option_values import Backend
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan.formats import OWN_RECORD, THIRD_PARTY_BYTES

_UNKNOWN_TYPE = "unrecognised_record_type"
"""Reason for damage in format v2."""


def toml_type(kind: Any) -> str:
    """Return the name of a type."""
    names = {Size: "size", Duration: "time", Backend: "backend", Path: "path", str: "text", bool: "boolean", int: "integer"}
    names |= {float: "number", type(None): "nothing"}
    if kind in names:
        return names[kind]
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return " or ".join(f'`"{value}"`' for value in inner)
    if typing.get_origin(kind) is Mapping:
        return "table"
    if typing.get_origin(kind) is tuple:
        return f"list of {toml_type(inner[0])}"
    if attrs.has(kind):
        return "`{ " + ", ".join(f"{field.name} = {toml_type(field.type)}" for field in hinted_fields(kind)) + " }`"
    if inner and typing.get_origin(kind) is not None and not isinstance(kind, type):  # X | Y
        return " or ".join(toml_type(part) for part in inner if part is not type(None))
    return "table"


def hinted_fields(kind: Any) -> tuple[attrs.Attribute[Any], ...]:
    """Return the fields of an attrs class, with types that are resolved."""
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(attrs.resolve_types(kind))
    return fields


def note_defaults(catalogue: Catalogue, format_name: str, record: str | None, remedy: str) -> None:
    """Say that records are written without a configuration, if their type has options."""
    if record not in (None, OWN_RECORD):
        names = ", ".join(attrs.fields_dict(catalogue.record(format_name, str(record)).options))
        if names:
            output.note(f"records of the type {record} are written with the defaults of its options ({names}); {remedy}")


def note_missing_keys(catalogue: Catalogue, names: Iterable[str], remedy: str) -> None:
    """Say which secret options these record types have, if any, for a command that was given none of them."""
    types = catalogue.descriptors(RecordTypeDescriptor)
    secrets = {one.name: [field.name for field in attrs.fields(one.options) if field.repr is False] for one in types}
    if listed := [f"{name} ({', '.join(secrets[name])})" for name in sorted(set(names)) if secrets.get(name)]:
        what = "records are read without the secrets of their types, so nothing that needs them is checked"
        output.note(f"{what}: {', '.join(listed)}. {remedy}")


def print_doubt(out: output.Output, codec: Backend | None, spans: Iterable[SpanReport], catalogue: Catalogue) -> None:
    """If ``codec`` refuses bodies, and has options such as a key, say that these may be wrong."""
    if codec is None or all(span.reason != INVALID_BODY for span in spans):
        return
    if catalogue.body_codec(codec.name).options is not NoOptions:
        doubt = f"the bodies are damaged, or were written with other options of the codec {codec.name!r}: compare them first"
        out.print(f"{INVALID_BODY}: {doubt}", "yellow")


def print_unbound_type(out: output.Output, spans: Iterable[SpanReport], catalogue: Catalogue, option: str) -> None:
    """Print a hint if damage begins with a byte that may be the type of a third party's record, in a directory that remembers
    no types."""
    for span in spans:
        if span.reason == _UNKNOWN_TYPE and not has_settings(Path(span.path).parent):
            with suppress(OSError), Path(span.path).open("rb") as file:
                file.seek(span.offset)
                if (byte := (file.read(1) or b"\0")[0]) in THIRD_PARTY_BYTES:
                    names = ", ".join(sorted({one.name for one in catalogue.descriptors(RecordTypeDescriptor)} - {OWN_RECORD}))
                    there = f"installed: {names}" if names else "none is installed"
                    out.print(f"If {byte} is the type byte of records, name their type: {option} NAME={byte} ({there}).", "dim")
                    return


def toml_value(kind: Any, value: Any) -> str:
    """Return a default as it would be written in a configuration file."""
    if value is attrs.NOTHING:
        return "must be given"
    if isinstance(value, attrs.Factory) and not value.takes_self:  # type: ignore[arg-type]
        value = value.factory()
    # A default may be of any type: equality with these three is always defined.
    if value is None or isinstance(value, attrs.Factory) or value in ((), [], {}):  # type: ignore[arg-type]
        return "none"
    if isinstance(value, Backend):
        return f'`"{value.name}"`'
    if attrs.has(type(value)):
        members = {one.name: toml_value(one.type, getattr(value, one.name)) for one in hinted_fields(type(value))}
        given = [f"{name} = {text.strip('`')}" for name, text in members.items() if text != "none"]
        return f"`{{ {', '.join(given)} }}`"
    if isinstance(value, list | tuple):
        return f"`[{', '.join(toml_value(None, one).strip('`') for one in value)}]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if kind in (Size, Duration) and value == 0:
        return "`0`"
    if kind is Size and isinstance(value, int):
        units = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "MB": 10**6, "kB": 10**3, "B": 1}
        found = (f'`"{value // size}{unit}"`' for unit, size in units.items() if value >= size and value % size == 0)
        return next(found, f"`{value}`")
    if kind is Duration and isinstance(value, int | float):
        times = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3}
        return next((f'`"{value / size:g}{unit}"`' for unit, size in times.items() if value >= size), f"`{value}`")
    return f'`"{value}"`' if isinstance(value, str | Path) else f"`{value}`"
