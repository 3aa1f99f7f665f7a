"""Clean shutdown: ``clean.dot``, as RabbitMQ writes and reads it, and the mark of the last clean shutdown in an open store.

``clean.dot`` is Erlang text, one term per line: ``{client_refs,[<<104,49>>]}.`` and ``{last_v1_file,none}.``. Next to it
RabbitMQ saves its own index, which it must never use with segments that msgstore has changed. So the first change
takes ``clean.dot`` away, and renames the saved index, whose counts were read (:mod:`msgstore.engine.open.broker`).

An opening that uses the saved index as it is, and reads no segment, changes nothing: ``clean.dot`` and the saved state stay.
Before the first change after an opening ``clean.dot`` is hidden, under the name PENDING_CLEAN; the first commit of the index
says that the store is open. So a failed opening, a store without changes, and a process that is killed before its first commit
leave the counts as they were: records that were appended while ``clean.dot`` was hidden are a tail to scan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import attrs

from msgstore.engine.segment.segment import io_errors
from msgstore.engine.segment.segments import Segments
from msgstore.files import Files

CLEAN = "clean.dot"
PENDING_CLEAN = "msgstore-clean.dot"
"""``clean.dot`` while it does not count: at a shutdown until the index is saved; from the first change to the first commit."""
SAVED_COUNTS, SAVED_SUMMARY = "msg_store_index.ets", "file_summary.ets"
SAVED_INDEXES = (SAVED_COUNTS, SAVED_SUMMARY)
KEPT = "msgstore-broker-"
"""Prefix of RabbitMQ's saved index after it was read: kept for inspection, and not read again."""
_LEGACY_EXTENSION = ".rdq"

_MAX_CLEAN = 16 * 2**20
"""Largest ``clean.dot`` that is read or written, in bytes: about 200,000 clients."""

# Possessive quantifiers keep the time linear for any text. They are only used on single characters: in Python 3.11.2 a group
# with one loses what it captured.
_REFS = re.compile(rb"\{\s*+client_refs\s*+,\s*+\[")
_REF = re.compile(rb"\s*+<<\s*+(?:\"([^\"\\]*+)\"|([\d,\s]*+))\s*+>>\s*+(,|\]\s*+\}\s*+\.)")
_NUMBER = re.compile(rb"\s*+\d{1,3}+\s*+")


def format_clean(client_refs: Iterable[bytes], last_v1_file: int | None) -> bytes:
    """Return the text of ``clean.dot``."""
    refs = ",".join(f"<<{','.join(map(str, ref))}>>" for ref in sorted(client_refs))
    if len(refs) > _MAX_CLEAN - 100:
        refs = ""  # only RabbitMQ uses them, and it rebuilds its index without them
    last = "none" if last_v1_file is None else str(last_v1_file)
    return f"{{client_refs,[{refs}]}}.\n{{last_v1_file,{last}}}.\n".encode()


def parse_client_refs(text: bytes) -> set[bytes]:
    """Return the client references in the text of a ``clean.dot``; none if the list is not well-formed."""
    refs: set[bytes] = set()
    found = _REFS.search(text) if len(text) <= _MAX_CLEAN else None
    while found and (found := _REF.match(text, found.end())):
        numbers = found[2].split(b",") if found[2] and found[2].strip() else []
        if not all(_NUMBER.fullmatch(number) and int(number) <= 255 for number in numbers):
            return set()
        refs.add(found[1] or bytes(map(int, numbers)))
        if found[3] != b",":
            return refs
    return set()


def last_v1_file(segments: Iterable[tuple[int, str]]) -> int | None:
    """Return the highest number of a ``.rdq`` segment, from (number, extension) of all segments, or None."""
    return max((number for number, extension in segments if extension == _LEGACY_EXTENSION), default=None)


@attrs.frozen(eq=False)
class ShutdownFiles:
    """Files that the last shutdown left in the directory, of msgstore or of RabbitMQ. ``retire`` and ``finish`` remove them,
    and may be repeated after a failure."""

    files: Files
    directory: Path
    clean: bytes | None
    """Text of ``clean.dot``; None after a dirty shutdown."""
    pending: bytes | None
    """Text of the hidden or unfinished ``clean.dot``, or None."""
    foreign: bool
    """True if RabbitMQ's saved index is there: it has shut down cleanly since the last opening, which renames these files."""
    saved: bytes | None = None
    """Text of ``clean.dot`` in the saved state of the index; None after a dirty shutdown."""
    state: Mapping[bytes, bytes | None] = attrs.field(factory=dict)
    """Part of the commit that says that the store is open."""

    @classmethod
    def read(cls, files: Files, directory: Path) -> ShutdownFiles:
        """Read the files of a directory. Raises OSError."""
        names = files.list(directory)
        texts = [_text(files, directory / name) if name in names else None for name in (CLEAN, PENDING_CLEAN)]
        return cls(files, directory, texts[0], texts[1], foreign=any(name in names for name in SAVED_INDEXES))

    @property
    def text(self) -> bytes | None:
        """Text of the last clean shutdown; None after a dirty one."""
        return self.clean if self.clean is not None else self.pending

    def client_refs(self) -> set[bytes]:
        """Return the clients of the last clean shutdown; none after a dirty one, or if the text is damaged."""
        return parse_client_refs(self.text or b"")

    def find_saved(self, name: str) -> Path | None:
        """Return the path of one file of RabbitMQ's saved index, or None.

        An interrupted opening may have renamed one of the two. Then it is read under its new name, as long as the other file
        shows that the opening was not finished.
        """
        there = self.files.list(self.directory)
        found = [candidate for candidate in (name, KEPT + name) if candidate in there]
        return self.directory / found[0] if found and self.foreign else None

    def retire(self, segments: Segments) -> None:
        """Hide ``clean.dot`` before the first change. Caller holds the flush lock. Raises StoreIOError.

        This comes before the index says that the store is open: otherwise a crash in between would look like a shutdown of
        RabbitMQ. The next commit must write all rows: that of the current segment says that it may grow.
        """
        files, directory = self.files, self.directory
        with io_errors(directory):
            if self.saved is not None and self.saved == self.pending:
                files.unlink(directory / CLEAN)
            elif self.clean is not None:
                with suppress(FileNotFoundError):  # renamed already, by an attempt that failed later
                    files.replace(directory / CLEAN, directory / PENDING_CLEAN)
            if segments.is_durable:
                files.sync_directory(directory)
        if segments.current is not None:
            segments.hints.drop(segments.current)

    def finish(self, segments: Segments) -> None:
        """Hide RabbitMQ's saved index and delete the hidden ``clean.dot``, after the commit. Raises StoreIOError.

        The index is renamed, not deleted, because it has the only copy of the counts. ``clean.dot`` goes last: until then the
        opening can be undone. A power loss may bring it back, which does no harm: the index says that the store is open.
        """
        files, directory = self.files, self.directory
        with io_errors(directory):
            there = files.list(directory) if self.foreign else {}
            for name in SAVED_INDEXES:
                if name in there:
                    files.replace(directory / name, directory / (KEPT + name))
            if segments.is_durable:
                files.sync_directory(directory)
            files.unlink(directory / PENDING_CLEAN)


def _text(files: Files, path: Path) -> bytes:
    """Return the text, or, of a longer one that cannot be msgstore's, its first part."""
    with files.view(path) as data:
        return data[: _MAX_CLEAN + 1]


def publish_clean(segments: Segments) -> None:
    """Give ``clean.dot`` its final name, last, because RabbitMQ reads it. Raises StoreIOError."""
    with io_errors(segments.directory):
        segments.files.replace(segments.directory / PENDING_CLEAN, segments.directory / CLEAN)
        if segments.is_durable:
            segments.files.sync_directory(segments.directory)
