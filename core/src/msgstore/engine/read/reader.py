"""The reading side: pending map, else index, else one ``pread``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgstore.contract import CorruptRecord, MessageNotFound, RecordError, StoredBody, StoreError
from msgstore.contract.locations import MASK, NUMBER_SHIFT, OFFSET_SHIFT, unpack_location
from msgstore.engine.read.coalescing import runs
from msgstore.engine.segment.errors import io_error, io_errors
from msgstore.engine.segment.segments import Segments
from msgstore.engine.write.write_buffer import Entry
from msgstore.engine.write.writer import Writer, check_id
from msgstore.lock_file import read_lock
from msgstore.scan import WholeRecord


class Reader:
    """Reads for one open store.

    ``read`` takes no lock. It looks the location up, reads, and makes sure that nothing which an older lookup may point to
    was overwritten, cut or closed meanwhile (``Segments.epoch``). Whatever goes wrong on that way, an unknown id included,
    is done again under the lock, which gives the answer or the error.
    """

    read: Callable[[bytes], bytes]

    def __init__(
        self, writer: Writer, segments: Segments, *, plain: bool, mapped: bool, lock_text: bytes | None = None
    ) -> None:
        """``plain``: the codec's stored bodies are what clients read, so it need not be called. ``mapped``: ``read`` takes
        records from mappings of the segments, which the slow way makes when it meets a segment or new bytes of it.
        ``lock_text``: what the lock file said when the store was opened for reading, if nobody else follows its writers."""
        self._writer = writer
        self._segments = segments
        self._lock = writer.ledger.lock
        self._intake = writer.intake
        self._shared = writer.ledger.shared
        self._locate = writer.index.get
        self._decode_body = writer.backends.decode_body
        self._mapped = mapped
        self._lock_text = lock_text
        self.read = self._make_mapped_read(plain=plain) if mapped else self._make_read(plain=plain)

    def _make_read(self, *, plain: bool) -> Callable[[bytes], bytes]:
        """A function whose names are all its own: for small messages attribute look-ups would cost as much as the disk."""
        segments, pending, locate, slowly = self._segments, self._intake.pending, self._locate, self._read_slowly
        opened, pread, decode_body = segments.readers, segments.files.pread, self._decode_body
        shared, number_shift, offset_shift, mask = self._shared.ids, NUMBER_SHIFT, OFFSET_SHIFT, MASK

        def read(msg_id: bytes) -> bytes:
            try:
                if msg_id in pending and (body := pending[msg_id][0]).__class__ is bytes:
                    return body
                if shared and msg_id in shared:
                    return slowly(msg_id)
                epoch = segments.epoch
                location: int = locate(msg_id)  # type: ignore[assignment]
                fd, decode = opened[location >> number_shift]
                size = location & mask
                record = pread(fd, size, location >> offset_shift & mask)
                if segments.epoch == epoch and len(record) == size:
                    return decode(msg_id, record) if plain else decode_body(msg_id, decode(msg_id, record))
            except (TypeError, KeyError, OSError, RecordError):
                pass
            return slowly(msg_id)

        return read

    def _make_mapped_read(self, *, plain: bool) -> Callable[[bytes], bytes]:
        """As ``_make_read``, with a slice of a mapping for ``pread``; written out, since calls are what it saves."""
        segments, pending, locate, slowly = self._segments, self._intake.pending, self._locate, self._read_slowly
        maps, decode_body = segments.maps, self._decode_body
        shared, number_shift, offset_shift, mask = self._shared.ids, NUMBER_SHIFT, OFFSET_SHIFT, MASK

        def read(msg_id: bytes) -> bytes:
            try:
                if msg_id in pending and (body := pending[msg_id][0]).__class__ is bytes:
                    return body
                if shared and msg_id in shared:
                    return slowly(msg_id)
                epoch = segments.epoch
                location: int = locate(msg_id)  # type: ignore[assignment]
                mapped, decode = maps[location >> number_shift]
                offset, size = location >> offset_shift & mask, location & mask
                record = mapped[offset : offset + size]
                if segments.epoch == epoch and len(record) == size:
                    return decode(msg_id, record) if plain else decode_body(msg_id, decode(msg_id, record))
            except (TypeError, KeyError, ValueError, RecordError):  # ValueError: the mapping was closed
                pass
            return slowly(msg_id)

        return read

    def _read_slowly(self, msg_id: bytes) -> bytes:
        """The body of a live message. Raises MessageNotFound, CorruptRecord, StoreIOError, ValueError (id)."""
        check_id(msg_id)
        with self._lock:
            body = self._look(msg_id)
        if body is None:
            raise MessageNotFound([msg_id], str(self._segments.directory))
        return body

    def _look(self, msg_id: bytes) -> bytes | None:
        """Under the lock, which makes sure: nothing moves or goes meanwhile."""
        self._writer.check_open()
        if (entry := self._intake.get(msg_id)) is not None:
            return self._pending_body(msg_id, entry)
        with io_errors(self._segments.directory):
            location = self._locate(msg_id)
        if location is None:
            return None
        if msg_id in self._shared.ids and (body := self._shared.get(msg_id)) is not None:
            return body
        stored = self.stored(msg_id, location)
        if self._mapped:
            self._segments.map(location >> NUMBER_SHIFT)
        try:
            body = self._decode_body(msg_id, stored)
        except RecordError as error:
            raise self._corrupt(msg_id, location, error) from error
        if msg_id in self._shared.ids:
            self._shared.put(msg_id, body)
        return body

    def _pending_body(self, msg_id: bytes, entry: Entry) -> bytes:
        """As it will be read after the flush: a StoredBody goes through the codec once, here or there."""
        body = entry[0]
        return self._decode_body(msg_id, body) if isinstance(body, StoredBody) else body

    def read_many(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """The bodies of those that are present. Sorted by file and offset, neighbours are read with one ``pread``.

        As ``read``: without the lock, and whatever is in doubt once more with it.
        """
        wanted = list(ids)
        for msg_id in wanted:
            check_id(msg_id)
        found: dict[bytes, bytes] = {}
        doubtful: list[bytes] = []
        located: list[tuple[int, bytes]] = []
        epoch, pending, shared = self._segments.epoch, self._intake.pending, self._shared.ids
        with io_errors(self._segments.directory):
            for msg_id in dict.fromkeys(wanted):
                if entry := pending.get(msg_id):
                    found[msg_id] = self._pending_body(msg_id, entry)
                elif msg_id in shared or (location := self._locate(msg_id)) is None:
                    doubtful.append(msg_id)
                else:
                    located.append((location, msg_id))
        for run in runs(sorted(located)):
            bodies = self._read_run(run)
            if bodies is None or self._segments.epoch != epoch:
                doubtful += [msg_id for _, msg_id in run]
            else:
                found |= bodies
        with self._lock:
            self._writer.check_open()
            for msg_id in doubtful:
                if (body := self._look(msg_id)) is not None:
                    found[msg_id] = body
        return found

    def contains(self, msg_id: bytes) -> bool:
        check_id(msg_id)
        with self._lock:
            self._writer.check_open()
            with io_errors(self._segments.directory):
                return self._intake.get(msg_id) is not None or self._locate(msg_id) is not None

    def stored(self, msg_id: bytes, location: int) -> bytes:
        """The body as it is stored, without the codec. For tools and migration."""
        return self._checked(msg_id, location)[1]

    def record(self, msg_id: bytes, location: int) -> WholeRecord:
        """For tools. Raises what ``stored`` raises."""
        record, body = self._checked(msg_id, location)
        number, offset, _ = unpack_location(location)
        segment = self._segments.get(number)
        return WholeRecord(segment.path, offset, segment.form, record, body)

    def _checked(self, msg_id: bytes, location: int) -> tuple[bytes, bytes]:
        """A whole record, and the stored body in it."""
        number, offset, size = unpack_location(location)
        try:
            fd, decode = self._segments.reader(number)
            record = _whole(self._segments.files.pread(fd, size, offset), size)
            return record, decode(msg_id, record)
        except RecordError as error:
            raise self._corrupt(msg_id, location, error) from error
        except OSError as error:
            raise self._io_error(location, error) from error
        except StoreError:
            self._check_unchanged()
            raise

    def _check_unchanged(self) -> None:
        """Before anything is called damage in a store that was opened for reading. Raises StoreError if a writer came since."""
        if self._lock_text is not None and read_lock(self._segments.directory) != self._lock_text:
            raise StoreError(
                f"{self._segments.directory}: another process has opened the store for writing since it was opened for reading "
                f"here, and may have moved the message; open it again"
            )

    def _read_run(self, run: list[tuple[int, bytes]]) -> dict[bytes, bytes] | None:
        """Without the lock; None if anything is not as it should be, or the segment not open."""
        number, start, _ = unpack_location(run[0][0])
        _, last, size = unpack_location(run[-1][0])
        bodies = {}
        try:
            fd, decode = self._segments.readers[number]
            data = self._segments.files.pread(fd, last + size - start, start)
            for location, msg_id in run:
                _, offset, size = unpack_location(location)
                record = _whole(data[offset - start : offset - start + size], size)
                bodies[msg_id] = self._decode_body(msg_id, decode(msg_id, record))
        except (KeyError, OSError, RecordError):
            return None
        return bodies

    def _corrupt(self, msg_id: bytes, location: int, error: RecordError) -> CorruptRecord:
        self._check_unchanged()
        number, offset, _ = unpack_location(location)
        path = self._segments.by_number[number].path
        self._segments.telemetry.damage(path.name, offset, error.reason)
        return CorruptRecord(
            f"{path} at offset {offset}: the record of {msg_id.hex()} is damaged ({error}). Other messages are not affected; "
            f"'msgstore salvage' copies every good record into a fresh store.",
            reason=error.reason,
            path=path,
            offset=offset,
            msg_id=msg_id,
        )

    def _io_error(self, location: int, error: OSError) -> Exception:
        self._check_unchanged()
        number, offset, _ = unpack_location(location)
        return io_error(self._segments.by_number[number].path, offset, error)


def _whole(record: bytes, size: int) -> bytes:
    if len(record) != size:
        raise RecordError("size_mismatch", f"the file ends {size - len(record)} bytes before the record does")
    return record
