"""Work directory and journal of a conversion, from which an interrupted one continues.

For the destination ``NAME`` they are in ``.NAME.msgstore/convert``: the journal, and ``content``, which gets its name when it
is complete. A destination that is a URL has only the journal, in a file of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import attrs

from msgstore.contract import StoreError, StoreIOError, StoreLocked
from msgstore.files import Files
from msgstore.jobs.messages.rows import encode
from msgstore.jobs.output.staging_directory import StagingDirectory

WORK = "convert"
CONTENT = "content of the source"
"""Member of what must be the same when a conversion continues: a fingerprint of the source."""
_JOURNAL = "journal.jsonl"
_CONTENT = "content"
_BEGIN = b'{"source":'
"""Begin of a journal."""


class ConversionJournal:
    """A line that says what is converted, a line for each state that is confirmed, and for a service one for each batch before
    it is sent.

    A context manager: on exit it is closed, and deleted if an exception leaves nothing to continue.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], target: str, *, restart: bool = False) -> None:
        """Open or create a journal. ``about`` must be the same when a conversion continues. Raises StoreError."""
        self.path = path
        self._file = open(path, "a+b")  # noqa: SIM115, PTH123 - until close
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise StoreLocked(f"{target}: another process converts into it, with the journal {path}") from error
        try:
            begin, past, end = self._past()
            asked = json.loads(encode(about))
            if restart:
                begin, past, end = None, _Past(), 0
            elif begin is not None and begin != asked:
                changed = list(_changes(begin, asked))
                if changed == [CONTENT]:
                    raise StoreError(
                        f"{target}: the source has changed since an unfinished conversion began. Begin anew with --restart."
                    )
                raise StoreError(
                    f"{target}: an unfinished conversion is there, with another {', '.join(changed)}. End it as it was begun, "
                    f"or begin anew with --restart."
                )
            self._file.truncate(end)
        except BaseException:
            self._file.close()
            raise
        if past.is_unknown:
            self._file.close()
            raise StoreError(f"{target}: the journal {path} is of another version. Begin anew with --restart.")
        self.state = past.state
        """The last state of an interrupted conversion, with the counts of all queues, else None."""
        self.sent = past.sent
        """Messages after that state which were perhaps sent."""
        self.damage = past.damage
        """Damage that was reported before the interruption."""
        self.is_begun = bool(self.state or self.sent)
        """True if there is something to continue."""
        if begin is None:
            self.append(about)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line, which outlasts a power loss when this returns. Raises OSError."""
        self._file.write(encode(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def confirm(self, state: Mapping[str, Any]) -> None:
        """Add a state. Raises OSError."""
        self._sync_names()
        self.append(state)
        self.sent, self.is_begun = 0, True

    def note_sending(self, messages: int) -> None:
        """Say that messages up to this number, counted from the last state, are sent now. Raises OSError."""
        if messages > self.sent:
            self._sync_names()
            self.append({"sending": messages})
            self.sent, self.is_begun = messages, True

    def end(self) -> None:
        """Delete the journal: the conversion is complete. It is not there after a power loss, either. Raises OSError."""
        _delete_journal(self.path)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            if error is not None and not self.is_begun:
                self.end()
        finally:
            self.close()

    def _sync_names(self) -> None:
        """Make the names of the journal and of the destination beside it durable, before the first state."""
        if not self.is_begun:
            Files().sync_directory(self.path.parent)

    def _past(self) -> tuple[dict[str, Any] | None, _Past, int]:
        """Return the first line, what the others say, and their end; a torn one may follow. Raises StoreError for a file that
        is no journal."""
        self._file.seek(0)
        begin: dict[str, Any] | None = None
        past, end, torn = _Past(), 0, b""
        try:
            for line in self._file:
                if not line.endswith(b"\n"):
                    torn = line
                elif begin is None:
                    begin = dict(json.loads(line))
                else:
                    past.add(dict(json.loads(line)))
                end += len(line) - len(torn)
        except (ValueError, TypeError):
            begin = {}
        is_torn = begin is None and _BEGIN.startswith(torn[: len(_BEGIN)])  # a kill before the first line was whole
        if not is_torn and (not begin or "destination" not in begin):
            raise StoreError(f"{self.path}: is not the journal of a conversion. Name another file, or delete it.")
        return begin, past, end


@attrs.define
class _Past:
    """Sum of the lines of a journal. A state has only the counts and reasons that have changed since the one before:
    a journal of many queues would grow with their square. A state of an earlier version has all of them, in a list."""

    state: dict[str, Any] | None = None
    sent: int = 0
    damage: list[dict[str, Any]] = attrs.field(factory=list)
    counts: dict[int, list[int]] = attrs.field(factory=dict)
    reasons: dict[str, int] = attrs.field(factory=dict)
    is_unknown: bool = False
    """True if a state is not as this version or the one before writes it."""

    def add(self, line: dict[str, Any]) -> None:
        if "token" not in line:
            self.sent = max(self.sent, line.get("sending", 0))
            return
        try:
            counts = line["counts"]
            pairs = enumerate(counts) if isinstance(counts, list) else counts.items()
            self.counts.update((int(number), saved) for number, saved in pairs)
            self.reasons.update(line["reasons"])
            self.damage += line["damage"]
        except (AttributeError, KeyError, TypeError, ValueError):
            self.is_unknown = True
            return
        self.state, self.sent = line | {"counts": self.counts, "reasons": self.reasons}, 0


def _changes(was: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    """Yield the members that differ, and the names of the options that do."""
    for key in sorted(key for key in {*was, *asked} if was.get(key) != asked.get(key)):
        if key.endswith("-option") and key in was and key in asked:
            names = sorted({*was[key], *asked[key]})
            by = {name: " (also from --config)" for name in ("body", "format") if key == "--source-option"}
            yield from (f"{key} {name}{by.get(name, '')}" for name in names if was[key].get(name) != asked[key].get(name))
        else:
            yield f"{key} (it was {was[key]})" if key == "sink" and key in was else key


def begun_with(destination: Path) -> str:
    """Return the name of the sink of an unfinished conversion into a path; "" if there is none."""
    journal = destination.parent / f".{destination.name}.msgstore" / WORK / _JOURNAL
    try:
        with journal.open(encoding="utf-8") as lines:
            return str(json.loads(next(lines, ""))["sink"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""


@contextmanager
def working(
    destination: Path, source: Path, about: Mapping[str, Any], *, restart: bool
) -> Iterator[tuple[ConversionJournal, Path]]:
    """Yield the journal, and the path for the sink. If the block ends, publish what is there; if it raises, keep what
    is confirmed for the next attempt. Raises StoreError, StoreLocked, StoreIOError."""
    files = Files()
    with StagingDirectory.create_locked(destination, [source]) as staging, _errors(destination):
        work = Path(staging.path).parent / WORK
        if restart:
            delete_work(work)
        with suppress(FileExistsError):
            files.create_directory(work)
        journal = ConversionJournal(work / _JOURNAL, about, str(destination))
        try:
            with journal:
                if journal.state is None:
                    for left in work.iterdir():
                        if left.name != _JOURNAL:
                            files.remove_tree(left) if left.is_dir() else files.unlink(left)
                    for directory in (work.parent, destination.parent):
                        files.sync_directory(directory)
                yield journal, work / _CONTENT
        except BaseException:
            if not journal.is_begun:
                files.remove_tree(work)
            raise
        check_kinds(work / _CONTENT, destination)
        with staging.publishing() as content:
            journal.end()  # first: without it, what is left after a kill or a power loss is begun anew
            files.replace(work / _CONTENT, content)
            files.remove_tree(work)


def delete_work(work: Path) -> None:
    """Delete what an unfinished conversion has left. The journal goes first: a kill leaves none without its content."""
    if (work / _JOURNAL).exists():
        _delete_journal(work / _JOURNAL)
    Files().remove_tree(work)


def _delete_journal(path: Path) -> None:
    path.unlink()
    Files().sync_directory(path.parent)


def check_kinds(content: Path, destination: Path) -> None:
    """Raise StoreError for a file that is to replace a directory."""
    if content.is_file() and destination.is_dir():
        raise StoreError(f"{destination}: is a directory, and the result is a file. Give the file a name.")


@contextmanager
def _errors(destination: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_ours = error.filename is None or f".{destination.name}.msgstore" in str(error.filename)
        place = destination if is_ours else error.filename
        kept, again = ("What was confirmed is kept", ": it continues") if begun_with(destination) else ("Nothing was kept", "")
        raise StoreIOError(
            f"{place}: {error.strerror or error}. {kept}; mend the cause (space, limits, permissions, the disk) and run the "
            f"command again{again}."
        ) from error
