"""Checks of what a plugin registers: descriptors that can never work, and backends that lack a method of their protocol."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import attrs

from msgstore import contract
from msgstore.contract import (
    BodyCodecDescriptor,
    Capability,
    Descriptor,
    GcPolicyDescriptor,
    IndexDescriptor,
    RecordTypeDescriptor,
    SegmentFormatDescriptor,
    SinkDescriptor,
    SourceDescriptor,
)

RESERVED_EXTENSIONS = (
    ".tmp", ".erase", ".hint", ".damaged", ".dot", ".ets", ".json", ".lock", ".mdb", ".snapshot", ".toml",
    ".csv", ".jsonl", ".ndjson", ".parquet",
)  # fmt: skip
"""Extensions of other files in and next to store directories, in lower case. Some file systems ignore case."""
SCAN_COLUMNS = frozenset({"store", "file", "format", "offset", "size", "type", "id", "body", "references"})
"""Columns of every scan: no field has one of these names."""

_PROTOCOLS: dict[tuple[type[Descriptor], Capability | None], type] = {
    (SegmentFormatDescriptor, None): contract.SegmentFormat,
    (SegmentFormatDescriptor, Capability.COMPACTABLE): contract.CompactableFormat,
    (SegmentFormatDescriptor, Capability.FIELDS): contract.RecordFields,
    (RecordTypeDescriptor, None): contract.RecordType,
    (RecordTypeDescriptor, Capability.FIELDS): contract.RecordFields,
    (IndexDescriptor, None): contract.Index,
    (GcPolicyDescriptor, None): contract.GcPolicy,
    (BodyCodecDescriptor, None): contract.BodyCodec,
    (BodyCodecDescriptor, Capability.FIELDS): contract.BodyCodecWithFields,
    (SourceDescriptor, None): contract.Source,
    (SourceDescriptor, Capability.RANDOM_ACCESS): contract.RandomAccessSource,
    (SourceDescriptor, Capability.SHARED_BODIES): contract.SharedBodiesSource,
    (SinkDescriptor, Capability.JOINS): contract.JoiningSink,
    (SinkDescriptor, None): contract.Sink,
}
"""Protocol of the objects that each kind's factory makes, and of the optional methods of a capability. Job runners are not part
of the contract, and commands are click's."""

_CAPABILITIES: dict[type[Descriptor], set[Capability]] = {
    SegmentFormatDescriptor: {
        Capability.SELF_DESCRIBING, Capability.COMPACTABLE, Capability.TYPED_RECORDS, Capability.VERBATIM, Capability.FRAMED,
        Capability.FIELDS,
    },
    RecordTypeDescriptor: {Capability.FRAMED, Capability.FIELDS},
    IndexDescriptor: {Capability.PERSISTENT, Capability.LIVE_READS},
    GcPolicyDescriptor: {Capability.DROPS_MESSAGES},
    BodyCodecDescriptor: {Capability.FIELDS, Capability.PLAIN},
    SourceDescriptor: {Capability.RANDOM_ACCESS, Capability.SHARED_BODIES, Capability.REFLOW},
    SinkDescriptor: {Capability.JOINS},
}  # fmt: skip
"""Capabilities that each kind may claim; the other kinds have none."""

CONTRACT_METHODS = {
    name for protocol in _PROTOCOLS.values() for name, value in vars(protocol).items() if inspect.isfunction(value)
}
"""Names of the methods that plugins implement."""

_READ_BY_TOOLS = {RecordTypeDescriptor: "records", SegmentFormatDescriptor: "segments"}


def check_descriptor(descriptor: object, expected: type[Descriptor] = Descriptor) -> None:
    """Raise ValueError or TypeError for a descriptor that can never work."""
    if not isinstance(descriptor, expected):
        raise TypeError(f"returned {descriptor!r}, not a {expected.__name__}")
    if not (isinstance(descriptor.options, type) and attrs.has(descriptor.options)):
        raise ValueError(f"the options {descriptor.options!r} are not an attrs class")
    if not (isinstance(descriptor.contract, tuple) and [*map(type, descriptor.contract)] == [int, int]):
        raise ValueError(f"the contract version {descriptor.contract!r} is not a pair of numbers, such as (1, 0)")
    if not (descriptor.examples and all(isinstance(example, Mapping) for example in descriptor.examples)):
        raise ValueError(f"the examples {descriptor.examples!r} are not sets of options, such as ({{}},)")
    known = next((found for kind, found in _CAPABILITIES.items() if isinstance(descriptor, kind)), set[Capability]())
    for other in descriptor.capabilities - known:
        raise ValueError(f"a {type(descriptor).__name__} cannot claim the capability {other.name}")
    names = [field.name for field in descriptor.fields]
    if taken := SCAN_COLUMNS.intersection(names):
        raise ValueError(f"a field cannot be named {min(taken)!r}: every scan has a column of this name")
    if len(set(names)) < len(names):
        raise ValueError(f"two fields have the same name: {', '.join(names)}")
    if bool(names) != (Capability.FIELDS in descriptor.capabilities):
        raise ValueError("a backend has fields if, and only if, it claims the capability FIELDS")
    if names and isinstance(descriptor, SegmentFormatDescriptor):
        if Capability.TYPED_RECORDS in descriptor.capabilities:
            raise ValueError("a format with the capability TYPED_RECORDS has no fields: its record types have them")
        if Capability.VERBATIM not in descriptor.capabilities:
            raise ValueError("a format with fields claims the capability VERBATIM: otherwise salvage would lose them")
    if Capability.COMPACTABLE in descriptor.capabilities and Capability.SELF_DESCRIBING not in descriptor.capabilities:
        raise ValueError("a format with the capability COMPACTABLE claims SELF_DESCRIBING, too")
    what = next((text for kind, text in _READ_BY_TOOLS.items() if isinstance(descriptor, kind)), "")
    for option in attrs.fields(descriptor.options) if what else ():
        if option.name == "byte" and isinstance(descriptor, RecordTypeDescriptor):
            raise ValueError("an option of a record type cannot be named 'byte': this key sets the type byte")
        if option.default is attrs.NOTHING:
            raise ValueError(f"the option {option.name!r} has no default: {what} are also read without a configuration")
    if "use" in attrs.fields_dict(descriptor.options) and not isinstance(descriptor, RecordTypeDescriptor):
        raise ValueError("an option cannot be named 'use': this key selects the backend")
    if isinstance(descriptor, SinkDescriptor):
        for name in ("endings", "schemes", "changeable"):
            texts = getattr(descriptor, name)
            if not (isinstance(texts, tuple) and all(isinstance(one, str) for one in texts)):
                raise ValueError(f"the {name} {texts!r} are not a tuple of text, such as ('one',)")
        for ending in descriptor.endings:
            if re.fullmatch(r"\.[^/]+", ending) is None:
                raise ValueError(f"the ending {ending!r} does not begin with '.', such as '.acme'")
    for extension in extensions_of(descriptor):
        if not isinstance(extension, str) or re.fullmatch(r"\.[A-Za-z0-9_]+", extension) is None:
            raise ValueError(f"the extension {extension!r} is not '.' followed by letters, digits and '_', such as '.acme'")
        if extension.lower() in RESERVED_EXTENSIONS:
            raise ValueError(
                f"the extension {extension!r} is used by other files of a store; choose another one, such as '.acme'"
            )
        if [one.lower() for one in extensions_of(descriptor)].count(extension.lower()) > 1:
            raise ValueError(f"the extension {extension!r} cannot be used for both segments and leftovers")


def extensions_of(descriptor: Descriptor) -> tuple[str, ...]:
    """Return the extensions of a segment format, that of its segments last; empty for other descriptors."""
    if not isinstance(descriptor, SegmentFormatDescriptor):
        return ()
    return *descriptor.leftover_extensions, descriptor.extension


def missing_names(backend: object, descriptor: Descriptor) -> Iterator[str]:
    """Yield the names that the protocols of the descriptor require and ``backend`` does not have, and the signature of each
    method that takes another number of arguments; each with what the backend has instead."""
    for (kind, capability), protocol in _PROTOCOLS.items():
        if not isinstance(descriptor, kind) or capability not in (None, *descriptor.capabilities):
            continue
        yield from (name for name in inspect.get_annotations(protocol) if not hasattr(backend, name))
        for name, method in vars(protocol).items():
            public = not name.startswith("_") or name == "__len__"
            if not public or not inspect.isfunction(method):
                continue
            if not callable(given := getattr(backend, name, None)):
                near = get_close_matches(name, [one for one in dir(backend) if one not in CONTRACT_METHODS], n=1)
                yield name + (f" (it has {near[0]})" if near else "")
            elif not _accepts(given, method):
                yield f"{name}{_parameters(method)} (it has {name}{_parameters(getattr(given, '__func__', given))})"


def _parameters(function: Any) -> str:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return f"({', '.join(name for name in names if name != 'self')})"


def _accepts(method: object, asked: types.FunctionType) -> bool:
    """Return False if a method is written in Python and cannot be called with the arguments of ``asked``, a protocol's method.

    Reads the code object: ``inspect.signature`` would take a millisecond of every opening.
    """
    function = getattr(method, "__func__", method)
    if not inspect.isfunction(function):
        return True
    code, wanted = function.__code__, asked.__code__
    count, known = wanted.co_argcount - 1, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    keywords = {*wanted.co_varnames[wanted.co_argcount :][: wanted.co_kwonlyargcount]}
    if not keywords.issubset(known) and not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    most = code.co_argcount - (function is not method)
    least = most - len(function.__defaults__ or ())
    return least <= count and (count <= most or bool(code.co_flags & inspect.CO_VARARGS))
