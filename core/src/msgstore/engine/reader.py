"""The reading side: pending map, else index, else one ``pread``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgstore.contract import CorruptRecord, MessageNotFound, RecordError, StoredBody
from msgstore.contract.locations import MASK, NUMBER_SHIFT, OFFSET_SHIFT, unpack
from msgstore.engine.segments import Segments, io_error, io_errors
from msgstore.engine.writer import Writer, check_id

MERGE_GAP = 4096
"""Records of one segment that are at most this many bytes apart are read together ..."""
MERGE_LIMIT = 2**20
"""... up to this many bytes at once."""


class Reader:
    """Reads for one open store.

    ``read`` takes no lock. It looks the location up, reads, and makes sure that nothing which an older lookup may point to
    was overwritten, cut or closed meanwhile (``Segments.epoch``). Whatever goes wrong on that way, an unknown id included,
    is done again under the lock, which gives the answer or the error.
    """

    read: Callable[[bytes], bytes]

    def __init__(self, writer: Writer, segments: Segments, *, plain: bool, mapped: bool) -> None:
        """``plain``: the codec's stored bodies are what clients read, so it need not be called. ``mapped``: ``read`` takes
        records from mappings of the segments, which the slow way makes when it meets a segment or new bytes of it."""
        self._writer = writer
        self._segments = segments
        self._lock = writer.lock
        self._pending = writer.pending
        self._locate = writer.index.get
        self._decode_body = writer.backends.codec.decode
        self._mapped = mapped
        self.read = self._make_mapped_read(plain=plain) if mapped else self._make_read(plain=plain)

    def _make_read(self, *, plain: bool) -> Callable[[bytes], bytes]:
        """A function whose names are all its own: for small messages attribute look-ups would cost as much as the disk."""
        segments, pending, locate, slowly = self._segments, self._pending, self._locate, self._read_slowly
        opened, pread, decode_body = segments.readers, segments.files.pread, self._decode_body
        number_shift, offset_shift, mask = NUMBER_SHIFT, OFFSET_SHIFT, MASK

        def read(msg_id: bytes) -> bytes:
            try:
                if pending and msg_id in pending and (body := pending[msg_id]).__class__ is bytes:
                    return body
                epoch = segments.epoch
                location: int = locate(msg_id)  # type: ignore[assignment]
                fd, decode = opened[location >> number_shift]
                size = location & mask
                record = pread(fd, size, location >> offset_shift & mask)
                if segments.epoch == epoch and len(record) == size:
                    return decode(msg_id, record) if plain else decode_body(decode(msg_id, record))
            except (TypeError, KeyError, OSError, RecordError):
                pass
            return slowly(msg_id)

        return read

    def _make_mapped_read(self, *, plain: bool) -> Callable[[bytes], bytes]:
        """As ``_make_read``, with a slice of a mapping for ``pread``; written out, since calls are what it saves."""
        segments, pending, locate, slowly = self._segments, self._pending, self._locate, self._read_slowly
        maps, decode_body = segments.maps, self._decode_body
        number_shift, offset_shift, mask = NUMBER_SHIFT, OFFSET_SHIFT, MASK

        def read(msg_id: bytes) -> bytes:
            try:
                if pending and msg_id in pending and (body := pending[msg_id]).__class__ is bytes:
                    return body
                epoch = segments.epoch
                location: int = locate(msg_id)  # type: ignore[assignment]
                mapped, decode = maps[location >> number_shift]
                offset, size = location >> offset_shift & mask, location & mask
                record = mapped[offset : offset + size]
                if segments.epoch == epoch and len(record) == size:
                    return decode(msg_id, record) if plain else decode_body(decode(msg_id, record))
            except (TypeError, KeyError, ValueError, RecordError):  # ValueError: the mapping was closed
                pass
            return slowly(msg_id)

        return read

    def _read_slowly(self, msg_id: bytes) -> bytes:
        """The body of a live message. Raises MessageNotFound, CorruptRecord, StoreIOError, ValueError (id)."""
        check_id(msg_id)
        with self._lock:
            self._writer.check_open()
            if msg_id in self._pending:
                return self._pending_body(msg_id)
            with io_errors(self._segments.directory):
                location = self._locate(msg_id)
            if location is None:
                raise MessageNotFound([msg_id], str(self._segments.directory))
            stored = self.stored(msg_id, location)
            if self._mapped:
                self._segments.map(location >> NUMBER_SHIFT)
            try:
                return self._decode_body(stored)
            except RecordError as error:
                raise self._corrupt(msg_id, location, error) from error

    def _pending_body(self, msg_id: bytes) -> bytes:
        """As it will be read after the flush: a StoredBody goes through the codec once, here or there."""
        body = self._pending[msg_id]
        return self._decode_body(body) if isinstance(body, StoredBody) else body

    def read_many(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """The bodies of those that are present. Sorted by file and offset, neighbours are read with one ``pread``."""
        wanted = list(ids)
        for msg_id in wanted:
            check_id(msg_id)
        wanted = list(dict.fromkeys(wanted))
        with self._lock:
            self._writer.check_open()
            found = {msg_id: self._pending_body(msg_id) for msg_id in wanted if msg_id in self._pending}
            with io_errors(self._segments.directory):
                located = sorted(
                    (location, msg_id)
                    for msg_id in wanted
                    if msg_id not in found and (location := self._locate(msg_id)) is not None
                )
            for run in _runs(located):
                self._read_run(run, found)
        return found

    def contains(self, msg_id: bytes) -> bool:
        check_id(msg_id)
        with self._lock:
            self._writer.check_open()
            with io_errors(self._segments.directory):
                return msg_id in self._pending or self._locate(msg_id) is not None

    def stored(self, msg_id: bytes, location: int) -> bytes:
        """The body as it is stored, without the codec. For tools and migration."""
        number, offset, size = unpack(location)
        try:
            fd, decode = self._segments.reader(number)
            return decode(msg_id, _whole(self._segments.files.pread(fd, size, offset), size))
        except RecordError as error:
            raise self._corrupt(msg_id, location, error) from error
        except OSError as error:
            raise self._io_error(location, error) from error

    def _read_run(self, run: list[tuple[int, bytes]], found: dict[bytes, bytes]) -> None:
        number, start, _ = unpack(run[0][0])
        _, last, size = unpack(run[-1][0])
        fd, decode = self._segments.reader(number)
        try:
            data = self._segments.files.pread(fd, last + size - start, start)
        except OSError as error:
            raise self._io_error(run[0][0], error) from error
        for location, msg_id in run:
            _, offset, size = unpack(location)
            try:
                record = _whole(data[offset - start : offset - start + size], size)
                found[msg_id] = self._decode_body(decode(msg_id, record))
            except RecordError as error:
                raise self._corrupt(msg_id, location, error) from error

    def _corrupt(self, msg_id: bytes, location: int, error: RecordError) -> CorruptRecord:
        number, offset, _ = unpack(location)
        path = self._segments.by_number[number].path
        return CorruptRecord(
            f"{path} at offset {offset}: the record of {msg_id.hex()} is damaged ({error}). Other messages are not affected; "
            f"'msgstore salvage' copies every good record into a fresh store.",
            reason=error.reason,
            path=path,
            offset=offset,
            msg_id=msg_id,
        )

    def _io_error(self, location: int, error: OSError) -> Exception:
        number, offset, _ = unpack(location)
        return io_error(self._segments.by_number[number].path, offset, error)


def _whole(record: bytes, size: int) -> bytes:
    if len(record) != size:
        raise RecordError("size_mismatch", f"the file ends {size - len(record)} bytes before the record does")
    return record


def _runs(located: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Group sorted locations into runs that one read serves."""
    run: list[tuple[int, bytes]] = []
    run_number = run_start = run_end = 0
    for location, msg_id in located:
        number, offset, size = unpack(location)
        if run and not (number == run_number and offset - run_end <= MERGE_GAP and offset + size - run_start <= MERGE_LIMIT):
            yield run
            run = []
        if not run:
            run_number, run_start = number, offset
        run.append((location, msg_id))
        run_end = offset + size
    if run:
        yield run
