"""Opening a store for reading with an index that can be read next to its writer."""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgstore.config import StoreConfig
from msgstore.contract import StoreError, StoreLocked
from msgstore.engine.live_store import LiveStore
from msgstore.engine.live_views import LiveViews
from msgstore.engine.open.recovery import RecoveryProgress
from msgstore.engine.open.startup import open_beside_writer, open_directory
from msgstore.engine.read.writer_tracker import ReadView, WriterTracker
from msgstore.files import Files
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
    """Open a store for reading. Next to a writer nothing is recovered: its index is right. Without one the store is opened as any
    other; unless it is to ``follow`` later writers, nothing is written for it, and it can be read until one comes.
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
