"""Stores that end otherwise than by ``close``. Ctrl-C in the middle of a change: the store goes on as if nothing had happened,
or ends as a killed process's does. A store that is never closed says what is lost.

Signals come when they like. The harness ``crash`` raises an interrupt before and after each file operation besides.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import logging
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import msgstore
from attempts import in_processes
from crash.history import Run, keys_of
from crash.model import Aftermath, body_of, compare
from msgstore.contract import StoreClosed
from msgstore.engine import opening
from msgstore.engine.open.startup import OpenDirectory
from msgstore.engine.state.lifecycle import Callbacks
from msgstore.engine.write import write_buffer
from support import A, B, C, Cell, D, FullDisk, open_with, play, until

SIGNALS = 40
"""That come in the middle of each change."""


def scene(path: Path, index: str) -> Run:
    """A store in the middle of its life, and what has to be true of it."""
    run = Run(path, keys_of(Cell(index, "v2")), random.Random(1))
    run.play("open change:60 flush change:60")
    return run


def remove(run: Run) -> None:
    ids = run.model.present[20:25]
    run.model.change(ids, -1, applied=None)
    run.clients[0].remove(ids)


def write_again(run: Run) -> None:
    msg_id = run.model.present[-1]
    run.model.change([msg_id], 1, applied=None)
    run.clients[0].write(msg_id, body_of(msg_id))


def write_after_failure(run: Run) -> None:
    """Such a write flushes first."""
    run.store._writer.set_failing(True)
    write_again(run)


CHANGES: dict[str, Callable[[Run], object]] = {
    "flush": lambda run: run.store.flush(),
    "remove": remove,
    "second reference": write_again,
    "write after a failed flush": write_after_failure,
    "roll": lambda run: run.store.roll(),
    "compact": lambda run: run.store.compact(everything=True),
    "close": lambda run: run.store.close(),
}


def check(run: Run) -> None:
    """The store is whole, or has ended; what was confirmed is there in both."""
    store = run.store
    try:
        store.flush()
    except StoreClosed:
        for call in (store.stats, store.roll, store.compact, lambda: run.clients[0].read(A)):
            with pytest.raises(StoreClosed):
                call()
        with contextlib.suppress(StoreClosed):
            store.close()
    else:
        compare(store, run.model, run.model.now, "the interrupt, in the open store,")
        run.play("close")
    Aftermath(run.model, run.keys, "the interrupt").check(run.path)


def interrupt() -> None:
    raise KeyboardInterrupt


def is_interrupted(change: Callable[[], object], seconds: float, outside: type[BaseException] = KeyboardInterrupt) -> bool:
    """Send a signal whose handler raises after so many seconds. True if it came before the change was through."""
    rings = [True]

    def ring(*_: object) -> None:
        if rings:
            rings.clear()  # once
            raise outside

    usual = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        change()
        rings.clear()
    except outside:
        return True
    except RuntimeError as error:
        if not isinstance(error.__context__, outside):
            raise
        return True  # ``threading.Condition`` releases a lock that it does not hold if the signal comes at the wrong step
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
    return False


def in_a_process(call: Callable[..., object], *arguments: Any) -> None:
    """What a signal leaves of the standard library's locks is not for other tests."""
    [(_, _, error)] = in_processes([("signals", lambda _: call(*arguments))], seconds=120)
    assert not error, error


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("outside", [KeyboardInterrupt, ArithmeticError])
def test_change_interrupted_by_signal_keeps_confirmed(kind, outside, change, tmp_path):
    in_a_process(signals, kind, outside, tmp_path, change)


def duration(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def disable_logging() -> None:
    """Until Python 3.13 an interrupt may leave the lock of a log handler held, and whoever logs then waits for ever."""
    logging.Logger.isEnabledFor = lambda *_: False  # type: ignore[method-assign]  # a process of its own runs nothing else


def signals(name: str, outside: type[BaseException], path: Path, change: str) -> None:
    disable_logging()
    rng = random.Random(change)
    timed = [scene(path / f"timed{n}", name) for n in range(5)]
    lasts = min(duration(partial(CHANGES[change], run)) for run in timed)
    for run in timed:
        run.store.close()
    tries = came = 0
    while came < SIGNALS:
        tries += 1
        assert tries < 40 * SIGNALS, f"{came} signals came while it lasted"
        run = scene(path / str(tries), name)
        came += is_interrupted(partial(CHANGES[change], run), max(rng.uniform(0, lasts), 1e-6), outside)
        check(run)


@pytest.mark.slow
@pytest.mark.parametrize("outside", [KeyboardInterrupt, SystemExit])
def test_opening_interrupted_by_signal_leaves_nothing(kind, outside, tmp_path):
    """No lock, no thread, every count, and the exception is what the handler has raised."""
    in_a_process(signals_at_opening, kind, outside, tmp_path)


def signals_at_opening(name: str, outside: type[BaseException], path: Path) -> None:
    disable_logging()
    run, rng = scene(path / "store", name), random.Random(name)
    keys = run.keys | {"gc_interval": "1h"}  # with both threads
    with run.store as store:
        store.flush()
        truth = {entry.msg_id: entry.references for entry in store.entries()}
    lasts = min(duration(lambda: open_with(run.path, **keys).close()) for _ in range(5))
    opened: list[msgstore.Store] = []
    usual = opening._use

    def use(directory: OpenDirectory, store: msgstore.Store) -> None:
        usual(directory, store)
        opened.append(store)  # a signal that comes later finds an open store

    opening._use = use
    for _ in range(SIGNALS):
        while not is_interrupted(partial(open_with, run.path, **keys), rng.uniform(1e-6, lasts), outside) or opened:
            opened.pop().close()
        # An interrupt in ``Thread.start`` may leave a lock of the standard library held, for which the new thread then waits
        # before it runs anything: it has an ``ident``, but is not alive.
        until(lambda: not any("msgstore" in thread.name and thread.is_alive() for thread in threading.enumerate()))
        with open_with(run.path, **keys) as store:
            assert {entry.msg_id: entry.references for entry in store.entries()} == truth


def test_interrupt_in_flush_ends_the_store(tmp_path, files):
    """Every call is refused, the interrupt passes through the block, and the directory is free for the next opening."""
    confirmed = []

    def use():
        with open_with(tmp_path, files, sync_interval="1h") as store, store.client(on_confirm=confirmed.extend) as client:
            play(store, "+A f +BC", client)
            files.after("pwrite", interrupt)
            try:
                store.flush()
            finally:
                for call in (store.flush, lambda: client.remove([C]), lambda: client.read(A), store.close):
                    with pytest.raises(StoreClosed, match="KeyboardInterrupt came in the middle of a change"):
                        call()

    with pytest.raises(KeyboardInterrupt):
        use()
    assert confirmed == [A]
    with msgstore.open_store(tmp_path) as store:
        assert store.read(A) == A * 3


@pytest.mark.parametrize("call", ["flush", "close"])
def test_thread_that_waits_for_an_interrupted_flush_is_refused(tmp_path, files, monkeypatch, call):
    """Also if it goes on before the interrupted thread has ended the store."""
    told, errors = [], []
    store = open_with(tmp_path, files, sync_interval="1h", gc_interval=0)
    client = store.client(on_confirm=told.extend)
    play(store, "+A f +B", client)

    def wait() -> None:
        try:
            getattr(store, call)()
        except StoreClosed as error:
            errors.append(error)

    other = threading.Thread(target=wait)

    def interrupt_when_it_waits() -> None:
        other.start()
        until(lambda: store._gc_lock.locked() if call == "close" else store._flusher._group.waiting is not None)
        raise KeyboardInterrupt

    usual = store._lifecycle.handle_exception
    monkeypatch.setattr(
        store._lifecycle, "handle_exception",
        lambda error, *, in_callback: (other.join(5) if error.__class__ is KeyboardInterrupt else None,
                                       usual(error, in_callback=in_callback)),
    )  # fmt: skip
    files.after("pwrite", interrupt_when_it_waits)
    with pytest.raises(KeyboardInterrupt):
        store.flush()
    other.join()
    assert (len(errors), told) == (1, [A])
    with msgstore.open_store(tmp_path) as again:  # the directory is free
        for refused in (store.client, lambda: client.write(C, C), store.flush, lambda: client.read(A), client.close):
            with pytest.raises(StoreClosed, match="KeyboardInterrupt"):
                refused()
        assert again.read(A) == A * 3


def interrupt_once(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Let the next call of a function be interrupted."""
    usual = getattr(owner, name)

    def call(*_: object) -> None:
        patch.setattr(owner, name, usual)
        raise KeyboardInterrupt

    patch.setattr(owner, name, call)


def in_relocation(store: Any, client: Any, patch: pytest.MonkeyPatch) -> Callable[[], object]:
    """After the index has the new places, and before the segments are counted anew."""
    usual = store._index.relocate
    patch.setattr(
        store._index, "relocate", lambda *moved: (usual(*moved), interrupt_once(patch, store._accounting, "mark_dirty"))[0]
    )
    return partial(store.compact, everything=True)


def in_removal(store: Any, client: Any, patch: pytest.MonkeyPatch) -> Callable[[], object]:
    """After the index has released a message, and before its segment knows."""
    interrupt_once(patch, store._accounting, "mark_dead")
    return partial(client.remove, [B])


def in_second_write(store: Any, client: Any, patch: pytest.MonkeyPatch) -> Callable[[], object]:
    """After the message was taken out of the write buffer, and before it is back with two references."""
    interrupt_once(patch, write_buffer, "_owners")
    return partial(client.write, D, D)


def in_refused_removal(store: Any, client: Any, patch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Before the message is put back that the removal had taken out of the write buffer."""
    interrupt_once(patch, store._buffer, "_insert")
    return partial(store.client().remove, [D, b"no id"])


@pytest.mark.parametrize("change", [in_relocation, in_removal, in_second_write, in_refused_removal])
def test_no_thread_goes_on_with_half_of_a_change(tmp_path, monkeypatch, change, index):
    """Another thread flushes before the interrupted one has ended the store. With v1, collections copy."""
    told: list[bytes] = []
    keys = {"index": index, "format": "v1", "sync_interval": "1h", "gc_interval": 0}
    store = open_with(tmp_path, **keys)
    client = store.client(on_confirm=told.extend)
    play(store, "+ABC r -A", client)
    if change is not in_relocation:
        client.write(D, D)
    errors: list[BaseException] = []
    usual = store._lifecycle.handle_exception

    def flush() -> None:
        try:
            store.flush()
        except StoreClosed as error:
            errors.append(error)

    def handle(error: BaseException, *, in_callback: bool) -> None:
        if isinstance(error, KeyboardInterrupt):
            other = threading.Thread(target=flush)
            other.start()
            other.join(30)
        usual(error, in_callback=in_callback)

    monkeypatch.setattr(store._lifecycle, "handle_exception", handle)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        change(store, client, patch)()
    assert (len(errors), told) == (1, [A, B, C])
    with open_with(tmp_path, **keys) as store:
        found = {entry.msg_id for entry in store.entries()}
        assert found >= {B, C}
        assert store.read_many([B, C]) == {B: B * 3, C: C * 3}
        assert sum(segment.live_count for segment in store.segments()) == len(found)


def test_close_that_waited_for_an_interrupted_thread_raises(tmp_path):
    """The other thread has released the store by then, without a flush."""
    store, errors = open_with(tmp_path, sync_interval="1h"), []

    def close() -> None:
        try:
            store.close()
        except StoreClosed as error:
            errors.append(error)

    other = threading.Thread(target=close)
    with store._gc_lock:
        other.start()
        until(lambda: store._collector.is_stopping)
        store._lifecycle.refuse_after(KeyboardInterrupt())
        with store._accounting.flush_lock:
            store._release("abandoned")
    other.join()
    assert len(errors) == 1


@pytest.mark.parametrize("how", ["refused", "noted"])
def test_store_that_an_interrupt_could_not_release_is_released_by_close(tmp_path, how):
    """A second interrupt may come before the first one has done its work, or a callback may catch it."""
    store = open_with(tmp_path, sync_interval="1h")
    if how == "refused":
        store._lifecycle.refuse_after(KeyboardInterrupt())
    else:
        store._lifecycle.interrupted = StoreClosed("an interrupt came")
    with pytest.raises(StoreClosed):
        store.close()
    with msgstore.open_store(tmp_path), pytest.raises(StoreClosed):
        store.client()


@pytest.mark.parametrize("where", ["callback", "write"])
def test_handler_that_raises_in_a_callback_ends_the_store(ring, where, tmp_path, monkeypatch):
    """A callback's other exceptions are logged."""
    told = []
    store = open_with(tmp_path, sync_interval="1h")
    store.client(on_confirm=lambda ids: calls[where]()).write(A, A)
    store.client(on_confirm=told.extend).write(B, B)
    calls = {"callback": ring, "write": lambda: store.client().write(C, bytearray(C))}
    monkeypatch.setattr(store._buffer, "add", lambda *_: (monkeypatch.undo(), ring()))
    with pytest.raises(ArithmeticError):
        store.flush()
    assert told == []
    msgstore.open_store(tmp_path).close()


def test_interrupted_client_takes_writes_again(tmp_path):
    """The interrupt comes where its ``close`` has begun to wait."""
    with msgstore.open_store(tmp_path, sync_interval="1h") as store:
        client = store.client()
        usual, calls = client.set_size_limit, iter([interrupt])
        client.set_size_limit = lambda size: next(calls, partial(usual, size))()
        with pytest.raises(KeyboardInterrupt):
            client.close()
        client.write(A, A)
        client.close()
        assert store.read(A) == A


def test_timeout_of_a_handler_in_a_removal_ends_the_store(kind, tmp_path, monkeypatch):
    """An OSError of an index means that nothing was removed, and one of a handler says nothing."""

    def handle(*_: object) -> None:
        raise TimeoutError

    store = open_with(tmp_path, index=kind, sync_interval="1h")
    play(store, "+AB f")
    release = store._index.release
    monkeypatch.setattr(store._index, "release", lambda ids: (release(ids), signal.raise_signal(signal.SIGUSR1))[0])
    usual = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(TimeoutError):
            store.client().remove([A])
    finally:
        signal.signal(signal.SIGUSR1, usual)
    with pytest.raises(StoreClosed, match="TimeoutError"):
        store.flush()
    with open_with(tmp_path, index=kind) as store:
        assert store.read(B) == B * 3


def test_client_of_an_abandoned_store_does_not_close(tmp_path):
    """It would say that everything is confirmed."""
    store = msgstore.open_store(tmp_path, sync_interval="1h")
    client = store.client()
    client.write(A, A)
    store.abandon()
    with pytest.raises(StoreClosed, match="abandoned"), client:
        pass
    with pytest.raises(ArithmeticError), client:
        raise ArithmeticError


@contextlib.contextmanager
def interrupted_at(code: CodeType, line: int) -> Iterator[None]:
    """Inside, a KeyboardInterrupt comes before this line of a function, if the function comes there."""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is code and event == "line" and frame.f_lineno == line:
            raise KeyboardInterrupt
        return trace if frame.f_code is code else None

    usual = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        sys.settrace(usual)


def test_write_interrupted_at_any_line_confirms_what_it_took(tmp_path):
    with msgstore.open_store(tmp_path / "lines") as store, store.client() as client:
        code = client.write.__code__
    ended = []
    for line in sorted({line for _, _, line in code.co_lines() if line}):
        confirmed: list[bytes] = []
        try:
            with msgstore.open_store(tmp_path / str(line), sync_interval="1h") as store:
                client = store.client(on_confirm=confirmed.extend)
                with interrupted_at(code, line):
                    client.write(A, A)
                store.flush()
                assert confirmed == [A] * client.contains(A), f"line {line}"
        except StoreClosed:
            ended.append(linecache.getline(code.co_filename, line).strip())
    assert "unconfirmed.append(msg_id)" in ended
    assert len(ended) <= 4, "only where the message and its id are noted"


def test_exception_of_a_handler_after_a_callback_leaves_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before the mark is gone. Here it looks like one of the callback, so the store stays open."""

    @contextlib.contextmanager
    def running(callbacks: Callbacks) -> Iterator[None]:
        callbacks.threads.add(threading.get_ident())
        yield
        raise ArithmeticError

    monkeypatch.setattr(Callbacks, "running", running)
    with msgstore.open_store(tmp_path / "s") as store, store.client("c", on_confirm=lambda ids: None) as client:
        client.write(A, b"a")
        store.flush()
        client.write(B, b"b")
        store.flush()


def test_confirm_callback_that_exits_closes_the_store(tmp_path: Path) -> None:
    """The exit passes through the flush, as that of a signal handler does."""
    store = msgstore.open_store(tmp_path, sync_interval="1h")
    client = store.client(on_confirm=lambda ids: sys.exit())
    client.write(A, b"body")
    with pytest.raises(SystemExit):
        store.flush()
    with pytest.raises(StoreClosed, match="SystemExit came in the middle of a change"):
        client.write(B, b"body")
    with msgstore.open_store(tmp_path) as again:
        assert again.client().read(A) == b"body"


@pytest.fixture
def ring() -> Iterator[Callable[[], None]]:
    """Send a signal whose handler raises ArithmeticError."""

    def handle(*_: object) -> None:
        raise ArithmeticError

    usual = signal.signal(signal.SIGUSR1, handle)
    yield partial(signal.raise_signal, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, usual)


def test_handler_that_raises_in_relocation_ends_the_store(kind, ring, tmp_path, monkeypatch):
    """The index has the new places already, and the statistics do not: the copies would be deleted as empty ones."""
    ids = [bytes([number]) * 16 for number in range(20)]
    store = open_with(tmp_path, index=kind, format="v1", gc_interval=0)
    client = store.client()
    client.write_many((msg_id, msg_id * 10) for msg_id in ids)
    store.roll()
    client.remove(ids[::2])
    index, relocate = store._accounting.index, store._accounting.index.relocate
    monkeypatch.setattr(index, "relocate", lambda *arguments: (relocate(*arguments), ring())[0])
    with pytest.raises(ArithmeticError):
        store.compact(everything=True)
    with pytest.raises(StoreClosed, match="ArithmeticError came in the middle of a change"):
        store.flush()
    with open_with(tmp_path, index=kind, format="v1") as again:
        assert again.read_many(ids[1::2]) == {msg_id: msg_id * 10 for msg_id in ids[1::2]}


@pytest.mark.parametrize("where", ["buffer", "index"])
def test_handler_that_raises_in_close_unlocks(where, ring, tmp_path, monkeypatch):
    """Between the steps that release what the store holds, or in one of them."""
    store = open_with(tmp_path, index="ets")
    part, name = (store._buffer, "clear") if where == "buffer" else (store._index, "close")
    monkeypatch.setattr(type(part), name, lambda *_: (monkeypatch.undo(), ring()))  # once
    with pytest.raises(ArithmeticError):
        store.close()
    open_with(tmp_path, index="ets").close()


def test_interrupt_before_close_begins_unlocks(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt), msgstore.open_store(tmp_path) as store:
        monkeypatch.setattr(store, "close", interrupt)
    msgstore.open_store(tmp_path).close()


def test_interrupt_while_a_reader_closes_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_with(tmp_path, index="lmdb").close()
    reader = open_with(tmp_path, index="lmdb", mode="r")
    calls = iter([interrupt, *[reader._opened.resources.close] * 5])
    monkeypatch.setattr(reader._opened.resources, "close", lambda: next(calls)())
    with pytest.raises(KeyboardInterrupt), reader:
        pass
    open_with(tmp_path, index="lmdb").close()


# -- a store that is never closed ---------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, msgstore
kept = [msgstore.open_store(sys.argv[1] + name, sync_interval="1h") for name in ("/left", "/closed", "/abandoned", "/flushed")]
for store in kept:
    client = store.client(on_confirm=lambda ids: None)
    client.write_many([(number.to_bytes(16), b"body") for number in range(5000)])
kept[1].close()
kept[2].abandon()
kept[3].flush()
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    print("the child ends", file=sys.stderr)
"""


@pytest.mark.slow
def test_exit_without_close_warns_of_unconfirmed_writes(tmp_path):
    """Once, in the process that wrote, of the one store that has any."""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0
    text = f"{tmp_path / 'left'}: the store was never closed, and at least 5000 writes are not confirmed"
    assert "the child ends" in done.stderr
    assert done.stderr.count("never closed") == done.stderr.count(text) == 2, done.stderr
    assert f"ResourceWarning: {text}" in done.stderr


def test_interrupt_after_segment_is_created_leaves_no_file(opened, files):
    store = opened(files, sync_interval="1h")
    play(store, "+A")
    files.after("create", interrupt, ".")
    with pytest.raises(KeyboardInterrupt):
        store.flush()
    assert not [path.name for path in store.path.iterdir() if path.stem.isdigit()]


def test_collected_store_warns_of_unconfirmed_writes(tmp_path, caplog):
    """One without threads, which would keep it alive, and confirm its writes."""
    files = FullDisk()
    store = open_with(tmp_path, files, sync_interval=0, gc_interval=0)
    files.full = True
    with pytest.raises(msgstore.StoreIOError):
        store.client().write(bytes(16), b"body")
    alive = weakref.ref(store)
    caplog.clear()
    del store
    with pytest.warns(ResourceWarning) as caught:
        gc.collect()
    assert alive() is None, "the warning keeps the store alive"
    text = f"{tmp_path}: the store was never closed, and at least 1 writes are not confirmed"
    assert any(str(warning.message).startswith(text) for warning in caught)
    assert any(row.levelno == logging.WARNING and row.getMessage().startswith(text) for row in caplog.records)
