r"""Sinks: write messages of any system to a new place.

A complete one, that writes a file with a line for each message::

    class LinesSink:
        def __init__(self, context):
            if context.token: context.check_kept([(Path(context.destination), context.token["size"])])
            self.file = open(context.destination, "ab")
            self.file.truncate(context.token["size"] if context.token else 0)
        def refused(self, batch):
            return [(row, "it has a line break") for row, body in enumerate(batch.bodies) if b"\n" in body]
        def write(self, batch):
            self.file.writelines(body + b"\n" for body in batch.bodies)
            return []
        def flush(self):
            self.file.flush()
            os.fsync(self.file.fileno())
            return {"size": os.fstat(self.file.fileno()).st_size}
        def finish(self): pass
        def close(self): self.file.close()
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from msgstore.contract.descriptors import Descriptor, may_name_object
from msgstore.contract.errors import StoreError
from msgstore.contract.messages import MessageBatch


@attrs.frozen(kw_only=True)
class SinkDescriptor(Descriptor):
    """``factory(context: SinkContext) -> Sink``. Capabilities: JOINS."""

    endings: tuple[str, ...] = ()
    """Endings of destinations that select this sink, such as ``.jsonl``, in small or capital letters."""
    schemes: tuple[str, ...] = ()
    """Schemes of URLs that select it, such as ``amqp``. A sink with schemes writes to a service. What is sent there cannot be
    taken back: after a kill, the messages since the last flush are sent again."""
    changeable: tuple[str, ...] = ()
    """Names of options that may be others when an interrupted conversion continues, such as a rate."""
    raw: bool = False
    """True if the sink uses ``raws`` of the batches."""
    accepts: str = attrs.field(default="", validator=may_name_object)
    """``"package.module:function"``: called with the options, returns the layouts of ``raws`` that the sink takes from the
    source of the same name (``SourceContext.accepts``). Without it, the sink takes any."""

    def load_accepts(self) -> Callable[[Any], Iterable[str]]:
        """Import and return the function. Exceptions of the import are not caught."""
        accepts: Callable[[Any], Iterable[str]] = pkgutil.resolve_name(self.accepts)
        return accepts


@attrs.frozen(kw_only=True)
class SinkContext:
    """Argument of the factory of a sink."""

    destination: str
    """Path of a file or directory for the sink to create, in a directory that exists; or the URL."""
    target: str
    """The destination as people know it, for errors: the path gets its final name when the conversion is complete."""
    options: Any
    """Instance of the descriptor's options class."""
    token: Mapping[str, Any] | None = None
    """Result of the last ``flush`` of an interrupted conversion. The sink continues there, and discards what came after it:
    with None everything that it finds, which is of an attempt that was killed before its first ``flush``. If what
    it would continue is gone, making the sink raises StoreError: see :meth:`check_kept`."""

    def check_kept(self, sizes: Iterable[tuple[Path, int]]) -> None:
        """Raise StoreError for a file or directory that is not there, or has fewer bytes than it had at the last ``flush``."""
        for path, size in sizes:
            if not path.exists() or path.stat().st_size < size:
                raise StoreError(
                    f"{self.target}: an unfinished conversion is there, and has lost {path.name} or its end. Begin anew with "
                    "--restart."
                )


class Sink(Protocol):
    """Receiver of messages. Used by one thread."""

    def refused(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        """Return (row, reason) of each message that cannot be written. Row 0 is the first of the batch, whatever its position.
        Names of queues may be any text of any length, also ``../a``, ``%``, or with more bytes than a file name takes. Two
        queues are different if their system, vhost, queue or partition is. They never replace each other's messages, and never
        become one, unless the sink leaves names out. Writes nothing. A dry run calls nothing else: a sink that refuses a name
        because of an earlier one remembers names here, and has them in its token.

        A body is written unchanged, or the message is refused. What else the destination has no place for is left out, or the
        message is refused, as the page of the sink says.
        """

    def write(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        """Write messages that ``refused`` has let pass. Return (row, reason) of those that a service has refused.

        Raises StoreError or OSError if nothing can be written any more.
        """

    def flush(self) -> Mapping[str, Any]:
        """Return when everything taken so far outlasts a power loss: the sink syncs its files, and each directory in which it
        has made, renamed or deleted something since the last call, from its destination on; the caller syncs the directory that
        has the destination. The result is JSON, from which ``SinkContext.token`` continues. It is a new mapping at each call,
        and nothing in it changes later."""

    def finish(self) -> None:
        """Complete the destination. Called once, after the last ``flush``. Another call after a crash has the same result."""

    def close(self) -> None:
        """Release what is open. Called once, also after errors."""


class JoiningSink(Sink, Protocol):
    """A sink with the capability JOINS: parts of a conversion are written in parallel."""

    def join(self, parts: Sequence[str]) -> None:
        """Add the destinations that other sinks with the same options have completed, in this order, whatever their names. They
        may be moved. Called before ``flush`` and ``finish``. Raises StoreError or OSError for a part that is not there, and for
        parts that cannot stand together. A part whose ``finish`` was not called is refused, too, or joined as if it was."""
