"""Reference of stores: keys of the configuration, backends, statistics, errors, the Python interface."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgstore
from msgstore.cli.option_texts import hinted_fields, toml_type, toml_value
from msgstore.config import Config, StoreConfig
from msgstore.contract import GcPolicyDescriptor, MsgStoreError
from msgstore.engine.compact.gc_context import CollectionResult
from msgstore.engine.events import Counters
from msgstore.engine.open.recovery_plan import Recovery
from msgstore.engine.stats import StoredMessage, StoreStats
from msgstore.plugins.known import NOUNS
from msgstore.plugins.loader import Registration
from msgstore_queues.catalogue import load_catalogue as load_queue_catalogue
from msgstore_queues.config import VHostConfig
from msgstore_queues.options import QueueOptions
from source import (
    attribute_docs,
    call_section,
    cell,
    documentation,
    fields,
    markdown,
    methods,
    set_attributes,
    summary,
    table,
)  # fmt: skip

ROOT = Path(__file__).parents[2]


def registrations() -> list[Registration]:
    """Return the backends of stores in this repository's distributions. Other installed plugins are not in the reference."""
    projects = [ROOT / "core/pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
    tables = [tomllib.loads(path.read_text(encoding="utf-8"))["project"] for path in projects]
    ours = [table["name"] for table in tables if "msgstore" in table["entry-points"]]
    found = [entry for entry in msgstore.load_catalogue().registrations if entry.provider.distribution in ours]
    missing = set(ours) - {"msgstore-prometheus-observer"} - {entry.provider.distribution for entry in found}
    if missing:
        raise SystemExit(f"not installed: {', '.join(sorted(missing))}")
    return [entry for entry in found if entry.kind != "runner"]


# -- the configuration ----------------------------------------------------------------------------------------------------


def _keys(kind: type, without: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str, str]]:
    documented = {field.name: field.doc for field in fields(kind, without)}
    for field in hinted_fields(kind):
        if field.name in documented:
            yield f"`{field.name}`", toml_type(field.type), toml_value(field.type, field.default), documented[field.name]


def top_level() -> str:
    return table(("key", "type", "default", "meaning"), _keys(Config, ("file", "wrong")))


def store_keys() -> str:
    return table(("key", "type", "default", "meaning"), _keys(StoreConfig, ("where", "last_opened")))


def vhost_keys() -> str:
    return table(("key", "type", "default", "meaning"), _keys(VHostConfig, ("where",)))


def queue_keys() -> str:
    return table(("key", "type", "default", "meaning"), _keys(QueueOptions))


def queue_backends() -> str:
    found = load_queue_catalogue()
    rows = [
        (kind, f"`{one.name}`", " ".join(f"{key}: {doc}" for key, _, _, doc in _keys(one.options)), cell(one.summary))
        for kind, descriptors in (("backing queue", found.backings), ("queue index", found.indexes))
        for one in sorted(descriptors.values(), key=lambda one: one.name)
        if one.factory.startswith("msgstore")
    ]
    return table(("kind", "name", "options", ""), rows)


def options() -> str:
    rows, without = [], []
    for found in registrations():
        of = f"{NOUNS[found.kind]} `{found.descriptor.name}`"
        own = list(_keys(found.descriptor.options))
        rows += [(key, of, *rest) for key, *rest in own]
        if not own:
            without.append(of)
    return f"{table(('option', 'backend', 'type', 'default', 'meaning'), rows)}\n\nWithout options: {', '.join(without)}."


def backends() -> str:
    rows = [
        (
            NOUNS[found.kind],
            f"`{found.descriptor.name}`",
            f"`{found.provider.distribution}`",
            ", ".join(f"`{capability}`" for capability in sorted(one.value for one in found.descriptor.capabilities)),
            cell(found.descriptor.summary),
        )
        for found in registrations()
    ]
    return table(("kind", "name", "distribution", "capabilities", ""), rows)


def policies() -> str:
    found = [entry.descriptor for entry in registrations() if isinstance(entry.descriptor, GcPolicyDescriptor)]
    rows = [(f"`{policy.name}`", cell(documentation(policy.load_factory(), policy.factory))) for policy in found]
    return table(("policy", "what it does"), rows)


# -- statistics -----------------------------------------------------------------------------------------------------------


def _members(kind: type, without: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return [(f"`{field.name}`", field.doc) for field in fields(kind, without)]


def statistics() -> str:
    failures = ("`observer_failures`", summary(StoreStats.observer_failures, "StoreStats.observer_failures"))
    return table(("number", ""), [*_members(StoreStats), failures])


def counters() -> str:
    return table(("counter", ""), _members(Counters))


def recovery() -> str:
    return table(("member", ""), _members(Recovery))


# -- errors ---------------------------------------------------------------------------------------------------------------


def errors() -> str:
    return "\n".join(_error(MsgStoreError, 0))


def _error(kind: type[MsgStoreError], depth: int) -> Iterator[str]:
    others = [base.__name__ for base in kind.__bases__ if not issubclass(base, MsgStoreError) and base is not Exception]
    also = f" (also a `{'`, `'.join(others)}`)" if others else ""
    members = [name for name in set_attributes(kind) if name != "message"]
    carries = f" Carries `{'`, `'.join(members)}`." if members else ""
    yield f"{'    ' * depth}- **`{kind.__name__}`**{also}: {cell(documentation(kind, kind.__name__))}{carries}"
    for below in kind.__subclasses__():
        if below.__module__ == MsgStoreError.__module__:
            yield from _error(below, depth + 1)


# -- Python ---------------------------------------------------------------------------------------------------------------


def functions() -> str:
    return "\n\n".join(
        call_section(getattr(msgstore, name), name, "###") for name in ("open_store", "load_config", "load_catalogue")
    )


def _class(kind: type) -> str:
    parts = [f"### `{kind.__name__}`", documentation(kind, kind.__name__)]
    for name, doc in attribute_docs(kind).items():
        if name in kind.__annotations__ and not name.startswith("_"):  # the client's fast paths are attributes
            parts.append(f"#### `{kind.__name__}.{name}`\n\n{markdown(doc)}")
    for name, call in methods(kind):
        if name not in INTERNAL:
            parts.append(call_section(call, f"{kind.__name__}.{name}", "####"))
    return "\n\n".join(parts)


INTERNAL = {"end", "check_open", "take_unconfirmed", "confirm", "disown"}
"""Public methods that only the engine calls."""


def classes() -> str:
    return "\n\n".join(_class(getattr(msgstore, name)) for name in ("Stores", "Store", "Client"))


def values() -> str:
    parts = [
        (kind, documentation(kind, kind.__name__), table(("member", ""), _members(kind)))
        for kind in (StoredMessage, CollectionResult)
    ]
    return "\n\n".join(f"### `{kind.__name__}`\n\n{text}\n\n{members}" for kind, text, members in parts)


REGIONS: dict[str, Callable[[], str]] = {
    "configuration, top level": top_level,
    "configuration, a store": store_keys,
    "configuration, a vhost": vhost_keys,
    "configuration, a queue": queue_keys,
    "backends of queues": queue_backends,
    "options of backends": options,
    "backends": backends,
    "policies": policies,
    "statistics": statistics,
    "counters": counters,
    "recovery": recovery,
    "errors": errors,
    "functions": functions,
    "classes": classes,
    "values": values,
}
