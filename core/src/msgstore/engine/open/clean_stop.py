"""The clean marker of an open store, and the clean stop that sets it.

An opening that trusts the saved index changes nothing: ``clean.dot`` and the saved state stay, and still fit each other. Before
the first change to the segments ``clean.dot`` is hidden, under the name of the pending one; the first commit of the index says
that the store is open. A store in which nothing was changed is closed as it was found. So an opening that fails, and a process
that is killed before its first commit, leave the counts as they were: what was appended behind a hidden marker is a tail.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import attrs

from msgstore.engine.open import clean_marker
from msgstore.engine.open.clean_marker import CLEAN, PENDING_CLEAN, ShutdownFiles
from msgstore.engine.segment.errors import io_errors
from msgstore.engine.state.accounting import LiveAccounting


@attrs.frozen(eq=False)
class CleanStopMarker:
    """What says that the last stop was a clean one. Each method may be repeated after a failure."""

    shutdown_files: ShutdownFiles
    saved: bytes | None
    """What the saved state of the index has as the text of ``clean.dot``; None after a dirty stop."""
    state: Mapping[bytes, bytes | None]
    """What the commit takes that says that the store is open."""

    def retire(self, accounting: LiveAccounting) -> None:
        """From here on the stop counts as dirty for RabbitMQ. Caller holds ``flushing``. Raises StoreIOError.

        ``clean.dot`` goes before the index says that the store is open, or a crash in between would look as if RabbitMQ had
        been here. All rows go with the next commit: the current segment's says that it is written on.
        """
        files, directory, sync = self.shutdown_files.files, self.shutdown_files.directory, accounting.segments.is_durable
        with io_errors(directory):
            if self.saved is not None and self.saved == self.shutdown_files.pending:
                files.unlink(directory / CLEAN)
            elif self.shutdown_files.clean is not None:
                with suppress(FileNotFoundError):  # renamed already, by an attempt that failed later
                    files.replace(directory / CLEAN, directory / PENDING_CLEAN)
            if sync:
                files.sync_directory(directory)
        with accounting.state_lock:
            for segment in accounting.segments:
                accounting.mark_dirty(segment)
        current = accounting.segments.current
        if current is not None:
            accounting.segments.hints.outdate(current)

    def finish(self, accounting: LiveAccounting) -> None:
        """Behind the commit: remove what RabbitMQ must not trust beside what we write, and the pending ``clean.dot``. Raises
        StoreIOError.

        The pending one may return after a power loss; beside an index that says "open" it means nothing.
        """
        with io_errors(self.shutdown_files.directory):
            self.shutdown_files.remove(sync=accounting.segments.is_durable)


def save_clean(accounting: LiveAccounting, client_refs: set[bytes]) -> bool:
    """Save the index and the text of ``clean.dot`` for a clean stop. Caller holds ``flushing``. False if nothing has changed.

    Until the index has its state on disk, nothing has happened; from then on the stop is a clean one. Raises StoreIOError.
    """
    segments = accounting.segments
    segments.seal_current()
    numbers = ((segment.number, segment.path.suffix) for segment in segments)
    clean = clean_marker.format_clean(client_refs, clean_marker.last_v1_file(numbers))
    if accounting.marker is not None and accounting.marker.saved == clean:
        return False
    if accounting.marker is None:
        segments.hints.save(everything=True)
    with io_errors(segments.directory):
        segments.files.write_file(segments.directory / PENDING_CLEAN, [clean], sync=segments.is_durable)
        with accounting.state_lock:
            accounting.index.close(accounting.checkpoint(clean))
    return True


def publish_clean(accounting: LiveAccounting) -> None:
    """Give ``clean.dot`` its own name, last: RabbitMQ reads it, and must not before the rest is there. Raises StoreIOError."""
    segments = accounting.segments
    with io_errors(segments.directory):
        segments.files.replace(segments.directory / PENDING_CLEAN, segments.directory / CLEAN)
        if segments.is_durable:
            segments.files.sync_directory(segments.directory)
