"""Limits by which a queue of a broker discards messages, seen over AMQP or by the management API."""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from msgstore.contract import StoreError

_TIMES = ("x-message-ttl", "x-expires", "x-max-age")
_LENGTHS = ("x-max-length", "x-max-length-bytes")
_MAX_PROBES = 30
_TIMEOUT_SECONDS = 30
_MAX_TRIES = 20
_DIFFERENT = re.compile(r"PRECONDITION_FAILED - inequivalent arg '([\w-]+)'")
_CURRENT = re.compile(r".* current is (?:the value )?'(.*?)'(?: of type '(\w+)')?$", re.DOTALL)


def discarding(arguments: Mapping[str, Any]) -> str:
    """Return the arguments by which a queue may discard messages, as text; empty if there are none."""
    names = [name for name in _TIMES if name in arguments]
    if arguments.get("x-overflow", "drop-head") == "drop-head":
        names += [name for name in _LENGTHS if name in arguments]
    return ", ".join(f"{name} {arguments[name]}" for name in names)


def probe(declare: Callable[..., str | None], queue: str) -> str:
    """Return the limits of a queue that exists, as :func:`discarding`. Changes nothing.

    AMQP has no call for the arguments of a queue. But the broker refuses to declare the queue with others, and names one that
    differs, with its value. ``declare`` returns this reply, or None.
    """
    found: dict[str, Any] = {}
    flags, reply = {"durable": True, "auto_delete": False}, None
    for _ in range(_MAX_PROBES):
        if (reply := declare(queue=queue, arguments=found, **flags)) is None:
            return discarding(found)
        name, value = _DIFFERENT.match(reply), _CURRENT.match(reply)
        if name is None or name[1] in found:
            break
        if name[1] in flags:
            flags[name[1]] = not flags[name[1]]
        elif value is None:  # a reply has 255 bytes: a long name of the queue leaves none for the value
            found[name[1]] = "of unknown value"
            break
        elif value[2] == "bool":
            found[name[1]] = value[1] == "true"
        else:
            found[name[1]] = value[1] if value[2] in (None, "longstr") else int(value[1])
    return discarding(found) or f"its arguments cannot be read: {reply}"


def ask_management(url: str, login: tuple[str, str], vhost: str, queue: str) -> str:
    """Return the limits that arguments and policies set, as :func:`discarding`. Raises StoreError."""
    place = f"{url.rstrip('/')}/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}"
    secret = base64.b64encode(":".join(login).encode()).decode()
    request = urllib.request.Request(place, headers={"Authorization": f"Basic {secret}"})
    try:
        for _ in range(_MAX_TRIES):
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                found = json.load(answer)
            if "effective_policy_definition" in found:  # a new queue has it after some seconds
                policies = dict(found["effective_policy_definition"] or {})
                return discarding({f"x-{name}": value for name, value in policies.items()} | found["arguments"])
            time.sleep(1)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{place}: the management API does not answer: {error}. Correct the URL, or leave it out.") from error
    return "its policies are not known to the management API"
