"""The timed part of ``queues.py``: what a new process does with one queue, and how long it takes.

Bodies have 100 bytes, parts of a random block. Before the clock starts, some messages go through the queue, so that imports and
first calls are not counted. The bodies that come back are compared, by samples.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from queue_peer import QueuePeer
from queue_peers import AioDiskQueue, DiskCacheDeque, LiteQueue, MsgStoreQueue, PersistFile, PersistSQLite, QueueLib
from queue_servers import RabbitMQ, RedisList

PEERS: dict[str, type[QueuePeer]] = {
    peer.name: peer
    for peer in (
        MsgStoreQueue, QueueLib, PersistFile, PersistSQLite, LiteQueue, DiskCacheDeque, AioDiskQueue, RedisList, RabbitMQ,
    )
}  # fmt: skip
BODY = 100
LAG = 1000
SEED = 20
WARM_UP = 100
"""Messages that go through a queue before the clock starts."""
FIGURES = "figures.json"
"""File beside the queue for the figures of a process that kills itself."""


def is_installed(peer: type[QueuePeer]) -> bool:
    return all(importlib.util.find_spec(name) for name in peer.needs) and peer.is_installed()


def bodies(count: int) -> Iterator[bytes]:
    """Yield ``count`` bodies. The first million are distinct."""
    block = random.Random(SEED).randbytes(2**20)
    places = len(block) - BODY  # has no common divisor with the step
    return (block[at : at + BODY] for at in (number * 101 % places for number in range(count)))


def body(number: int) -> bytes:
    """Return one of these bodies."""
    return list(bodies(number + 1))[number]


@contextlib.contextmanager
def opened(name: str, directory: Path, *, is_synced: bool = False) -> Iterator[QueuePeer]:
    """Open a queue, and stop it cleanly after the block. After an error its server is killed."""
    peer = PEERS[name](directory, is_synced=is_synced)
    try:
        yield peer
    except BaseException:
        peer.kill_server()
        raise
    peer.close()


def warm_up(peer: QueuePeer) -> None:
    """Let some messages through an empty queue."""
    peer.publish_all(bodies(WARM_UP))
    for _ in range(WARM_UP):
        peer.take()
    peer.finish()
    gc.collect()


def publish(name: str, directory: str, count: int, is_synced: bool) -> float:
    """Return the messages published per second."""
    with opened(name, Path(directory), is_synced=is_synced) as peer:
        warm_up(peer)
        began = time.perf_counter()
        peer.publish_all(bodies(count))
        seconds = time.perf_counter() - began
        check(name, peer.take(), 0)
    return count / seconds


def consume(name: str, directory: str, count: int, is_synced: bool) -> float:
    """Return the messages published, taken and acknowledged per second."""
    with opened(name, Path(directory), is_synced=is_synced) as peer:
        warm_up(peer)
        began = time.perf_counter()
        last = peer.pass_through(bodies(count), min(LAG, count // 2))
        seconds = time.perf_counter() - began
        check(name, last, count - 1)
    return count / seconds


def fill_and_kill(name: str, directory: str, count: int) -> None:
    """Publish a backlog, save its figures beside the queue, and end this process and the server with SIGKILL."""
    with opened(name, Path(directory)) as peer:
        warm_up(peer)
        began = time.perf_counter()
        peer.publish_all(bodies(count))
        rate = count / (time.perf_counter() - began)
        figures = {"rate": rate, "peak": None if peer.is_server else peak_memory()}
        Path(directory).with_name(FIGURES).write_text(json.dumps(figures))
        peer.kill_server()
        os.kill(os.getpid(), signal.SIGKILL)


def fill(name: str, directory: str, count: int) -> None:
    """Publish a backlog, and stop cleanly."""
    with opened(name, Path(directory)) as peer:
        peer.publish_all(bodies(count))


def restart(name: str, directory: str, empty: str, number: int) -> float | None:
    """Return the seconds from opening a queue to its first message, which is body ``number``. None: its messages are lost."""
    if not PEERS[name].is_server:
        Path(empty).mkdir()
        with opened(name, Path(empty)) as peer:
            warm_up(peer)
    began = time.perf_counter()
    with opened(name, Path(directory)) as peer:
        first = peer.take()
        seconds = time.perf_counter() - began
        if first is None:
            return None
        check(name, first, number)
    return seconds


def check(name: str, found: bytes | None, number: int) -> None:
    if found != body(number):
        raise RuntimeError(f"{name}: message {number} was expected, and {'none' if found is None else 'another one'} came")


def peak_memory() -> int | None:
    """Return the largest resident memory of this process in bytes; None if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
