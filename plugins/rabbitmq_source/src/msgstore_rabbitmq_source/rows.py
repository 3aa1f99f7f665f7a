"""Batches of messages from the entries of a queue: bodies are read from the index, or by id from the shared store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import attrs

from msgstore.contract import Buffer, MessageBatch, QueueName, SourceContext, SourceDamage
from msgstore.contract.messages import CERTAIN, MAYBE_CONSUMED
from msgstore_rabbitmq_source.apart import decode_body, decode_entry, encode_entry
from msgstore_rabbitmq_source.naming import QueueDirectory, text
from msgstore_rabbitmq_source.queue_index import LiveEntry
from msgstore_rabbitmq_source.shared_store import Place, SharedStore
from rabbitmq_files.messages import MessageError, StoredMessage, read_message

_BATCH_BYTES = 4 * 2**20
_BATCH_MESSAGES = 2**11
_Item = MessageBatch | SourceDamage


class RowReader:
    """Reads one queue, from its first position to the last."""

    def __init__(self, context: SourceContext, store: SharedStore | None, name: QueueName, *, is_final: bool = True) -> None:
        self._context = context
        self._store = store
        self._name = name
        self._certainty = CERTAIN if is_final else MAYBE_CONSUMED
        self._position = 0
        self._file: tuple[str, Buffer] = ("", b"")
        """The file that was read last."""
        self._lost: dict[str, tuple[LiveEntry, int]] = {}
        """Index file to the first of its messages that are in no store, and their number."""
        self._batch = _Columns()

    def rows(
        self, entries: Iterable[LiveEntry | SourceDamage], part: QueueDirectory, first: int, stop: int | None
    ) -> Iterator[_Item]:
        """Yield the messages of a directory of the queue, at positions of the queue. The last batch comes with ``rest``.
        Without a store, messages in it are left out."""
        for item in self._numbered(entries, first, stop):
            if isinstance(item, SourceDamage):
                yield item
                continue
            position, entry = item
            yield from self._add(entry, part, position)
            if self._batch.is_full():
                yield self._batch.taken(self._name)

    def shared(
        self, entries: Iterable[LiveEntry | SourceDamage], part: QueueDirectory, first: int, stop: int | None
    ) -> Iterator[tuple[int, LiveEntry, bytes]]:
        """Yield position and entry of the messages that ``rows`` leaves out without a store, and the entry as bytes."""
        for item in self._numbered(entries, first, stop):
            if not isinstance(item, SourceDamage) and not item[1].term_size:
                yield *item, encode_entry(item[1], part, is_final=self._certainty == CERTAIN)

    def complete(self, entries: Iterable[tuple[int, bytes, bytes | None]]) -> Iterator[_Item]:
        """Yield the messages of (position, entry, body)."""
        for position, encoded, body in entries:
            entry, vhost, is_final = decode_entry(encoded)
            self._certainty = CERTAIN if is_final else MAYBE_CONSUMED
            if body is None:
                self._lose(entry)
                continue
            place, term = decode_body(body)
            yield from self._take(entry, vhost, position, term, place)
            if self._batch.is_full():
                yield self._batch.taken(self._name)
        yield from self.rest()

    def _numbered(
        self, entries: Iterable[LiveEntry | SourceDamage], first: int, stop: int | None
    ) -> Iterator[tuple[int, LiveEntry] | SourceDamage]:
        """Yield each entry with its position in the queue, from ``first`` up to ``stop``, and the damage."""
        for entry in entries:
            if isinstance(entry, SourceDamage):
                yield attrs.evolve(entry, name=self._name)
                self._position += entry.messages
                continue
            position = self._position
            if stop is not None and position >= stop:
                return
            self._position += 1
            if position >= first:
                yield position, entry

    def rest(self) -> Iterator[_Item]:
        """Yield the last batch, and the messages that are lost."""
        if self._batch.bodies:
            yield self._batch.taken(self._name)
        why = "" if self._certainty == CERTAIN else ", consumed just before the kill, never confirmed, or lost"
        for file, (entry, count) in self._lost.items():
            reason = f"in the queue index, and in no shared store{why}: {count:,}, first {entry.msg_id.hex()}"
            yield SourceDamage(file=file, offset=entry.offset, size=entry.size, reason=reason, name=self._name, messages=count)

    def orphans(self, referenced: Collection[bytes], first: int, stop: int | None) -> Iterator[_Item]:
        """Yield the messages of the store that are in no queue."""
        assert self._store is not None
        for msg_id in self._store.ids():
            if msg_id in referenced:
                continue
            position = self._position
            if stop is not None and position >= stop:
                break
            self._position += 1
            if position < first:
                continue
            place = self._store.find(msg_id)
            assert place is not None
            try:
                message, end = read_message(self._store.read(place))
            except MessageError as error:
                yield self._damage(place, str(error), messages=1)
                continue
            entry = LiveEntry(None, True, msg_id, None, 0, place.file, place.offset, place.size, 0, 0)
            yield from self._corrected(place, end)
            self._batch.add(message, entry, position, "orphan", MAYBE_CONSUMED, self._raw(entry))
            if self._batch.is_full():
                yield self._batch.taken(self._name)
        yield from self.rest()

    def _add(self, entry: LiveEntry, part: QueueDirectory, position: int) -> Iterator[SourceDamage]:
        """Add a message to the batch. Yields what is damaged."""
        if entry.term_size:
            term = self._read(entry.file)[entry.term_offset : entry.term_offset + entry.term_size]
            yield from self._take(entry, part.vhost, position, term, None)
        elif self._store is None:
            return
        elif (place := self._store.find(entry.msg_id)) is None:
            self._lose(entry)
        else:
            yield from self._take(entry, part.vhost, position, self._store.read(place), place)

    def _take(
        self, entry: LiveEntry, vhost: bytes | None, position: int, term: bytes, place: Place | None
    ) -> Iterator[SourceDamage]:
        """Add the message of a term. ``place``: of its record, if it is in a shared store."""
        origin = Place(entry.file, entry.offset, entry.size, 0, entry.term_size) if place is None else place
        lost = int(entry.is_persistent)
        try:
            message, end = read_message(term)
        except MessageError as error:
            yield self._damage(origin, str(error), messages=lost)
            return
        if reason := _contradiction(message, entry, vhost):
            yield self._damage(origin, reason, messages=lost)
            return
        yield from self._corrected(origin, end)
        if place is not None:
            entry = entry._replace(file=place.file, offset=place.offset, size=place.size)
        state = "ready"
        if entry.is_orphan:
            state = "orphan"
        elif not entry.is_persistent:
            state = "transient"
        elif 0 < entry.expiry_us // 1000 <= self._context.now_ms:
            state = "expired"
        certainty = MAYBE_CONSUMED if entry.is_unsure else self._certainty
        self._batch.add(message, entry, position, state, certainty, self._raw(entry))

    def _corrected(self, place: Place, end: int) -> Iterator[SourceDamage]:
        """Yield the damage of a record whose size is wrong, and whose message is whole."""
        if place.is_corrected or end < place.term_size:
            yield self._damage(place, "the size of the record, or its end, is wrong: the message was read by its own length")

    def _damage(self, place: Place, reason: str, messages: int = 0) -> SourceDamage:
        return SourceDamage(
            file=place.file, offset=place.offset, size=place.size, reason=reason, name=self._name, messages=messages
        )

    def _lose(self, entry: LiveEntry) -> None:
        """Count a message that is in the index, and in no store. A transient one is lost at every restart."""
        if not entry.is_persistent:
            return
        first, count = self._lost.get(entry.file, (entry, 0))
        self._lost[entry.file] = first, count + 1

    def _raw(self, entry: LiveEntry) -> bytes | None:
        """Return the record of a message, which is at the place of the entry."""
        return bytes(self._read(entry.file)[entry.offset : entry.offset + entry.size]) if self._context.raw else None

    def _read(self, file: str) -> Buffer:
        if self._file[0] != file:
            self._file = (file, self._context.read(file))
        return self._file[1]


def _contradiction(message: StoredMessage, entry: LiveEntry, vhost: bytes | None) -> str:
    """Return how a message contradicts the queue index, or an empty text."""
    if entry.msg_id and message.msg_id is not None and message.msg_id != entry.msg_id:
        return f"the message has the id {message.msg_id.hex()}, and the queue index {entry.msg_id.hex()}"
    if None not in (entry.body_size, message.indexed_size) and message.indexed_size != entry.body_size:
        return f"the body has {message.indexed_size} bytes, and the queue index says {entry.body_size}"
    if vhost is not None and message.vhost is not None and message.vhost != vhost:
        return f"the message is of the vhost {text(message.vhost)!r}"
    return ""


@attrs.define
class _Columns:
    """A batch that grows."""

    bodies: list[bytes] = attrs.field(factory=list)
    rows: list[tuple[Any, ...]] = attrs.field(factory=list)
    bytes: int = 0

    def add(self, message: StoredMessage, entry: LiveEntry, position: int, state: str, certainty: str, raw: Any) -> None:
        msg_id = message.msg_id or entry.msg_id
        self.bodies.append(message.body)
        self.bytes += entry.size
        self.rows.append((
            position, state, entry.file, entry.offset, entry.size, entry.sequence, msg_id.hex() or None, raw,
            text(message.exchange), [text(key) for key in message.routing_keys], message.properties, message.headers,
            message.raw_properties, message.timestamp_ms, entry.expiry_us // 1000 or None, certainty,
            True if entry.is_verified else None,
        ))  # fmt: skip

    def is_full(self) -> bool:
        return self.bytes >= _BATCH_BYTES or len(self.bodies) >= _BATCH_MESSAGES

    def taken(self, name: QueueName) -> MessageBatch:
        """Return the batch, and begin another one."""
        (
            positions, states, files, offsets, sizes, sequences, ids, raws, exchanges, keys, properties, headers,
            raw_properties, times, expiries, certainties, verified,
        ) = zip(*self.rows, strict=True)  # fmt: skip
        bodies, self.bodies, self.rows, self.bytes = self.bodies, [], [], 0
        return MessageBatch(
            name=name,
            bodies=bodies,
            positions=positions,
            states=states,
            files=files,
            offsets=offsets,
            sizes=sizes,
            sequences=sequences,
            ids=ids,
            raws=raws if any(raw is not None for raw in raws) else None,
            exchanges=exchanges,
            routing_keys=keys,
            properties=properties,
            headers=headers,
            raw_properties=raw_properties,
            timestamps_ms=times if any(times) else None,
            expiries_ms=expiries if any(expiries) else None,
            certainties=certainties,
            verified=verified if any(verified) else None,
        )
