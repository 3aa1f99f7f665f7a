"""Writing a fresh store, the worker's side: each attempt of a task writes segments of its own into a directory of its own.

What a worker writes is what the store itself would have written: the same records, rolled at the same places, with the same
hints. The driver gives the segments their numbers (:mod:`msgstore.jobs.output.commit`).
"""

from __future__ import annotations

import os
import secrets
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import accumulate
from pathlib import Path
from types import TracebackType

import attrs

from msgstore.config import StoreConfig, store_config
from msgstore.contract import MessageTooLarge, MsgStoreError, StoreClosed, StoreError
from msgstore.contract.formats import split_ids
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.engine.backends import Backends, resolve
from msgstore.engine.segment.segment import Segment
from msgstore.engine.segment.segments import Segments
from msgstore.files import Files
from msgstore.jobs.output.staging_directory import PARTS, errors
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.scan.bindings import OWN_RECORD

BATCH = 2**20
"""Bytes that are encoded and written at once."""
_ID = 16


@attrs.frozen
class Target:
    """How a fresh store is written. Small and picklable; workers make the format of their own plugins."""

    path: str
    """Its directory. All processes of a job must see the one above it under the same name."""
    index: str = "ets"
    format: str = "v2"
    record: str = OWN_RECORD
    body: str = "raw"
    """The codec that the store remembers. Bodies are handed in as they are stored: it encodes nothing here."""
    records: tuple[tuple[str, int], ...] = ()
    """(name, type byte) of record types that are bound; not needed for one whose byte the format assigns."""
    file_size_limit: int = StoreConfig(path=Path()).file_size_limit

    @property
    def destination(self) -> Path:
        """The directory, absolute: processes of a job need not have the same working directory."""
        return Path(os.path.abspath(self.path))  # noqa: PTH100 - "..", too, before anything is made beside it

    def config(self, path: Path | None = None) -> StoreConfig:
        """That of the store, in another directory if need be. It has no threads, and syncs nothing. Raises ConfigError."""
        keys = {
            "path": path or self.destination,
            "index": self.index,
            "format": {"use": self.format, "records": dict(self.records)} if self.records else self.format,
            "record": self.record,
            "body": self.body,
            "file_size_limit": self.file_size_limit,
            "sync_interval": 0,
            "gc_interval": 0,
        }
        return store_config(keys, "target", Path())


@attrs.frozen
class Part:
    """Output of one attempt of a task, synced. Small and picklable."""

    task: int
    directory: str
    files: tuple[tuple[str, int], ...]
    """(name, bytes) of the segments, in the order of writing."""
    messages: int
    bytes: int
    """Of the segments."""
    counted: bool = False
    """Whether the references of its messages stand beside them."""


class PartWriter:
    """One attempt of one task. A context manager: what is not finished when it is left, is deleted.

    One thread at a time. What raises leaves nothing behind, and makes the attempt useless: every later call raises StoreClosed.
    """

    def __init__(self, target: Target, staging: str, task: int, *, files: Files | None = None) -> None:
        """``staging`` is ``Staging.path``, ``task`` orders what is written: the store has the messages of lower ones first.

        Raises ConfigError, PluginError for what this process cannot write, StoreError if the job is gone."""
        backends = _backends(target)
        self._form = backends.write_format
        self._limit = int(target.file_size_limit)
        self._large = int(target.config().large_message)
        self._files = files or Files()
        self._target = target
        self._task = task
        self._directory = Path(staging, PARTS, f"{task}-{secrets.token_hex(8)}")
        self._ids: list[bytes] = []
        self._sizes: list[int] = []
        self._records: list[bytes] = []
        """The records of ``_ids``, which have ``_sizes``, and wait to be written."""
        self._large_at: list[int] = []
        """Positions of those with large bodies."""
        self._counts: int | None = None
        """Descriptor of the file of references."""
        self._counts_size = 0
        self._held = 0
        self._messages = 0
        self._open = True
        with errors(target.destination, nothing_of(target)):
            try:
                self._files.create_directory(self._directory)
            except FileNotFoundError:
                raise StoreError(
                    f"{self._directory.parent}: there is no such directory: the job was ended or given up meanwhile, or this "
                    f"process does not see the file system of the driver. Choose a destination that all of them see."
                ) from None
        self._segments = Segments(self._directory, self._files, backends.formats, sync="later")
        self._segments.hints.writes = True

    def add(
        self, ids: Sequence[bytes], bodies: Sequence[bytes], references: Sequence[int] | None = None, *, where: str = ""
    ) -> None:
        """Messages, with their bodies as they are stored. They are held until some 1 MiB of them is there.

        ``references``: how many each message has. Whoever gives them once gives them always, in each part of the job.
        ``where`` they came from: errors about them begin with it, or else with the destination.

        Raises StoreError for what is no id of 16 bytes, and for a count that none can have; MessageTooLarge; StoreIOError.
        """
        where = where or self._target.path
        with self._working():
            self._count(ids, references, where)
            self._check_ids(ids, bodies, "bodies", where)
            sizes, form = list(map(len, bodies)), self._form
            largest = max(sizes, default=0)
            if largest > form.format.max_body:
                raise MessageTooLarge(
                    f"{where}: the body of {bytes(ids[sizes.index(largest)]).hex()} has {largest} bytes and does "
                    f"not fit into a record of format {form.name!r} (at most {form.format.max_body})"
                )
            for begin, end in batches(sizes):
                large = (
                    [at for at, size in enumerate(sizes[begin:end]) if size >= self._large] if largest >= self._large else ()
                )
                self._hold(ids[begin:end], *form.format.encode(ids[begin:end], bodies[begin:end]), large)

    def add_records(self, ids: Sequence[bytes], records: Sequence[bytes]) -> None:
        """Messages as whole records of the target's format, which the caller has checked: they are written as they are."""
        with self._working():
            self._count(ids, None, self._target.path)
            self._check_ids(ids, records, "records", self._target.path)
            sizes, span = list(map(len, records)), self._form.format.body_span
            bodies = {at: span(records[at], 0, size) for at, size in enumerate(sizes) if size >= self._large}
            large = [at for at, (begin, end) in bodies.items() if end - begin >= self._large]
            self._hold(ids, b"".join(records), sizes, large)

    def finish(self) -> Part:
        """Everything is on disk when it returns. Raises StoreIOError."""
        with self._working():
            self._write_held()
            self._seal()
            self._segments.sync_written()
            if self._counts is not None:
                self._files.sync(self._counts)  # the driver may read it on another machine
                self._close_counts()
            files = tuple((segment.path.name, segment.size) for segment in self._segments)
            size = sum(size for _, size in files)
            part = Part(self._task, str(self._directory), files, self._messages, size, self._counts_size > 0)
        self._open = False
        return part

    def abandon(self) -> None:
        """Nothing is left. Raises nothing; nothing to do if it is finished or abandoned."""
        if self._open:
            self._open = False
            with suppress(MsgStoreError, OSError):
                self._segments.close()
                self._close_counts()
            with suppress(OSError):
                self._files.remove_tree(self._directory)

    def _close_counts(self) -> None:
        fd, self._counts = self._counts, None
        if fd is not None:
            self._files.close(fd)

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abandon()

    @contextmanager
    def _working(self) -> Iterator[None]:
        if not self._open:
            raise StoreClosed(f"{self._directory}: this attempt has ended")
        try:
            with errors(self._target.destination, nothing_of(self._target)):
                yield
        except BaseException:
            self.abandon()
            raise

    def _count(self, ids: Sequence[bytes], references: Sequence[int] | None, where: str) -> None:
        if references is not None and (self._counts is not None or not self._messages + len(self._ids)):
            data = _pack_references(ids, references, where)
            if self._counts is None:
                self._counts = self._files.create(self._directory / _REFERENCES)
            self._files.pwrite(self._counts, data, self._counts_size)
            self._counts_size += len(data)
        elif references is not None or self._counts is not None:
            raise ValueError("references are given of all messages of a part, or of none")

    def _check_ids(self, ids: Sequence[bytes], items: Sequence[bytes], what: str, where: str) -> None:
        if len(ids) != len(items):
            raise ValueError(f"{len(ids)} ids with {len(items)} {what}")
        if set(map(len, ids)) - {_ID}:
            wrong = next(msg_id for msg_id in ids if len(msg_id) != _ID)
            raise StoreError(f"{where}: an id has {_ID} bytes, not {len(wrong)}: {bytes(wrong).hex() or 'it is empty'}")

    def _hold(self, ids: Sequence[bytes], records: bytes, sizes: Sequence[int], large: Iterable[int]) -> None:
        """``large``: the positions of records with large bodies."""
        self._large_at += [len(self._ids) + at for at in large]
        self._ids += ids
        self._sizes += sizes
        self._records.append(records)
        self._held += len(records)
        if self._held >= BATCH:
            self._write_held()

    def _write_held(self) -> None:
        """Write what is held. The record that fills a segment is its last one, and a large body gets a segment of its own, as
        in the store itself."""
        ids, sizes, large, view = self._ids, self._sizes, set(self._large_at), memoryview(b"".join(self._records))
        stops = [*self._large_at, len(sizes)]
        self._ids, self._sizes, self._records, self._large_at, self._held = [], [], [], [], 0
        current = self._segments.current
        if not large and current is not None and current.size < self._limit and current.size + len(view) <= self._limit:
            self._append(current, view, ids, sizes)
            return
        ends = list(accumulate(sizes))
        done = base = 0
        while done < len(ends):
            is_alone, current = done in large, self._segments.current
            if current is None or current.size >= self._limit or (is_alone and current.size > current.header_bytes):
                self._seal()
                current = self._segments.roll(self._form)
            stop = done + 1 if is_alone else stops[bisect_right(stops, done)]
            cut = min(bisect_left(ends, base + self._limit - current.size, done) + 1, stop)
            self._append(current, view[base : ends[cut - 1]], ids[done:cut], sizes[done:cut])
            done, base = cut, ends[cut - 1]
            if is_alone:
                self._seal()

    def _append(self, segment: Segment, records: memoryview, ids: Sequence[bytes], sizes: Sequence[int]) -> None:
        offset = segment.size
        self._segments.append(records)
        self._segments.hints.add(segment, offset, len(records), ids, sizes)
        segment.live_bytes += len(records)
        self._messages += len(ids)

    def _seal(self) -> None:
        """The current segment takes no more records of this attempt."""
        current = self._segments.current
        if current is not None:
            self._segments.seal_current()
            self._segments.hints.save(everything=True)


def batches(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each batch of about BATCH bytes."""
    begin = 0
    if sum(sizes) <= BATCH and sizes:  # so it mostly is, and takes no loop
        yield 0, len(sizes)
        return
    ends = list(accumulate(sizes))
    while begin < len(sizes):
        before = ends[begin - 1] if begin else 0
        end = min(bisect_left(ends, before + BATCH, begin) + 1, len(sizes))
        yield begin, end
        begin = end


def backends_of(target: Target, catalogue: Catalogue) -> Backends:
    """Everything that a target names. Raises ConfigError, PluginError."""
    return resolve(target.config(), catalogue, None)


def check_bodies(target: Target, ids: Sequence[bytes], bodies: Sequence[bytes], where: str) -> None:
    """Raises StoreError for the first body that the target's codec could not have stored."""
    backends = _backends(target)
    is_valid = backends.codec.is_valid
    if not backends.plain_bodies and not all(map(is_valid, ids, bodies)):
        wrong = next(msg_id for msg_id, body in zip(ids, bodies, strict=True) if not is_valid(msg_id, body))
        raise StoreError(f"{where}: the body of {wrong.hex()} is not valid for the codec {target.body!r}")


@cache
def _backends(target: Target) -> Backends:
    return backends_of(target, load_catalogue())


def nothing_of(target: Target) -> str:
    """Return what errors say of the store."""
    return f"No store was made at {target.path}"


# -- references ---------------------------------------------------------------------------------------------------------------

_REFERENCES = "references"
"""File beside the segments of a part, written by the worker and read by the driver. It never outlives its job."""
_COUNT = struct.Struct(">I")
"""In front of the ids and the references of so many messages."""


def _pack_references(ids: Sequence[bytes], references: Sequence[int], where: str) -> bytes:
    if len(ids) != len(references):
        raise ValueError(f"{len(ids)} ids with {len(references)} counts")
    if ids and not (set(map(type, references)) == {int} and min(references) >= 1 and max(references) <= MAX_REFERENCES):
        is_count = [type(count) is int and 1 <= count <= MAX_REFERENCES for count in references]
        at = is_count.index(False)
        raise StoreError(
            f"{where}: {bytes(ids[at]).hex()} has {references[at]!r} references; a message has from 1 to {MAX_REFERENCES}. "
            "Leave out what nobody refers to"
        )
    return _COUNT.pack(len(ids)) + b"".join(ids) + struct.pack(f">{len(references)}Q", *references)


def read_references(files: Files, part: Part) -> Iterator[tuple[bytes, int]]:
    """(id, references) of each message of a part. Raises OSError."""
    with files.view(Path(part.directory, _REFERENCES)) as data:
        at = 0
        while at < len(data):
            (count,) = _COUNT.unpack_from(data, at)
            begin, at = at + _COUNT.size, at + _COUNT.size + (_ID + 8) * count
            ids = split_ids(data[begin : begin + _ID * count])
            yield from zip(ids, struct.unpack_from(f">{count}Q", data, begin + _ID * count), strict=True)
