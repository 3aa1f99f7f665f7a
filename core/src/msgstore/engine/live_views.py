"""Read views of a store that other processes write: may the index be trusted while the lock file has this text?"""

from __future__ import annotations

import os

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import Index, StoreError, StoreLocked, StoreMismatch
from msgstore.directory import find_segments
from msgstore.engine.backends import Backends, of_index, resolve
from msgstore.engine.open.clean_marker import ShutdownFiles
from msgstore.engine.open.recovery import compare_with_index
from msgstore.engine.open.settings import known_settings
from msgstore.engine.read.writer_tracker import ReadView
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state.checkpoint import LAYOUT, LAYOUT_KEY
from msgstore.files import Files
from msgstore.lock_file import parse_lock
from msgstore.plugins.catalogue import Catalogue
from msgstore.writer_lock import check_no_writer


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
