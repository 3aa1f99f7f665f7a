"""Source ``store``: the live messages of a directory of segments, by segment and offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgstore.contract import (
    Candidate,
    ConfigError,
    CorruptRecord,
    Damage,
    MessageBatch,
    MessageNotFound,
    QueueInfo,
    QueueName,
    RecordTypeDescriptor,
    SourceContext,
    SourceDamage,
    StoreError,
)
from msgstore.directory import has_settings
from msgstore.engine.opening import open_configured, remembered_config
from msgstore.engine.stats import StoredMessage
from msgstore.jobs.inputs import find_inputs, no_segments
from msgstore.jobs.reading.segment_check import check_segment
from msgstore.jobs.reports import SpanReport
from msgstore.jobs.workers import worker_catalogue
from msgstore.scan import FormatSet
from msgstore.scan.formats import OWN_RECORD
from msgstore.scan.segment import WholeRecord, describe

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


def sample(directory: Path) -> Path:
    """Make a store with some messages."""
    with open_configured(remembered_config(directory), worker_catalogue()) as store, store.client() as client:
        client.write_many((bytes([number] * 16), b"message %d" % number) for number in range(30))
    return directory


class StoreSource:
    """Messages of one store, which is opened for reading. Reference counts that are not known are 1."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        if detect(context.path) is None:
            raise StoreError(no_segments(context.path, FormatSet(worker_catalogue()), worker_catalogue()))
        self._store = open_configured(remembered_config(context.path), worker_catalogue(), mode="r", live="beside")
        self._client = self._store.client()
        self._accepts = None if context.accepts is None else context.accepts | {OWN_RECORD}
        self._plain = FormatSet(worker_catalogue())
        """Formats that write plain records."""
        known = {OWN_RECORD, *(record.name for record in worker_catalogue().descriptors(RecordTypeDescriptor))}
        if unknown := sorted((self._accepts or set()) - known):
            self.close()
            there = ", ".join(sorted(known))
            raise ConfigError(f"--accepts {unknown[0]}: no such record type is installed. There are: {there}")
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
        found = find_inputs(worker_catalogue(), [self._context.path])
        spans: list[tuple[str, Damage | SpanReport]] = [
            (Path(item.path).name, span) for item in found.inputs for span in check_segment(item).damage
        ]
        spans += [(Path(span.path).name, span) for span in found.damage]
        return [SourceDamage(file=file, offset=span.offset, size=span.size, reason=span.reason) for file, span in spans]

    def close(self) -> None:
        self._store.close()

    def _found(self) -> list[StoredMessage]:
        if self._entries is None:
            self._entries = sorted(self._store.entries(), key=lambda entry: (entry.number, entry.offset))
        return self._entries

    def _batch(self, entries: Sequence[StoredMessage], first: int) -> Iterator[MessageBatch | SourceDamage]:
        bodies, raws, places, positions = [], [], [], []
        refusals: list[str | None] = []
        files = {segment.number: segment.file for segment in self._store.segments()}
        for position, entry in enumerate(entries, first):
            file = files.get(entry.number, str(entry.number))
            try:
                bodies.append(bytes(self._client.read(entry.msg_id)))
            except (CorruptRecord, MessageNotFound) as error:
                yield SourceDamage(file=file, offset=entry.offset, size=entry.size, reason=str(error), name=NAME, messages=1)
                continue
            if self._context.raw:
                raw, refusal = self._accepted(self._store.record(entry), entry.msg_id)
                raws.append(raw)
                refusals.append(refusal)
            places.append((file, entry.offset, entry.size, entry.msg_id.hex()))
            positions.append(position)
        if bodies:
            names, offsets, sizes, ids = (list(column) for column in zip(*places, strict=True))
            yield MessageBatch(
                name=NAME,
                bodies=bodies,
                positions=positions,
                states=["ready"] * len(bodies),
                files=names,
                offsets=offsets,
                sizes=sizes,
                ids=ids,
                raws=raws if self._context.raw else None,
                refusals=refusals if any(refusals) else None,
            )

    def _accepted(self, record: WholeRecord, msg_id: bytes) -> tuple[bytes | None, str | None]:
        """Return a record of a type that the reader takes, or the reason why there is none. Any record type has an id and a
        stored body, and so has a plain form in its own format."""
        if self._accepts is None or describe(record).record in (None, *self._accepts):
            return record.data, None
        plain = self._plain.by_name(record.form.name).format
        if len(record.body) > plain.max_body:
            return None, f"a body of {len(record.body)} bytes has no plain record"
        return plain.encode([msg_id], [record.body])[0], None
