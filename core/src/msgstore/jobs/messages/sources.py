"""Open sources: find the ones that can read a path, and create one with its options."""

from __future__ import annotations

import difflib
import errno
import mmap
import os
import re
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import attrs

from msgstore.contract import (
    Buffer,
    Capability,
    ConfigError,
    MsgStoreError,
    PluginError,
    Source,
    SourceContext,
    StoreError,
    StoreIOError,
)
from msgstore.files import READ_WHOLE, Files
from msgstore.jobs.detection import detect, detect_one, not_recognised
from msgstore.jobs.messages.checked import CheckedSource
from msgstore.jobs.workers import worker_catalogue
from msgstore.option_values import Backend, GivenText, backend_of
from msgstore.plugins.blame import blame
from msgstore.plugins.catalogue import Catalogue

_MAX_MAPS = 32
"""Mapped files that stay open. A process may have 1,024 open files or fewer."""


@attrs.frozen
class SourceSpec:
    """A path and the source that reads it. Small and picklable: each process opens it for itself."""

    path: str
    source: Backend
    now_ms: int
    raw: bool = False
    accepts: tuple[str, ...] | None = None
    """Layouts of records that the reader takes beside the plain one. None: as stored."""


def choose_source(catalogue: Catalogue, path: Path, given: Backend | None) -> Backend:
    """Return the source to use: the given one, or the most likely if no other is as likely. Raises StoreError, PluginError."""
    if given is not None and given.name:
        catalogue.source(given.name)
        return given
    found = detect(catalogue, path)
    if not found:
        raise StoreError(f"{not_recognised(catalogue, path)} Name a source (source=, --source).")
    best = [name for name, candidate in found if candidate.likelihood == found[0][1].likelihood]
    if len(best) > 1:
        which = "; ".join(f"{name}: {candidate.evidence}" for name, candidate in found if name in best)
        raise StoreError(f"{path}: several sources can read it ({which}). Name one (source=, --source).")
    return attrs.evolve(given, name=best[0]) if given is not None else Backend(best[0])


def source_spec(
    catalogue: Catalogue,
    path: Path,
    source: Backend | str | None = None,
    *,
    raw: bool = False,
    accepts: tuple[str, ...] | None = None,
    now_ms: int | None = None,
) -> SourceSpec:
    """Return what :func:`open_source` takes. Checks the options. ``source``: also a name, or a table as text.

    Raises StoreError, ConfigError, PluginError.
    """
    if not path.exists():
        begun = path.parent / f".{path.name}.msgstore/convert"
        hint = f". An unfinished conversion is in {begun}: the same convert command continues it" if begun.exists() else ""
        raise StoreError(f"{path}: there is no such file or directory{hint}")
    chosen = choose_source(catalogue, path, None if source is None else backend_of(source))
    _options(catalogue, chosen)
    if accepts is not None and Capability.REFLOW not in catalogue.source(chosen.name).capabilities:
        raise ConfigError(f"accepts: the source {chosen.name} has records of one layout. Leave the option out.")
    spec = SourceSpec(str(path), chosen, time.time_ns() // 1_000_000 if now_ms is None else now_ms, raw, accepts)
    if source is not None and backend_of(source).name:
        _check_is_of(catalogue, spec, path)
    return spec


def _check_is_of(catalogue: Catalogue, spec: SourceSpec, path: Path) -> None:
    """Raise StoreError if the source that was named does not recognise the path and finds nothing, and another one does."""
    with suppress(StoreIOError, PluginError):  # whatever reads it says so
        if detect_one(catalogue, spec.source.name, path) is not None:
            return
        with open_source(spec, catalogue) as opened:
            if any(True for _ in opened.queues()) or any(True for _ in opened.damage()):
                return
    for name in catalogue.names("source"):
        with suppress(StoreIOError, PluginError):
            if (candidate := detect_one(catalogue, name, path)) is not None:
                what = f"and {name} recognises it: {candidate.evidence}"
                raise StoreError(f"{path}: the source {spec.source.name} finds nothing here, {what}")


def _options(catalogue: Catalogue, source: Backend) -> object:
    return source.structure(catalogue.source(source.name).options, f"the source {source.name}", "--source-option")


@contextmanager
def open_source(spec: SourceSpec, catalogue: Catalogue | None = None) -> Iterator[Source]:
    """Open a source in any process. Errors of the operating system become StoreIOError, a plugin's BrokenPlugin."""
    catalogue, path = catalogue or worker_catalogue(), Path(spec.path)
    with closing(OpenFiles()) as files, _errors(path):
        context = SourceContext(
            path=path,
            options=_options(catalogue, spec.source),
            read=partial(_read, files, path),
            now_ms=spec.now_ms,
            raw=spec.raw,
            accepts=None if spec.accepts is None else frozenset(spec.accepts),
        )
        descriptor = catalogue.source(spec.source.name)
        with closing(CheckedSource(catalogue.make(descriptor, context), catalogue, descriptor, spec.path)) as source:
            yield source


class OpenFiles:
    """Mapped files of one source. Those that were used last stay open, as a source may read several in turn."""

    def __init__(self) -> None:
        self._kept: dict[Path, mmap.mmap] = {}
        """The last _MAX_MAPS, in the order of use."""
        self._mapped = weakref.WeakSet[mmap.mmap]()

    def map(self, path: Path) -> mmap.mmap:
        """Return a file as a map. It stays open as long as it is kept here, or anything refers to it."""
        if (found := self._kept.pop(path, None)) is None:
            found = Files().map_file(path)
            self._mapped.add(found)
        self._kept[path] = found
        if len(self._kept) > _MAX_MAPS:
            del self._kept[next(iter(self._kept))]
        return found

    def close(self) -> None:
        """Close all maps, but for those into which a view still points."""
        self._kept.clear()
        for found in list(self._mapped):
            with suppress(BufferError):
                found.close()


def _read(files: OpenFiles, path: Path, name: str) -> Buffer:
    """Return the content of a file. A large one is mapped."""
    place = path / name if name else path
    return Files().read_file(place) if place.stat().st_size <= READ_WHOLE else files.map(place)


def files_below(path: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the regular files at or below a path that can be examined, in the order of their paths."""
    places = [path, *(Path(place, name) for place, _, names in os.walk(path) for name in names)]
    found = []
    for place in sorted(places):
        with suppress(OSError):
            about = place.stat()
            if stat.S_ISREG(about.st_mode):
                found.append((place, about))
    return found


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except MsgStoreError:
        raise
    except OSError as error:
        remedy = ". Allow more open files: ulimit -n" if error.errno == errno.EMFILE else ""
        raise StoreIOError(f"{error.filename or path}: {error.strerror or error}{remedy}") from error
    except Exception as error:
        if (broken := blame(error)) is None:
            raise
        raise type(broken)(f"{path}: {broken}") from error


def parse_options(given: tuple[str, ...], option: str) -> dict[str, object]:
    """Return the options of a backend that a command line gives as NAME=VALUE. Raises ConfigError."""
    found: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            begin = re.match(r"\w*", text)
            raise ConfigError(f"{option} {begin[0] if begin else ''}...: is not of the form NAME=VALUE")
        if name in found:
            raise ConfigError(f"{option} {name}: is given twice")
        found[name] = GivenText(value)
    return found


def nearest(name: str, known: list[str]) -> str:
    """Return the end of an error about an unknown name."""
    if near := difflib.get_close_matches(name, known, n=1):
        return f". Did you mean {near[0]!r}?"
    names = ", ".join(repr(one)[1:-1] or "''" for one in known[:10]) or "none"
    return f". There are: {names}" + (f" and {len(known) - 10:,} more" if len(known) > 10 else "")
