"""Queues of a commit log: which record is a message of which queue, in which state, at which position.

Delayed messages and half messages stand in topics of the broker's own; they are shown under their real names. Of a transaction,
one message is shown: the commit record; or the half record, as ``half`` or ``rolled_back``.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from operator import lt
from types import MappingProxyType

import attrs

from msgstore.contract import SourceDamage
from msgstore.contract.messages import CERTAIN, MAYBE_CONSUMED
from msgstore_rocketmq_log import properties as p
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.config import BrokerConfig
from msgstore_rocketmq_log.incarnations import TopicTable
from msgstore_rocketmq_log.inner_batch import count_inner
from msgstore_rocketmq_log.log import HALF_TOPIC, OP_TOPIC, OWN_TOPICS, SPECIAL, WHEEL_TOPIC, CommitLog, LogRecord

_OFFSET = re.compile(rb"(?<![^,])[0-9]{1,19}(?![^,])")
"""A number between commas."""
_STATES = ("ready", "committed", "orphan", "delayed", "half", "rolled_back", "consumed")
_READY, _COMMITTED, _ORPHAN, _DELAYED, _HALF, _ROLLED_BACK, _CONSUMED = range(len(_STATES))
_NO_SEQUENCE = -1
Key = tuple[str, int]
"""Topic and queue id."""


@attrs.define
class TopicQueue:
    """Messages of one queue: 19 bytes each."""

    offsets: array[int] = attrs.field(factory=lambda: array("q"))
    sequences: array[int] = attrs.field(factory=lambda: array("q"))
    inners: array[int] = attrs.field(factory=lambda: array("H"))
    states: array[int] = attrs.field(factory=lambda: array("b"))
    """These two may be shorter: the rest is 0 and ready."""
    uncertain: set[int] = attrs.field(factory=set)
    """Offsets of messages that may have ended."""

    def add(self, offset: int, state: int, sequence: int, inner: int = 0) -> None:
        """Add a message that is not simply ready."""
        self.fill()
        self.offsets.append(offset)
        self.sequences.append(sequence)
        self.inners.append(inner)
        self.states.append(state)

    def fill(self) -> None:
        """Give all columns the same length."""
        missing = len(self.offsets) - len(self.states)
        self.states.frombytes(bytes(missing))
        self.inners.frombytes(bytes(2 * missing))

    def __len__(self) -> int:
        return len(self.offsets)

    def sort(self) -> None:
        """Order by number. Of several messages with one number, the first one in the log that is no orphan is delivered."""
        self.fill()
        if all(map(lt, self.sequences, self.sequences[1:])):
            return
        self._order(lambda at: (self.sequences[at], self.offsets[at], self.inners[at]))
        taken = _NO_SEQUENCE
        for at in range(len(self)):
            if self.sequences[at] == taken:
                self.states[at] = _ORPHAN
            elif self.states[at] != _ORPHAN:
                taken = self.sequences[at]
        if any(self.inners):  # a batch stays together, so that it is read once
            self._order(lambda at: (self.sequences[at] - self.inners[at], self.offsets[at], self.inners[at]))

    def _order(self, key: Callable[[int], tuple[int, ...]]) -> None:
        order = sorted(range(len(self)), key=key)
        for name in ("offsets", "sequences", "inners", "states"):
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, [column[at] for at in order]))

    def states_at(self, first: int, stop: int, consumed: int | None) -> list[str]:
        """Return the states of messages by position. ``consumed``: number of the next message of a consumer group."""
        found = [_STATES[state] for state in self.states[first:stop]]
        if consumed is not None:
            for at, sequence in enumerate(self.sequences[first:stop]):
                if _NO_SEQUENCE < sequence < consumed and found[at] in ("ready", "committed"):
                    found[at] = "consumed"
        return found

    def deliverable(self) -> list[int]:
        """Return the numbers of the messages that a consumer gets, in their order."""
        numbered = zip(self.sequences, self.states, strict=True)
        return sorted(sequence for sequence, state in numbered if state in (_READY, _COMMITTED))

    def sequences_at(self, first: int, stop: int) -> list[int | None]:
        """Return the numbers of messages by position. Those that come later have none."""
        return [None if sequence == _NO_SEQUENCE else sequence for sequence in self.sequences[first:stop]]

    def certainties_at(self, first: int, stop: int) -> list[str]:
        """Return the certainties of messages by position."""
        return [MAYBE_CONSUMED if offset in self.uncertain else CERTAIN for offset in self.offsets[first:stop]]


@attrs.define
class _Half:
    """A half message."""

    offset: int
    queue_offset: int
    key: Key
    unique: str
    """Key that the client gave, or "". Half records of one message share it."""
    done: bool = False
    """An op message says that it was committed, rolled back, or put back."""


@attrs.define
class Queues:
    """All queues of a log."""

    by_name: dict[Key, TopicQueue] = attrs.field(factory=dict)
    later: dict[Key, list[tuple[int, int, int]]] = attrs.field(factory=dict)
    """Delayed messages: (due time, offset of the record, state)."""
    halves: list[_Half] = attrs.field(factory=list)
    done: set[int] = attrs.field(factory=set)
    """Queue offsets of half messages that op messages name."""
    first_op: int | None = None
    committed: dict[int, set[tuple[str, str]]] = attrs.field(factory=dict)
    """Offsets of the half and prepared records that commit records name, with the keys and topics of these. Copies of a
    committed message, such as one that a delay or a retry delivers, name 0: only the key tells whether they mean the record
    at 0."""
    ended: set[int] = attrs.field(factory=set)
    """Offsets of the prepared records that rollback records name."""
    prepared: list[tuple[int, Key, str]] = attrs.field(factory=list)
    """Prepared records before 4.3: offset, queue and unique key."""

    def queue(self, key: Key) -> TopicQueue:
        return self.by_name.setdefault(key, TopicQueue())


def build_queues(
    log: CommitLog,
    config: BrokerConfig,
    damage: list[SourceDamage],
    table: TopicTable | None = None,
    moved: Mapping[int, tuple[bytes, int, int]] = MappingProxyType({}),
) -> dict[Key, TopicQueue]:
    """Read the log, and return its queues by name. Adds damage to the list.

    ``table``: incarnations of topics. A record of one that does not live any more is an orphan. ``moved``: right topic, queue
    id and number of the records at some offsets, which say others.
    """
    found = Queues()
    plain: dict[tuple[bytes, int], tuple[Callable[[int], None], Callable[[int], None]]] = {}
    """Queues whose records are messages of it, unless a flag says otherwise: what adds an offset, and a number."""
    for offset, topic, queue_id, queue_offset, sys_flag, behind in log.scan(damage):
        if moved and offset in moved:  # nearly always there are none
            topic, queue_id, queue_offset = moved[offset]
        if (adders := plain.get((topic, queue_id))) and not sys_flag & SPECIAL and not behind:
            adders[0](offset)
            adders[1](queue_offset)
            continue
        record = log.record(offset)
        if offset in moved:
            record.topic, record.queue_id, record.queue_offset = (
                topic.decode("utf-8", "surrogateescape"),
                queue_id,
                queue_offset,
            )
        _enter(found, record, config, table, behind=behind)
        if table is None and record.topic not in OWN_TOPICS:
            its = found.queue((record.topic, queue_id))
            plain[topic, queue_id] = its.offsets.append, its.sequences.append
    _end_transactions(found)
    for key, messages in found.later.items():
        messages.sort()
        queue = found.queue(key)
        queue.sort()
        for _, offset, state in messages:
            queue.add(offset, state, _NO_SEQUENCE)
    for key in sorted(found.by_name):
        queue = found.by_name[key]
        if key not in found.later:
            queue.sort()
        if config.topics is not None and key[0] not in config.topics:  # deleted: no consumer gets it
            queue.states = array("b", [_ORPHAN] * len(queue))
    return {key: found.by_name[key] for key in sorted(found.by_name)}


def _enter(found: Queues, record: LogRecord, config: BrokerConfig, table: TopicTable | None, *, behind: bool) -> None:
    topic, transaction = record.topic, record.sys_flag & v1.TRANSACTION
    if topic == OP_TOPIC:
        found.first_op = record.queue_offset if found.first_op is None else found.first_op
        found.done.update(int(number[0]) for number in _OFFSET.finditer(record.body))
    elif topic == HALF_TOPIC:
        its = record.properties()
        key = _real(its, record)
        found.halves.append(_Half(record.offset, record.queue_offset, key, its.get(p.UNIQ_KEY, "")))
    elif topic in (v1.SCHEDULE_TOPIC, WHEEL_TOPIC):
        its = record.properties()
        level = record.queue_id + 1
        delivered = (config.delivered or {}).get(level, 0) if topic == v1.SCHEDULE_TOPIC else 0
        due = (
            v1.tags_code(topic, its, record.store_timestamp)
            if topic == v1.SCHEDULE_TOPIC
            else p.whole_number(its.get("TIMER_OUT_MS"))
        )
        again = transaction == v1.COMMITTED and _commit(found, its, record)
        state = _ORPHAN if behind or again else _CONSUMED if record.queue_offset < delivered else _DELAYED
        if topic == WHEEL_TOPIC:
            found.queue(_real(its, record)).uncertain.add(record.offset)  # only the timer log knows whether it was delivered
        found.later.setdefault(_real(its, record), []).append((due, record.offset, state))
    elif transaction == v1.PREPARED:
        found.prepared.append((record.offset, (topic, record.queue_id), record.properties().get(p.UNIQ_KEY, "")))
    elif transaction == v1.ROLLED_BACK:
        found.ended.add(record.prepared_transaction_offset)
    else:
        state = _ORPHAN if behind else _READY
        if transaction == v1.COMMITTED:
            state = _ORPHAN if _commit(found, record.properties(), record) or behind else _COMMITTED
        elif table is not None and not table.is_live(topic, record.incarnation, record.offset):
            state = _ORPHAN
        queue = found.queue((topic, record.queue_id))
        for inner in range(count_inner(record)):
            queue.add(record.offset, state, record.queue_offset + inner, inner)


def _real(its: Mapping[str, str], record: LogRecord) -> Key:
    """Return the queue in which a message of one of the broker's own topics belongs."""
    return its.get(p.REAL_TOPIC, record.topic), p.whole_number(its.get(p.REAL_QUEUE_ID), record.queue_id, bits=32)


def _commit(found: Queues, its: Mapping[str, str], record: LogRecord) -> bool:
    """Enter a commit record. Return True if the transaction was committed before, as it may be after a crash."""
    half, key = record.prepared_transaction_offset, its.get(p.UNIQ_KEY, "")
    keys = found.committed.setdefault(half, set())
    again = bool(keys)
    if not half:
        is_copy = record.topic.startswith("%") or record.topic in OWN_TOPICS
        again = not is_copy and (key, record.topic) in keys and _begins_log(found, key)
    keys.add((key, record.topic))
    return again


def _is_committed(found: Queues, half: int, key: str) -> bool:
    keys = found.committed.get(half, set())
    return bool(keys) if half else any(one == key for one, _ in keys)


def _begins_log(found: Queues, key: str) -> bool:
    """Return True if the half or prepared record with this key stands at offset 0."""
    firsts = [(half.offset, half.unique) for half in found.halves[:1]] + [(at, unique) for at, _, unique in found.prepared[:1]]
    return (0, key) in firsts


def _end_transactions(found: Queues) -> None:
    """Add one message for each transaction that was not committed."""
    by_key: dict[tuple[Key, str], list[_Half]] = {}
    for half in found.halves:
        half.done = half.queue_offset in found.done
        by_key.setdefault((half.key, half.unique or f"@{half.offset}"), []).append(half)
    for (key, _), halves in by_key.items():
        if any(_is_committed(found, half.offset, half.unique) for half in halves):
            continue
        open_halves = [half for half in halves if not half.done]
        last = (open_halves or halves)[-1]
        found.later.setdefault(key, []).append((2**62, last.offset, _HALF if open_halves else _ROLLED_BACK))
        if open_halves and found.first_op is None and found.halves[0].queue_offset > 0:
            found.queue(key).uncertain.add(last.offset)  # its op message may have been deleted with a file
    for offset, key, unique in found.prepared:
        if not _is_committed(found, offset, unique):
            found.later.setdefault(key, []).append((2**62, offset, _ROLLED_BACK if offset in found.ended else _HALF))
