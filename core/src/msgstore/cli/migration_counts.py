"""File with the counts of a store during a migration in place. A kill loses the counts of an index that is in memory, such as
``ets``, and those that a broker saved: the second attempt would count each message once, also removed ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from msgstore.cli.options import StoreTarget
from msgstore.contract import Capability, StoreError
from msgstore.directory import has_settings
from msgstore.engine.open.recovery import MIGRATION_COUNTS
from msgstore.engine.state.clean_shutdown import CLEAN
from msgstore.files import Files
from msgstore.writer_lock import check_no_writer

_LINES = 20_000
"""Lines that are written at once."""


@contextmanager
def saved_counts(target: StoreTarget, to_format: str) -> Iterator[None]:
    """Save the counts before the block opens the store for writing, and delete the file when the store is closed.

    Saves nothing for a persistent index, for a directory that the block will refuse, and without segments of another format.
    Raises StoreError if a killed migration has left the file, unless counts are given; StoreIOError.
    """
    file, is_store = target.path / MIGRATION_COUNTS, has_settings(target.path)
    is_kept = Capability.PERSISTENT in target.catalogue.index(target.config.index.name).capabilities
    if is_kept or not (is_store or target.adopt or target.config.adopt):
        yield
        return
    check_no_writer(target.path)
    if file.exists() and is_store and target.refcounts_file is None:
        clean = target.path / CLEAN  # after another opening, which has counted each message once
        forget = f"delete {clean}, and " if clean.exists() else ""
        raise StoreError(
            f"{file}: a migration was stopped here before it could save the counts. If nothing has been written to the store "
            f"since, {forget}give the counts of before: --refcounts {file}. Otherwise move the file away: the counts are lost, "
            "and each message counts once, also removed ones."
        )
    _save(target, to_format)
    try:
        yield
    finally:
        if (target.path / CLEAN).exists() or not has_settings(target.path):  # closed cleanly, or not even adopted
            file.unlink(missing_ok=True)


def _save(target: StoreTarget, to_format: str) -> None:
    logging.disable(logging.WARNING)  # the opening for writing logs the same
    try:
        with target.open("r") as store:
            if not store.stats().recovery.counts_are_kept or all(segment.format == to_format for segment in store.segments()):
                return
            lines = (f"{entry.msg_id.hex()},{entry.references}\n".encode() for entry in store.entries())
            chunks = iter(lambda: b"".join(islice(lines, _LINES)), b"")
            Files().write_file(target.path / MIGRATION_COUNTS, chunks, sync=True)
    finally:
        logging.disable(logging.NOTSET)
