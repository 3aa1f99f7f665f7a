"""Parts of a new store: each attempt of a task writes segments into its own directory, in any process.

The bytes are those that the store itself would write: the same records, segments and hints. The commit numbers the segments
(:mod:`msgstore.jobs.output.commit`).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import attrs

from msgstore.config import StoreConfig, store_config
from msgstore.contract import MessageTooLarge, MsgStoreError, StoreClosed, StoreError
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.engine.backends import Backends, resolve
from msgstore.engine.segment.segment import io_errors
from msgstore.engine.segment.segments import Segments
from msgstore.files import Files
from msgstore.jobs.output.staging_directory import create_attempt, errors
from msgstore.jobs.paths import absolute
from msgstore.jobs.workers import body_check, worker_catalogue
from msgstore.option_values import Backend, backend_of
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan.formats import NEW_STORE, OWN_RECORD

BATCH = 2**20
"""Bytes that are encoded and written at once. Less than a message that gets a segment of its own."""
_ID = 16
_OVERHEAD = 64
"""Bytes that a held message counts for, besides its body."""
_REFERENCES = "references"
"""File next to the segments of a part. It exists only until the commit."""
_ENTRY = struct.Struct(">16sQ")
"""Id and number of references of a message."""
Encode = Callable[[Sequence[bytes], Sequence[bytes]], tuple[bytes, Sequence[int]]]
"""Returns the records of ids and bodies, joined, and their sizes."""


@attrs.frozen
class StoreSpec:
    """A new store: destination and backends. Small and picklable: it names the backends, and each process creates them."""

    path: str
    """Its directory. All processes of a job must have the parent directory at the same path."""
    index: str = "ets"
    format: str = "v2"
    record: str = OWN_RECORD
    body: Backend = attrs.field(default=Backend("raw"), converter=backend_of)
    """Codec that the store remembers; a name, also as text, or a JSON object with ``use`` and its options. Bodies are given as
    they are stored: nothing is encoded here."""
    records: tuple[tuple[str, Any], ...] = attrs.field(default=(), repr=False)
    """(name, type byte) of the record types to bind, or (name, table) with ``byte`` and options. Not needed if the format
    assigns the byte, and no option is given."""
    file_size_limit: int = StoreConfig(path=Path()).file_size_limit

    @property
    def destination(self) -> Path:
        """The directory as an absolute path, because processes of a job may have other working directories."""
        return absolute(self.path)

    def config(self, path: Path | None = None) -> StoreConfig:
        """Return the configuration of the store, or of one at ``path``, without threads and syncs. Raises ConfigError."""
        keys = {
            "path": path or self.destination,
            "index": self.index,
            "format": {"use": self.format, "records": dict(self.records)} if self.records else self.format,
            "record": self.record,
            "body": attrs.evolve(self.body, named=False),  # an option is only needed to check bodies
            "file_size_limit": self.file_size_limit,
            "sync_interval": 0,
            "gc_interval": 0,
        }
        return store_config(keys, NEW_STORE, Path())


def backends_of(target: StoreSpec, catalogue: Catalogue | None = None) -> Backends:
    """Return the backends that a target names. Raises ConfigError, PluginError."""
    return resolve(target.config(), catalogue or worker_catalogue(), None)


@attrs.frozen
class StorePart:
    """Output of one attempt of a task, synced. Small and picklable."""

    task: int
    directory: str
    files: tuple[tuple[str, int], ...]
    """(name, bytes) of the segments, in the order of writing."""
    messages: int
    bytes: int
    """Bytes of the segments."""
    counted: bool = False
    """True if the directory has the references of the messages."""


def read_references(files: Files, part: StorePart) -> Iterator[tuple[bytes, int]]:
    """Yield (id, references) of each message of a part. Raises OSError."""
    yield from _ENTRY.iter_unpack(files.read_file(Path(part.directory, _REFERENCES)))


class PartWriter:
    """Writer of one attempt of a task. A context manager: on exit, what is not finished is deleted.

    Used by one thread. An error deletes the attempt: each later call raises StoreClosed.
    """

    def __init__(self, target: StoreSpec, staging: str, task: int, *, files: Files | None = None) -> None:
        """``staging`` is ``StoreStaging.path``. ``task`` orders the parts: the store has the messages of lower numbers first.

        Raises ConfigError or PluginError if this process cannot write the target, StoreError if the job has ended.
        """
        self._backends = backends_of(target)
        self._form = self._backends.write_format
        self._limit = int(target.file_size_limit)
        self._large = int(target.config().large_message)
        self._files = files or Files()
        self._target = target
        self._task = task
        self._ids: list[bytes] = []
        self._bodies: list[bytes] = []
        """Bodies of ``_ids``, which are not written yet."""
        self._held = 0
        self._messages = 0
        self._references: list[bytes] | None = None
        """Entries of all messages, if they have references. The driver needs more memory for each."""
        self._open = True
        with errors(target.destination):
            self._directory = create_attempt(staging, task, self._files)
        self._segments = Segments(self._directory, self._files, self._backends.formats, sync="later")
        self._segments.hints.writes = True

    @property
    def max_body(self) -> int:
        """Bytes of the largest stored body."""
        return self._form.format.max_body

    def add(
        self,
        ids: Sequence[bytes],
        bodies: Sequence[bytes],
        references: Sequence[int] | None = None,
        *,
        where: str = "",
        check: bool = False,
    ) -> None:
        """Add messages with their stored bodies. They are written when there is about 1 MiB of them.

        ``references``: number of references of each message. They are given in all calls of all parts of a job, or in none.
        ``where``: source of the messages, for error messages. ``check``: bodies must be valid for the codec. Raises StoreError
        for an invalid id, body or number of references, MessageTooLarge, StoreIOError.
        """
        where = where or self._target.path
        with self._working():
            is_valid = body_check(self._target.body) if check and not self._backends.plain_bodies else None
            if is_valid and not all(map(is_valid, ids, bodies)):
                wrong = next(msg_id for msg_id, body in zip(ids, bodies, strict=True) if not is_valid(msg_id, body))
                codec = self._target.body.name
                raise StoreError(f"{where}: the body of {wrong.hex()} is not valid for the codec {codec!r}. Choose another.")
            largest, form = max(bodies, key=len, default=b""), self._form
            if len(largest) > form.format.max_body:
                raise MessageTooLarge(
                    f"{where}: the body of {bytes(ids[bodies.index(largest)]).hex()} has {len(largest)} bytes and does "
                    f"not fit into a record of format {form.name!r} (at most {form.format.max_body})"
                )
            self._check(ids, bodies, references, where)
            self._ids += ids
            self._bodies += bodies
            self._held += sum(map(len, bodies)) + _OVERHEAD * len(ids)
            if self._held >= BATCH:
                self._write_held()

    def add_records(self, ids: Sequence[bytes], records: Sequence[bytes]) -> None:
        """Write messages as whole records of the target's format, which the caller has checked."""
        with self._working():
            self._check(ids, records, None, self._target.path)
            self._write_held()
            self._write(ids, records, lambda _, some: (b"".join(some), list(map(len, some))))

    def finish(self) -> StorePart:
        """Write and sync everything, and return the part. Raises StoreIOError."""
        with self._working():
            self._write_held()
            self._seal()
            self._segments.sync_written()
            if self._references is not None:  # synced: the driver may read it on another machine
                self._files.write_file(self._directory / _REFERENCES, self._references, sync=True)
            files = tuple((segment.path.name, segment.size) for segment in self._segments)
            size, is_counted = sum(size for _, size in files), self._references is not None
            self._open = False
            return StorePart(self._task, str(self._directory), files, self._messages, size, is_counted)

    def abandon(self) -> None:
        """Delete the attempt. Raises nothing. Does nothing if it is finished or abandoned."""
        if self._open:
            self._open = False
            with suppress(MsgStoreError, OSError):
                self._segments.close()
            with suppress(OSError):
                self._files.remove_tree(self._directory)

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    @contextmanager
    def _working(self) -> Iterator[None]:
        if not self._open:
            raise StoreClosed(f"{self._directory}: this attempt has ended")
        try:
            with errors(self._target.destination):
                yield
        except BaseException:
            self.abandon()
            raise

    def _check(self, ids: Sequence[bytes], items: Sequence[bytes], references: Sequence[int] | None, where: str) -> None:
        """Check ids and references, and keep the references."""
        if len(ids) != len(items):
            raise ValueError(f"{len(ids)} ids with {len(items)} bodies")
        if set(map(len, ids)) - {_ID}:
            wrong = next(msg_id for msg_id in ids if len(msg_id) != _ID)
            raise StoreError(f"{where}: an id has {_ID} bytes, not {len(wrong)}: {bytes(wrong).hex() or 'it is empty'}")
        if (references is None) != (self._references is None) and (self._messages or self._ids):
            raise ValueError("references are given of all messages of a part, or of none")
        if references is None:
            return
        if len(ids) != len(references):
            raise ValueError(f"{len(ids)} ids with {len(references)} counts")
        for msg_id, count in zip(ids, references, strict=True):
            if type(count) is not int or not 1 <= count <= MAX_REFERENCES:
                raise StoreError(
                    f"{where}: {bytes(msg_id).hex()} has {count!r} references; a message has from 1 to {MAX_REFERENCES}. "
                    "Leave out what nobody refers to"
                )
        if self._references is None:
            self._references = []
        self._references.append(b"".join(map(_ENTRY.pack, ids, references)))

    def _write_held(self) -> None:
        ids, bodies, self._ids, self._bodies, self._held = self._ids, self._bodies, [], [], 0
        self._write(ids, bodies, self._encode)

    def _encode(self, ids: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[bytes, list[int]]:
        with io_errors(self._target.destination):
            return self._form.encode(ids, bodies)

    def _write(self, ids: Sequence[bytes], items: Sequence[bytes], encode: Encode) -> None:
        """Write bodies or records. A large one gets a segment of its own, as in the store itself."""
        lengths = list(map(len, items))
        for begin, end in batches(lengths):
            cut = end - 1 if lengths[end - 1] >= self._large else end  # a large one ends its batch
            if begin < cut:
                self._append(ids[begin:cut], *encode(ids[begin:cut], items[begin:cut]))
            if cut < end:
                self._seal()
                self._append(ids[cut:end], *encode(ids[cut:end], items[cut:end]))
                self._seal()

    def _append(self, ids: Sequence[bytes], data: bytes, sizes: Sequence[int]) -> None:
        """Append records. The one that reaches the size limit is the last of its segment, as in the store itself."""
        ends, view, done, base = list(accumulate(sizes)), memoryview(data), 0, 0
        while done < len(ends):
            segment = self._segments.current
            if segment is None or segment.size >= self._limit:
                self._seal()
                segment = self._segments.roll(self._form)
            cut = min(bisect_left(ends, base + self._limit - segment.size, done) + 1, len(ends))
            offset, size = segment.size, ends[cut - 1] - base
            self._segments.append(view[base : base + size])
            self._segments.hints.add(segment, offset, ids[done:cut], sizes[done:cut])
            segment.live_bytes += size
            done, base = cut, ends[cut - 1]
        self._messages += len(ids)

    def _seal(self) -> None:
        """Let the next record begin a segment."""
        if self._segments.current is not None:
            self._segments.seal_current()
            self._segments.hints.save(everything=True)


def batches(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each batch of about BATCH bytes: the value that reaches so many is its last."""
    ends = list(accumulate(sizes))
    begin = 0
    while begin < len(sizes):
        before = ends[begin - 1] if begin else 0
        end = min(bisect_left(ends, before + BATCH, begin) + 1, len(sizes))
        yield begin, end
        begin = end
