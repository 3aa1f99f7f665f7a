"""``clean.dot``: what a clean stop leaves for the next start, as RabbitMQ writes and reads it.

Erlang text, one term a line: ``{client_refs,[<<104,49>>]}.`` and ``{last_v1_file,none}.``. Beside it RabbitMQ keeps its own
saved index; it must never trust that one beside what we write, so opening for writing removes all three first.
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
SAVED_INDEXES = ("msg_store_index.ets", "file_summary.ets")
_LEGACY_EXTENSION = ".rdq"

_REFS = re.compile(r"\{\s*client_refs\s*,\s*\[(.*?)\]\s*\}\s*\.", re.DOTALL)
_BINARY = re.compile(r"<<\s*(?:\"((?:[^\"\\]|\\.)*)\"|([\d\s,]*))\s*>>")


def format_clean(client_refs: Iterable[bytes], last_v1_file: int | None) -> bytes:
    refs = ",".join(f"<<{','.join(map(str, ref))}>>" for ref in sorted(client_refs))
    last = "none" if last_v1_file is None else str(last_v1_file)
    return f"{{client_refs,[{refs}]}}.\n{{last_v1_file,{last}}}.\n".encode()


def parse_client_refs(text: bytes) -> set[bytes]:
    """The client references in the text of a ``clean.dot``; empty if there are none to be found."""
    listed = _REFS.search(text.decode("latin-1"))
    refs = set()
    for quoted, numbers in _BINARY.findall(listed[1]) if listed else ():
        values = [int(number) for number in numbers.split(",") if number.strip()]
        if all(value < 256 for value in values):
            refs.add(quoted.encode("latin-1") if quoted else bytes(values))
    return refs


def last_v1_file(segments: Iterable[tuple[int, str]]) -> int | None:
    """The boundary of a directory, from (number, extension) of its segments: the highest ``.rdq``, or None."""
    return max((number for number, extension in segments if extension == _LEGACY_EXTENSION), default=None)


@attrs.frozen
class Leftovers:
    """What the last stop left in the directory, ours or RabbitMQ's."""

    files: Files
    directory: Path
    clean: bytes | None
    """``clean.dot``, or None after a dirty stop."""
    pending: bytes | None
    """What a clean stop was about to put there, or an opening was about to remove."""
    foreign: bool
    """True if RabbitMQ stopped cleanly here after our last opening: ours removes its saved index."""

    @classmethod
    def read(cls, files: Files, directory: Path) -> Leftovers:
        names = files.list(directory)
        texts = [files.read_file(directory / name) if name in names else None for name in (CLEAN, PENDING_CLEAN)]
        return cls(files, directory, texts[0], texts[1], foreign=any(name in names for name in SAVED_INDEXES))

    def client_refs(self) -> set[bytes]:
        """The clients of the last stop; empty if it was dirty, or if the text is damaged: it only serves RabbitMQ."""
        return parse_client_refs(self.clean or self.pending or b"")

    def hide(self) -> None:
        """From here on the stop counts as dirty for RabbitMQ; for us until our index says that the store is open."""
        if self.clean is not None:
            self.files.replace(self.directory / CLEAN, self.directory / PENDING_CLEAN)

    def remove(self, *, sync: bool) -> None:
        """RabbitMQ must not trust what it saved beside what we write."""
        for name in (PENDING_CLEAN, *SAVED_INDEXES):
            self.files.unlink(self.directory / name)
        if sync:
            self.files.sync_directory(self.directory)
