"""``clean.dot``: what a clean stop leaves for the next start, as RabbitMQ writes and reads it.

Erlang text, one term a line: ``{client_refs,[<<104,49>>]}.`` and ``{last_v1_file,none}.``. Beside it RabbitMQ keeps its own
saved index. RabbitMQ must never trust that one beside what we write: opening for writing removes ``clean.dot`` and renames the
saved index, whose reference counts it has taken (:mod:`msgstore.engine.open.broker_counts`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import attrs

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
