"""What a message would pay if it passed a hook: ``python bench/hooks.py``. Needs msgstore with ``ets`` and ``v2``.

Nanoseconds a call, the least of several rounds: interruptions only add. Some tens of each are the loop's own.
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
        """Somebody is told of one message."""


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
"""What it is called, what is called, and the ids that it is called with in a round, each once."""


def everything(count: int) -> Iterator[Timed]:
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
    begun = time.perf_counter()
    for msg_id in ids:
        call(msg_id)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description="Nanoseconds of a hook call beside those of what happens to a message.")
    parser.add_argument("--calls", type=int, default=100_000, help="of each, in each round")
    count = parser.parse_args().calls
    for name, call, ids in everything(count):
        print(f"{min(seconds(call, ids()) for _ in range(ROUNDS)) / count * 1e9:8,.0f} ns  {name}")


if __name__ == "__main__":
    main()
