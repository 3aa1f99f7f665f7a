"""Startup: lock a directory, find its segments, recover its index. The result is what a store is assembled from."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import StoreError, StoreMismatch
from msgstore.contract.events import RecoveryFinishedEvent
from msgstore.directory import Settings, are_saved, check_writable, find_segments, known_settings, write_settings
from msgstore.engine.backends import Backends, load_entries, make_index, of_index, resolve
from msgstore.engine.events import Telemetry
from msgstore.engine.open.broker import admit
from msgstore.engine.open.recovery import recover_index, sum_counts
from msgstore.engine.open.recovery_plan import Recovery, RecoveryProgress, RecoveryRun, too_large
from msgstore.engine.segment.segment import Segment, remove_leftovers
from msgstore.engine.segment.segments import Segments, Sync
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.state.checkpoint import CLEAN_KEY, LAYOUT, LAYOUT_KEY, gone_rows
from msgstore.engine.state.clean_shutdown import ShutdownFiles, publish_clean
from msgstore.files import Files
from msgstore.locations import LIMIT
from msgstore.plugins.catalogue import Catalogue
from msgstore.plugins.loader import comes_from_outside
from msgstore.writer_lock import WriterLock, check_no_writer, read_lock

log = logging.getLogger("msgstore.store")
READ_BY_ANOTHER = "%s: %s. What it reads may be wrong."


class Resources:
    """Owner of the lock, the index and the segments of an open directory: of what ``close`` has to release."""

    def __init__(self) -> None:
        self._closers: list[Callable[[], object]] = []

    def callback(self, close: Callable[..., object], *arguments: object) -> None:
        """Add a function that releases something. ``close`` calls the last one first, and again after an interrupt."""
        self._closers.append(partial(close, *arguments))

    def close(self) -> None:
        """Release everything, also if a part fails. After an interrupt call it again: it then begins anew."""
        try:
            with ExitStack() as stack:
                for closer in self._closers:
                    stack.callback(closer)
        except Exception as error:
            if not comes_from_outside(error):
                self._closers.clear()
            raise
        self._closers.clear()


@attrs.frozen
class OpenDirectory:
    """A directory that is locked and recovered."""

    config: StoreConfig
    backends: Backends
    accounting: LiveAccounting
    recovery: Recovery
    client_refs: set[bytes]
    """Named clients of the last shutdown."""
    resources: Resources
    """Segments, index and lock."""
    lock: WriterLock | None
    """None if the store is read-only."""
    lock_text: bytes | None = None
    """Text of the lock file at opening, if the store is read-only."""


def open_directory(
    config: StoreConfig,
    catalogue: Catalogue,
    files: Files,
    resources: Resources,
    telemetry: Telemetry,
    *,
    read_only: bool,
    refcounts: Iterable[tuple[bytes, int]] | None,
    progress: RecoveryProgress | None = None,
    live: bool = False,
) -> OpenDirectory:
    """Open a directory for a store. ``live``: the index follows the commits of other processes.

    If it fails, the directory is as it was, or better: reference counts survive. The caller then closes ``resources``. Raises
    OSError, and as ``open_store``.
    """
    directory = config.path
    counts = None if refcounts is None else sum_counts(refcounts)
    with ExitStack() as undo:
        if not read_only:  # a mistake that can be refused without the lock changes nothing
            _look(config, catalogue, files, read_only=False)
        lock, lock_text = None, None
        if read_only:
            if not directory.is_dir():
                raise StoreError(f"{directory}: there is no such directory")
            lock_text = read_lock(directory)
            check_no_writer(directory)
        else:
            files.make_directory(directory)
            lock = WriterLock(directory, files)
            resources.callback(lock.release)
        config, backends, segments, remembered = _look(config, catalogue, files, read_only=read_only, lock=lock)
        segments.telemetry = telemetry
        shutdown_files = ShutdownFiles.read(files, directory)
        index = make_index(config, catalogue, files, read_only=read_only, live=live)
        resources.callback(index.close, None)
        resources.callback(segments.close)
        accounting = LiveAccounting(config, segments, index)
        segments.hints.writes = not (read_only or accounting.is_persistent)
        segments.hints.find(segments)
        with of_index(config.index.name, config, catalogue, "load its entries in"):
            state = load_entries(index)
        begin = time.perf_counter()
        run = RecoveryRun(segments, index, shutdown_files, counts, progress, keeps_copy=not read_only)
        recovery = recover_index(run, config, catalogue, state, remembered.index if remembered else config.index.name)
        if lock is not None and config.durability != "os":
            # A killed process left records, or a name, in the page cache only. A second write of such a record appends nothing,
            # and would be confirmed without a sync.
            segments.sync_found({*recovery.scanned, *recovery.hinted})
        seconds = time.perf_counter() - begin
        if recovery.how != "new" and (recovery.how != "trust" or recovery.scanned):
            telemetry.note(RecoveryFinishedEvent, recovery=attrs.asdict(recovery), seconds=seconds)
        opened = OpenDirectory(config, backends, accounting, recovery, shutdown_files.client_refs(), resources, lock, lock_text)
        if lock is not None and remembered and remembered.index != config.index.name and not shutdown_files.foreign:
            _switch_index(opened, catalogue)
            resources.close()
            again = open_directory(config, catalogue, files, resources, telemetry, read_only=False, refcounts=None)
            return attrs.evolve(again, recovery=recovery)
        if lock is not None:
            _begin_writing(opened, catalogue, state, shutdown_files, undo)
            lock.opened()
        undo.pop_all()
        return opened


def _switch_index(opened: OpenDirectory, catalogue: Catalogue) -> None:
    """Save an index that has taken over the entries of another one, as a clean shutdown does, and name it in the settings.

    Until the settings name the new index, the old one is complete; from then on the new one is. So no failure loses counts.
    """
    accounting, name = opened.accounting, opened.config.index.name
    with of_index(name, opened.config, catalogue, "save the entries of another index in"):
        accounting.save_clean(opened.client_refs)
    _save_settings(opened)
    publish_clean(accounting.segments)


def _begin_writing(
    opened: OpenDirectory,
    catalogue: Catalogue,
    state: Mapping[bytes, bytes],
    shutdown_files: ShutdownFiles,
    undo: ExitStack,
) -> None:
    """Continue the newest segment, retire the last clean shutdown if the recovery changed anything, and save the settings."""
    config, backends, accounting, recovery = opened.config, opened.backends, opened.accounting, opened.recovery
    segments = accounting.segments
    newest = segments.by_number[max(segments.by_number)] if segments.by_number else None
    if newest is not None and can_resume(newest, backends.write_format.name, config.file_size_limit):
        with segments.errors(newest):
            _, links = segments.files.identity_and_links(newest.path)
        if links == 1:  # a copy of the directory (``cp -al``) has the same file otherwise, and may have a writer
            segments.resume(newest)
    for segment in segments:
        if segment.live_count == 0 and recovery.how != "rebuild" and not recovery.lost:
            accounting.queue_deletion(segment)  # a crash came between the commit and the deletion
    saved = state.get(CLEAN_KEY)
    is_open = {**gone_rows(state, segments), LAYOUT_KEY: LAYOUT, CLEAN_KEY: None}
    marker = attrs.evolve(shutdown_files, saved=saved, state=is_open)
    if recovery.how == "trust" and saved is not None and not recovery.scanned:
        accounting.marker = marker  # nothing is written before the first change
    else:
        if segments.by_number:
            undo.callback(_stop_cleanly, accounting, opened.client_refs)
        marker.retire(segments)
        for segment in segments:
            accounting.mark_dirty(segment)
        with of_index(config.index.name, config, catalogue, "take the first changes in"):
            accounting.commit(marker.state)
    _save_settings(opened)
    if accounting.marker is None:
        marker.finish(segments)


def _save_settings(opened: OpenDirectory) -> None:
    """Write what the next opening needs to know, unless both files have it."""
    backends, segments, directory = opened.backends, opened.accounting.segments, opened.config.path
    forms = {segment.form.name: segment.form.descriptor for segment in segments}
    providers = backends.formats.catalogue.third_party_providers([("format", forms[name]) for name in sorted(forms)])
    settings = attrs.evolve(backends.settings, distributions=providers | backends.settings.distributions)
    if not are_saved(segments.files, directory, settings):
        write_settings(segments.files, directory, settings)


def _stop_cleanly(accounting: LiveAccounting, client_refs: set[bytes]) -> None:
    """Save what a late failure would lose, counts above all."""
    with suppress(OSError, StoreError):
        accounting.save_clean(client_refs)
        publish_clean(accounting.segments)


def _look(
    config: StoreConfig, catalogue: Catalogue, files: Files, *, read_only: bool, lock: WriterLock | None = None
) -> tuple[StoreConfig, Backends, Segments, Settings | None]:
    """Return the configuration, with the body codec of an adopted directory, and backends, segments and settings of the last
    opening. With the lock, what a crash left is cleared up first.

    Refuses segments that no plugin reads, newer ones than the store writes, those of a broker that are not adopted, and, if
    the configuration says so, older ones.
    """
    directory = config.path
    remembered = known_settings(files, directory, warns=read_only or lock is not None)
    backends = resolve(config, catalogue, remembered)
    _check_providers(config, backends, remembered, read_only=read_only)
    formats, ours = backends.formats, backends.write_format.descriptor
    if config.durability == "os":
        sync: Sync = "never"
    else:
        sync = "each append" if config.durability == "fsync" else "later"
    segments = Segments(directory, files, formats, sync=sync)
    segments.erase = config.erase
    if not directory.is_dir():
        return config, backends, segments, remembered
    if lock is not None:
        segments.place = lock.place
        remove_leftovers(files, directory, formats.extensions, erase=config.erase)
    formats.check_all_read(directory, files.list(directory), remembered)
    everything = find_segments(files, directory, formats.extensions, formats.leftovers)
    if not read_only:
        check_writable(files, directory, everything, formats.extensions, formats.leftovers)
    for found in everything:
        if found.size >= LIMIT:  # before anything is read: the file may be sparse
            raise too_large(found.path, found.size)
        theirs = segments.add_found(found).form.descriptor
        if theirs.generation > ours.generation and not read_only:
            raise StoreMismatch(
                f"{directory}: {found.path.name} is of format {theirs.name!r}, which is newer than {ours.name!r}: a program "
                f'that needs {ours.name!r} could not read this store any more. Open it with format = "{theirs.name}", '
                f"or copy the messages: msgstore migrate {directory} DEST --to {ours.name}"
            )
        if theirs.generation < ours.generation and config.on_legacy == "refuse" and not read_only:
            raise StoreMismatch(
                f'{directory}: {found.path.name} is of the older format {theirs.name!r}, and on_legacy is "refuse". '
                f"Run 'msgstore migrate {directory} --to {ours.name}' first."
            )
    if not read_only and (remembered is None or config.body.named):
        config = admit(config, catalogue, backends, remembered, segments)
        backends = resolve(config, catalogue, remembered)
    if read_only and segments.by_number:
        _warn_of_codec(config, remembered)
    return config, backends, segments, remembered


def look_beside(
    config: StoreConfig, catalogue: Catalogue, files: Files, resources: Resources, telemetry: Telemetry
) -> OpenDirectory:
    """Return the state of a store beside its writer. Segments and index belong to the writer: nothing is scanned or loaded."""
    remembered = known_settings(files, config.path)
    backends = resolve(config, catalogue, remembered)
    _check_providers(config, backends, remembered, read_only=True)
    backends.formats.check_all_read(config.path, files.list(config.path), remembered)
    _warn_of_codec(config, remembered)
    segments = Segments(config.path, files, backends.formats)
    segments.telemetry = telemetry
    index = make_index(config, catalogue, files, read_only=True, live=True)
    resources.callback(index.close, None)
    accounting = LiveAccounting(config, segments, index)
    return OpenDirectory(config, backends, accounting, Recovery("live"), set(), resources, None)


def _check_providers(config: StoreConfig, backends: Backends, remembered: Settings | None, *, read_only: bool) -> None:
    """Refuse a backend of another distribution than the directory remembers, whose layout may be another, unless the
    configuration adopts it. Readers are only warned."""
    used = remembered.backends if remembered and not config.adopt else ()
    for changed in backends.formats.catalogue.changed_providers(used):
        if read_only:
            log.warning(READ_BY_ANOTHER, config.path, changed)
        else:
            raise StoreMismatch(
                f"{config.path}: {changed}. Its layout may be another, so the store opens for reading only. Install the "
                "distribution that wrote the store, and remove the other. If both have the same layout, as after a change of "
                "name, open the store once with --adopt (adopt=True, adopt = true)."
            )


def _warn_of_codec(config: StoreConfig, remembered: Settings | None) -> None:
    """Log that bodies are read by another codec than they were stored by."""
    if remembered and config.body.named and remembered.body != config.body.name:
        what = "%s: was last opened with the body codec %r, and now with %r; stored bodies stay as they are"
        log.warning(what, config.path, remembered.body, config.body.name)


def can_resume(newest: Segment, format_name: str, size_limit: int) -> bool:
    """Return True if a store that writes ``format_name`` continues its newest segment."""
    return newest.appendable and newest.form.name == format_name and newest.header_bytes <= newest.size < size_limit
