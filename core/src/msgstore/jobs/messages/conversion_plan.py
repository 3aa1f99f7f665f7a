"""Plan of a conversion: names, options and paths are checked before anything is read.

Only the sink knows whether it makes a file or a directory. The destination is compared with that when the sink is opened,
before a message is read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import ConfigError, QueueInfo, QueueName, SinkDescriptor
from msgstore.jobs.messages.conversion import CONTENT, begun_with
from msgstore.jobs.messages.rows import encode
from msgstore.jobs.messages.selection import Selection
from msgstore.jobs.messages.sources import SourceSpec, files_below, nearest, source_spec
from msgstore.option_values import Backend, option_digests
from msgstore.plugins.catalogue import Catalogue

JOURNAL = "msgstore-convert.jsonl"
"""Default journal of a conversion into a URL, in the working directory."""


@attrs.frozen
class ConvertJob:
    """Created and checked by :func:`plan_convert`."""

    source: SourceSpec
    sink: Backend
    destination: str
    selection: Selection
    rename: Mapping[str, str] = attrs.field(factory=dict)
    mark_duplicates: bool = False
    journal: Path | None = None
    """Set if the destination is a URL."""
    changeable: tuple[str, ...] = ()
    """Options of the sink that may be others when the conversion continues."""
    restart: bool = False
    dry_run: bool = False
    """Everything is read and checked, and nothing is written."""

    @property
    def target(self) -> str:
        """The destination as people and files may see it: a URL without its password."""
        return without_password(self.destination)

    def about(self) -> dict[str, Any]:
        """Return what must be the same when the conversion continues."""
        source = str(Path(self.source.path).resolve())
        salt = hashlib.sha256(encode([source, self.target]).encode()).digest()
        return {
            "source": [self.source.source.name, source],
            "--source-option": option_digests(self.source.source, salt),
            CONTENT: _fingerprint(Path(self.source.path)),
            "sink": self.sink.name,
            "--sink-option": option_digests(self.sink, salt, self.changeable),
            "destination": self.target,
            "--vhost": self.selection.vhosts,
            "--queue": self.selection.queues,
            **({"--id": self.selection.ids} if self.selection.ids else {}),
            "--state": self.selection.states,
            "--from-position": self.selection.first,
            "--limit": self.selection.limit,
            "--rename": dict(self.rename),
            "--raw": self.source.raw,
            "--accepts": self.source.accepts,
        }


def without_password(destination: str) -> str:
    """Return a URL with asterisks for its password, and a path as it is."""
    return re.sub(r"^(\w+://[^:/@]*:).*@", r"\1***@", destination)  # greedy: a password may have "/" and "@" by mistake


def _fingerprint(path: Path) -> str:
    """Return a hash over the names, sizes and times of change of all files at or below a path."""
    digest = hashlib.sha256()
    for found, about in files_below(path):
        digest.update(f"{found.relative_to(path)}\0{about.st_size}\0{about.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def choose_sink(catalogue: Catalogue, destination: str, given: Backend | None) -> Backend:
    """Return the sink to use: the given one, or the one of the destination's ending or scheme. Raises ConfigError,
    PluginError."""
    if given is not None and given.name:
        catalogue.sink(given.name)
        return given
    scheme, separator, _ = destination.partition("://")
    sinks = catalogue.descriptors(SinkDescriptor)
    endings = {ending: sink.name for sink in sinks for ending in sink.endings}
    of_scheme = [sink.name for sink in sinks if separator and scheme in sink.schemes]
    lowered = destination.rstrip("/").lower()
    longest_first = sorted(endings, key=len, reverse=True)  # *.acme.jsonl is not *.jsonl
    for name in (*of_scheme, *(endings[one] for one in longest_first if lowered.endswith(one.lower()))):
        catalogue.claimed_sink(name)
        return attrs.evolve(given, name=name) if given is not None else Backend(name)
    listed = ", ".join(f"*{ending} ({name})" for ending, name in sorted(endings.items()))
    names = ", ".join(catalogue.names("sink"))
    if separator:
        catalogue.sink({"amqps": "amqp"}.get(scheme, scheme))  # the error has the line for pip
    failed = catalogue.failed_to_load()
    begun = "" if separator else begun_with(Path(destination))
    if begun:
        catalogue.sink(begun)  # the error has the line for pip
        failed += f" An unfinished conversion into it was begun with --sink {begun}."
    raise ConfigError(f"{destination}: its name says no sink ({listed}).{failed} Name one with --sink: {names}")


def plan_convert(
    catalogue: Catalogue,
    path: Path,
    destination: str,
    selection: Selection,
    *,
    source: Backend | None = None,
    sink: Backend | None = None,
    rename: Mapping[str, str] | None = None,
    raw: bool = False,
    accepts: tuple[str, ...] | None = None,
    now_ms: int | None = None,
    journal: Path | None = None,
    **choices: Any,
) -> ConvertJob:
    """Check names, options and paths. Reads little, writes nothing. ``choices``: other members of :class:`ConvertJob`.

    Raises ConfigError, PluginError, StoreError.
    """
    chosen = choose_sink(catalogue, destination, sink)
    descriptor = catalogue.sink(chosen.name)
    options = chosen.structure(descriptor.options, f"the sink {chosen.name}", "--sink-option")
    if descriptor.schemes:
        if destination.partition("://")[0] not in descriptor.schemes:
            raise ConfigError(
                f"{without_password(destination)}: the sink {chosen.name} takes URLs such as {descriptor.schemes[0]}://..."
            )
        journal = journal or Path(JOURNAL)
        if journal.resolve().is_relative_to(path.resolve()):
            raise ConfigError(f"--journal {journal}: is in the source, in which nothing is written. Name another file.")
    elif "://" in destination:
        raise ConfigError(
            f"{without_password(destination)}: is a URL, and the sink {chosen.name} writes a file or directory: name one."
        )
    elif journal is not None:
        raise ConfigError(f"--journal: is for a URL. The journal of {destination} is always beside it.")
    spec = source_spec(catalogue, path, source, raw=raw or descriptor.raw, accepts=accepts, now_ms=now_ms)
    if accepts is None and descriptor.accepts and spec.source.name == chosen.name:
        spec = attrs.evolve(spec, accepts=tuple(sorted(descriptor.load_accepts()(options))))
    return ConvertJob(
        spec, chosen, destination, selection, rename or {}, journal=journal, changeable=descriptor.changeable, **choices
    )


def check_renames(job: ConvertJob, queues: list[QueueInfo]) -> None:
    """Raise ConfigError if a queue that is to be renamed is not there, or gets the name of another one."""
    known = sorted({info.name.queue for info in queues if info.name.queue is not None})
    for old in job.rename:
        if old not in known and old not in map(_shown, known):
            raise ConfigError(f"--rename {old}: there is no such queue{nearest(old, known)}")
    names: dict[QueueName, QueueName] = {}
    for info in queues:
        if (other := names.setdefault(renamed(job, info.name), info.name)) != info.name:
            both = f"{_shown(str(other))} and {_shown(str(info.name))}"
            raise ConfigError(f"--rename: the queues {both} would have one name, {renamed(job, info.name)}")


def renamed(job: ConvertJob, name: QueueName) -> QueueName:
    """Return the name of a queue in the destination. ``--rename`` has it as it is, or with the escapes that a message shows."""
    if not job.rename or name.queue is None:
        return name
    return attrs.evolve(name, queue=job.rename.get(name.queue, job.rename.get(_shown(name.queue), name.queue)))


def _shown(name: str) -> str:
    return repr(name)[1:-1]
