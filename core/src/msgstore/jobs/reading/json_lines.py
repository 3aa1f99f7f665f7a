"""Messages in JSON Lines: ``id`` (32 hexadecimal digits), ``body`` (base64) or ``text``, and perhaps ``references``."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgstore.contract import StoreError

MEMBERS = ("id", "body", "text", "references")
IGNORE_OTHERS = "ignore_others=, --ignore-others"
"""Arguments of programs and of the command line that ignore other members."""
LONGEST = 2**29
"""Bytes of a line."""
_BATCH_BYTES = 2**20
_BATCH_LINES = 8192
Messages = tuple[list[bytes], list[bytes], list[int] | None]


def has_references(path: Path) -> bool | None:
    """Return True if the first line has references; None for an empty file. Raises StoreError."""
    return next(("references" in members for members, _, _ in _lines(path, ignore_others=True)), None)


def read(path: Path, *, counted: bool, ignore_others: bool) -> Iterator[Messages]:
    """Yield messages, about a MiB at a time. ``counted``: every line has references; else none has.

    Raises StoreError, with the line's number.
    """
    ids: list[bytes] = []
    bodies: list[bytes] = []
    references: list[int] = []
    size = 0
    for members, msg_id, body in _lines(path, counted=counted, ignore_others=ignore_others):
        ids.append(msg_id)
        bodies.append(body)
        if counted:
            references.append(members["references"])
        size += len(body)
        if size >= _BATCH_BYTES or len(ids) == _BATCH_LINES:
            yield ids, bodies, references if counted else None
            ids, bodies, references, size = [], [], [], 0
    if ids:
        yield ids, bodies, references if counted else None


def _lines(path: Path, *, ignore_others: bool, counted: bool | None = None) -> Iterator[tuple[dict[str, Any], bytes, bytes]]:
    """Yield the object of each line, its id and its body. ``counted``: see :func:`read`; None accepts both."""
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(LONGEST + 1):
                number += 1
                if len(line) > LONGEST:
                    raise ValueError(f"is longer than {LONGEST} bytes")
                if line.strip():
                    members = _members(line, counted=counted, ignore_others=ignore_others)
                    yield members, _id(members["id"]), _body(members)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise StoreError(f"{path}, line {number}: {error}") from error


def _members(line: bytes, *, counted: bool | None, ignore_others: bool) -> dict[str, Any]:
    """Return the members of the object of a line. Raises ValueError."""
    try:
        members = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(members, dict):
        raise ValueError("is no JSON object; each line is one")  # noqa: TRY004 - it is what is in the file
    others = [name for name in members if name not in MEMBERS]
    if others and not ignore_others:
        raise ValueError(
            f"has {', '.join(map(repr, others))}: a store keeps id, body and references, and nothing else; leave them out, "
            f"or say that other members are ignored ({IGNORE_OTHERS})"
        )
    if "id" not in members:
        raise ValueError("has no 'id'")
    if ("body" in members) == ("text" in members):
        raise ValueError(f"the message {members['id']} needs a 'body' (base64) or a 'text', one of them")
    if counted is not None and counted != ("references" in members):
        has, first = ("has no", "has") if counted else ("has", "has not")
        raise ValueError(f"the message {members['id']} {has} 'references', and the first line of all {first}")
    return members


def _id(value: object) -> bytes:
    try:
        msg_id = bytes.fromhex(value) if isinstance(value, str) and len(value) == 32 else b""
    except ValueError:
        msg_id = b""
    if len(msg_id) != 16:
        raise ValueError(f"the id {value!r} is not 32 hexadecimal digits")
    return msg_id


def _body(members: dict[str, Any]) -> bytes:
    name = "body" if "body" in members else "text"
    value = members[name]
    if not isinstance(value, str):
        raise ValueError(f"the {name} of {members['id']} is not a string")  # noqa: TRY004 - it is what is in the file
    try:
        return base64.b64decode(value, validate=True) if name == "body" else value.encode()
    except binascii.Error as error:
        raise ValueError(f"the body of {members['id']} is not base64: {error}") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"the text of {members['id']} cannot be written as UTF-8: {error.reason}") from error
