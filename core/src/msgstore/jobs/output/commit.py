"""Commit of a new store: combines the parts of all tasks, and publishes the store by one rename."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path

import attrs

from msgstore.contract import Capability, StoreError
from msgstore.directory import write_settings
from msgstore.engine.open.recovery import sum_counts
from msgstore.engine.opening import open_configured
from msgstore.engine.segment.hints import InvalidHint, hint_name, rename_hint
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.jobs.output.parts import StorePart, StoreSpec, backends_of, read_references
from msgstore.jobs.output.staging_directory import StagingDirectory
from msgstore.jobs.workers import worker_catalogue
from msgstore.scan import OpenFormat

log = logging.getLogger("msgstore.bulk")

Counts = Iterable[tuple[bytes, int]]


class StoreStaging(StagingDirectory):
    """One job that creates a store in a staging directory. Create it by ``begin``, or ``join``.

    Used by one thread of the process that drives the job. A context manager: on exit, everything that is not committed is
    deleted. Until ``commit`` returns, the destination does not exist, or is the empty directory that it was.
    """

    target: StoreSpec

    @classmethod
    def begin(cls, target: StoreSpec, *, sources: Iterable[str | Path] = (), files: Files | None = None) -> StoreStaging:
        """Check the target, delete what killed jobs for it left, and begin.

        ``sources`` are paths that the job reads: the store must not be inside one. Raises ConfigError, PluginError, StoreError
        if the destination exists, StoreLocked if another job creates it.
        """
        backends_of(target)
        staging = cls.create_locked(target.destination, sources, files)
        staging.target = target
        return staging

    @classmethod
    def join(cls, target: StoreSpec, path: str) -> StoreStaging:
        """Return a job that another process began and handed over, to end it here."""
        staging = cls(target.destination, path, None, Files())
        staging.target = target
        return staging

    def commit(
        self, parts: Iterable[StorePart], counts: Counts | None = None, *, check: Callable[[], object] | None = None
    ) -> int:
        """Create the store from ``parts``, in the order of their tasks, and return its number of messages. ``check`` is called
        before the store gets its name, and may raise.

        Other attempts of the tasks are deleted. ``counts`` are (id, references) pairs, which are added. Records of other ids
        are garbage, and an id without a record is an error. Without ``counts``, the references that the parts have are added;
        if they have none, each id has one. Of several copies of an id with the same body, one is kept. Two bodies are an error.

        Everything is on disk when it returns. If it raises StoreError or StoreIOError, nothing is left. Only after an error of
        the last step, the sync of the store's name, the message says that the store is there. Memory: the index and the counts.
        """
        with self.publishing(check) as store:
            return self.build(store, parts, counts)

    def build(self, store: Path, parts: Iterable[StorePart], counts: Counts | None = None) -> int:
        """Create the store at the path ``store``, which has its final name later; see :meth:`commit`. Segments are moved
        there."""
        ordered = sorted(parts, key=lambda part: part.task)
        for one, other in pairwise(ordered):
            if one.task == other.task:
                raise ValueError(f"two attempts of task {one.task}: {one.directory}, {other.directory}")
        self._files.create_directory(store)
        for segment, size, to in numbered_segments(ordered, store):
            self._gather(segment, size, to)
        messages = self._open_once(store, ordered, counts)
        if Capability.PERSISTENT in worker_catalogue().index(self.target.index).capabilities:  # which reads no hints
            for name in self._files.list(store):
                if name.startswith("msgstore-") and name.endswith(".hint"):
                    self._files.unlink(store / name)
        return messages

    def _gather(self, segment: Path, size: int, to: Path) -> None:
        """Move a segment, and give it its number. Without its hint, the opening reads the whole segment."""
        self.take(segment, size, to)
        hint = segment.with_name(hint_name(segment.name))
        if hint.exists():
            try:
                chunks = list(rename_hint(self._files.read_file(hint), segment.name, to.name))
                self._files.write_file(to.with_name(hint_name(to.name)), chunks, sync=False)
            except (InvalidHint, OSError) as error:
                log.warning("%s: is not used, the segment is read instead: %s", hint, error)

    def _open_once(self, store: Path, parts: Sequence[StorePart], counts: Counts | None) -> int:
        """Open and close the store, to create its index, counts and settings. Return its number of messages."""
        messages, backends = sum(part.messages for part in parts), backends_of(self.target)
        some = [part for part in parts if part.messages]
        if counts is None and any(part.counted for part in some):
            if not all(part.counted for part in some):
                raise ValueError("references are given of all messages of a job, or of none")
            counts = chain.from_iterable(read_references(self._files, part) for part in some)
        # Its segments are no broker's: the store remembers that before it is opened.
        write_settings(self._files, store, backends.settings)
        try:
            if counts is not None and not messages:  # the opening of a store without segments uses no counts
                if absent := [msg_id for msg_id, count in sum_counts(counts).items() if count > 0]:
                    raise self._missing(len(absent), absent[0])
                counts = None
            catalogue = attrs.evolve(worker_catalogue(), observers=())  # no application uses this store yet
            opened = open_configured(self.target.config(store), catalogue, refcounts=counts, files=self._files)
        except ValueError as error:  # too many references
            raise StoreError(f"{self.target.path}: {error}") from error
        try:
            recovery = opened.stats().recovery
            if recovery.damaged or recovery.entered + recovery.garbage != messages:
                damage = "; ".join(recovery.damaged) or f"{recovery.entered + recovery.garbage} records are there"
                raise StoreError(
                    f"{self.target.path}: {messages} messages were written for it, but {damage}. Run the job again."
                )
            if recovery.first_missing is not None:
                raise self._missing(recovery.missing, recovery.first_missing)
            if recovery.garbage:
                _check_copies(self._files, opened, backends.write_format, self.target.path)
            opened.close()
        finally:
            opened.abandon()
        return recovery.entered

    def _missing(self, count: int, msg_id: bytes) -> StoreError:
        more = f", and {count - 1} more" if count > 1 else ""
        return StoreError(f"{self.target.path}: no message was written of id {msg_id.hex()}{more}, which has references")


def numbered_segments(parts: Iterable[StorePart], store: Path) -> Iterator[tuple[Path, int, Path]]:
    """Yield path, bytes and path in the store of each segment of the parts, in the order of their tasks."""
    segments = ((Path(part.directory, name), size) for part in parts for name, size in part.files)
    for number, (segment, size) in enumerate(segments):
        yield segment, size, store / f"{number}{segment.suffix}"


def _check_copies(files: Files, store: Store, form: OpenFormat, name: str) -> None:
    """Raise StoreError for the first id with two bodies. ``name`` is the store's final path. Reads every segment."""
    for stats in store.segments():
        with files.view(store.path / stats.file) as data:
            scan = form.scan(data)
            for columns in (scan.records, scan.duplicates):
                for msg_id, offset, size, _ in columns.rows():
                    entry = store.entry(msg_id)
                    if entry is None or (entry.number, entry.offset) == (stats.number, offset):
                        continue
                    if form.format.decode(msg_id, data[offset : offset + size]) != store.stored_body(entry):
                        raise StoreError(
                            f"{name}: the id {msg_id.hex()} comes with two bodies, and an id names one body for ever. "
                            f"Remove one of them, or give it another id, and run the job again."
                        )
