"""Writing a fresh store, the driver's side: from the parts of all tasks to a whole store, which appears in one rename."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path

import attrs

from msgstore.contract import Capability, StoreError
from msgstore.directory import write_settings
from msgstore.engine.open.recovery import sum_counts
from msgstore.engine.opening import open_configured
from msgstore.engine.segment.hint_file import InvalidHint, renamed
from msgstore.engine.segment.hints import hint_name
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.jobs.output.parts import Part, Target, backends_of, nothing_of, read_references
from msgstore.jobs.output.staging_directory import PARTS, StagingDirectory, claim, errors
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.scan import OpenFormat
from msgstore.writer_lock import WriterLock

log = logging.getLogger("msgstore.bulk")

_STORE = "store"
Counts = Iterable[tuple[bytes, int]]


class Staging(StagingDirectory):
    """One job that writes a fresh store: a directory beside the destination, locked while the job lives.

    Used by one thread of the process that drives the job. A context manager: what is not committed when it is left, is
    deleted. Until ``commit`` returns there is nothing at the destination, or what was there: an empty directory.
    """

    def __init__(self, target: Target, path: str, lock: WriterLock | None, catalogue: Catalogue, files: Files) -> None:
        """Use ``begin``, or ``join``."""
        super().__init__(target.destination, path, lock, files, nothing_of(target))
        self.target = target
        self._catalogue = attrs.evolve(catalogue, observers=())  # nobody has this store yet

    @classmethod
    def begin(
        cls,
        target: Target,
        *,
        sources: Iterable[str | Path] = (),
        catalogue: Catalogue | None = None,
        files: Files | None = None,
    ) -> Staging:
        """Check everything that can be wrong with the target, clear away what killed jobs for it left, and begin.

        ``sources`` are the directories that the job reads: the store must not come to lie inside one.

        Raises ConfigError, PluginError; StoreError if the destination is in use, StoreLocked if another job is writing there.
        """
        files = files or Files()
        catalogue = catalogue or load_catalogue()
        backends_of(target, catalogue)
        with errors(target.destination, nothing_of(target)):
            path, lock = claim(files, target.destination, sources, PARTS)
        return cls(target, str(path), lock, catalogue, files)

    @classmethod
    def join(cls, target: Target, path: str, *, catalogue: Catalogue | None = None, files: Files | None = None) -> Staging:
        """The job that another process began and handed over, to end it here."""
        return cls(target, path, None, catalogue or load_catalogue(), files or Files())

    def commit(self, parts: Iterable[Part], counts: Counts | None = None) -> int:
        """Make the store of ``parts``, in the order of their tasks. Other attempts of these tasks count for nothing.
        Returns how many messages the store has.

        ``counts``: (id, references) pairs, added up. Records that they do not name are garbage, an id without a record is an
        error. Without them they are what the workers were given, added up; if these were given none, each id has one
        reference. Of copies of an id with the same body one is kept.

        Everything is on disk when it returns. If it raises (StoreError, StoreIOError; an id with two bodies, too), nothing is
        left; but for an error of the very last step, the sync of the store's name, which says that the store is there. Memory:
        what the index needs, and the counts.
        """
        messages = 0

        def make() -> Path:
            nonlocal messages
            store = Path(self.path, _STORE)
            ordered = _in_order(parts)
            messages = self._make(store, ordered, self._counted(ordered) if counts is None else counts)
            return store

        self.publish(make)
        return messages

    def _counted(self, parts: Sequence[Part]) -> Counts | None:
        """Iterate over the parts of the workers, and count them."""
        some = [part for part in parts if part.messages]
        if not any(part.counted for part in some):
            return None
        if not all(part.counted for part in some):
            raise ValueError("references are given of all messages of a job, or of none")
        return chain.from_iterable(read_references(self._files, part) for part in some)

    def _make(self, store: Path, parts: Sequence[Part], counts: Counts | None) -> int:
        self._files.create_directory(store)
        number = 0
        for part in parts:
            number = self._gather(part, store, number)
        messages = self._open_once(store, sum(part.messages for part in parts), counts)
        if Capability.PERSISTENT in self._catalogue.index(self.target.index).capabilities:  # then nobody reads hints
            for name in self._files.list(store):
                if name.startswith("msgstore-") and name.endswith(".hint"):
                    self._files.unlink(store / name)
        return messages

    def _gather(self, part: Part, store: Path, number: int) -> int:
        """Move a part's segments to their numbers, from ``number`` on. Returns the next one."""
        directory = Path(part.directory)
        if directory.parent != Path(self.path, PARTS):
            raise StoreError(f"{directory}: is not a part of the job in {self.path}")
        there = self._files.list(directory) if directory.is_dir() else {}
        for name, size in part.files:
            if there.get(name, (None, 0))[0] != size:
                raise StoreError(
                    f"{directory / name}: was written by task {part.task} with {size} bytes, and is not there, or not whole. "
                    f"Workers and driver must share the file system in which {self.target.path} is to be."
                )
            new = f"{number}{Path(name).suffix}"
            self._files.replace(directory / name, store / new)
            if hint_name(name) in there:
                self._take_hint(directory, name, store, new)
            number += 1
        return number

    def _take_hint(self, directory: Path, name: str, store: Path, new: str) -> None:
        """Or the opening would read the whole segment."""
        try:
            chunks = list(renamed(self._files.read_file(directory / hint_name(name)), name, new))
            self._files.write_file(store / hint_name(new), chunks, sync=False)
        except (InvalidHint, OSError) as error:
            log.warning("%s: its hint is not used, the segment is read instead: %s", directory / name, error)

    def _open_once(self, store: Path, messages: int, counts: Counts | None) -> int:
        """So that index, counts and settings are there, as after a clean shutdown."""
        config = self.target.config(store)
        if counts is not None and not messages:
            counts = [(msg_id, count) for msg_id, count in sum_counts(counts).items() if count > 0]
            if counts:
                raise self._missing(len(counts), counts[0][0])
        # Its segments are no broker's: the store remembers that before it is opened.
        write_settings(self._files, store, backends_of(self.target, self._catalogue).settings)
        try:
            opened = open_configured(config, self._catalogue, refcounts=counts, files=self._files)
        except ValueError as error:  # of the counts: more references than there can be
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
                _check_copies(self._files, opened, backends_of(self.target, self._catalogue).write_format, self.target.path)
            opened.close()
        finally:
            opened.abandon()
        return recovery.entered

    def _missing(self, count: int, msg_id: bytes) -> StoreError:
        more = f", and {count - 1} more" if count > 1 else ""
        return StoreError(f"{self.target.path}: no message was written of id {msg_id.hex()}{more}, which has references")


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


def _in_order(parts: Iterable[Part]) -> list[Part]:
    """By task. Raises ValueError for two attempts of one task."""
    ordered = sorted(parts, key=lambda part: part.task)
    for one, other in pairwise(ordered):
        if one.task == other.task:
            raise ValueError(f"two attempts of task {one.task}: {one.directory}, {other.directory}")
    return ordered
