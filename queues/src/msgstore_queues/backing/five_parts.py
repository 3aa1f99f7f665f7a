"""FiveParts: the messages of a variable queue, in the order of delivery. The outer parts are in memory.

::

    fetch <- q4 <- q3 <- delta <- q2 <- q1 <- publish

    alpha   q1, q4   message and position in memory; at the end of q1 only the bodies
    gamma   q2, q3   message on disk, position in memory and on disk
    delta            message and position on disk only: a range of positions

Always: q1, but for these bodies, is empty or q3 is not; q2 is empty or delta is not; delta is empty or q3 is not. Only a flush
writes. It writes what is persistent, wherever it is, and the transient messages that shall leave memory; they leave when they
are written. So there is no beta, a message on disk whose position is not.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter

from msgstore.contract import CorruptRecord
from msgstore_queues.backing.parts import BodyRun, Delta, Held
from msgstore_queues.contract import NO_ENTRIES, BackingQueueContext, Bodies, Message
from msgstore_queues.message import NO_PROPERTIES
from msgstore_queues.messages import Terms
from rabbitmq_files.messages import MessageError

log = logging.getLogger("msgstore.queues")

READ_AHEAD = 256
"""Messages that are read together, when the first of them is needed."""
OVERHEAD = 256
"""Bytes that a message costs in a flush beside its body, about."""

by_position = attrgetter("position")


class FiveParts:
    """Holds the parts, and moves messages between them. Only its subclass :class:`VariableQueue` uses it."""

    def __init__(self, context: BackingQueueContext) -> None:
        terms = context.terms or {}
        self._index = context.open_index(terms.get("index"))
        self._terms = Terms(context.vhost)
        self._name = context.name
        self._is_durable = context.is_durable
        self._embed_below = context.embed_below
        self._stores: dict[bool, Bodies] = {True: context.persistent, False: context.transient}
        self._target: float = context.options.memory
        found = self._index.recovered
        self._q1, self._q2, self._q3, self._q4 = deque[Held](), deque[Held](), deque[Held](), deque[Held]()
        self._delta = Delta(found.first_position, found.next_position, found.count)
        self._unacked: dict[int, Held] = {}
        first = max(found.next_position, terms.get("next", 0))
        self._bodies = BodyRun(first, context.name, self._terms)
        self._next_delivered = terms.get("next_delivered", 0) if terms else first
        """Messages below this position may have been delivered. After a crash nobody knows."""
        self._body_bytes = found.body_bytes if found.body_bytes is not None else terms.get("body_bytes", 0)
        """Bytes of the ready messages, but for those of ``_bodies``."""
        self._unwritten: dict[int, Held] = {}
        """Messages that the next flush writes into the index."""
        self.unwritten = 0
        """About the bytes that a flush would write."""
        self.bodies_below = context.embed_below - len(NO_PROPERTIES) if context.is_durable else 0
        self._until = 0
        """The flush under way writes positions below this one."""
        self._writing = NO_ENTRIES
        """Entries of the flush under way, or of one that failed."""
        self._acks: list[int] = []
        """Acknowledged positions that are in the index."""
        self._removals: list[Held] = []
        """Acknowledged messages that are in a message store: removed when the index has the acknowledgements."""
        self._removable: list[Held] = []
        self._has_transient_entries = False
        self.lost_reports = 0
        self._report_lost = context.report_lost
        if self._delta.count:
            self._extend_q3()

    def __len__(self) -> int:
        return len(self._q4) + len(self._q3) + self._delta.count + len(self._q2) + len(self._q1) + len(self._bodies.bodies)

    @property
    def body_bytes(self) -> int:
        return self._body_bytes + sum(map(len, self._bodies.bodies))

    def info(self) -> Mapping[str, object]:
        q1 = len(self._q1) + len(self._bodies.bodies)
        parts = {"q1": q1, "q2": len(self._q2), "delta": self._delta.count, "q3": len(self._q3), "q4": len(self._q4)}
        return {**parts, "memory_target": None if self._target == float("inf") else int(self._target)}

    def check(self) -> None:
        """Raise AssertionError unless the parts are as the module says. For tests."""
        q1, q2, q3, q4, delta = self._q1, self._q2, self._q3, self._q4, self._delta
        assert not q1 or q3, "q1 has messages, and q3 has none"
        assert not q2 or delta.count, "q2 has messages, and delta has none"
        assert not delta.count or q3, "delta has messages, and q3 has none"
        assert len(self) == len(self._bodies.bodies) or q3 or q4, "q3 and q4 are empty, and the queue is not"
        assert all(held.message is not None for held in (*q1, *q4)), "q1 and q4 hold alphas"
        assert all(held.message is None for held in (*q2, *q3)), "q2 and q3 hold gammas"
        positions = [held.position for held in (*q4, *q3)]
        if delta.count:
            positions += [delta.start, delta.stop - 1] if delta.stop - 1 > delta.start else [delta.start]
        positions += [held.position for held in (*q2, *q1, *self._bodies.held())]
        assert positions == sorted(set(positions)), "the parts are not in order"

    def set_memory_target(self, messages: int | None) -> None:
        self._target = float("inf") if messages is None else messages
        self._reduce()

    def _reduce(self) -> None:
        """Move messages out of memory, as the target asks: the first of q1, then the last of q4. Those that are not written
        yet stay until the next flush, and with them those behind them."""
        q1, q3, q4, bodies = self._q1, self._q3, self._q4, self._bodies
        excess = len(q1) + len(q4) + len(bodies.bodies) - self._target
        if excess <= 0 or self._writing is not NO_ENTRIES:  # what a flush that failed has chosen still needs its messages
            return
        while q1 and excess > 0 and q1[0].is_indexed:
            held = q1.popleft()
            held.message = None
            (self._q2 if self._delta.count else q3).append(held)
            excess -= 1
        if not q1 and excess > 0 and (count := min(int(excess), bodies.indexed - bodies.start)):
            self._move_to_delta(count)
            excess -= count
        while not q1 and q4 and excess > 0 and q4[-1].is_indexed:
            held = q4.pop()
            held.message = None
            q3.appendleft(held)
            excess -= 1
        for held in (*islice(q1, max(int(min(excess, len(q1))), 0)), *q4):
            if excess > 0 and not held.is_indexed:
                self._note_unwritten(held)
        self._push_to_delta()

    def _push_to_delta(self) -> None:
        """Keep the positions of one segment in memory, about: those behind it become delta."""
        if self._delta.count:
            for held in self._q2:
                self._delta.stop = held.position + 1
            self._delta.count += len(self._q2)
            self._q2.clear()
        elif len(self._q3) > 1:
            _, stop = self._index.segment(self._q3[0].position)
            behind = len(self._q3) - bisect_left(self._q3, stop, key=by_position)
            if behind:
                last = self._q3[-1].position
                first = self._q3[-behind].position
                for _ in range(behind):
                    self._q3.pop()
                self._delta = Delta(first, last + 1, behind)

    def _move_to_delta(self, count: int) -> None:
        """Keep nothing of the first bodies in memory. There is nothing else in q1."""
        if not self._q3:  # delta is never alone
            self._unpack(1)
            self._q3.append(self._q4.pop())
            self._q3[0].message = None
            count -= 1
        self._push_to_delta()
        start = self._bodies.start
        if not self._delta.count:
            self._delta = Delta(start, start, 0)
        self._delta.stop = start + count
        self._delta.count += count
        self._body_bytes += self._bodies.drop(count)

    def _unpack(self, count: int) -> None:
        """Make the first bodies messages, at the end of q1 or, if they are the next ones, q4."""
        held = self._bodies.held(0, count)
        self._body_bytes += self._bodies.drop(len(held))
        self._unwritten |= {one.position: one for one in held if not one.is_indexed}
        (self._q1 if self._q3 else self._q4).extend(held)

    def _move_up(self) -> None:
        """Without delta, q2 belongs to q3; without q3, q1 belongs to q4."""
        if not self._delta.count and self._q2:
            self._q3.extend(self._q2)
            self._q2.clear()
        if not self._q3 and self._q1:
            self._q4.extend(self._q1)
            self._q1.clear()

    def _load_front(self) -> bool:
        """Move messages from q3, or bodies, to q4. Return False if there is none behind q4. Raises OSError before it changes
        anything."""
        while self._q3:
            _, stop = self._index.segment(self._q3[0].position)
            chunk = [held for held in islice(self._q3, READ_AHEAD) if held.position < stop]
            try:
                messages = self._messages(chunk)
            except CorruptRecord:  # those before it are delivered
                del chunk[1:]
                messages = self._message_or_stop(chunk[0])
            if len(chunk) == len(self._q3) and self._delta.count:
                self._extend_q3()
            lost = []
            for held, message in zip(chunk, messages, strict=True):
                self._q3.popleft()
                if message is None:
                    lost.append(held)
                else:
                    held.message, held.msg_id = message, message.msg_id
                    self._q4.append(held)
            self._lose(lost)
            self._move_up()
            if len(lost) < len(chunk):
                return True
        if not self._q4:
            self._unpack(READ_AHEAD)
        return bool(self._q4)

    def _message_or_stop(self, held: Held) -> list[Message | None]:
        """Return a message alone. Raises CorruptRecord with its position if it is damaged."""
        try:
            return self._messages([held])
        except CorruptRecord as error:
            raise CorruptRecord(
                f"queue {self._shown} stops at position {held.position}: its message, in {error.path} at offset {error.offset}"
                f", is damaged ({error.reason}). Compare the options of the store first, such as a key. To skip damaged "
                'messages, open the vhost with damaged = "skip".',
                reason=error.reason, path=error.path, offset=error.offset, msg_id=error.msg_id,
            ) from error  # fmt: skip

    def _extend_q3(self) -> None:
        """Move the first segment of delta that has messages behind q3. Raises OSError before it changes anything."""
        start, found = self._delta.start, list[Held]()
        while not found and start < self._delta.stop:
            found, start = self._read_segment(start)
        left = self._delta.count - len(found)
        if start >= self._delta.stop and left:
            self._report(left, f"{left} messages are not in the index any more")
            left = 0
        self._q3.extend(found)
        self._delta = Delta(start, self._delta.stop, left)

    def _read_segment(self, start: int) -> tuple[list[Held], int]:
        """Return the messages of delta in the segment that has ``start``, from there on, and the position behind it."""
        _, stop = self._index.segment(start)
        stop = min(stop, self._delta.stop)
        gone = {*self._acks, *self._unacked} if self._acks or self._unacked else ()
        below = self._next_delivered
        found = [
            Held(
                one.position, one.is_persistent, one.msg_id, one.body_size, one.expiry_us, one.is_shared,
                None, one.is_shared, True, one.position < below,
            )
            for one in self._index.read(start, stop, terms=False)
            if one.position not in gone
        ]  # fmt: skip
        return found, stop

    def _messages(self, chunk: Sequence[Held]) -> list[Message | None]:
        """Return the messages of one segment, from memory or from disk; None for each that cannot be read."""
        entries, bodies = dict[int, bytes | None](), dict[bytes, bytes]()
        absent = [held for held in chunk if held.message is None]
        if any(not held.is_shared for held in absent):
            read = self._index.read(absent[0].position, absent[-1].position + 1)
            entries = {entry.position: entry.term for entry in read}
        for is_persistent in (True, False):
            if ids := [held.msg_id for held in absent if held.is_shared and held.is_persistent == is_persistent]:
                bodies |= self._stores[is_persistent].read_many(ids)
        found = []
        for held in chunk:
            message = held.message
            if message is None:
                term = bodies.get(held.msg_id) if held.is_shared else entries.get(held.position)
                try:
                    message = None if term is None else self._terms.decode(term, held.expiry_us)
                except MessageError as error:
                    log.warning("queue %s: the message at position %d %s", self._shown, held.position, error)
            found.append(message)
        return found

    def _lose(self, lost: Sequence[Held]) -> None:
        """Acknowledge messages that could not be read."""
        if lost:
            for held in lost:
                self._forget(held)
                self._body_bytes -= held.body_size
            text = f"{len(lost)} messages, from position {lost[0].position} on, cannot be read, and are skipped"
            self._report(len(lost), text)

    def _forget(self, held: Held) -> None:
        """Note that a message, which is in no part any more, is acknowledged."""
        if held.is_indexed:
            self._acks.append(held.position)
        elif self._unwritten.pop(held.position, None) is not None:
            self.unwritten -= flush_cost(held)
        if held.is_stored:
            self._removals.append(held)

    def _note_unwritten(self, held: Held) -> None:
        """Let the next flush write an alpha. One that belongs into a message store goes there now: it is flushed first."""
        if held.is_indexed or held.position in self._unwritten:
            return
        if held.is_shared and not held.is_stored:
            assert held.message is not None
            self._stores[held.is_persistent].write(held.msg_id, self._terms.encode(held.message))
            held.is_stored = True
        self._unwritten[held.position] = held
        self.unwritten += flush_cost(held)

    def _chunks(self) -> Iterator[list[Held]]:
        """Yield the messages behind q4, in order, in parts of one segment at most. Nothing changes."""
        yield from _split(self._q3, self._index.segment)
        start, left = self._delta.start, self._delta.count
        while left and start < self._delta.stop:  # some may not be in the index any more
            found, start = self._read_segment(start)
            left -= len(found)
            yield found
        yield from _split(self._q2, self._index.segment)
        yield list(self._q1)
        for first in range(0, len(self._bodies.bodies), READ_AHEAD):
            yield self._bodies.held(first, first + READ_AHEAD)

    @property
    def _shown(self) -> str:
        return self._name.decode("utf-8", "replace")

    def _report(self, messages: int, text: str) -> None:
        self.lost_reports += 1
        self._report_lost(messages, text)
        log.warning("queue %s: %s", self._shown, text)


def flush_cost(one: Held) -> int:
    """Return the bytes that a flush writes for a message, about."""
    return OVERHEAD if one.is_shared else OVERHEAD + one.body_size


def _split(part: Iterable[Held], segment_of: Callable[[int], tuple[int, int]]) -> Iterator[list[Held]]:
    """Yield the messages of a part in lists of one segment each."""
    return (list(group) for _, group in groupby(part, key=lambda held: segment_of(held.position)))
