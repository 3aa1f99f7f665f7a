"""Reference of the contract: hooks, events, and each kind of backend with its descriptor, context and methods."""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import attrs

import msgstore.contract
from msgstore import hookspecs
from msgstore.contract import events
from msgstore.plugins.loader import EVENT_HOOKS, HOOKS
from source import (
    attribute_docs,
    call_section,
    cell,
    constant_docs,
    documentation,
    fields,
    methods,
    summary,
    table,
)  # fmt: skip

MODULES = (
    "descriptors",
    "formats",
    "records",
    "indexes",
    "policies",
    "bodies",
    "messages",
    "sources",
    "sinks",
)
"""Modules in the order of the page. ``events`` and ``errors`` have their own regions."""


# -- hooks ----------------------------------------------------------------------------------------------------------------


def _hook(name: str) -> Callable[..., Any]:
    hook: Callable[..., Any] = getattr(hookspecs, name)
    return hook


def _argument(name: str) -> str:
    named = [
        f"`{parameter}`: `{part.annotation.removeprefix('events.')}`"
        for parameter, part in inspect.signature(_hook(name)).parameters.items()
    ]
    return ", ".join(named) or "none"


def _returned(name: str) -> str:
    return str(inspect.signature(_hook(name)).return_annotation).removeprefix("Iterable[").removesuffix("]")


def registration_hooks() -> str:
    kinds = {hook: kind for kind, (hook, _) in HOOKS.items()}
    rows = [
        (f"`{name}`", f"`{kinds[name]}`", _argument(name), f"`{_returned(name)}`",
         summary(_hook(name), name))
        for name in kinds
    ]  # fmt: skip
    return table(("hook", "key", "arguments", "returns any number of", ""), rows)


def event_hooks() -> str:
    rows = [(f"`{name}`", _argument(name), summary(_hook(name), name)) for name in EVENT_HOOKS]
    return table(("hook", "argument", "fires when"), rows)


def event_members() -> str:
    parts = []
    for hook, kind in EVENT_HOOKS.items():
        own = [field for field in fields(kind) if field.name not in attrs.fields_dict(events.Event)]
        rows = [(f"`{field.name}`", f"`{field.type}`".replace("|", "\\|"), field.doc) for field in own]
        text = documentation(kind, kind.__name__)
        parts.append(f"### `{hook}`\n\n`{kind.__name__}`: {text}\n\n{table(('member', 'type', ''), rows)}")
    return "\n\n".join(parts)


# -- the contract ---------------------------------------------------------------------------------------------------------


def contract() -> str:
    return "\n\n".join(_module(importlib.import_module(f"msgstore.contract.{name}"), name) for name in MODULES)


def _module(module: ModuleType, name: str) -> str:
    parts = [f"## {name.capitalize()}", documentation(module, module.__name__)]
    parts += [_class(value) for value in vars(module).values() if _is_public(value, module) and isinstance(value, type)]
    parts += [
        call_section(value, value.__name__, "###")
        for value in vars(module).values()
        if _is_public(value, module) and inspect.isfunction(value)
    ]
    constants = [
        (f"`{key if _is_exported(key) else f'{name}.{key}'}`", cell(doc))
        for key, doc in constant_docs(module).items()
        if not key.startswith("_")
    ]
    if constants:
        parts.append(table(("name", ""), constants))
    return "\n\n".join(parts)


def _is_public(value: object, module: ModuleType) -> bool:
    return getattr(value, "__module__", "") == module.__name__ and _is_exported(value.__name__)  # type: ignore[attr-defined]


def _is_exported(name: str) -> bool:
    """Return True if plugins import the name from ``msgstore.contract``."""
    return name in msgstore.contract.__all__


def _class(kind: type) -> str:
    parts = [f"### `{kind.__name__}`"]
    if not (getattr(kind, "_is_protocol", False) and not kind.__dict__.get("__doc__")):
        parts.append(documentation(kind, kind.__name__))
    if issubclass(kind, enum.Enum):
        docs = attribute_docs(kind)
        parts.append(table(("member", "value", ""), [(f"`{m.name}`", f"`{m.value}`", cell(docs[m.name])) for m in kind]))
        return "\n\n".join(parts)
    if attrs.has(kind):
        base = next((base for base in kind.__mro__[1:] if attrs.has(base) and _is_exported(base.__name__)), None)
        inherited = set(attrs.fields_dict(base)) if base else set()
        rows = [
            (f"`{field.name}`", _code(field.type), _code(field.default), field.doc) for field in fields(kind, tuple(inherited))
        ]
        if rows:
            parts.append(table(("member", "type", "default", ""), rows))
        if base and inherited:
            parts.append(f"And the members of `{base.__name__}`.")
    elif members := {name: doc for name, doc in attribute_docs(kind).items() if name in kind.__annotations__}:
        rows3 = [(f"`{name}`", _code(kind.__annotations__[name]), cell(doc)) for name, doc in members.items()]
        parts.append(table(("attribute", "type", ""), rows3))
    parts += [call_section(call, f"{kind.__name__}.{name}", "####") for name, call in methods(kind)]
    parts += [_property(name, value, kind) for name, value in kind.__dict__.items() if isinstance(value, property)]
    return "\n\n".join(parts)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def _property(name: str, value: property, kind: type) -> str:
    return f"#### `{kind.__name__}.{name}`\n\n{documentation(value, f'{kind.__name__}.{name}')}"


REGIONS: dict[str, Callable[[], str]] = {
    "registration hooks": registration_hooks,
    "event hooks": event_hooks,
    "events": event_members,
    "contract": contract,
}
