"""Reading beside a writer in another process, without any lock between the two.

The writer's side of it: data is on disk before the index says so, and the index says that a record is dead or has moved before
its bytes are overwritten, cut or deleted. So the reader looks a message up, reads, and looks it up again, each time as of that
moment. If the location is still the same, the bytes were the message's when they were read. If not, it begins again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from msgstore.contract import CorruptRecord, Index, MessageNotFound, RecordError, StoreError
from msgstore.contract.locations import NUMBER_SHIFT, unpack_location
from msgstore.engine.read.coalescing import runs
from msgstore.engine.read.segment_file_cache import SegmentFileCache
from msgstore.engine.read.writer_tracker import View, WriterTracker
from msgstore.engine.segment.errors import io_error
from msgstore.engine.write.writer import check_id
from msgstore.files import Files
from msgstore.scan import WholeRecord

Part = Literal["body", "stored body"]
Found = tuple[Path, int, bytes, bytes]
"""The file of a record, its offset, itself, and the part that is wanted."""
"""What of a record is wanted; all of it is checked."""

_MOVES = 1000
"""Times that a message may move while it is read."""
_LATE = 200
"""Times that a file is looked for again that the index speaks of ..."""
_PAUSE = 0.005
"""... and seconds between them."""


class Recovered(Protocol):
    """What reads a store to which nobody writes."""

    read: Callable[[bytes], bytes]

    def read_many(self, ids: Iterable[bytes]) -> dict[bytes, bytes]: ...

    def contains(self, msg_id: bytes) -> bool: ...

    def stored(self, msg_id: bytes, location: int) -> bytes: ...

    def record(self, msg_id: bytes, location: int) -> WholeRecord: ...


class LiveReader:
    """Of one store that is open for reading. Any thread; clients call ``read``, ``read_many`` and ``contains``."""

    def __init__(self, following: WriterTracker, files: Files, index: Index, recovered: Recovered) -> None:
        """``recovered`` reads while nobody has written since the store was opened."""
        self._following = following
        self._directory = following.directory
        self._locate = index.get
        self._recovered = recovered
        self.files = SegmentFileCache(following.directory, files)

    def read(self, msg_id: bytes) -> bytes:
        """The body of a live message. Raises MessageNotFound, CorruptRecord, StoreError, ValueError (id)."""
        check_id(msg_id)
        return self._following.consistently(
            lambda view: self._read(view, msg_id, self._locate(msg_id)) if view.live else self._recovered.read(msg_id)
        )

    def read_many(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """The bodies of those that are present. Sorted by file and offset, neighbours are read with one ``pread``."""
        wanted = list(ids)
        for msg_id in wanted:
            check_id(msg_id)
        wanted = list(dict.fromkeys(wanted))
        return self._following.consistently(
            lambda view: self._read_many(view, wanted) if view.live else self._recovered.read_many(wanted)
        )

    def contains(self, msg_id: bytes) -> bool:
        check_id(msg_id)
        return self._following.consistently(
            lambda view: self._locate(msg_id) is not None if view.live else self._recovered.contains(msg_id)
        )

    def stored(self, msg_id: bytes, location: int) -> bytes:
        """The body as it is stored, without the codec, while nobody has written since the store was opened."""
        return self._recovered.stored(msg_id, location)

    def stored_now(self, view: View, msg_id: bytes, location: int) -> bytes:
        """The same beside a writer; ``location`` is where it was last seen."""
        return self._read(view, msg_id, location, "stored body")

    def record(self, msg_id: bytes, location: int) -> WholeRecord:
        """A whole record, while nobody has written since the store was opened."""
        return self._recovered.record(msg_id, location)

    def record_now(self, view: View, msg_id: bytes, location: int) -> WholeRecord:
        """The same beside a writer; ``location`` is where it was last seen."""
        path, offset, record, body = self._find(view, msg_id, location, "stored body")
        return WholeRecord(path, offset, view.backends.formats.by_extension(path.suffix), record, body)

    def _read(self, view: View, msg_id: bytes, location: int | None, part: Part = "body") -> bytes:
        return self._find(view, msg_id, location, part)[-1]

    def _find(self, view: View, msg_id: bytes, location: int | None, part: Part) -> Found:
        """The record, and what is wanted of it."""
        late = 0
        for _ in range(_MOVES):
            if location is None:
                raise MessageNotFound([msg_id], str(self._directory))
            found, problem = self._attempt(view, msg_id, location, part)
            then, location = location, self._locate(msg_id)
            if location != then:
                continue
            if found is not None:
                return found
            if problem is not None:
                if late == (_LATE if isinstance(problem, FileNotFoundError) else 1):
                    raise self._error(msg_id, then, problem)
                late += 1
                self.files.drop(then >> NUMBER_SHIFT)
                if late > 1:
                    time.sleep(_PAUSE)
        raise StoreError(f"{self._directory}: {msg_id.hex()} was moved {_MOVES} times while it was read; try again")

    def _attempt(
        self, view: View, msg_id: bytes, location: int, part: Part
    ) -> tuple[Found | None, RecordError | OSError | None]:
        """What is wanted, or what was wrong; neither if it was this process's doing."""
        number, offset, size = unpack_location(location)
        try:
            found = self.files.read(number, offset, size, view.backends.formats)
            if found is None:
                return None, None
            file, record = found
            return (file.path, offset, record, self._decoded(view, file.decode, msg_id, record, size, part)), None
        except (RecordError, OSError) as problem:
            return None, problem

    def _decoded(
        self, view: View, decode: Callable[[bytes, bytes], bytes], msg_id: bytes, record: bytes, size: int, part: Part
    ) -> bytes:
        if len(record) != size:
            raise RecordError("size_mismatch", f"the file ends {size - len(record)} bytes before the record does")
        body = decode(msg_id, record)
        return body if part == "stored body" or view.backends.plain_bodies else view.backends.decode_body(msg_id, body)

    def _read_many(self, view: View, wanted: list[bytes]) -> dict[bytes, bytes]:
        locate = self._locate
        located = sorted((location, msg_id) for msg_id in wanted if (location := locate(msg_id)) is not None)
        bodies: dict[bytes, bytes] = {}
        for run in runs(located):
            self._read_run(view, run, bodies)
        for location, msg_id in located:
            now = locate(msg_id)
            if now != location or msg_id not in bodies:
                bodies.pop(msg_id, None)
                with suppress(MessageNotFound):
                    bodies[msg_id] = self._read(view, msg_id, now)
        return bodies

    def _read_run(self, view: View, run: list[tuple[int, bytes]], bodies: dict[bytes, bytes]) -> None:
        """Adds what could be read; the others are looked at one by one."""
        number, start, _ = unpack_location(run[0][0])
        _, last, size = unpack_location(run[-1][0])
        try:
            found = self.files.read(number, start, last + size - start, view.backends.formats)
        except OSError:
            return
        if found is None:
            return
        file, data = found
        for location, msg_id in run:
            _, offset, size = unpack_location(location)
            try:
                record = data[offset - start : offset - start + size]
                bodies[msg_id] = self._decoded(view, file.decode, msg_id, record, size, "body")
            except RecordError:
                continue

    def _error(self, msg_id: bytes, location: int, problem: RecordError | OSError) -> StoreError:
        number, offset, _ = unpack_location(location)
        path = self._directory / str(number)
        if isinstance(problem, FileNotFoundError):
            return StoreError(
                f"{self._directory}: the index is damaged: it speaks of segment {number}, which is not there. Stop the writer, "
                f"move the index's files (msgstore-*) away, and open the store again: it is rebuilt from the segments."
            )
        if isinstance(problem, OSError):
            return io_error(path, offset, problem)
        path = self.files.path(number) or path
        return CorruptRecord(
            f"{path} at offset {offset}: the record of {msg_id.hex()} is damaged ({problem}). Other messages are not affected; "
            f"'msgstore salvage' copies every good record into a fresh store.",
            reason=problem.reason,
            path=path,
            offset=offset,
            msg_id=msg_id,
        )
