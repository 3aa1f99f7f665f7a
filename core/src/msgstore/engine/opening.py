"""Opening: a path with keywords, or a configuration file with names. Stores that are read while other processes write them.

Next to a writer nothing is recovered, because the writer keeps the index right. Without a writer the store is opened as any
other, and follows the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs

from msgstore.config import Backend, Config, StoreConfig, read_config, store_config
from msgstore.contract import ConfigError, MsgStoreError, SegmentStats, StoreError, StoreLocked, StoreMismatch
from msgstore.contract.events import StoreOpenedEvent
from msgstore.directory import known_settings, segment_number
from msgstore.engine.backends import can_be_read_live, of_index, resolve
from msgstore.engine.events import statistics_of
from msgstore.engine.open.recovery_plan import Recovery, RecoveryProgress
from msgstore.engine.open.startup import OpenDirectory, look_beside, open_directory
from msgstore.engine.read.live_reader import LiveReader, ReadView, WriterTracker
from msgstore.engine.segment.segment import Segment, io_errors
from msgstore.engine.state.checkpoint import LAYOUT, LAYOUT_KEY, rows
from msgstore.engine.stats import StoreStats, sums_of
from msgstore.engine.store import Mode, Store
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.writer_lock import check_no_writer, parse_lock

LiveMode = Literal["follow", "beside", "never"]

_MAX_ATTEMPTS = 20
"""Writers that may come and go while the store is being opened."""


def open_store(
    path: str | Path,
    *,
    mode: Mode = "rw",
    refcounts: Iterable[tuple[bytes, int]] | None = None,
    progress: RecoveryProgress | None = None,
    **keys: Any,
) -> Store:
    """Open the store in directory ``path``, which is made if need be. Other keywords are the keys of the configuration.

    A directory that a broker wrote is opened for writing with ``adopt=True`` only: see :class:`NotAdopted`.

    ``refcounts``: (id, count) pairs, used where counts must be rebuilt: after a dirty shutdown with an index that is not
    persistent, or in a directory that another program wrote. Ids that they do not name are garbage. Without them each id
    counts once.

    ``progress(done, total)`` is called, in bytes, while segments are read after a dirty shutdown.

    ``mode="r"`` refuses changes, and writes nothing into the directory, not even a lock. With an index that can be read beside
    its writer (capability LIVE_READS) another process may have the store open for writing, or open it so later: each call
    then sees everything that was confirmed before it began, or with ``fsync_every`` up to the last sync. Such an index may note
    its readers in files of its own.

    Raises ConfigError, PluginError, StoreLocked, StoreMismatch, NotAdopted, StoreError.
    """
    config = store_config({"path": path, **keys}, "open_store()", Path())
    return open_configured(config, load_catalogue(), mode=mode, refcounts=refcounts, progress=progress)


@attrs.frozen
class Stores:
    """The stores of one configuration file."""

    config: Config
    catalogue: Catalogue

    def open(
        self,
        name: str,
        *,
        mode: Mode = "rw",
        refcounts: Iterable[tuple[bytes, int]] | None = None,
        progress: RecoveryProgress | None = None,
        adopt: bool = False,
    ) -> Store:
        """Open the store of the table ``[stores.NAME]``; see :func:`open_store`. ``adopt``: as if the table said so."""
        config = self.config.store(name)
        config = attrs.evolve(config, adopt=config.adopt or adopt)
        return open_configured(config, self.catalogue, mode=mode, refcounts=refcounts, progress=progress)


def load_config(path: str | Path) -> Stores:
    """Read and check a configuration file, and load the plugins that it does not disable. Raises ConfigError."""
    config = read_config(path)
    try:
        return Stores(config, load_catalogue(config.disabled))
    except ConfigError as error:
        raise ConfigError(f"{config.file}: {error}") from error


def remembered_config(directory: Path) -> StoreConfig:
    """With the backends of a directory's last opening, else the defaults. Raises StoreError if ``msgstore.json`` cannot be
    used."""
    config = store_config({"path": directory}, str(directory), Path())
    remembered = known_settings(Files(), directory, warns=False)
    if remembered is None:
        return config
    index, form, body = Backend(remembered.index), Backend(remembered.format), Backend(remembered.body)
    return attrs.evolve(config, index=index, format=form, record=remembered.record, body=body)


def open_configured(
    config: StoreConfig,
    catalogue: Catalogue,
    *,
    mode: Mode = "rw",
    refcounts: Iterable[tuple[bytes, int]] | None = None,
    files: Files | None = None,
    progress: RecoveryProgress | None = None,
    live: LiveMode = "follow",
) -> Store:
    """Open what a checked configuration describes. ``files`` is the seam where tests count operations and inject faults.

    ``live``, of an index that can be read beside its writer: ``beside`` reads beside a writer that is there, and otherwise
    leaves no trace and ends when one comes; ``never`` is for checks of what must not change meanwhile.
    """
    if mode not in ("rw", "r"):
        raise ValueError(f"mode is 'rw' or 'r', not {mode!r}")
    counts = None if refcounts is None else list(refcounts)
    open_it = partial(open_directory, config, catalogue, files or Files(), refcounts=counts, progress=progress)
    try:
        if mode == "r" and live != "never" and can_be_read_live(config.index.name, catalogue):
            return _open_live(config, catalogue, files or Files(), open_it, follow=live == "follow")
        opened = open_it(read_only=mode == "r")
    except OSError as error:
        raise StoreError(f"{error.filename or config.path}: the store cannot be opened: {error.strerror or error}") from error
    except StoreLocked as error:
        able = [name for name in catalogue.names("index") if can_be_read_live(name, catalogue)]
        if not able or error.pid == os.getpid() or mode == "rw" or live == "never" or config.index.name in able:
            raise
        listed = " or ".join(f'index = "{name}"' for name in able)
        more = f"A store with {listed} can be read while another process writes it."
        raise StoreLocked(f"{error} {more}", error.pid) from error.__cause__
    store = Store(opened, mode)
    opened.accounting.segments.telemetry.note(
        StoreOpenedEvent,
        mode=mode,
        index=config.index.name,
        format=config.format.name,
        recovery=attrs.asdict(opened.recovery),
        statistics=statistics_of(store),
    )
    if mode == "rw" and config.on_legacy == "migrate":
        try:
            store.migrate()
        except BaseException:
            with suppress(MsgStoreError):
                store.close()  # what was migrated so far is kept, and the counts with it
            store.abandon()
            raise
    return store


def _open_live(config: StoreConfig, catalogue: Catalogue, files: Files, open_it: Any, *, follow: bool) -> LiveStore:
    """Open a store for reading. Without ``follow`` nothing is written, and it can be read until a writer comes."""
    if not config.path.is_dir():
        raise StoreError(f"{config.path}: there is no such directory")
    for _ in range(_MAX_ATTEMPTS):
        with ExitStack() as undo:
            tracker = WriterTracker(config.path)
            undo.callback(tracker.close)
            text, writer = tracker.text(), _other_writer(config.path)
            obstacle = None if follow else "it was opened without being noted anywhere. Open it again"
            try:
                if writer is not None:
                    obstacle, opened = None, look_beside(config, catalogue, files)
                else:
                    try:
                        opened = open_it(read_only=True, live=follow)
                    except (StoreError, OSError) as error:
                        if not (follow and isinstance(error.__cause__ or error, PermissionError)):
                            raise
                        obstacle = str(error)  # without a writer all can be read, but no writer would know of this reader
                        opened = open_it(read_only=True)
            except (StoreError, OSError):
                if writer is not None or tracker.text() == text:
                    raise
                continue
            store = LiveStore(opened, catalogue, tracker, obstacle)
            undo.callback(store.close)
            tracker.begin(store.make_view, ReadView(text, opened.backends, live=False) if writer is None else None)
            if writer is not None or tracker.text() == text:
                undo.pop_all()
                return store
    raise StoreError(f"{config.path}: writers came and went {_MAX_ATTEMPTS} times while the store was being opened; try again")


class LiveStore(Store):
    """A :class:`Store` with ``mode="r"`` that follows writers in other processes.

    Each call sees everything that was confirmed before it began; with ``fsync_every``, everything up to the last sync. Numbers
    are those of the last commit: buffered messages of a writer are not counted. Until a writer comes, the store shows what its
    opening recovered, unconfirmed records included.
    """

    def __init__(self, opened: OpenDirectory, catalogue: Catalogue, tracker: WriterTracker, obstacle: str | None) -> None:
        """``obstacle``: why the index cannot be read next to a writer, or None."""
        self._catalogue = catalogue
        self._tracker = tracker
        self._obstacle = obstacle
        super().__init__(opened, "r", partial(LiveReader, tracker))

    def stats(self) -> StoreStats:
        """Return statistics as of the last commit."""

        def look(view: ReadView) -> StoreStats:
            stats = super(LiveStore, self).stats()
            if not view.live:
                return stats
            segments = self._rows(view)
            messages = sum(segment.live_count for segment in segments)
            return attrs.evolve(stats, messages=messages, **sums_of(segments), recovery=Recovery("live"))

        return self._tracker.consistently(look)

    def segments(self) -> list[SegmentStats]:
        """Return statistics of every segment as of the last commit, in number order."""
        return self._tracker.consistently(lambda view: self._rows(view) if view.live else super(LiveStore, self).segments())

    def _rows(self, view: ReadView) -> list[SegmentStats]:
        with self._accounting.state_lock, io_errors(self.path):
            state = self._index.load() or {}
        try:
            found = rows(state)
        except ValueError as error:
            raise StoreError(f"{self.path}: the index is damaged: {error}") from error
        formats = view.backends.formats
        published = sorted((number, name) for name in found if (number := segment_number(name, formats.extensions)) is not None)
        stats = []
        for number, name in published:
            row, form = found[name], formats.by_extension(Path(name).suffix)
            segment = Segment(number, self.path / name, form, row.size, row.live_count, row.live_bytes)
            segment.quarantined = row.quarantined
            is_newest = (number, name) == published[-1]
            stats.append(segment.stats(current=is_newest and row.mtime_ns is None and not row.compacting))
        return stats

    def make_view(self, text: bytes) -> ReadView | None:
        """Return the view for a text of the lock file; None while a writer is opening the store.

        Raises StoreLocked if this process is the writer, StoreMismatch, StoreError.
        """
        config, directory, files = self._opened.config, self.path, self._segments.files
        _, session = parse_lock(text)
        has_writer = _other_writer(directory) is not None
        if has_writer and not session:
            return None
        if self._obstacle is not None:
            raise StoreError(
                f"{directory}: another process has opened the store since, and this one cannot read beside it: {self._obstacle}"
            )
        remembered = known_settings(files, directory)
        if remembered is None or remembered.index != config.index.name:
            found = "none" if remembered is None else repr(remembered.index)
            raise StoreMismatch(
                f"{directory}: the store is kept with the index {found} now, not with {config.index.name!r} as "
                f"configured here. Open it as its writer does."
            )
        with self._accounting.state_lock, of_index(config.index.name, config, self._catalogue, "load its entries in"):
            state = self._index.load() or {}
        if state.get(LAYOUT_KEY) != LAYOUT:
            if has_writer:
                return None
            raise StoreError(
                f"{directory}: the index is not complete: the last writer was stopped while it rebuilt it. Open the store for "
                f"writing, which does that."
            )
        backends = resolve(config, self._catalogue, remembered)
        backends.formats.check_all_read(directory, files.list(directory), remembered)
        return ReadView(text, backends)

    def close(self) -> None:
        """Close the store. A second call does nothing."""
        self._tracker.close()
        super().close()

    def abandon(self) -> None:
        """Same as ``close``: there is nothing to lose."""
        self.close()


def _other_writer(directory: Path) -> StoreLocked | None:
    """Return the error that names the process which has the store open for writing, if there is one. Raises it if that is this
    process: an index cannot be open twice."""
    try:
        check_no_writer(directory)
    except StoreLocked as error:
        if error.pid == os.getpid():
            raise
        return error
    return None
