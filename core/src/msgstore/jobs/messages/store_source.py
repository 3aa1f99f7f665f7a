"""Source ``store``: the live messages of a directory of segments, by segment and offset."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import (
    BrokenPlugin,
    Candidate,
    ConfigError,
    CorruptRecord,
    Damage,
    MessageBatch,
    MessageNotFound,
    QueueInfo,
    QueueName,
    RecordField,
    RecordTypeDescriptor,
    SourceContext,
    SourceDamage,
    StoredBody,
    StoreError,
    json_value,
)
from msgstore.directory import has_settings
from msgstore.engine.opening import open_configured, remembered_config
from msgstore.engine.stats import StoredMessage
from msgstore.jobs.inputs import find_inputs, no_segments
from msgstore.jobs.messages.rows import REFERENCES
from msgstore.jobs.reading.segment_check import check_segment
from msgstore.jobs.reports import SpanReport
from msgstore.jobs.workers import PAYLOAD, OpenCodec, open_codec, worker_catalogue
from msgstore.scan import FormatSet
from msgstore.scan.formats import OWN_RECORD
from msgstore.scan.segment import describe, field_as_json

log = logging.getLogger("msgstore.bulk")
NAME = QueueName("msgstore")
_BATCH = 4 * 2**20
"""Bytes of bodies in one batch."""


def detect(path: Path) -> Candidate | None:
    """Recognise a directory by ``msgstore.json``, or by the endings of its segments."""
    if not path.is_dir():
        return None
    if has_settings(path):
        return Candidate("certain", "msgstore.json")
    extensions = worker_catalogue().formats_by_extension()
    found = next((entry.name for entry in sorted(path.iterdir()) if entry.suffix in extensions), None)
    return Candidate("likely", f"{found} is a segment") if found else None


def sample(directory: Path, messages: int = 30) -> Path:
    """Make a store with some messages."""
    with open_configured(remembered_config(directory), worker_catalogue()) as store, store.client() as client:
        client.write_many((number.to_bytes(16), b"message %d" % number) for number in range(messages))
    return directory


def _as_property(field: RecordField, value: Any) -> Any:
    """Return the value of a field as JSON has it. Times are RFC 3339 text, which keeps the nanoseconds."""
    return field_as_json(field, value) if field.kind == "time" else json_value(value)


class StoreSource:
    """Messages of one store, which is opened for reading. Reference counts that are not known are 1."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        if detect(context.path) is None:
            raise StoreError(no_segments(context.path, FormatSet(worker_catalogue()), worker_catalogue()))
        config, body = remembered_config(context.path), context.options.body
        if body and body.name == config.body.name:  # with the options, such as a key
            config = attrs.evolve(config, body=body)
        if context.options.format:
            config = attrs.evolve(config, format=context.options.format, last_opened=config.last_opened - {"format"})
        self._store = open_configured(config, worker_catalogue(), mode="r", live="beside")
        self._client = self._store.client()
        self._accepts = None if context.accepts is None else context.accepts | {OWN_RECORD}
        self._plain = FormatSet(worker_catalogue())
        """Formats that write plain records."""
        known = {OWN_RECORD, *(record.name for record in worker_catalogue().descriptors(RecordTypeDescriptor))}
        if unknown := sorted((self._accepts or set()) - known):
            self.close()
            there = ", ".join(sorted(known))
            raise ConfigError(f"accepts {unknown[0]}: no such record type is installed. There are: {there}")
        codec = open_codec(body or config.body)
        self._codec = codec if body or any(field.name != PAYLOAD.name for field in codec.fields) else None
        self._is_named = body is not None
        self._has_warned = False
        self._logged = set[str]()
        """Reasons for damage whose remedy was logged."""
        self._entries: list[StoredMessage] | None = None

    def queues(self) -> Iterable[QueueInfo]:
        return [QueueInfo(name=NAME, type="store")]

    def messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        entries, begin, held = self._found(), first, 0
        stop = len(entries) if stop is None else min(stop, len(entries))
        for at in range(first, stop):
            held += entries[at].size
            if held >= _BATCH or at == stop - 1:
                yield from self._batch(entries[begin : at + 1], begin)
                begin, held = at + 1, 0

    def count(self, name: QueueName) -> int:
        return len(self._found())

    def damage(self) -> Iterable[SourceDamage]:
        given = self._context.options.format
        records = given.options.get("records") or {} if given else {}
        types = {name: one["byte"] if isinstance(one, dict) and "byte" in one else one for name, one in records.items()}
        bound = {name: byte for name, byte in types.items() if type(byte) is int}
        found = find_inputs(worker_catalogue(), [self._context.path], records=bound)
        spans: list[tuple[str, Damage | SpanReport]] = [
            (Path(item.path).name, span) for item in found.inputs for span in check_segment(item).damage
        ]
        spans += [(Path(span.path).name, span) for span in found.damage]
        damage = [SourceDamage(file=file, offset=span.offset, size=span.size, reason=span.reason) for file, span in spans]
        return damage + self._missing()

    def _missing(self) -> list[SourceDamage]:
        """Return what the index knows and no segment has: no list of messages has it, as it is no entry of the store."""
        recovery = self._store.stats().recovery
        reasons = [f"{recovery.missing} messages of the index are in no segment"] if recovery.missing else []
        reasons += [f"{lost.file} {lost}" for lost in recovery.lost]
        return [SourceDamage(file="", reason="; ".join(reasons), name=NAME, messages=recovery.missing)] if reasons else []

    def close(self) -> None:
        self._store.close()

    def _found(self) -> list[StoredMessage]:
        if self._entries is None:
            self._entries = list(self._store.entries())
        return self._entries

    def _batch(self, entries: Sequence[StoredMessage], first: int) -> Iterator[MessageBatch | SourceDamage]:
        files = {segment.number: segment.file for segment in self._store.segments()}
        is_described = bool(self._codec and self._codec.fields) or self._has_fields(entries)
        bodies, kept, positions, described = [], [], [], []
        for position, (entry, body) in enumerate(zip(entries, self._bodies(entries), strict=True), first):
            found = self._described(entry, body) if is_described and isinstance(body, bytes) else (body, None)
            if isinstance(found[0], bytes):
                bodies.append(bytes(found[0]))  # not a StoredBody
                described.append({**(found[1] or {}), REFERENCES: entry.references} if entry.references > 1 else found[1])
                kept.append(entry)
                positions.append(position)
            else:
                file, reason = files.get(entry.number, str(entry.number)), str(found[0])
                yield SourceDamage(file=file, offset=entry.offset, size=entry.size, reason=reason, name=NAME, messages=1)
        if not bodies:
            return
        raws = refusals = None
        if self._context.raw:
            raws, refusals = map(list, zip(*map(self._accepted, kept), strict=True))
        yield MessageBatch(
            name=NAME,
            bodies=bodies,
            positions=positions,
            states=["ready"] * len(bodies),
            files=[files.get(entry.number, str(entry.number)) for entry in kept],
            offsets=[entry.offset for entry in kept],
            sizes=[entry.size for entry in kept],
            ids=[entry.msg_id.hex() for entry in kept],
            properties=described if any(described) else None,
            raws=raws,
            refusals=refusals if refusals and any(refusals) else None,
        )

    def _bodies(self, entries: Sequence[StoredMessage]) -> Iterator[bytes | str]:
        """Yield the body of each message, or why it cannot be read. What to do about that is logged once."""
        ids = [entry.msg_id for entry in entries]
        found: dict[bytes, bytes] = {}
        with suppress(CorruptRecord):
            found = self._client.read_many(ids)
        for msg_id in ids:
            try:
                yield found[msg_id] if msg_id in found else self._client.read(msg_id)
            except CorruptRecord as error:
                if error.reason not in self._logged:
                    log.warning("%s", error)
                self._logged.add(error.reason)
                yield f"{error.reason}: message {msg_id.hex()}"
            except MessageNotFound as error:  # a writer has removed it since
                yield str(error)

    def _has_fields(self, entries: Sequence[StoredMessage]) -> bool:
        """Return True if a segment of these messages may have records with fields."""
        try:
            return any(self._store.record(entry).form.with_fields for entry in {one.number: one for one in entries}.values())
        except (CorruptRecord, MessageNotFound):
            return True

    def _described(self, entry: StoredMessage, body: bytes) -> tuple[bytes | str, dict[str, Any] | None]:
        """Return the body and the fields as properties; or why there is no body.

        The payload that a codec finds in a body replaces it in two cases: the user has named the codec, or clients read the
        body as it is stored, such as a broker's.
        """
        try:
            record = self._store.record(entry)
        except (CorruptRecord, MessageNotFound) as error:  # a writer has removed it since
            return str(error), None
        found = describe(record)
        pairs = list(zip(found.bound.fields, found.values or (), strict=False)) if found.bound is not None else []
        if self._codec is not None:
            if (values := self._fields_of(self._codec, entry.msg_id, record.body)) is None and self._is_named:
                return f"the codec {self._codec.name!r} cannot read the body", None
            is_replaced = self._is_named or isinstance(body, StoredBody)
            for field, value in zip(self._codec.fields, values or (), strict=False):
                if field.name == PAYLOAD.name and isinstance(value, bytes):
                    body = value if is_replaced else body
                else:
                    pairs.append((field, value))
        properties = {field.name: _as_property(field, value) for field, value in pairs if value is not None}
        return body, properties or None

    def _fields_of(self, codec: OpenCodec, msg_id: bytes, stored: bytes) -> tuple[Any, ...] | None:
        """Return the fields of a body; None if there are none, or if a codec that nobody has named fails on them."""
        try:
            return codec.read(msg_id, stored)
        except BrokenPlugin as error:
            if self._is_named:
                raise
            if not self._has_warned:
                log.warning("%s: messages without the fields of their codec: %s", self._context.path, error)
            self._has_warned = True
            return None

    def _accepted(self, entry: StoredMessage) -> tuple[bytes | None, str | None]:
        """Return a record of a type that the reader takes, or the reason why there is none. Any record type has an id and a
        stored body, and so has a plain form in its own format."""
        record = self._store.record(entry)
        if self._accepts is None or describe(record).record in (None, *self._accepts):
            return record.data, None
        plain = self._plain.by_name(record.form.name).format
        if len(record.body) > plain.max_body:
            return None, f"a body of {len(record.body)} bytes has no plain record"
        return plain.encode([entry.msg_id], [record.body])[0], None
