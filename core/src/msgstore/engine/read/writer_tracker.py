"""WriterTracker a writer in another process: which text of the lock file what is read belongs to, and whether it may be trusted.

A *view* is what was found out about the store when the lock file's text was last seen to change. Everything is read within one
view: if the text is another one afterwards, it is done again in the next.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import Index, MsgStoreError, StoreClosed, StoreError, StoreLocked, StoreMismatch
from msgstore.directory import find_segments
from msgstore.engine.backends import Backends, of_index, resolve
from msgstore.engine.open.clean_marker import ShutdownFiles
from msgstore.engine.open.recovery import compare_with_index
from msgstore.engine.open.settings import known_settings
from msgstore.engine.read.lock_text import LockTextReader
from msgstore.engine.segment.errors import io_error, io_errors
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state.checkpoint import LAYOUT, LAYOUT_KEY
from msgstore.files import Files
from msgstore.lock_file import parse_lock
from msgstore.plugins.catalogue import Catalogue
from msgstore.writer_lock import check_no_writer

PATIENCE = 5.0
"""Seconds that a reader waits for a writer that is opening the store."""
_PAUSE = 0.002
_VIEWS = 100
"""Writers that may come or go while one thing is read."""

T = TypeVar("T")


@attrs.frozen(eq=False)
class ReadView:
    text: bytes
    """Of the lock file."""
    backends: Backends
    """What the directory remembered by then."""
    live: bool = True
    """False: nobody has written since the store was opened here, and what its opening recovered in memory is what there is."""


class WriterTracker:
    """Of one store that is open for reading. Any thread."""

    def __init__(self, config: StoreConfig, catalogue: Catalogue, files: Files) -> None:
        self._config = config
        self._catalogue = catalogue
        self._files = files
        self._watch = LockTextReader(config.path)
        self._settling = threading.Lock()
        self._view: ReadView | None = None
        self._index: Index | None = None
        self._obstacle: str | None = None
        self._closed = False

    @property
    def directory(self) -> Path:
        return self._config.path

    def text(self) -> bytes:
        """Of the lock file."""
        with io_errors(self._config.path):
            return self._watch.text()

    def begin(self, index: Index, view: ReadView | None, *, obstacle: str | None = None) -> None:
        """Follow the writer that there is, if ``view`` is None, else the next one that comes. ``obstacle``: why the index
        cannot do that."""
        self._index, self._view, self._obstacle = index, view, obstacle
        if view is None:
            self._settle()

    def consistently(self, call: Callable[[ReadView], T]) -> T:
        """``call(view)``, within one view. Raises what it raises, and StoreError if the store cannot be followed any more."""
        for _ in range(_VIEWS):
            view = self._view
            if view is not None:
                try:
                    result = call(view)
                except (MsgStoreError, OSError):
                    if self._is_current(view):
                        raise
                else:
                    if self._is_current(view):
                        return result
            self._settle()
        raise StoreError(f"{self._config.path}: writers came and went {_VIEWS} times within one call; try again")

    def _is_current(self, view: ReadView) -> bool:
        try:
            text = self._watch.text()
        except OSError as error:
            raise io_error(self._config.path, None, error) from error
        if self._closed:
            raise StoreClosed(f"{self._config.path}: the store is closed")
        return text == view.text

    def _settle(self) -> None:
        """Have a view of the text that is there now. Waits for a writer that is opening the store."""
        with self._settling, io_errors(self._config.path):
            until = time.monotonic() + PATIENCE
            while self._view is None or not self._is_current(self._view):
                text = self._watch.text()
                view = self._look(text)
                if view is not None:
                    self._view = view
                elif time.monotonic() > until:
                    pid, _ = parse_lock(text)
                    raise StoreLocked(
                        f"{self._config.path}: process {pid} has been opening the store for more than {PATIENCE:.0f} s. If it "
                        f"is recovering it, what it holds can be read when that is done: try again then.",
                        pid,
                    )
                else:
                    time.sleep(_PAUSE)

    def _look(self, text: bytes) -> ReadView | None:
        """The view that belongs to ``text``, if it is still there at the end. None: not yet."""
        directory, index = self._config.path, self._index
        assert index is not None
        _, session = parse_lock(text)
        writer = _writer(self._config)
        if writer is not None:
            if writer.pid == os.getpid():
                raise writer
            if not session:
                return None
        if self._obstacle is not None:
            raise StoreError(
                f"{directory}: another process has opened the store since, and this one cannot read beside it: {self._obstacle}"
            )
        remembered = known_settings(self._files, self._config, self._catalogue)
        if remembered is None or remembered.index != self._config.index.name:
            found = "none" if remembered is None else repr(remembered.index)
            raise StoreMismatch(
                f"{directory}: the store is kept with the index {found} now, not with {self._config.index.name!r} as "
                f"configured here. Open it as its writer does."
            )
        with of_index(self._config.index.name, self._config, self._catalogue, "load its entries in"):
            state = index.load() or {}
        if state.get(LAYOUT_KEY) != LAYOUT:
            if writer is not None:
                return None
            raise StoreError(
                f"{directory}: the index is not complete: the last writer was stopped while it rebuilt it. Open the store for "
                f"writing, which does that."
            )
        backends = resolve(self._config, self._catalogue, remembered)
        backends.formats.check_all_read(directory, self._files.list(directory), remembered)
        if writer is None:
            self._check_unchanged(state, backends)
        return ReadView(text, backends)

    def _check_unchanged(self, state: dict[bytes, bytes], backends: Backends) -> None:
        """Without a writer another program may have been here; what it left says what is in its segments, not our index."""
        directory = self._config.path
        segments = Segments(directory, self._files, backends.formats, sync=False)
        for found in find_segments(self._files, directory, backends.formats.extensions):
            segments.add_found(found)
        leftovers = ShutdownFiles.read(self._files, directory)
        plan = compare_with_index(state, segments, leftovers)
        if leftovers.foreign or plan.refusal is not None or plan.lost:
            raise StoreError(
                f"{directory}: another program has changed the segments since the last writer; close the store, and open it "
                f"again."
            )

    def close(self) -> None:
        self._closed = True
        self._watch.close()


def _writer(config: StoreConfig) -> StoreLocked | None:
    """Who has the store open for writing."""
    try:
        check_no_writer(config.path)
    except StoreLocked as error:
        return error
    return None
