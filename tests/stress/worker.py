"""One thread of the stress test: a client of its own, and an account of what it owes and is owed."""

from __future__ import annotations

import random
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import attrs

import msgstore

LARGE_MESSAGE = 24 * 1024
"""The ``large_message`` of the stores."""
USUAL = {"file_size_limit": 32 * 2**10, "large_message": LARGE_MESSAGE, "sync_interval": "5ms", "gc_interval": "100ms"}
SLOTS = 256
SHARED, TWICE = 0.04, 0.03
"""Of the messages: written by several clients, and twice by one."""
ENOUGH = 20
"""So many findings end a run."""
_NOISE = random.Random(0).randbytes(2**17)


def body_of(msg_id: bytes) -> bytes:
    """The id and, behind it, a stretch of one noise: neither a neighbour's bytes nor its own shifted by a few are the same.
    Most bodies have 64 B to 1 KiB; some are shorter, empty ones among them, one in a thousand is large."""
    kind, chance, start = msg_id[0], int.from_bytes(msg_id[1:3]), int.from_bytes(msg_id[3:5])
    size = chance % 64 if kind < 5 else 64 + chance % 961
    if kind == 0 and chance < 2**14:
        size = LARGE_MESSAGE - 16 + chance % 2**13  # a few are just below the limit
    return (msg_id + _NOISE[start : start + size])[:size]


class WorkerReport:
    """What was not as it should be, by kind. Any thread adds to it; one that looks at ``stop`` now and then ends early."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.stop = threading.Event()

    @property
    def kinds(self) -> Counter[str]:
        return Counter(kind for kind, _ in self.found)

    def add(self, kind: str, text: str) -> None:
        self.found.append((kind, text))
        if len(self.found) >= ENOUGH:
            self.stop.set()

    def error(self, where: str) -> None:
        """An exception that nobody expected, being handled. It ends the run."""
        self.add("error", f"{where}\n{traceback.format_exc()}")
        self.stop.set()

    def __bool__(self) -> bool:
        return bool(self.found)

    def __str__(self) -> str:
        return "\n".join([f"findings: {dict(self.kinds)}", *(f"{kind}: {text}" for kind, text in self.found[:ENOUGH])])


Shared = tuple[bytes, list[int]]
"""A message that several clients write, each once and when it gets to it, and each removes once; and the holders that have not
removed it. Whoever takes the last one out after its removal has returned knows that the message must be gone."""


class Board:
    """What the threads tell each other, so that each of them knows exactly what another's message must answer.

    A slot is a list's element, read and set whole. A thread sets an *alive* slot after its write has returned, and empties it
    before it calls ``remove``: a message that is not found although the slot, looked at again afterwards, still has its id, is
    lost. It sets a *dead* slot when the last removal has returned, and never writes that id again: a message that is found is
    a ghost.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.alive: list[list[bytes | None]] = [[None] * SLOTS for _ in range(threads)]
        self.dead: list[list[bytes | None]] = [[None] * SLOTS for _ in range(threads)]
        self.inboxes: list[deque[Shared]] = [deque() for _ in range(threads)]
        """Messages that others have written, or are about to, and this thread is to write as well."""
        self.barrier = threading.Barrier(threads)
        """Passed when nobody is sent anything any more."""


@attrs.frozen
class Task:
    """What one worker is to do."""

    number: int
    seed: str
    quota: int
    """Ids that it writes."""
    living: int
    """Ids that it keeps alive at a time, about."""
    kept: int
    """Ids that it leaves in the end, at most."""
    removed: int
    """References that the threads give back between two collections, about."""
    owned: Mapping[bytes, int] = {}
    """Messages that it finds, and the references to them that are its own."""
    journal: Callable[[bytes, Iterable[bytes]], object] = lambda letter, ids: None
    """Called with ``C`` and ids that were confirmed, ``R`` and ids whose last reference may go now, and ``D`` and ids of which
    the last reference is gone, and a flush has returned since."""


class Worker(threading.Thread):
    """``run`` ends when the quota is written, removed down to what is kept, and confirmed; or when anything was found."""

    def __init__(self, task: Task, store: msgstore.Store, board: Board, findings: WorkerReport) -> None:
        super().__init__(name=f"stress-{task.number}", daemon=True)
        self.task = task
        self.counts: Counter[str] = Counter()
        """``messages``: ids written, its own quota. ``writes``: calls, second references and others' ids too. ``confirms``.
        ``reads``: answers that were verified. ``removes``, ``flushes``, ``collections``."""
        self.descriptors = 0
        """The most that the process had open."""
        self._store, self._board, self._findings = store, board, findings
        self._alive, self._dead = board.alive[task.number], board.dead[task.number]
        self._chance = random.Random(task.seed)
        self._client = store.client(f"worker {task.number}", on_confirm=self._on_confirm)
        self._unconfirmed: deque[bytes] = deque()
        self._being_told = threading.Lock()
        self._live = list(task.owned)
        """Each id that it has at least one reference to, about in the order of writing."""
        self._more = Counter({msg_id: count - 1 for msg_id, count in task.owned.items() if count > 1})
        """References to them beyond the first one."""
        self._gone: list[bytes] = []
        """Ids of which the last reference was removed since the last flush."""
        self._shared: dict[bytes, list[int]] = {}
        """Those of them that others have references to, as well, with the holders that are left."""

    @property
    def kept(self) -> Counter[bytes]:
        """The references that it has left."""
        return Counter(self._live) + self._more

    def run(self) -> None:
        try:
            self._work()
            self._board.barrier.wait()
            self._adopt()
            self._remove_down_to(self.task.kept)
            self._flush()
            if self.task.number % 2:
                self._client.close()  # and the others' clients end with the store
                self._all_is_confirmed("client.close()")
        except threading.BrokenBarrierError:
            pass
        except BaseException:
            self._findings.error(f"{self.name} failed")
            self._board.barrier.abort()

    def _work(self) -> None:
        moves = [self._write, self._write_and_remove, self._read, self._count]
        while self.counts["messages"] < self.task.quota:
            if self._findings.stop.is_set():
                self._board.barrier.abort()
            if self._board.barrier.broken:
                raise threading.BrokenBarrierError
            for move in self._chance.choices(moves, [10, 2, 12, 1], k=8):
                move()
            if len(self._live) > self.task.living:
                self._remove_down_to(self.task.living * 9 // 10)
            self._adopt()
            if self._chance.random() < 0.2:
                self._flush()

    def _found(self, kind: str, text: str) -> None:
        self._findings.add(kind, f"{self.name}: {text}")

    def _some(self, count: int) -> list[bytes]:
        return self._chance.choices(self._live, k=count) if self._live else []

    # -- writing, confirming ----------------------------------------------------------------------------------------------

    def _write(self, most: int = 40) -> list[bytes]:
        count = min(self._chance.randrange(1, most), self.task.quota - self.counts["messages"])
        ids = [self._chance.randbytes(16) for _ in range(count)]
        for msg_id in ids:
            how = self._chance.random()
            if how < SHARED:
                self._share(msg_id)
            self._put(msg_id)
            if how > 1 - TWICE:
                self._put(msg_id)
                self._more[msg_id] = 1
            self._alive[msg_id[5]] = msg_id
        self._live += ids
        self.counts["messages"] += len(ids)
        return ids

    def _put(self, msg_id: bytes) -> None:
        self._unconfirmed.append(msg_id)  # first: the flush may come before ``write`` returns
        self._client.write(msg_id, body_of(msg_id))
        self.counts["writes"] += 1

    def _share(self, msg_id: bytes) -> None:
        """Have others write it too; they may do so before this thread does, and after it has removed it again."""
        everybody = range(self._board.threads)
        others = [number for number in everybody if number != self.task.number and self._chance.random() < 0.3]
        self._shared[msg_id] = left = list(range(1 + len(others)))
        for number in others:
            self._board.inboxes[number].append((msg_id, left))

    def _adopt(self) -> None:
        """Write what others have shared, half of the time the first of many references, half of the time a late one."""
        inbox = self._board.inboxes[self.task.number]
        while inbox:
            msg_id, self._shared[msg_id] = inbox.popleft()
            self._put(msg_id)
            self._live.append(msg_id)

    def _on_confirm(self, ids: list[bytes]) -> None:
        if not self._being_told.acquire(blocking=False):
            self._found("confirm", "two threads confirm at once")
            return
        try:
            self.counts["confirms"] += len(ids)
            self.task.journal(b"C", ids)
            expected = [self._unconfirmed.popleft() for _ in range(min(len(ids), len(self._unconfirmed)))]
            if ids != expected:
                self._found("confirm", f"{len(ids)} ids are not the next in order, of which there are {len(expected)}")
                self._findings.stop.set()
        finally:
            self._being_told.release()

    def _flush(self) -> None:
        gone, self._gone = self._gone, []
        self._store.flush()
        self.task.journal(b"D", gone)
        self.counts["flushes"] += 1
        self._all_is_confirmed("store.flush()")
        self.descriptors = max(self.descriptors, open_descriptors())

    def _all_is_confirmed(self, call: str) -> None:
        if self._unconfirmed:
            self._found("confirm", f"{call} returned, and {len(self._unconfirmed)} are not confirmed")

    # -- removing ---------------------------------------------------------------------------------------------------------

    def _write_and_remove(self) -> None:
        """Most of these meet before any flush."""
        if ids := self._write(25):
            self._verify(ids[0], self._ask(ids[0]), there=True)
            del self._live[-len(ids) :]
            self._remove(ids)

    def _remove_down_to(self, count: int) -> None:
        """The oldest first, which empties whole segments, or each third from anywhere, which leaves holes."""
        oldest = self._chance.random() < 0.5
        while len(self._live) > count and not self._findings.stop.is_set():
            wanted = min(self._chance.randrange(1, 60), len(self._live) - count)
            begin, step = (0, 1) if oldest else (self._chance.randrange(len(self._live)), 3)
            some = slice(begin, begin + step * wanted, step)
            batch = self._live[some]
            del self._live[some]
            self._remove(batch)

    def _remove(self, ids: Sequence[bytes]) -> None:
        """Give one reference of each back."""
        for msg_id in ids:
            if self._alive[msg_id[5]] == msg_id:
                self._alive[msg_id[5]] = None
        self.task.journal(b"R", [msg_id for msg_id in ids if msg_id not in self._more])
        absent = [self._chance.randbytes(16)] if self._chance.random() < 0.05 else []
        named: list[bytes] = []
        try:
            self._client.remove([*ids, *absent])
        except msgstore.MessageNotFound as error:
            named = list(error.ids)
        if named != absent:
            self._found("lost", f"remove did not find {[msg_id.hex() for msg_id in named]}")
        self.counts["removes"] += len(ids)
        gone = [msg_id for msg_id in ids if not self._has_one_left(msg_id)]
        self._gone += gone
        for msg_id in gone:
            self._dead[msg_id[5]] = msg_id
        for msg_id in gone[:3]:
            self._verify(msg_id, self._ask(msg_id), there=False)
        if self._chance.random() < len(ids) / self.task.removed:
            # Mostly what the policy names, next to the other threads and the store's own collector.
            for done in self._store.compact(everything=self._chance.random() < 0.1):
                if done.skipped:
                    self._found("skipped", f"{done.file}: {done.skipped}")
            self.counts["collections"] += 1

    def _has_one_left(self, msg_id: bytes) -> bool:
        """Whether there may be a reference after one of this thread's was given back."""
        if self._more[msg_id]:
            self._more[msg_id] -= 1
            if not self._more[msg_id]:
                del self._more[msg_id]
            self._live.append(msg_id)
            return True
        left = self._shared.pop(msg_id, None)
        return left is not None and left.pop() > 0

    # -- reading ----------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Messages of its own, and some of another thread's that must be there, or must be gone; one by one, or together."""
        mine = {*self._some(24), *self._live[-1:]}
        alive, dead = self._chance.choice(self._board.alive), self._chance.choice(self._board.dead)
        slots = self._chance.choices(range(SLOTS), k=10)
        published = {at: msg_id for at in slots if (msg_id := alive[at]) is not None}
        buried = [msg_id for at in slots if (msg_id := dead[at]) is not None]
        asked = {*mine, *published.values(), *buried}
        if self._chance.random() < 0.2:
            found: Mapping[bytes, bytes | None] = self._client.read_many(asked)
            if strangers := found.keys() - asked:
                self._found("ghost", f"read_many gave {len(strangers)} that were not asked for")
        else:
            found = {msg_id: self._ask(msg_id) for msg_id in asked}
        for msg_id in mine:
            self._verify(msg_id, found.get(msg_id), there=True)
        for at, msg_id in published.items():
            self._verify(msg_id, found.get(msg_id), there=True if alive[at] == msg_id else None)
        for msg_id in buried:
            self._verify(msg_id, found.get(msg_id), there=False)

    def _count(self) -> None:
        """References of messages that nobody else has any to."""
        for msg_id in self._some(4):
            if msg_id not in self._shared:
                expected, found = 1 + self._more[msg_id], self._store.references(msg_id)
                if found != expected:
                    self._found("mismatch", f"{msg_id.hex()} has {found} references instead of {expected}")
                if not self._client.contains(msg_id):
                    self._found("lost", f"{msg_id.hex()} is said not to be there")

    def _ask(self, msg_id: bytes) -> bytes | None:
        try:
            return self._client.read(msg_id)
        except msgstore.MessageNotFound:
            return None

    def _verify(self, msg_id: bytes, body: bytes | None, *, there: bool | None) -> None:
        """``there``: whether it must be there; None if it may."""
        if body is None:
            if there is None:
                return
            if there:
                self._found("lost", f"{msg_id.hex()} was not found")
        elif there is False:
            self._found("ghost", f"{msg_id.hex()} was read after its last removal had returned")
        elif body != body_of(msg_id):
            self._found("mismatch", f"{msg_id.hex()} has other bytes: {len(body)} that begin with {body[:16].hex()}")
        self.counts["reads"] += 1


def open_descriptors() -> int:
    """Of this process."""
    return len(list(Path("/dev/fd").iterdir()))
