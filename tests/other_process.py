"""The other process of test_other_processes.py.

Run as a program with ``load`` it writes, removes, rolls and compacts as fast as it can, until it has confirmed enough or is
killed, and tells what happened on standard output, in records of 17 bytes (one letter, 16 bytes)::

    O  process id        the store is open
    C  message id        confirmed
    R  message id        about to be removed
    D  message id        removed, and a flush has returned since
    F  nothing           it is done, and has closed the store

With ``obey`` it carries out one line of Python after the other, and answers each with what it is worth.
"""

from __future__ import annotations

import ast
import json
import os
import random
import sys
import traceback
from typing import Any

import msgstore

RECORD = 17
SIZES = (0, 1, 40, 300, 1500, 9000)
"""Bytes of bodies; the last is a large message."""
SMALL: dict[str, Any] = {"file_size_limit": "32KiB", "large_message": 8000}
"""Keys that make for many segments."""
KEPT = 300
"""Messages that the load leaves alive."""


def body_of(msg_id: bytes) -> bytes:
    size = SIZES[msg_id[-1] % len(SIZES)]
    return (msg_id * (size // 16 + 1))[:size]


def tell(letter: bytes, ids: list[bytes]) -> None:
    """In pieces that a pipe takes whole, so that nothing that was told is lost with the process."""
    for at in range(0, len(ids), 200):
        os.write(1, b"".join(letter + msg_id for msg_id in ids[at : at + 200]))


def load(path: str, keys: dict[str, Any], confirms: int, seed: str) -> None:
    chance = random.Random(seed)
    store = msgstore.open_store(path, **keys, **SMALL, sync_interval="1ms")
    tell(b"O", [os.getpid().to_bytes(16)])
    confirmed: list[bytes] = []

    def confirm(ids: list[bytes]) -> None:
        tell(b"C", ids)
        confirmed.extend(ids)

    client = store.client("load", on_confirm=confirm)
    alive = [entry.msg_id for entry in store.entries()]
    while len(confirmed) < confirms:
        new = [chance.randbytes(16) for _ in range(chance.randrange(1, 40))]
        client.write_many((msg_id, body_of(msg_id)) for msg_id in new)
        alive += new
        chance.shuffle(alive)
        old, alive = alive[KEPT:], alive[:KEPT]
        if old:
            tell(b"R", old)
            client.remove(old)
        if chance.random() < 0.3:
            store.flush()
            tell(b"D", old)
        if chance.random() < 0.05:
            store.roll()
        if chance.random() < 0.1:
            store.compact(everything=chance.random() < 0.5)
    store.close()
    tell(b"F", [bytes(16)])


def obey() -> None:
    names: dict[str, Any] = {"msgstore": msgstore, "os": os, "body_of": body_of, "SMALL": SMALL}
    for line in sys.stdin:
        tree = ast.parse(json.loads(line))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        try:
            exec(compile(tree, "<told>", "exec"), names)
            worth = eval(compile(ast.Expression(last.value), "<told>", "eval"), names) if last is not None else None
            answer = repr(worth)
        except BaseException:
            answer = "raised " + traceback.format_exc()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "load":
        load(sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        obey()
