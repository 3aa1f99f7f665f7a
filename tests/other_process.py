"""The other processes of test_other_processes.py: one that writes as fast as it can, and one that does what it is told."""

from __future__ import annotations

import ast
import random
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgstore

SIZES = (0, 1, 40, 300, 1500, 9000)
"""Bytes of bodies; the last is a large message."""
SMALL: dict[str, Any] = {"file_size_limit": "32KiB", "large_message": 8000}
"""Keys that make for many segments."""
KEPT = 100
"""Messages that the load leaves alive, of those that it removes."""


def body_of(msg_id: bytes) -> bytes:
    size = SIZES[msg_id[-1] % len(SIZES)]
    return (msg_id * (size // 16 + 1))[:size]


def load(pipe: Connection, path: Path, keys: dict[str, Any], confirms: int, seed: str) -> None:
    """Write, remove, roll and compact until enough is confirmed. Report ids as ``confirmed``, and as ``removed`` when a flush
    has returned since; then ``closed``. Ids that end in an even byte are never removed."""

    def report(what: str, ids: list[bytes]) -> None:
        """In pieces that a pipe takes whole, so that nothing that was told is lost with the process."""
        for at in range(0, len(ids), 150):
            pipe.send((what, ids[at : at + 150]))

    chance = random.Random(seed)
    store = msgstore.open_store(path, **keys, **SMALL, sync_interval="1ms")
    confirmed: list[bytes] = []

    def confirm(ids: list[bytes]) -> None:
        report("confirmed", ids)
        confirmed.extend(ids)

    client = store.client("load", on_confirm=confirm)
    odd = [entry.msg_id for entry in store.entries() if entry.msg_id[-1] % 2]
    while len(confirmed) < confirms:
        new = [chance.randbytes(16) for _ in range(chance.randrange(1, 40))]
        client.write_many((msg_id, body_of(msg_id)) for msg_id in new)
        odd += [msg_id for msg_id in new if msg_id[-1] % 2]
        chance.shuffle(odd)
        old, odd = odd[KEPT:], odd[:KEPT]
        client.remove(old)
        if chance.random() < 0.3:
            store.flush()
            report("removed", old)
        if chance.random() < 0.05:
            store.roll()
        if chance.random() < 0.1:
            store.compact(everything=chance.random() < 0.5)
    store.close()
    pipe.send(("closed", []))


def obey(pipe: Connection) -> None:
    """Run one piece of Python after the other. Answer each with the value of its last expression, or with a traceback."""
    names: dict[str, Any] = {"msgstore": msgstore, "body_of": body_of, "SMALL": SMALL}
    exec("import os; from pathlib import Path", names)
    while True:
        tree = ast.parse(pipe.recv())
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        try:
            exec(compile(tree, "<told>", "exec"), names)
            value = eval(compile(ast.Expression(last.value), "<told>", "eval"), names) if last is not None else None
            answer: tuple[str, Any] = ("", value)
        except BaseException:
            answer = (traceback.format_exc(), None)
        pipe.send(answer)
