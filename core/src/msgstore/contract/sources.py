r"""Sources: read the messages of a system from its files.

A complete one, for small files with a message on each line, which are one batch::

    class LinesSource:
        def __init__(self, context): self.context = context
        def queues(self):
            return [QueueInfo(name=QueueName("lines", queue=self.context.path.name))]
        def messages(self, name, first, stop):
            lines = list(io.BytesIO(self.context.read("")))
            if torn := [line for line in lines[-1:] if not line.endswith(b"\n")]: lines.pop()
            rows, begins = range(len(lines))[first:stop], [0, *accumulate(map(len, lines))]
            raws, count = lines[first:stop], len(rows)
            yield MessageBatch(name=name, bodies=[raw.removesuffix(b"\n") for raw in raws], positions=rows,
                               states=["ready"] * count, files=[""] * count, offsets=[begins[row] for row in rows],
                               sizes=[len(raw) for raw in raws], raws=raws if self.context.raw else None)
            if torn and first <= len(lines) and (stop is None or len(lines) < stop):
                yield SourceDamage(file="", offset=begins[-1], size=len(torn[0]), reason="torn", name=name, messages=1)
        def damage(self): return []
        def close(self): pass

    def detect(path):
        return Candidate("likely", "a file *.lines") if path.is_file() and path.suffix == ".lines" else None
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from msgstore.contract.descriptors import Descriptor, may_name_object, names_object
from msgstore.contract.messages import Candidate, MessageBatch, QueueInfo, QueueName, SourceDamage
from msgstore.contract.records import Buffer


@attrs.frozen(kw_only=True)
class SourceDescriptor(Descriptor):
    """``factory(context: SourceContext) -> Source``. Capabilities: RANDOM_ACCESS, REFLOW, SHARED_BODIES."""

    detect: str = attrs.field(validator=names_object)
    """``"package.module:function"``: called with any file or directory, returns a :class:`Candidate` or None. It opens few
    files, and reads few bytes of each."""

    sample: str = attrs.field(default="", validator=may_name_object)
    """``"package.module:function"``: called with an empty directory, writes a small example of what the source reads, and
    returns its path. The conformance kit reads it, so it has messages for each capability, such as shared bodies, and in each
    state, and queues with different bodies. Times are from 1990 to 2099; a message with an expiry expires at that time.

    With RANDOM_ACCESS there is a second argument, which may be left out: the number of messages to make."""

    def load_sample(self) -> Callable[..., Path]:
        """Import and return the function. Exceptions of the import are not caught."""
        sample: Callable[..., Path] = pkgutil.resolve_name(self.sample)
        return sample

    def load_detect(self) -> Callable[[Path], Candidate | None]:
        """Import and return the function. Exceptions of the import are not caught."""
        detect: Callable[[Path], Candidate | None] = pkgutil.resolve_name(self.detect)
        return detect


@attrs.frozen(kw_only=True)
class SourceContext:
    """Argument of the factory of a source."""

    path: Path
    """Directory or file. Nothing in it is changed."""
    options: Any
    """Instance of the descriptor's options class."""
    read: Callable[[str], Buffer]
    """Returns the content of a regular file by its path relative to ``path``, or of ``path`` itself for "": bytes, or an
    ``mmap`` for more than 64 MiB, whose slices are bytes. Raises OSError, also for a pipe or a device."""
    now_ms: int = 0
    """The time by which messages expire, which changes their state only. A source asks no clock, and no time zone: files with
    local times need an option that names it."""
    raw: bool = False
    """True if batches have ``raws``."""
    accepts: frozenset[str] | None = None
    """Layouts of ``raws`` that the reader takes beside the plain one, the same for the whole session; None: as stored. A source
    with REFLOW writes other records in one of them, or says in ``refusals`` why there is no such form. Whether there is one
    follows from the message and this set alone. A name that it does not know is a ConfigError."""


class Source(Protocol):
    """Messages of one path. Used by one thread; several may exist for a path, also in other processes."""

    def queues(self) -> Iterable[QueueInfo]:
        """Return the queues, and what is recognised and not read. The order is the same at each call, in any process."""

    def messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        """Yield the messages of a queue at the positions from ``first`` up to ``stop`` (None: all), in batches of up to some
        MiB, and the damage that was met, also a record that the end of a file cuts off. Messages in every state are included.
        No other method need be called before.

        A position has the same message at each call, in damaged files, too, whatever was read before. Never yields a wrong
        body, nor the begin of one that is cut off, and takes time and memory linear in the bytes that are there, whatever they
        claim. With RANDOM_ACCESS, the time of each call but the first depends on the positions asked for only.

        Damage that leaves nothing of a queue is yielded, or makes a part that is not read (``read=False``): other queues are
        read then. An error, also of ``SourceContext.read``, ends the command. Where a broken length hides the begin of the next
        record, reading may end with the file.
        """

    def damage(self) -> Iterable[SourceDamage]:
        """Return the damage that belongs to no queue, each once. Called after ``queues``, which may be called again."""

    def close(self) -> None:
        """Release what is open."""


class RandomAccessSource(Source, Protocol):
    """A source with the capability RANDOM_ACCESS: parts of one queue are read in parallel."""

    def count(self, name: QueueName) -> int:
        """Return the number of positions of a queue, also of those whose messages cannot be read: ``messages`` with them yields
        everything. A record that is cut off need not have a position."""


class SharedBodiesSource(Source, Protocol):
    """A source whose queues share bodies that are stored apart. A cluster reads both in parallel, and joins them by key."""

    def own_messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        """Yield as ``messages`` does, without the messages whose bodies are apart. Positions are the same."""

    def shared_entries(self, name: QueueName, first: int, stop: int | None) -> Iterator[Sequence[tuple[bytes, int, bytes]]]:
        """Yield (key of the body, position, entry) of the messages that ``own_messages`` leaves out at the same ``first`` and
        ``stop``. The entry is bytes that ``complete`` reads."""

    def body_parts(self) -> Sequence[str]:
        """Return the names of the parts that have the bodies, such as files. The same at each call, in any process."""

    def bodies(self, part: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """Yield (key, bytes that ``complete`` reads) of one part. A key may come twice: any of them will do."""

    def complete(
        self, name: QueueName, entries: Sequence[tuple[int, bytes, bytes | None]]
    ) -> Iterator[MessageBatch | SourceDamage]:
        """Yield the messages of (position, entry, bytes of the body or None if there is none), of one queue in any order."""
