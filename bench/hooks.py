"""Cost of a pluggy hook call compared with a write and a read: ``python bench/hooks.py``. Needs ``ets`` and ``v2``.

Prints nanoseconds per call: the minimum of several rounds, because interruptions only add time. Some tens of nanoseconds of
each figure are the loop's own.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator

import pluggy

import msgstore

ROUNDS = 7
BODY = bytes(64)

hookspec = pluggy.HookspecMarker("bench")
hookimpl = pluggy.HookimplMarker("bench")


class Specification:
    @hookspec
    def stored(self, msg_id: bytes) -> None:
        """Called with the id of one message."""


class Plugin:
    @hookimpl
    def stored(self, msg_id: bytes) -> None:
        pass


def hook(implementations: int) -> Callable[[bytes], object]:
    manager = pluggy.PluginManager("bench")
    manager.add_hookspecs(Specification)
    for _ in range(implementations):
        manager.register(Plugin())
    call = manager.hook.stored
    return lambda msg_id: call(msg_id=msg_id)


Timed = tuple[str, Callable[[bytes], object], Callable[[], list[bytes]]]
"""(text of the row, function to call, function that returns the ids of a round)."""


def rows(count: int) -> Iterator[Timed]:
    """Yield each row of the output, with ``count`` calls per round."""
    numbers = itertools.count()

    def new() -> list[bytes]:
        return [next(numbers).to_bytes(16, "big") for _ in range(count)]

    known = new()
    yield "a method of an object that was chosen before", Plugin().stored, lambda: known
    for number in (0, 1, 4):
        yield f"a pluggy hook with {number} implementation{'' if number == 1 else 's'}", hook(number), lambda: known
    with (
        tempfile.TemporaryDirectory() as directory,
        msgstore.open_store(directory, index="ets", format="v2") as store,
        store.client() as client,
    ):
        client.write_many((msg_id, BODY) for msg_id in known)
        store.flush()
        yield "client.read, 64 B, from the file", client.read, lambda: known
        write = client.write
        yield "client.write, 64 B", lambda msg_id: write(msg_id, BODY), new


def seconds(call: Callable[[bytes], object], ids: list[bytes]) -> float:
    start = time.perf_counter()
    for msg_id in ids:
        call(msg_id)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the nanoseconds of a hook call, and of calls that process a message.")
    parser.add_argument("--calls", type=int, default=100_000, help="calls per row and round")
    count = parser.parse_args().calls
    for name, call, ids in rows(count):
        print(f"{min(seconds(call, ids()) for _ in range(ROUNDS)) / count * 1e9:8,.0f} ns  {name}")


if __name__ == "__main__":
    main()
