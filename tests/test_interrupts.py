"""Ctrl-C in the middle of a change: the store goes on as if nothing had happened, or ends as a killed process's does.

Signals come when they like. The harness ``faults`` raises an interrupt before and after each file operation besides.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

import msgstore
from msgstore.contract import StoreClosed
from support import HookedFiles, open_with

SIGNALS = 40
"""That come in the middle of each change."""


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def body_of(number: int) -> bytes:
    return id_of(number) * 8


@attrs.define
class Scene:
    """A store in the middle of its life, and what has to be true of it."""

    index: str
    store: msgstore.Store
    client: msgstore.Client
    confirmed: set[bytes] = attrs.field(factory=set)
    alive: set[bytes] = attrs.field(factory=set)
    removed: set[bytes] = attrs.field(factory=set)
    """For good: confirmed by a flush."""


def scene(path: Path, index: str) -> Scene:
    store = msgstore.open_store(path, index=index, gc_interval=0, sync_interval="1h", file_size_limit="9kB")
    confirmed: set[bytes] = set()
    client, other = store.client("a", on_confirm=confirmed.update), store.client("b")
    client.write_many((id_of(n), body_of(n)) for n in range(30))
    other.write_many((id_of(n), b"") for n in range(4))
    client.remove([id_of(29)])
    store.flush()
    client.write_many((id_of(n), body_of(n)) for n in range(100, 140))
    other.write(id_of(100), b"")
    client.remove([id_of(n) for n in range(4, 14)])
    alive = {id_of(n) for n in (*range(4), *range(14, 20), *range(25, 29), *range(100, 140))}
    return Scene(index, store, client, confirmed, alive, {id_of(29)})


def check(it: Scene) -> None:
    """The store is whole, or has ended; what was confirmed is there in both."""
    try:
        it.store.flush()
    except StoreClosed:
        for call in (it.store.stats, it.store.roll, it.store.compact, lambda: it.client.read(id_of(1))):
            with pytest.raises(StoreClosed):
                call()
        with contextlib.suppress(StoreClosed):
            it.store.close()
    else:
        assert {msg_id: it.client.read(msg_id) for msg_id in it.alive} == {msg_id: msg_id * 8 for msg_id in it.alive}
        it.store.close()
    with msgstore.open_store(it.store.path) as store, store.client() as client:
        safe = it.alive & it.confirmed
        assert {msg_id: client.read(msg_id) for msg_id in safe} == {msg_id: msg_id * 8 for msg_id in safe}
        if it.index == "lmdb":
            assert not any(map(client.contains, it.removed))
        assert sum(segment.live_count for segment in store.segments()) == store.stats().messages


CHANGES: dict[str, Callable[[Scene], object]] = {
    "flush": lambda it: it.store.flush(),
    "remove": lambda it: it.client.remove([id_of(n) for n in range(20, 25)]),
    "second reference": lambda it: it.client.write(id_of(101), b""),
    "roll": lambda it: it.store.roll(),
    "compact": lambda it: it.store.compact(everything=True),
    "close": lambda it: it.store.close(),
}


def interrupt() -> None:
    raise KeyboardInterrupt


def is_interrupted(change: Callable[[], object], seconds: float) -> bool:
    """Send a signal that raises KeyboardInterrupt after so many seconds. True if it came before the change was through."""
    rings = [True]

    def ring(*_: object) -> None:
        if rings:
            rings.clear()  # once
            interrupt()

    usual = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        change()
        rings.clear()
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
    return False


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["ets", "lmdb"])
def test_change_interrupted_by_signal_keeps_confirmed(name: str, change: str, tmp_path: Path) -> None:
    """In a process of its own: what such a signal leaves of the standard library's locks is not for other tests."""
    command = [sys.executable, "-X", "faulthandler", __file__, name, change, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def duration(it: Scene, change: str) -> float:
    """Seconds."""
    begin = time.perf_counter()
    CHANGES[change](it)
    lasts = time.perf_counter() - begin
    it.store.close()
    return lasts


def signals(name: str, change: str, path: Path) -> None:
    # Until 3.13 a handler's lock is taken in one step, its block entered in the next: who logs then would wait for it.
    logging.Logger.isEnabledFor = lambda *_: False  # type: ignore[method-assign]
    rng = random.Random(change)
    lasts = min(duration(scene(path / f"timed{n}", name), change) for n in range(5))
    tries = came = 0
    while came < SIGNALS:
        tries += 1
        assert tries < 40 * SIGNALS, f"{came} signals came while it lasted"
        it = scene(path / str(tries), name)
        came += is_interrupted(functools.partial(CHANGES[change], it), max(rng.uniform(0, lasts), 1e-6))
        check(it)


def test_interrupt_in_with_block_passes_through(tmp_path: Path) -> None:
    """And leaves the directory to the next one."""
    confirmed: list[bytes] = []
    files = HookedFiles()

    def use() -> None:
        with open_with(tmp_path, files, sync_interval="1h") as store, store.client(on_confirm=confirmed.extend) as client:
            client.write(id_of(1), b"body")
            store.flush()
            client.write(id_of(2), b"body")
            files.before("pwrite", interrupt)
            store.flush()

    with pytest.raises(KeyboardInterrupt):
        use()
    assert confirmed == [id_of(1)]
    with msgstore.open_store(tmp_path) as store, store.client() as client:
        assert client.read(id_of(1)) == b"body"


def test_confirm_callback_that_exits_closes_the_store(tmp_path: Path) -> None:
    """The exit passes through the flush, as that of a signal handler does."""
    store = msgstore.open_store(tmp_path, sync_interval="1h")
    client = store.client(on_confirm=lambda ids: sys.exit())
    client.write(id_of(1), b"body")
    with pytest.raises(SystemExit):
        store.flush()
    with pytest.raises(StoreClosed, match="SystemExit came in the middle of a change"):
        client.write(id_of(2), b"body")
    with msgstore.open_store(tmp_path) as again:
        assert again.client().read(id_of(1)) == b"body"


if __name__ == "__main__":
    signals(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
