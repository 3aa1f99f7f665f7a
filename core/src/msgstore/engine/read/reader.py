"""Reader: write buffer, else index, else one ``pread``. One reader for stores of this process and next to other processes.

Reads of a local store have a fast path without locks. ``read`` and ``read_many`` look the location up, read, and make sure that
nothing which an older lookup may point to was overwritten, cut or closed meanwhile (``ReadFiles.epoch``). If anything is not as
it should be, an unknown id included, the slow path decides: it gives the answer or the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs

from msgstore.contract import CorruptRecord, MessageNotFound, RecordError, StoredBody, StoreError
from msgstore.engine.backends import Backends
from msgstore.engine.ids import check_id
from msgstore.engine.read.strategy import Fetched, ReadStrategy
from msgstore.engine.segment.read_files import Decode
from msgstore.engine.segment.segment import io_error, io_errors
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.state.lifecycle import Lifecycle
from msgstore.locations import MASK, NUMBER_SHIFT, OFFSET_SHIFT, unpack_location
from msgstore.scan import WholeRecord

_MAX_MOVES = 1000
"""Times that a record may move while it is read."""
_MAX_RETRIES = 200
"""Times that a segment file is looked for that the index points to ..."""
_RETRY_SECONDS = 0.005
"""... and the time between them."""


@attrs.frozen
class _Located:
    """A record that was read and decoded."""

    fetched: Fetched
    offset: int
    stored: bytes
    """Stored body."""


class Reader:
    """One instance per open store. Thread-safe."""

    read: Callable[[bytes], bytes]
    contains: Callable[[bytes], bool]

    def __init__(self, strategy: ReadStrategy, accounting: LiveAccounting) -> None:
        self._strategy = strategy
        self._segments = accounting.segments
        self._directory = accounting.segments.directory
        self._shared = accounting.shared
        self._locate = accounting.index.get
        self._mapped = False
        self._read_unlocked: Callable[[list[bytes]], dict[bytes, bytes]] = lambda _: {}
        self.read, self.contains = self.read_slow, self.contains_slow

    # -- fast paths of a local store --------------------------------------------------------------------------------------

    def use_fast_path(
        self, pending: Mapping[bytes, tuple[bytes, object]], backends: Backends, lifecycle: Lifecycle, *, mapped: bool
    ) -> None:
        """Serve reads without locks. ``mapped``: ``read`` uses memory maps instead of ``pread``."""
        self._mapped = mapped
        self.contains = self._make_contains(pending, lifecycle)
        self._read_unlocked = partial(self._read_many_unlocked, pending, backends)
        self.read = self._make_mapped_read(pending, backends) if mapped else self._make_read(pending, backends)

    def _make_read(self, pending: Mapping[bytes, tuple[bytes, object]], backends: Backends) -> Callable[[bytes], bytes]:
        files, locate, slow_path, plain = self._segments.read_files, self._locate, self.read_slow, backends.plain_bodies
        opened, pread, decode_body = files.readers, self._segments.files.pread, backends.decode_body
        shared, number_shift, offset_shift, mask = self._shared.ids, NUMBER_SHIFT, OFFSET_SHIFT, MASK

        def read(
            msg_id: bytes,
        ) -> bytes:  # all names are local: for small messages attribute lookups would cost as much as the disk
            try:
                if msg_id in pending and (body := pending[msg_id][0]).__class__ is bytes:
                    return body
                if shared and msg_id in shared:
                    return slow_path(msg_id)
                epoch = files.epoch
                location: int = locate(msg_id)  # type: ignore[assignment]
                fd, decode = opened[location >> number_shift]
                size = location & mask
                record = pread(fd, size, location >> offset_shift & mask)
                if files.epoch == epoch and len(record) == size:
                    return decode(msg_id, record) if plain else decode_body(msg_id, decode(msg_id, record))
            except (TypeError, KeyError, OSError, RecordError):
                pass
            return slow_path(msg_id)

        return read

    def _make_mapped_read(self, pending: Mapping[bytes, tuple[bytes, object]], backends: Backends) -> Callable[[bytes], bytes]:
        files, locate, slow_path, plain = self._segments.read_files, self._locate, self.read_slow, backends.plain_bodies
        maps, decode_body = files.maps, backends.decode_body
        shared, number_shift, offset_shift, mask = self._shared.ids, NUMBER_SHIFT, OFFSET_SHIFT, MASK

        def read(msg_id: bytes) -> bytes:  # as above, written out: calls are what a map saves
            try:
                if msg_id in pending and (body := pending[msg_id][0]).__class__ is bytes:
                    return body
                if shared and msg_id in shared:
                    return slow_path(msg_id)
                epoch = files.epoch
                location: int = locate(msg_id)  # type: ignore[assignment]
                mapped, decode = maps[location >> number_shift]
                offset, size = location >> offset_shift & mask, location & mask
                record = mapped[offset : offset + size]
                if files.epoch == epoch and len(record) == size:
                    return decode(msg_id, record) if plain else decode_body(msg_id, decode(msg_id, record))
            except (TypeError, KeyError, ValueError, RecordError):  # ValueError: the map was closed
                pass
            return slow_path(msg_id)

        return read

    def _make_contains(self, pending: Mapping[bytes, object], lifecycle: Lifecycle) -> Callable[[bytes], bool]:
        locate, slow_path = self._locate, self.contains_slow

        def contains(msg_id: bytes) -> bool:
            try:
                if (msg_id in pending or locate(msg_id) is not None) and lifecycle.refusal is None:
                    return True
            except (TypeError, OSError):
                pass
            return slow_path(msg_id)  # a message may be neither here nor there while a removal has it in hand

        return contains

    def _read_many_unlocked(
        self, pending: Mapping[bytes, tuple[bytes, object]], backends: Backends, wanted: list[bytes]
    ) -> dict[bytes, bytes]:
        """Return the bodies that can be read without a lock; a missing one may exist all the same."""
        files, locate, shared_ids = self._segments.read_files, self._locate, self._shared.ids
        epoch = files.epoch
        found: dict[bytes, bytes] = {}
        located: list[tuple[int, bytes]] = []
        with suppress(OSError):
            for msg_id in wanted:
                if (entry := pending.get(msg_id)) is not None:
                    if (body := entry[0]).__class__ is bytes:
                        found[msg_id] = body
                elif msg_id not in shared_ids and (location := locate(msg_id)) is not None:
                    located.append((location, msg_id))
            for run in coalesce_reads(sorted(located)):
                number, start, size = _span(run)
                if (reader := files.readers.get(number)) is not None:
                    data = self._segments.files.pread(reader[0], size, start)
                    if files.epoch != epoch:
                        break
                    _decode_run(run, start, data, reader[1], found, backends)
        return found

    # -- for clients ------------------------------------------------------------------------------------------------------

    def read_slow(self, msg_id: bytes) -> bytes:
        """Return the body of a live message. Raises MessageNotFound, CorruptRecord, StoreError, ValueError (id)."""
        check_id(msg_id)
        body = self._strategy.consistently(lambda backends: self._body(msg_id, backends))
        if body is None:
            raise MessageNotFound([msg_id], str(self._directory))
        return body

    def read_many(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the bodies of the present ids. Sorted by segment and offset, neighbours are read with one ``pread``."""
        wanted = list(ids)
        for msg_id in wanted:
            check_id(msg_id)
        wanted = list(dict.fromkeys(wanted))
        found = self._read_unlocked(wanted)
        if found and len(found) == len(wanted):
            return found
        missing = [msg_id for msg_id in wanted if msg_id not in found]
        return found | self._strategy.consistently(lambda backends: self._read_many(missing, backends))

    def contains_slow(self, msg_id: bytes) -> bool:
        """Return True if a live message has this id. ValueError for what is not an id."""
        check_id(msg_id)

        def is_there(_: Backends) -> bool:
            with io_errors(self._directory):
                return self._strategy.buffered(msg_id) is not None or self._locate(msg_id) is not None

        return self._strategy.consistently(is_there)

    # -- for tools; inside ``consistently`` -------------------------------------------------------------------------------

    def stored(self, msg_id: bytes, location: int, backends: Backends) -> bytes:
        """Return the stored body of a message. Raises MessageNotFound, CorruptRecord, StoreIOError."""
        return self._find(msg_id, location, backends).stored

    def record(self, msg_id: bytes, location: int, backends: Backends) -> WholeRecord:
        """Return the whole record of a message. Raises as ``stored``."""
        found = self._find(msg_id, location, backends)
        return WholeRecord(found.fetched.path, found.offset, found.fetched.form, found.fetched.data, found.stored)

    # -- the slow path ----------------------------------------------------------------------------------------------------

    def _body(self, msg_id: bytes, backends: Backends) -> bytes | None:
        """Return the body, or None if there is no such message."""
        if (entry := self._strategy.buffered(msg_id)) is not None:
            body = entry[0]
            return backends.decode_body(msg_id, body) if isinstance(body, StoredBody) else body
        with io_errors(self._directory):
            location = self._locate(msg_id)
        if location is None:
            return None
        if msg_id in self._shared.ids and (cached := self._shared.get(msg_id)) is not None:
            return cached
        try:
            found = self._find(msg_id, location, backends)
        except MessageNotFound:
            return None
        if self._mapped:
            self._segments.read_files.map(self._segments.get(location >> NUMBER_SHIFT))
        body = self._decode_body(msg_id, found, backends)
        if msg_id in self._shared.ids:
            self._shared.put(msg_id, body)
        return body

    def _find(self, msg_id: bytes, location: int, backends: Backends) -> _Located:
        """Read the record of a message, wherever it moves. Raises MessageNotFound, CorruptRecord, StoreError."""
        retries = 0
        here: int | None = location
        for _ in range(_MAX_MOVES):
            if here is None:
                raise MessageNotFound([msg_id], str(self._directory))
            problem: RecordError | OSError | None = None
            found: _Located | None = None
            fetched: Fetched | None = None
            number, offset, size = unpack_location(here)
            try:
                fetched = self._strategy.fetch(number, offset, size, backends)
                if fetched is not None:
                    found = _Located(fetched, offset, _decode(msg_id, fetched, fetched.data, size))
            except (RecordError, OSError) as error:
                problem = error
            except StoreError:
                self._strategy.check_unchanged()
                raise
            before, here = here, self._locate(msg_id)
            if here != before:
                continue
            if found is not None:
                return found
            if problem is not None:
                if self._strategy.is_final or retries == (_MAX_RETRIES if isinstance(problem, FileNotFoundError) else 1):
                    raise self._error(msg_id, number, offset, fetched, problem)
                retries += 1
                self._strategy.drop_file(number)
                if retries > 1:
                    time.sleep(_RETRY_SECONDS)
        raise StoreError(f"{self._directory}: {msg_id.hex()} was moved {_MAX_MOVES} times while it was read; try again")

    def _read_many(self, wanted: list[bytes], backends: Backends) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        located: list[tuple[int, bytes]] = []
        buffered, locate, shared_ids = self._strategy.buffered, self._locate, self._shared.ids
        with io_errors(self._directory):
            for msg_id in wanted:
                if (entry := buffered(msg_id)) is not None:
                    body = entry[0]
                    found[msg_id] = backends.decode_body(msg_id, body) if isinstance(body, StoredBody) else body
                elif msg_id in shared_ids:
                    if (shared := self._body(msg_id, backends)) is not None:
                        found[msg_id] = shared
                elif (location := locate(msg_id)) is not None:
                    located.append((location, msg_id))
        for run in coalesce_reads(sorted(located)):
            self._read_run(run, found, backends)
        is_final = self._strategy.is_final
        for location, msg_id in located:
            if msg_id not in found or not (is_final or locate(msg_id) == location):
                found.pop(msg_id, None)
                if (now := self._body(msg_id, backends)) is not None:
                    found[msg_id] = now
        return found

    def _read_run(self, run: list[tuple[int, bytes]], found: dict[bytes, bytes], backends: Backends) -> None:
        """Add the bodies of neighbouring records that can be read; the others are read one by one."""
        number, start, size = _span(run)
        try:
            fetched = self._strategy.fetch(number, start, size, backends)
        except (OSError, StoreError):
            return
        if fetched is not None:
            _decode_run(run, start, fetched.data, fetched.form.format.decode, found, backends)

    # -- errors -----------------------------------------------------------------------------------------------------------

    def _decode_body(self, msg_id: bytes, found: _Located, backends: Backends) -> bytes:
        try:
            return found.stored if backends.plain_bodies else backends.decode_body(msg_id, found.stored)
        except RecordError as error:
            raise self._corrupt(msg_id, found.fetched.path, found.offset, error) from error

    def _error(
        self, msg_id: bytes, number: int, offset: int, fetched: Fetched | None, problem: RecordError | OSError
    ) -> StoreError:
        self._strategy.check_unchanged()
        segment = self._segments.by_number.get(number)
        path = fetched.path if fetched else segment.path if segment else self._directory / str(number)
        if isinstance(problem, FileNotFoundError):
            return StoreError(
                f"{self._directory}: the index is damaged: it points to segment {number}, which does not exist. Stop the "
                "writer, move the index files (msgstore-*) away, and open the store again: it is rebuilt from the segments."
            )
        if isinstance(problem, OSError):
            return io_error(path, offset, problem)
        return self._corrupt(msg_id, path, offset, problem)

    def _corrupt(self, msg_id: bytes, path: Path, offset: int, error: RecordError) -> CorruptRecord:
        self._strategy.check_unchanged()
        self._segments.telemetry.damage(path.name, offset, error.reason)
        return CorruptRecord(
            f"{path} at offset {offset}: the record of {msg_id.hex()} is damaged ({error}). Other messages are not affected; "
            f"'msgstore salvage' copies every intact record into a new store.",
            reason=error.reason,
            path=path,
            offset=offset,
            msg_id=msg_id,
        )


def _decode(msg_id: bytes, fetched: Fetched, record: bytes, size: int) -> bytes:
    """Return the stored body of a record. Raises RecordError."""
    if len(record) != size:
        raise RecordError("size_mismatch", f"the file ends {size - len(record)} bytes before the record does")
    return fetched.form.format.decode(msg_id, record)


def _span(run: list[tuple[int, bytes]]) -> tuple[int, int, int]:
    """Return segment number, offset and size of a run of records."""
    number, start, _ = unpack_location(run[0][0])
    _, last, size = unpack_location(run[-1][0])
    return number, start, last + size - start


def _decode_run(
    run: list[tuple[int, bytes]], start: int, data: bytes, decode: Decode, found: dict[bytes, bytes], backends: Backends
) -> None:
    """Add the bodies that ``data``, read at offset ``start``, holds whole and undamaged."""
    plain, decode_body = backends.plain_bodies, backends.decode_body
    for location, msg_id in run:
        begin, size = (location >> OFFSET_SHIFT & MASK) - start, location & MASK  # as of ``unpack_location``
        if begin + size <= len(data):
            try:
                stored = decode(msg_id, data[begin : begin + size])
                found[msg_id] = stored if plain else decode_body(msg_id, stored)
            except RecordError:
                pass


MERGE_GAP = 4096
"""Records of one segment that are at most this many bytes apart are read together ..."""
MERGE_LIMIT = 2**20
"""... up to this many bytes at once."""


def coalesce_reads(located: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Group sorted locations into runs that one read serves."""
    run: list[tuple[int, bytes]] = []
    run_number = run_start = run_end = 0
    for location, msg_id in located:
        number, offset, size = location >> NUMBER_SHIFT, location >> OFFSET_SHIFT & MASK, location & MASK
        if run and not (number == run_number and offset - run_end <= MERGE_GAP and offset + size - run_start <= MERGE_LIMIT):
            yield run
            run = []
        if not run:
            run_number, run_start = number, offset
        run.append((location, msg_id))
        run_end = offset + size
    if run:
        yield run
