"""Opening a store for reading with an index that can be read next to its writer."""

from __future__ import annotations

import os
from collections.abc import Iterable

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import Index, StoreError, StoreLocked, StoreMismatch
from msgstore.directory import find_segments
from msgstore.engine.backends import Backends, of_index, resolve
from msgstore.engine.live_store import LiveStore
from msgstore.engine.open.clean_shutdown import ShutdownFiles
from msgstore.engine.open.recovery_plan import RecoveryProgress, compare_with_index
from msgstore.engine.open.settings import known_settings
from msgstore.engine.open.startup import open_beside_writer, open_directory
from msgstore.engine.read.writer_tracker import ReadView, WriterTracker
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state.checkpoint import LAYOUT, LAYOUT_KEY
from msgstore.files import Files
from msgstore.lock_file import parse_lock
from msgstore.plugins.catalogue import Catalogue
from msgstore.writer_lock import check_no_writer

_NOT_NOTED = "it was opened without being noted anywhere. Open it again"
_MAX_ATTEMPTS = 20
"""Writers that may come and go while the store is being opened."""


def open_live(
    config: StoreConfig,
    catalogue: Catalogue,
    files: Files,
    *,
    refcounts: Iterable[tuple[bytes, int]] | None,
    progress: RecoveryProgress | None,
    follow: bool,
) -> LiveStore:
    """Open a store for reading. Next to a writer nothing is recovered, because the writer keeps the index right. Without a
    writer the store is opened as any other; without ``follow`` nothing is written, and it can be read until a writer comes.
    """
    if not config.path.is_dir():
        raise StoreError(f"{config.path}: there is no such directory")
    counts = None if refcounts is None else list(refcounts)
    for _ in range(_MAX_ATTEMPTS):
        tracker = WriterTracker(config.path)
        try:
            store = _open(config, catalogue, files, tracker, counts, progress, follow=follow)
        except BaseException:
            tracker.close()
            raise
        if store is not None:
            return store
        tracker.close()
    raise StoreError(f"{config.path}: writers came and went {_MAX_ATTEMPTS} times while the store was being opened; try again")


def _open(
    config: StoreConfig,
    catalogue: Catalogue,
    files: Files,
    tracker: WriterTracker,
    counts: Iterable[tuple[bytes, int]] | None,
    progress: RecoveryProgress | None,
    *,
    follow: bool,
) -> LiveStore | None:
    """Return None if a writer came meanwhile."""
    text = tracker.text()
    try:
        check_no_writer(config.path)
    except StoreLocked as error:
        if error.pid == os.getpid():
            raise
        return _open_beside(config, catalogue, files, tracker)
    obstacle = None if follow else _NOT_NOTED
    try:
        try:
            opened = open_directory(config, catalogue, files, read_only=True, live=follow, refcounts=counts, progress=progress)
        except StoreError as error:
            if not (follow and isinstance(error.__cause__, PermissionError)):
                raise
            obstacle = str(error)  # without a writer all can be read, but no writer would know of this reader
            opened = open_directory(config, catalogue, files, read_only=True, refcounts=counts, progress=progress)
    except StoreError:
        if tracker.text() == text:
            raise
        return None
    store = LiveStore(opened, tracker, files)
    views = LiveViews(config, catalogue, files, opened.accounting.index, obstacle)
    tracker.begin(views.make, ReadView(text, opened.backends, live=False))
    if tracker.text() != text:
        store.close()
        return None
    return store


def _open_beside(config: StoreConfig, catalogue: Catalogue, files: Files, tracker: WriterTracker) -> LiveStore:
    opened = open_beside_writer(config, catalogue, files)
    store = LiveStore(opened, tracker, files)
    try:
        tracker.begin(LiveViews(config, catalogue, files, opened.accounting.index).make, None)
    except BaseException:
        store.close()
        raise
    return store


@attrs.frozen
class LiveViews:
    """Makes the views of one store that is open for reading."""

    config: StoreConfig
    catalogue: Catalogue
    files: Files
    index: Index
    obstacle: str | None = None
    """Why the index cannot be read next to a writer, or None."""

    def make(self, text: bytes) -> ReadView | None:
        """Return the view for a text of the lock file; None while a writer is opening the store.

        Raises StoreLocked if this process is the writer, StoreMismatch, StoreError.
        """
        directory = self.config.path
        _, session = parse_lock(text)
        writer = self._writer()
        if writer is not None:
            if writer.pid == os.getpid():
                raise writer
            if not session:
                return None
        if self.obstacle is not None:
            raise StoreError(
                f"{directory}: another process has opened the store since, and this one cannot read beside it: {self.obstacle}"
            )
        remembered = known_settings(self.files, self.config, self.catalogue)
        if remembered is None or remembered.index != self.config.index.name:
            found = "none" if remembered is None else repr(remembered.index)
            raise StoreMismatch(
                f"{directory}: the store is kept with the index {found} now, not with {self.config.index.name!r} as "
                f"configured here. Open it as its writer does."
            )
        with of_index(self.config.index.name, self.config, self.catalogue, "load its entries in"):
            state = self.index.load() or {}
        if state.get(LAYOUT_KEY) != LAYOUT:
            if writer is not None:
                return None
            raise StoreError(
                f"{directory}: the index is not complete: the last writer was stopped while it rebuilt it. Open the store for "
                f"writing, which does that."
            )
        backends = resolve(self.config, self.catalogue, remembered)
        backends.formats.check_all_read(directory, self.files.list(directory), remembered)
        if writer is None:
            self._check_unchanged(state, backends)
        return ReadView(text, backends)

    def _writer(self) -> StoreLocked | None:
        """Return the error that names the process which has the store open for writing, if there is one."""
        try:
            check_no_writer(self.config.path)
        except StoreLocked as error:
            return error
        return None

    def _check_unchanged(self, state: dict[bytes, bytes], backends: Backends) -> None:
        """Raise StoreError if another program has changed the segments since the last writer: then the index is out of date."""
        directory = self.config.path
        segments = Segments(directory, self.files, backends.formats, sync=False)
        for found in find_segments(self.files, directory, backends.formats.extensions):
            segments.add_found(found)
        shutdown_files = ShutdownFiles.read(self.files, directory)
        plan = compare_with_index(state, segments, shutdown_files)
        if shutdown_files.foreign or plan.refusal is not None or plan.lost:
            raise StoreError(
                f"{directory}: another program has changed the segments since the last writer; close the store, and open it "
                f"again."
            )
