"""One thread of the stress test: a client of its own, and an account of what it owes and is owed."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

import msgstore
from stress.account import SLOTS, Board, Findings, Shared, body_of, slot_of

SHARED = 0.04
"""Of the messages: written by several clients."""
TWICE = 0.03
"""Of the messages: written twice by one client."""
_MAY_BE_ABSENT, _MUST_BE_THERE, _MUST_BE_GONE = range(3)


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

    def __init__(self, task: Task, store: msgstore.Store, board: Board, barrier: threading.Barrier, findings: Findings) -> None:
        super().__init__(name=f"stress-{task.number}", daemon=True)
        self.task = task
        self.counts: Counter[str] = Counter()
        """``messages``: ids written, its own quota. ``writes``: calls, second references and others' ids too. ``confirmed``.
        ``reads``: answers that were verified. ``excused``: reads of another thread's message that found nothing, while that
        thread was removing it. ``removes``, ``flushes``, ``collections``."""
        self.descriptors = 0
        """The most that the process had open."""
        self._store = store
        self._board = board
        self._barrier = barrier
        self._findings = findings
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
        self._shared: dict[bytes, Shared] = {}
        """Those of them that others have references to, as well."""

    @property
    def kept(self) -> Counter[bytes]:
        """The references that it has left."""
        return Counter(self._live) + self._more

    def run(self) -> None:
        try:
            self._work()
            self._barrier.wait()  # from here on nobody is sent anything
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
            self._barrier.abort()

    def _work(self) -> None:
        moves = [self._write, self._write_and_remove, self._read, self._read_others, self._read_many, self._count]
        weights = [10, 2, 6, 4, 2, 1]
        while self.counts["messages"] < self.task.quota:
            if self._findings.stop.is_set():
                self._barrier.abort()
            if self._barrier.broken:
                raise threading.BrokenBarrierError
            for move in self._chance.choices(moves, weights, k=8):
                move()
            if len(self._live) > self.task.living:
                self._remove_down_to(self.task.living * 9 // 10)
            self._adopt()
            if self._chance.random() < 0.2:
                self._flush()

    # -- writing ----------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        self._write_new(self._chance.randrange(1, 40))

    def _write_new(self, count: int) -> list[bytes]:
        ids = [self._chance.randbytes(16) for _ in range(min(count, self.task.quota - self.counts["messages"]))]
        for msg_id in ids:
            how = self._chance.random()
            if how < SHARED:
                self._share(msg_id)
            self._put(msg_id)
            if how > 1 - TWICE:
                self._put(msg_id)
                self._more[msg_id] = 1
            self._publish(msg_id)
        self._live += ids
        self.counts["messages"] += len(ids)
        return ids

    def _put(self, msg_id: bytes) -> None:
        self._unconfirmed.append(msg_id)  # first: the flush may come before ``write`` returns
        self._client.write(msg_id, body_of(msg_id))
        self.counts["writes"] += 1

    def _share(self, msg_id: bytes) -> None:
        """Have others write it too; they may do so before this thread does, and after it has removed it again."""
        everybody = range(len(self._board.inboxes))
        others = [number for number in everybody if number != self.task.number and self._chance.random() < 0.3]
        self._shared[msg_id] = shared = Shared(msg_id, 1 + len(others))
        for number in others:
            self._board.inboxes[number].append(shared)

    def _adopt(self) -> None:
        """Write what others have shared, half of the time the first of many references, half of the time a late one."""
        inbox = self._board.inboxes[self.task.number]
        while inbox:
            shared = inbox.popleft()
            self._shared[shared.msg_id] = shared
            self._put(shared.msg_id)
            self._live.append(shared.msg_id)

    def _publish(self, msg_id: bytes) -> None:
        self._board.alive[self.task.number][slot_of(msg_id)] = msg_id

    # -- confirming -------------------------------------------------------------------------------------------------------

    def _on_confirm(self, ids: list[bytes]) -> None:
        if not self._being_told.acquire(blocking=False):
            self._findings.add("confirm", f"{self.name} was told by two threads at once")
            return
        try:
            self.counts["confirmed"] += len(ids)
            self.task.journal(b"C", ids)
            for msg_id in ids:
                expected = self._unconfirmed.popleft() if self._unconfirmed else None
                if msg_id != expected:
                    wanted = expected.hex() if expected else "none"
                    self._findings.add("confirm", f"{self.name} was told of {msg_id.hex()}; the next in order was {wanted}")
                    self._findings.stop.set()
                    return
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
            self._findings.add("confirm", f"{self.name}: {call} returned, and {len(self._unconfirmed)} are not confirmed")

    # -- removing ---------------------------------------------------------------------------------------------------------

    def _write_and_remove(self) -> None:
        """Most of these meet before any flush."""
        ids = self._write_new(self._chance.randrange(1, 25))
        if ids:
            self._must_be_there(ids[0])
            del self._live[-len(ids) :]
            self._remove(ids)

    def _remove_down_to(self, count: int) -> None:
        """The oldest first, which empties whole segments, or any, which leaves holes."""
        oldest = self._chance.random() < 0.5
        while len(self._live) > count and not self._findings.stop.is_set():
            wanted = min(self._chance.randrange(1, 60), len(self._live) - count)
            if oldest:
                batch = self._live[:wanted]
                del self._live[:wanted]
            else:
                batch = [self._take_any() for _ in range(wanted)]
            self._remove(batch)

    def _take_any(self) -> bytes:
        at = self._chance.randrange(len(self._live))
        self._live[at], self._live[-1] = self._live[-1], self._live[at]
        return self._live.pop()

    def _remove(self, ids: Sequence[bytes]) -> None:
        """Give one reference of each back."""
        alive = self._board.alive[self.task.number]
        for msg_id in ids:
            if alive[slot_of(msg_id)] == msg_id:
                alive[slot_of(msg_id)] = None
        self.task.journal(b"R", [msg_id for msg_id in ids if msg_id not in self._more])
        absent = [self._chance.randbytes(16)] if self._chance.random() < 0.05 else []
        try:
            self._client.remove([*ids, *absent])
            named: list[bytes] = []
        except msgstore.MessageNotFound as error:
            named = list(error.ids)
        if named != absent:
            self._findings.add("lost", f"{self.name}: remove did not find {[msg_id.hex() for msg_id in named]}")
        self.counts["removes"] += len(ids)
        gone = [msg_id for msg_id in ids if not self._has_one_left(msg_id)]
        self._gone += gone
        for msg_id in gone:
            self._board.dead[self.task.number][slot_of(msg_id)] = msg_id
        for msg_id in gone[:3]:
            self._must_be_gone(msg_id)
        if self._chance.random() < len(ids) / self.task.removed:
            self._collect()

    def _collect(self) -> None:
        """Mostly what the policy names, next to the other threads and the store's own collector."""
        for done in self._store.compact(everything=self._chance.random() < 0.1):
            if done.skipped:
                self._findings.add("skipped", f"{self.name}: {done.file}: {done.skipped}")
        self.counts["collections"] += 1

    def _has_one_left(self, msg_id: bytes) -> bool:
        """Whether there may be a reference after one of this thread's was given back."""
        if msg_id in self._more:
            self._more.subtract([msg_id])
            if not self._more[msg_id]:
                del self._more[msg_id]
            self._live.append(msg_id)
            return True
        shared = self._shared.pop(msg_id, None)
        return shared is not None and not shared.give_back()

    # -- reading ----------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        for msg_id in self._chance.choices(self._live, k=24) if self._live else []:
            self._must_be_there(msg_id)
        if self._live:
            self._must_be_there(self._live[-1])

    def _read_others(self) -> None:
        for slots, expected in ((self._board.alive, _MAY_BE_ABSENT), (self._board.dead, _MUST_BE_GONE)):
            theirs = self._chance.choice(slots)
            for at in (self._chance.randrange(SLOTS) for _ in range(10)):
                msg_id = theirs[at]
                if msg_id is None:
                    continue
                body = self._ask(msg_id)
                still = _MUST_BE_THERE if theirs[at] == msg_id else _MAY_BE_ABSENT
                self._verify(msg_id, body, still if expected == _MAY_BE_ABSENT else expected)

    def _read_many(self) -> None:
        mine = set(self._chance.choices(self._live, k=40) if self._live else [])
        theirs = self._chance.choice(self._board.alive)
        published = {at: msg_id for at in range(0, SLOTS, 16) if (msg_id := theirs[at]) is not None}
        buried = [msg_id for msg_id in self._chance.choice(self._board.dead)[::32] if msg_id is not None]
        found = self._client.read_many([*mine, *published.values(), *buried])
        for msg_id in mine:
            self._verify(msg_id, found.get(msg_id), _MUST_BE_THERE)
        for at, msg_id in published.items():
            self._verify(msg_id, found.get(msg_id), _MUST_BE_THERE if theirs[at] == msg_id else _MAY_BE_ABSENT)
        for msg_id in buried:
            self._verify(msg_id, found.get(msg_id), _MUST_BE_GONE)
        self._refuse_strangers(found, {*mine, *published.values()})

    def _refuse_strangers(self, found: Iterable[bytes], asked: set[bytes]) -> None:
        if strangers := [msg_id for msg_id in found if msg_id not in asked]:
            self._findings.add("ghost", f"{self.name}: read_many gave {len(strangers)} that are gone or were not asked for")

    def _count(self) -> None:
        """References of messages that nobody else has any to."""
        for msg_id in self._chance.choices(self._live, k=4) if self._live else []:
            if msg_id not in self._shared:
                expected, found = 1 + self._more[msg_id], self._store.references(msg_id)
                if found != expected:
                    self._findings.add("mismatch", f"{self.name}: {msg_id.hex()} has {found} references instead of {expected}")
                if not self._client.contains(msg_id):
                    self._findings.add("lost", f"{self.name}: {msg_id.hex()} is said not to be there")

    def _must_be_there(self, msg_id: bytes) -> None:
        self._verify(msg_id, self._ask(msg_id), _MUST_BE_THERE)

    def _must_be_gone(self, msg_id: bytes) -> None:
        self._verify(msg_id, self._ask(msg_id), _MUST_BE_GONE)

    def _ask(self, msg_id: bytes) -> bytes | None:
        try:
            return self._client.read(msg_id)
        except msgstore.MessageNotFound:
            return None

    def _verify(self, msg_id: bytes, body: bytes | None, expected: int) -> None:
        if body is None:
            if expected == _MUST_BE_THERE:
                self._findings.add("lost", f"{self.name}: {msg_id.hex()} was not found")
            elif expected == _MAY_BE_ABSENT:
                self.counts["excused"] += 1
                return
        elif expected == _MUST_BE_GONE:
            self._findings.add("ghost", f"{self.name}: {msg_id.hex()} was read after its last removal had returned")
        elif body != body_of(msg_id):
            text = f"{self.name}: {msg_id.hex()} has other bytes: {len(body)} that begin with {body[:16].hex()}"
            self._findings.add("mismatch", text)
        self.counts["reads"] += 1


def open_descriptors() -> int:
    """Of this process; 0 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is needed
    except OSError:
        return 0
