"""``clean.dot``: what a clean stop leaves for the next start, as RabbitMQ writes and reads it.

Erlang text, one term a line: ``{client_refs,[<<104,49>>]}.`` and ``{last_v1_file,none}.``. Beside it RabbitMQ keeps its own
saved index. RabbitMQ must never trust that one beside what we write: opening for writing removes ``clean.dot`` and renames the
saved index, whose reference counts it has taken (:mod:`msgstore.engine.open.broker_counts`).

The clean marker of an open store, and the clean stop that sets it.

An opening that trusts the saved index changes nothing: ``clean.dot`` and the saved state stay, and still fit each other. Before
the first change to the segments ``clean.dot`` is hidden, under the name of the pending one; the first commit of the index says
that the store is open. A store in which nothing was changed is closed as it was found. So an opening that fails, and a process
that is killed before its first commit, leave the counts as they were: what was appended behind a hidden marker is a tail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import attrs

from msgstore.engine.segment.segment import io_errors
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.files import Files

CLEAN = "clean.dot"
PENDING_CLEAN = "msgstore-clean.dot"
"""``clean.dot`` until the index is saved: a crash between the two leaves this one, and the next start completes it."""
SAVED_COUNTS, SAVED_SUMMARY = "msg_store_index.ets", "file_summary.ets"
SAVED_INDEXES = (SAVED_COUNTS, SAVED_SUMMARY)
KEPT = "msgstore-broker-"
"""What the name of RabbitMQ's saved index begins with once it was taken over: kept for you, and not read any more."""
_LEGACY_EXTENSION = ".rdq"

_MAX_CLEAN = 16 * 2**20
"""Bytes of a ``clean.dot`` that is read, and that is written: some 200,000 clients."""

# Possessive throughout: no byte is looked at twice, whatever the text is. Only single characters are repeated so: in Python
# 3.11.2, if not later, a group that is repeated or optional forgets what it captured.
_REFS = re.compile(rb"\{\s*+client_refs\s*+,\s*+\[\s*+")
_REF = re.compile(rb"<<\s*+(?:\"(?P<text>[^\"\\]*+)\"\s*+|(?P<numbers>[\d,\s]*+))>>\s*+(?P<comma>,?+)\s*+")
_NUMBER = re.compile(rb"\s*+\d{1,3}+\s*+")
_END = re.compile(rb"\]\s*+\}\s*+\.")


def format_clean(client_refs: Iterable[bytes], last_v1_file: int | None) -> bytes:
    refs = ",".join(f"<<{','.join(map(str, ref))}>>" for ref in sorted(client_refs))
    if len(refs) > _MAX_CLEAN - 100:
        refs = ""  # they only serve RabbitMQ, which rebuilds its index all the same
    last = "none" if last_v1_file is None else str(last_v1_file)
    return f"{{client_refs,[{refs}]}}.\n{{last_v1_file,{last}}}.\n".encode()


def parse_client_refs(text: bytes) -> set[bytes]:
    """The client references in the text of a ``clean.dot``; empty if there are none, or if the list is irregular."""
    begin = _REFS.search(text) if len(text) <= _MAX_CLEAN else None
    if begin is None:
        return set()
    refs: set[bytes] = set()
    at = begin.end()
    more = _END.match(text, at) is None
    while more:
        ref = _REF.match(text, at)
        numbers = ref["numbers"].split(b",") if ref and ref["numbers"] else []
        if ref is None or not all(_NUMBER.fullmatch(number) and int(number) <= 255 for number in numbers):
            return set()
        refs.add(ref["text"] or bytes(map(int, numbers)))
        at, more = ref.end(), bool(ref["comma"])
    return refs if _END.match(text, at) else set()


def last_v1_file(segments: Iterable[tuple[int, str]]) -> int | None:
    """The boundary of a directory, from (number, extension) of its segments: the highest ``.rdq``, or None."""
    return max((number for number, extension in segments if extension == _LEGACY_EXTENSION), default=None)


@attrs.frozen
class ShutdownFiles:
    """What the last stop left in the directory, ours or RabbitMQ's."""

    files: Files
    directory: Path
    clean: bytes | None
    """``clean.dot``, or None after a dirty stop."""
    pending: bytes | None
    """What a clean stop was about to put there, or an opening was about to remove."""
    foreign: bool
    """True if RabbitMQ stopped cleanly here after our last opening: ours renames its saved index."""

    @classmethod
    def read(cls, files: Files, directory: Path) -> ShutdownFiles:
        names = files.list(directory)
        texts = [_text(files, directory / name) if name in names else None for name in (CLEAN, PENDING_CLEAN)]
        return cls(files, directory, texts[0], texts[1], foreign=any(name in names for name in SAVED_INDEXES))

    @property
    def text(self) -> bytes | None:
        """Of the last clean stop; None if it was dirty."""
        return self.clean if self.clean is not None else self.pending

    def saved(self, name: str) -> Path | None:
        """The path of one file of RabbitMQ's saved index, or None. An opening that was cut off may have renamed one of them: it
        is read under its new name then, as long as the other one shows that the opening was not finished."""
        there = self.files.list(self.directory)
        found = [candidate for candidate in (name, KEPT + name) if candidate in there]
        return self.directory / found[0] if found and self.foreign else None

    def client_refs(self) -> set[bytes]:
        """The clients of the last stop; empty if it was dirty, or if the text is damaged: it only serves RabbitMQ."""
        return parse_client_refs(self.text or b"")

    def remove(self, *, sync: bool) -> None:
        """RabbitMQ must not trust what it saved beside what we write. It is renamed, not deleted: nobody else has these counts.

        The pending ``clean.dot`` goes last: an opening that fails before that can still be taken back. It may return after a
        power loss; beside an index that says "open" it means nothing.
        """
        there = self.files.list(self.directory) if self.foreign else {}
        for name in SAVED_INDEXES:
            if name in there:
                self.files.replace(self.directory / name, self.directory / (KEPT + name))
        if sync:
            self.files.sync_directory(self.directory)
        self.files.unlink(self.directory / PENDING_CLEAN)


def _text(files: Files, path: Path) -> bytes:
    """The text, cut behind what a ``clean.dot`` may have: one that is longer is none of ours, whatever it says."""
    with files.view(path) as data:
        return data[: _MAX_CLEAN + 1]


@attrs.frozen(eq=False)
class CleanStopMarker:
    """What says that the last stop was a clean one. Each method may be repeated after a failure."""

    shutdown_files: ShutdownFiles
    saved: bytes | None
    """What the saved state of the index has as the text of ``clean.dot``; None after a dirty stop."""
    state: Mapping[bytes, bytes | None]
    """What the commit takes that says that the store is open."""

    def retire(self, accounting: LiveAccounting) -> None:
        """From here on the stop counts as dirty for RabbitMQ. Caller holds ``flushing``. Raises StoreIOError.

        ``clean.dot`` goes before the index says that the store is open, or a crash in between would look as if RabbitMQ had
        been here. All rows go with the next commit: the current segment's says that it is written on.
        """
        files, directory, sync = self.shutdown_files.files, self.shutdown_files.directory, accounting.segments.is_durable
        with io_errors(directory):
            if self.saved is not None and self.saved == self.shutdown_files.pending:
                files.unlink(directory / CLEAN)
            elif self.shutdown_files.clean is not None:
                with suppress(FileNotFoundError):  # renamed already, by an attempt that failed later
                    files.replace(directory / CLEAN, directory / PENDING_CLEAN)
            if sync:
                files.sync_directory(directory)
        with accounting.state_lock:
            for segment in accounting.segments:
                accounting.mark_dirty(segment)
        current = accounting.segments.current
        if current is not None:
            accounting.segments.hints.outdate(current)

    def finish(self, accounting: LiveAccounting) -> None:
        """Behind the commit: remove what RabbitMQ must not trust beside what we write, and the pending ``clean.dot``. Raises
        StoreIOError.

        The pending one may return after a power loss; beside an index that says "open" it means nothing.
        """
        with io_errors(self.shutdown_files.directory):
            self.shutdown_files.remove(sync=accounting.segments.is_durable)


def save_clean(accounting: LiveAccounting, client_refs: set[bytes]) -> bool:
    """Save the index and the text of ``clean.dot`` for a clean stop. Caller holds ``flushing``. False if nothing has changed.

    Until the index has its state on disk, nothing has happened; from then on the stop is a clean one. Raises StoreIOError.
    """
    segments = accounting.segments
    segments.seal_current()
    numbers = ((segment.number, segment.path.suffix) for segment in segments)
    clean = format_clean(client_refs, last_v1_file(numbers))
    if accounting.marker is not None and accounting.marker.saved == clean:
        return False
    if accounting.marker is None:
        segments.hints.save(everything=True)
    with io_errors(segments.directory):
        segments.files.write_file(segments.directory / PENDING_CLEAN, [clean], sync=segments.is_durable)
        with accounting.state_lock:
            accounting.index.close(accounting.checkpoint(clean))
    return True


def publish_clean(accounting: LiveAccounting) -> None:
    """Give ``clean.dot`` its own name, last: RabbitMQ reads it, and must not before the rest is there. Raises StoreIOError."""
    segments = accounting.segments
    with io_errors(segments.directory):
        segments.files.replace(segments.directory / PENDING_CLEAN, segments.directory / CLEAN)
        if segments.is_durable:
            segments.files.sync_directory(segments.directory)
