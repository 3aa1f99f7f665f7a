"""Definitions of a node, as ``rabbitmqctl import_definitions`` takes them, from the node's own tables."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

from msgstore_rabbitmq_source.naming import text
from rabbitmq_files.node_tables import NodeTables, durable_queues
from rabbitmq_files.properties import PropertiesError, add_headers, encode_header, encode_properties, read_properties

_OWN = "amq."
"""Begin of the names of exchanges that each vhost has by itself, beside the one without a name."""
_Row = tuple[Any, ...]


def definitions_of(tables: NodeTables, *, with_password_hashes: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the definitions, and what had to be left out. Durable things only: the others end with the broker."""
    problems: list[str] = []

    def all_of(table: str, make: Callable[[_Row], dict[str, Any] | None]) -> list[dict[str, Any]]:
        found = []
        for row in tables.table(table):
            try:
                made = make(row)
            except (AttributeError, IndexError, KeyError, PropertiesError, TypeError, ValueError):
                problems.append(f"a record of {table} in a form that is not known: {str(row)[:80]}")
            else:
                found += [made] if made is not None else []
        return found

    parameters = all_of("rabbit_runtime_parameters", _parameter)
    found = {
        "original_cluster_name": tables.node or None,
        "users": all_of("rabbit_user", lambda row: _user(row, with_hash=with_password_hashes)),
        "vhosts": all_of("rabbit_vhost", _vhost),
        "permissions": all_of("rabbit_user_permission", _permission),
        "topic_permissions": all_of("rabbit_topic_permission", _topic_permission),
        "parameters": [one for one in parameters if "component" in one and one["component"] != "policy"],
        "global_parameters": [one for one in parameters if "component" not in one and "pattern" not in one],
        "policies": [one for one in parameters if "pattern" in one],
        "queues": list(_queues(tables)),
        "exchanges": all_of("rabbit_durable_exchange", _exchange),
        "bindings": all_of("rabbit_durable_route", _binding),
    }
    return found, problems


def _queues(tables: NodeTables) -> Iterator[dict[str, Any]]:
    for queue in durable_queues(tables):
        yield {
            "name": text(queue.name), "vhost": text(queue.vhost), "type": queue.kind, "durable": True,
            "auto_delete": queue.auto_delete, "arguments": _arguments(queue.arguments),
        }  # fmt: skip


def _arguments(rows: list[_Row]) -> dict[str, Any]:
    """Return arguments as JSON values. Raises PropertiesError."""
    if not rows:
        return {}
    encoded = add_headers(encode_properties({}), [encode_header(name, kind, value) for name, kind, value in rows])
    return read_properties(encoded)[1] or {}


def _vhost(row: _Row) -> dict[str, Any]:
    about = row[3] if len(row) > 3 and isinstance(row[3], dict) else {}
    tags = about.get("tags", [])
    metadata = {"description": text(about.get("description", b"")), "tags": _plain(tags) if tags else []}
    return {"name": text(row[1]), "limits": [], "metadata": metadata}


def _user(row: _Row, *, with_hash: bool) -> dict[str, Any]:
    _, name, hashed, tags, algorithm = row[:5]
    found = {"name": text(name), "tags": [str(tag) for tag in tags], "hashing_algorithm": str(algorithm), "limits": {}}
    return found | {"password_hash": base64.b64encode(hashed).decode() if with_hash else ""}


def _permission(row: _Row) -> dict[str, Any]:
    (_, user, vhost), (_, configure, write, read) = row[1], row[2]
    return {
        "user": text(user), "vhost": text(vhost), "configure": text(configure), "write": text(write), "read": text(read),
    }  # fmt: skip


def _topic_permission(row: _Row) -> dict[str, Any]:
    (_, (_, user, vhost), exchange), (*_, write, read) = row[1], row[2]
    return {"user": text(user), "vhost": text(vhost), "exchange": text(exchange), "write": text(write), "read": text(read)}


def _parameter(row: _Row) -> dict[str, Any] | None:
    key, value = row[1], row[2]
    if not isinstance(key, tuple):
        return {"name": str(key), "value": _plain(value)}
    vhost, component, name = key
    if component != b"policy":
        return {"vhost": text(vhost), "component": text(component), "name": text(name), "value": _plain(value)}
    policy = _plain(value)
    return {
        "vhost": text(vhost), "name": text(name), "pattern": policy["pattern"], "apply-to": policy.get("apply-to", "all"),
        "definition": policy["definition"], "priority": policy.get("priority", 0),
    }  # fmt: skip


def _exchange(row: _Row) -> dict[str, Any] | None:
    (_, vhost, _, name), kind, durable, auto_delete, internal, arguments = row[1:7]
    if not name or text(name).startswith(_OWN) or durable != "true":
        return None
    return {
        "name": text(name), "vhost": text(vhost), "type": str(kind), "durable": True, "auto_delete": auto_delete == "true",
        "internal": internal == "true", "arguments": _arguments(arguments),
    }  # fmt: skip


def _binding(row: _Row) -> dict[str, Any] | None:
    _, (_, vhost, _, source), key, (_, _, kind, destination), arguments = row[1]
    if not source:  # each queue has such a binding by itself
        return None
    return {
        "source": text(source), "vhost": text(vhost), "destination": text(destination), "destination_type": str(kind),
        "routing_key": text(key), "arguments": _arguments(arguments),
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """Return a term as JSON: a list of pairs is an object."""
    if isinstance(value, bytes):
        return text(value)
    if isinstance(value, str):
        return {"true": True, "false": False, "undefined": None}.get(value, str(value))
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list) and value and all(isinstance(one, tuple) and len(one) == 2 for one in value):
        return {str(_plain(key)): _plain(inner) for key, inner in value}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
