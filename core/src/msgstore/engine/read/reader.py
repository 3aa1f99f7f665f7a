"""Reader: write buffer, else index, else one ``pread``.

Reads of a local store have a fast path without locks. ``read`` and ``read_many`` look the location up, read, and make sure that
nothing which an older lookup may point to was overwritten, cut or closed meanwhile (``ReadFiles.epoch``). If anything is not as
it should be, an unknown id included, the slow path decides: it gives the answer or the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgstore.contract import BrokenPlugin, CorruptRecord, MessageNotFound, RecordError, StoredBody, StoreError
from msgstore.engine.backends import Backends
from msgstore.engine.client import check_id
from msgstore.engine.segment.segment import Decode, Segment, damaged_index, io_error, io_errors
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.state.lifecycle import Lifecycle
from msgstore.locations import MASK, NUMBER_SHIFT, OFFSET_SHIFT, unpack_location
from msgstore.plugins.blame import blame
from msgstore.scan import WholeRecord
from msgstore.scan.segment import is_sound_by_default
from msgstore.writer_lock import read_lock

_MAX_MOVES = 1000
"""Times that a record may move while it is read."""
_MAX_RETRIES = 200
"""Times that a segment file is looked for that the index points to ..."""
_RETRY_SECONDS = 0.005
"""... and the time between them."""

Buffered = Callable[[bytes], tuple[bytes, object] | None]
"""Returns the write buffer's entry of an id, stored body first."""
Fetch = Callable[[int, int, int], tuple[Decode, bytes] | None]
"""``fetch(number, offset, size)``: bytes of a segment, and what decodes its records; None if they cannot be read."""
T = TypeVar("T")


class Reader:
    """One instance per open store. Thread-safe. The slow path holds the state lock, which keeps index and segments in place.

    ``live_reader`` has the reader next to a writer in another process.
    """

    read: Callable[[bytes], bytes]
    contains: Callable[[bytes], bool]
    is_final = True
    """True if no location can change inside ``consistently``."""

    def __init__(
        self,
        backends: Backends,
        accounting: LiveAccounting,
        lifecycle: Lifecycle,
        buffered: Buffered,
        lock_text: bytes | None,
    ) -> None:
        """``lock_text``: text of the lock file at the opening of a read-only store."""
        self._backends = backends
        self._segments = accounting.segments
        self._files = accounting.segments.files
        self._directory = accounting.segments.directory
        self._state_lock = accounting.state_lock
        self._lifecycle = lifecycle
        self._buffered = buffered
        self._lock_text = lock_text
        self._shared = accounting.shared
        self._locate, self._check_location = accounting.index.get, accounting.check_location
        self._pending: Mapping[bytes, tuple[bytes, object]] | None = None
        """Write buffer that is read without a lock; None if there is no fast path."""
        self._mapped = False
        self.read, self.contains = self.read_slow, self.contains_slow

    # -- a consistent look at index and segments --------------------------------------------------------------------------

    def consistently(self, call: Callable[[], T]) -> T:
        """Return ``call()``, made while index and segments fit each other. Raises StoreClosed, StoreError."""
        with self._state_lock, io_errors(self._directory):
            self._lifecycle.check_open()
            return call()

    def _segment(self, number: int) -> Segment:
        """Return a segment. Raises StoreError or FileNotFoundError if there is none. Inside ``consistently``."""
        return self._segments.get(number)

    def _drop_file(self, number: int) -> None:
        """Open the segment file again at the next read."""

    def _pause(self) -> None:
        """Wait before the next retry, without the state lock, so that other reads go on. Inside ``consistently``."""
        self._state_lock.release()
        try:
            time.sleep(_RETRY_SECONDS)
        finally:
            self._state_lock.acquire()

    def _check_unchanged(self) -> None:
        """Raise StoreError if damage may be the work of a writer that came since the store was opened."""
        if self._lock_text is not None and read_lock(self._directory) != self._lock_text:
            raise StoreError(
                f"{self._directory}: another process has opened the store for writing since it was opened for reading here, "
                "and may have moved the message; open it again"
            )

    # -- fast paths of a local store --------------------------------------------------------------------------------------

    def use_fast_path(self, pending: Mapping[bytes, tuple[bytes, object]], *, mapped: bool) -> None:
        """Serve reads without locks. ``mapped``: ``read`` uses memory maps instead of ``pread``."""
        self._pending, self._mapped = pending, mapped
        self.contains = self._make_contains(pending)
        self.read = self._make_read(pending, mapped=mapped)

    def _make_read(self, pending: Mapping[bytes, tuple[bytes, object]], *, mapped: bool) -> Callable[[bytes], bytes]:
        files, locate, slow_path, plain = self._segments.read_files, self._locate, self.read_slow, self._backends.plain_bodies
        opened, maps, pread, decode_body = files.readers, files.maps, self._files.pread, self._backends.decode_body
        shared, number_shift, offset_shift, mask = self._shared.ids, NUMBER_SHIFT, OFFSET_SHIFT, MASK
        directory = self._directory

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
                size = location & mask
                if mapped:
                    whole, decode = maps[location >> number_shift]
                    offset = location >> offset_shift & mask
                    record = whole[offset : offset + size]
                else:
                    fd, decode = opened[location >> number_shift]
                    record = pread(fd, size, location >> offset_shift & mask)
                if files.epoch == epoch and len(record) == size:
                    body = decode(msg_id, record)
                    return body if plain and body.__class__ is bytes else decode_body(msg_id, body)
            except (TypeError, KeyError, OSError, ValueError, RecordError, BrokenPlugin):  # ValueError: the map was closed
                pass
            except Exception as error:
                if (broken := blame(error)) is not None:
                    raise BrokenPlugin(f"{directory}: message {msg_id.hex()}: {broken}") from error
                raise
            return slow_path(msg_id)

        return read

    def _make_contains(self, pending: Mapping[bytes, object]) -> Callable[[bytes], bool]:
        locate, slow_path, lifecycle = self._locate, self.contains_slow, self._lifecycle

        def contains(msg_id: bytes) -> bool:
            try:
                is_id = msg_id.__class__ is bytes
                if is_id and (msg_id in pending or locate(msg_id) is not None) and lifecycle.refusal is None:
                    return True
            except (TypeError, OSError):
                pass
            return slow_path(msg_id)  # a message may be neither here nor there while a removal has it in hand

        return contains

    # -- for clients ------------------------------------------------------------------------------------------------------

    def read_slow(self, msg_id: bytes) -> bytes:
        """Return the body of a live message. Raises MessageNotFound, CorruptRecord, StoreError, ValueError (id)."""
        check_id(msg_id)
        body = self.consistently(lambda: self._body(msg_id))
        if body is None:
            raise MessageNotFound([msg_id], str(self._directory))
        return body

    def read_many(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the bodies of the present ids. Sorted by segment and offset, neighbours are read with one ``pread``."""
        wanted = list(ids)
        for msg_id in wanted:
            check_id(msg_id)
        wanted = list(dict.fromkeys(wanted))
        found: dict[bytes, bytes] = {}
        if self._pending is not None:
            with suppress(OSError, BrokenPlugin):
                self._gather(wanted, self._pending.get, self._unlocked_fetch(), found)
            if found and len(found) == len(wanted):
                return found
        missing = [msg_id for msg_id in wanted if msg_id not in found]
        return found | self.consistently(lambda: self._read_many(missing))

    def contains_slow(self, msg_id: bytes) -> bool:
        """Return True if a live message has this id. ValueError for what is not an id."""
        check_id(msg_id)
        return self.consistently(lambda: self._buffered(msg_id) is not None or self._locate(msg_id) is not None)

    def record(self, msg_id: bytes) -> WholeRecord:
        """Return the whole record of a message, wherever it is now. Raises MessageNotFound, CorruptRecord, StoreError."""
        return self.consistently(lambda: self._find(msg_id, self._locate(msg_id)))

    # -- many messages ----------------------------------------------------------------------------------------------------

    def _gather(
        self, wanted: list[bytes], buffered: Buffered, fetch: Fetch, found: dict[bytes, bytes]
    ) -> list[tuple[int, bytes]]:
        """Add the bodies that are in memory or come with few reads; a missing one may exist all the same. Return (location, id)
        of those on disk."""
        locate, shared_ids, backends = self._locate, self._shared.ids, self._backends
        plain, decode_body = backends.plain_bodies, backends.decode_body
        located: list[tuple[int, bytes]] = []
        for msg_id in wanted:
            if (entry := buffered(msg_id)) is not None:
                if (body := entry[0]).__class__ is bytes:
                    found[msg_id] = body
            elif msg_id not in shared_ids and (location := locate(msg_id)) is not None:
                located.append((location, msg_id))
        if located:
            self._check_location(located[0][0])
        for run in coalesce_reads(sorted(located)):
            number, start, _ = unpack_location(run[0][0])
            _, last, size = unpack_location(run[-1][0])
            length = last + size - start
            fetched = fetch(number, start, length)
            if fetched is None or len(fetched[1]) != length:
                continue
            decode, data = fetched
            with suppress(RecordError, BrokenPlugin):  # the rest of the run is read one by one
                for location, msg_id in run:
                    begin, size = (location >> OFFSET_SHIFT & MASK) - start, location & MASK  # as of ``unpack_location``
                    stored = decode(msg_id, data[begin : begin + size])
                    found[msg_id] = stored if plain and stored.__class__ is bytes else decode_body(msg_id, stored)
        return located

    def _unlocked_fetch(self) -> Fetch:
        files, pread = self._segments.read_files, self._files.pread
        epoch = files.epoch

        def fetch(number: int, offset: int, size: int) -> tuple[Decode, bytes] | None:
            if (reader := files.readers.get(number)) is None:
                return None
            data = pread(reader[0], size, offset)
            return (reader[1], data) if files.epoch == epoch else None

        return fetch

    def _read_many(self, wanted: list[bytes]) -> dict[bytes, bytes]:
        def fetch(number: int, offset: int, size: int) -> tuple[Decode, bytes] | None:
            try:
                segment, data = self._fetch(number, offset, size)
            except (OSError, StoreError):
                return None
            return segment.form.format.decode, data

        found: dict[bytes, bytes] = {}
        located = self._gather(wanted, self._buffered, fetch, found)
        if not self.is_final:
            for location, msg_id in located:
                if self._locate(msg_id) != location:
                    found.pop(msg_id, None)
        for msg_id in wanted:
            if msg_id not in found and (body := self._body(msg_id)) is not None:
                found[msg_id] = body
        return found

    # -- the slow path ----------------------------------------------------------------------------------------------------

    def _fetch(self, number: int, offset: int, size: int) -> tuple[Segment, bytes]:
        """Read bytes of a segment. Raises OSError, StoreError. Inside ``consistently``."""
        segment = self._segment(number)
        fd, _ = self._segments.read_files.open(segment)
        return segment, self._files.pread(fd, size, offset)

    def _body(self, msg_id: bytes) -> bytes | None:
        """Return the body, or None if there is no such message."""
        if (entry := self._buffered(msg_id)) is not None:
            body = entry[0]
            return self._backends.decode_body(msg_id, body) if isinstance(body, StoredBody) else body
        if (location := self._locate(msg_id)) is None:
            return None
        if msg_id in self._shared.ids and (cached := self._shared.get(msg_id)) is not None:
            return cached
        try:
            found = self._find(msg_id, location)
        except MessageNotFound:
            return None
        if self._mapped:
            self._segments.read_files.map(self._segments.get(location >> NUMBER_SHIFT))
        try:
            body = found.body if self._backends.plain_bodies else self._backends.decode_body(msg_id, found.body)
        except RecordError as error:
            options = self._backends.codec_has_options
            raise self._corrupt(msg_id, found.path, found.offset, error, codec_has_options=options) from error
        if msg_id in self._shared.ids:
            self._shared.put(msg_id, body)
        return body

    def _find(self, msg_id: bytes, location: int | None) -> WholeRecord:
        """Read the record of a message, wherever it moves. Raises MessageNotFound, CorruptRecord, StoreError."""
        retries = 0
        for _ in range(_MAX_MOVES):
            if location is None:
                raise MessageNotFound([msg_id], str(self._directory))
            try:
                number, offset, size = unpack_location(location)
            except TypeError:
                self._check_location(location)
                raise
            segment, data = None, b""
            try:
                segment, data = self._fetch(number, offset, size)
                if len(data) != size:
                    raise RecordError("size_mismatch", f"the file ends {size - len(data)} bytes before the record does")
                form = segment.form
                found, problem = WholeRecord(segment.path, offset, form, data, form.decode(msg_id, data)), None
            except (RecordError, OSError) as error:
                problem = error
            except StoreError:
                self._check_unchanged()
                raise
            except Exception as error:  # a fault of a plugin
                error.add_note(f"message {msg_id.hex()} at offset {offset} of {segment.path if segment else number}")
                raise
            before, location = location, self._locate(msg_id)
            if location != before:
                continue
            if problem is None:
                return found
            if self.is_final or retries == (_MAX_RETRIES if isinstance(problem, FileNotFoundError) else 1):
                self._check_unchanged()
                path = segment.path if segment else self._directory / str(number)
                if isinstance(problem, RecordError):
                    formats, name = self._backends.formats, segment.form.name if segment else ""
                    is_sound = is_sound_by_default(formats, name, msg_id, data)
                    raise self._corrupt(msg_id, path, offset, problem, is_sound=is_sound)
                if isinstance(problem, FileNotFoundError) and not self.is_final:
                    raise damaged_index(self._directory, f"it points to segment {number}, which does not exist")
                raise io_error(Path(problem.filename or path), None if problem.filename else offset, problem)
            retries += 1
            self._drop_file(number)
            if retries > 1:
                self._pause()
        raise StoreError(f"{self._directory}: {msg_id.hex()} was moved {_MAX_MOVES} times while it was read; try again")

    def _corrupt(
        self,
        msg_id: bytes,
        path: Path,
        offset: int,
        error: RecordError,
        *,
        codec_has_options: bool = False,
        is_sound: bool = False,
    ) -> CorruptRecord:
        """``is_sound``: only options of record types, such as a key, make the record damaged."""
        self._check_unchanged()
        self._segments.telemetry.damage(path.name, offset, error.reason)
        codec = self._backends.settings.body
        checks_bodies = "" if self._backends.plain_bodies else f" --body {codec}"
        doubt = f", or was written with other options of the codec {codec!r}: compare them first" if codec_has_options else ""
        remedy = f"'msgstore salvage{checks_bodies}' copies every intact record into a new store."
        if is_sound:
            doubt = ", or was written with other options of its record type, such as another key: compare them first"
            remedy = (
                "'msgstore convert STORE DEST --config FILE' leaves out the records that these options refuse; 'msgstore "
                "salvage' copies them."
            )
        return CorruptRecord(
            f"{path} at offset {offset}: the record of {msg_id.hex()} is damaged ({error}){doubt}. Other messages are not "
            f"affected; {remedy}",
            reason=error.reason,
            path=path,
            offset=offset,
            msg_id=msg_id,
        )


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
