"""Opening a directory: who may, what is in it, and whether the index still speaks of it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import Index, PluginError, StoreError, StoreMismatch
from msgstore.contract.locations import LIMIT
from msgstore.directory import (
    DamagedSettings,
    Settings,
    adopt_leftovers,
    check_writable,
    find_segments,
    has_copy,
    read_settings,
    write_settings,
)
from msgstore.engine.adoption import admit, check_guess, codec_of_records
from msgstore.engine.backends import Backends, make_index, make_remembered_index, of_index, resolve
from msgstore.engine.broker_counts import read_broker_counts, tell_missing
from msgstore.engine.checkpoint import CLEAN_KEY, LAYOUT, LAYOUT_KEY, gone_rows
from msgstore.engine.erasing import remove_leftovers
from msgstore.engine.happenings import Happenings
from msgstore.engine.ledger import Ledger
from msgstore.engine.lock import WriterLock, check_no_writer
from msgstore.engine.lock_file import read_lock
from msgstore.engine.losses import mend, tell_lost, without_segments
from msgstore.engine.marker import CleanMarker, publish_clean, save_clean
from msgstore.engine.reader import Reader
from msgstore.engine.reconcile import rebuild_distrusted, reconcile
from msgstore.engine.recovery import Meter, Plan, Progress, Recovery, judge, rebuild, scan_tail, sum_counts, take_over, verify
from msgstore.engine.rescued import rescued_counts, restore_counts
from msgstore.engine.segments import Segment, Segments
from msgstore.engine.settings import keep_damaged, known_settings, rebuild_settings
from msgstore.engine.shared_bodies import SharedBodies
from msgstore.engine.shutdown import Leftovers
from msgstore.engine.writer import Writer
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue

log = logging.getLogger("msgstore.recovery")
_store_log = logging.getLogger("msgstore.store")


@attrs.frozen
class Parts:
    """What an open store is made of."""

    backends: Backends
    segments: Segments
    writer: Writer
    reader: Reader
    recovery: Recovery
    client_refs: set[bytes]
    lock: WriterLock | None
    """None if the store is read-only."""


def open_parts(
    config: StoreConfig,
    catalogue: Catalogue,
    files: Files,
    *,
    read_only: bool,
    refcounts: Iterable[tuple[bytes, int]] | None,
    progress: Progress | None = None,
    live: bool = False,
) -> Parts:
    """Everything between a configuration and a store that serves. ``live``: the index is to see what others commit."""
    directory = config.path
    counts = None if refcounts is None else sum_counts(refcounts)
    index: Index | None = None
    segments: Segments | None = None
    lock: WriterLock | None = None
    ledger: Ledger | None = None
    retired = False  # whether the clean stop of before is retired, and a failed opening has to be a clean stop of its own
    try:
        config = _look(config, catalogue, files, read_only=read_only)
        lock_text = read_lock(directory) if read_only else None
        lock = _enter(files, directory, read_only=read_only)
        rebuilt: Settings | None = None
        is_guessed = False
        try:
            remembered = read_settings(files, directory)
        except DamagedSettings as error:
            remembered = rebuilt = rebuild_settings(files, config, catalogue, error)
            is_guessed = error.copy is None
        backends = resolve(config, catalogue, remembered)
        if not read_only:
            adopt_leftovers(files, directory, backends.formats.extensions, backends.formats.leftovers)
            remove_leftovers(files, directory, backends.formats.extensions, erase=config.erase)
        segments = _find(config, backends, files, remembered, read_only=read_only)
        segments.place = lock.place if lock is not None else None
        if rebuilt is not None and is_guessed and not (read_only and config.body.named):
            config = attrs.evolve(config, body=codec_of_records(config, catalogue, backends.codec, files, segments))
            remembered = rebuilt = attrs.evolve(rebuilt, body=config.body.name)
            backends = resolve(config, catalogue, remembered)
        if rebuilt is not None and not read_only:  # first, or an attempt that fails leaves younger files of another index
            keep_damaged(files, directory)
            write_settings(files, directory, rebuilt)
        if segments.by_number:
            _tell_of_codec(config, remembered)
        segments.happenings = Happenings(directory, catalogue.observers)
        leftovers = Leftovers.read(files, directory)
        shared = SharedBodies(config.shared_cache)
        index, persistent = make_index(config, catalogue, files, shared.ids, read_only=read_only, live=live)
        segments.hints.writes = not (read_only or persistent)
        segments.hints.find(segments)
        with of_index(config.index.name, config, catalogue, "load its entries in"):
            state = index.load() or {}
        begin = time.perf_counter()
        recovery = _recover(
            config, catalogue, segments, index, state, remembered, leftovers, counts, progress, read_only=read_only
        )
        segments.happenings.recovered(recovery, time.perf_counter() - begin)
        ledger = Ledger(segments, index, shared, persistent=persistent)
        writer = Writer(config, backends, ledger, read_only=read_only)
        if not read_only:
            _resume(config, backends, segments)
            _note_empty(segments, ledger, recovery)
            saved = state.get(CLEAN_KEY)
            marker = CleanMarker(leftovers, saved, {**gone_rows(state, segments), LAYOUT_KEY: LAYOUT, CLEAN_KEY: None})
            if recovery.how == "trust" and saved is not None and not recovery.scanned:
                ledger.marker = marker  # nothing changes before the first change
            else:
                retired = bool(segments.by_number)
                marker.hide(ledger)
                with of_index(config.index.name, config, catalogue, "take the first changes in"):
                    ledger.commit(marker.state)
            settings = _settings(backends, segments)
            if remembered != settings or not has_copy(files, directory, settings):
                write_settings(files, directory, settings)
            if ledger.marker is None:
                marker.finish(ledger)
        if lock is not None:
            lock.opened()
        mapped = config.reads == "mmap" and not read_only and _has_global_lock()
        reader = Reader(writer, segments, plain=backends.plain_bodies, mapped=mapped, lock_text=lock_text)
        return Parts(backends, segments, writer, reader, recovery, leftovers.client_refs(), lock)
    except BaseException as error:
        with ExitStack() as stack:
            if segments is not None:
                stack.callback(segments.happenings.failed_to_open)  # last, when nothing is held any more
            if lock is not None:
                stack.callback(lock.release)
            if index is not None:
                stack.callback(index.close, None)
                if retired and ledger is not None:
                    stack.callback(_stop_cleanly, ledger, leftovers.client_refs())
            if segments is not None:
                stack.callback(segments.close)
        if isinstance(error, OSError):
            raise StoreError(f"{error.filename or directory}: the store cannot be opened: {error.strerror or error}") from error
        raise


def parts_beside(config: StoreConfig, catalogue: Catalogue, files: Files) -> Parts:
    """The same for reading beside a writer in another process. The segments are that one's: nothing is looked at or loaded."""
    remembered = known_settings(files, config, catalogue)
    backends = resolve(config, catalogue, remembered)
    backends.formats.check_all_read(config.path, files.list(config.path), remembered)
    _tell_of_codec(config, remembered)
    segments = Segments(config.path, files, backends.formats, sync=False)
    shared = SharedBodies(config.shared_cache)
    index, persistent = make_index(config, catalogue, files, shared.ids, read_only=True, live=True)
    writer = Writer(config, backends, Ledger(segments, index, shared, persistent=persistent), read_only=True)
    reader = Reader(writer, segments, plain=backends.plain_bodies, mapped=False)
    return Parts(backends, segments, writer, reader, Recovery("live"), set(), None)


def _look(config: StoreConfig, catalogue: Catalogue, files: Files, *, read_only: bool) -> StoreConfig:
    """Refuse what can be refused without a lock, so that a mistake touches nothing. Returns the configuration, with the body
    codec that an adopted directory has."""
    try:
        remembered = read_settings(files, config.path)
    except DamagedSettings as error:
        if error.copy is None:
            if not read_only:
                check_guess(config, files, error)
            return config  # what it was is found out when nobody writes
        remembered = error.copy
    backends = resolve(config, catalogue, remembered)
    if not config.path.is_dir():
        return config
    segments = _find(config, backends, files, remembered, read_only=read_only)
    return config if read_only else admit(config, catalogue, backends, files, remembered, segments)


def _tell_of_codec(config: StoreConfig, remembered: Settings | None) -> None:
    if remembered and config.body.named and remembered.body != config.body.name:
        _store_log.warning(
            "%s: was last opened with the body codec %r, and now with %r; bodies that are there stay as they were stored",
            config.path,
            remembered.body,
            config.body.name,
        )


def _settings(backends: Backends, segments: Segments) -> Settings:
    """What the directory will remember: where a format is somebody else's, for as long as there are segments of it."""
    found = {segment.form.name: segment.form.descriptor for segment in segments.by_number.values()}
    strangers = backends.formats.catalogue.strangers([("format", found[name]) for name in sorted(found)])
    return attrs.evolve(backends.settings, distributions=strangers | backends.settings.distributions)


def _has_global_lock() -> bool:
    """Only the interpreter's lock keeps a slice of a mapping from being taken while another thread closes it."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def _note_empty(segments: Segments, ledger: Ledger, recovery: Recovery) -> None:
    for segment in segments:
        if segment.live_count == 0 and recovery.how != "rebuild":
            ledger.note_empty(segment)  # a crash came between the commit that emptied it and its deletion


def _stop_cleanly(ledger: Ledger, client_refs: set[bytes]) -> None:
    """Of an opening that fails late: leave what it has found out, counts above all, to the next one."""
    with suppress(OSError, StoreError):
        save_clean(ledger, client_refs)
        publish_clean(ledger)


def _enter(files: Files, directory: Path, *, read_only: bool) -> WriterLock | None:
    if read_only:
        if not directory.is_dir():
            raise StoreError(f"{directory}: there is no such directory")
        check_no_writer(directory)
        return None
    files.make_directory(directory)
    return WriterLock(directory, files)


def _find(config: StoreConfig, backends: Backends, files: Files, remembered: Settings | None, *, read_only: bool) -> Segments:
    """The segments. Refuses those that no plugin reads, newer ones than the store writes, and older ones if the configuration
    says so."""
    backends.formats.check_all_read(config.path, files.list(config.path), remembered)
    segments = Segments(config.path, files, backends.formats, sync=config.durability == "fsync")
    segments.sync_later = config.fsync_every is not None
    segments.erase = config.erase
    segments.durable = config.durability != "os"
    ours = backends.write_format.descriptor
    everything = find_segments(files, config.path, backends.formats.extensions, backends.formats.leftovers)
    if not read_only:
        check_writable(files, config.path, everything, backends.formats.extensions)
    for found in everything:
        if found.size >= LIMIT:  # said before anything is read: it may be sparse, and reading it take hours
            raise StoreError(f"{found.path}: has {found.size} bytes; segments of 1 TiB and more are not supported")
        theirs = segments.add_found(found).form.descriptor
        if theirs.generation > ours.generation and not read_only:
            raise StoreMismatch(
                f"{config.path}: {found.path.name} is of format {theirs.name!r}, which is newer than {ours.name!r}: a program "
                f'that needs {ours.name!r} could not read this store any more. Write format = "{theirs.name}".'
            )
        if theirs.generation < ours.generation and config.on_legacy == "refuse" and not read_only:
            raise StoreMismatch(
                f'{config.path}: {found.path.name} is of the older format {theirs.name!r}, and on_legacy is "refuse". '
                f"Run 'msgstore migrate {config.path} --to {ours.name}' first."
            )
    return segments


def _recover(
    config: StoreConfig,
    catalogue: Catalogue,
    segments: Segments,
    index: Index,
    state: Mapping[bytes, bytes],
    remembered: Settings | None,
    leftovers: Leftovers,
    counts: Mapping[bytes, int] | None,
    progress: Progress | None,
    *,
    read_only: bool,
) -> Recovery:
    refusal = plan = None
    rescued: Mapping[bytes, int] = {}  # of the index of the last opening, and of no broker's that came behind it
    if not segments.by_number:
        recovery = without_segments(state, index)
        if leftovers.foreign and counts is None:
            tell_missing(segments, leftovers, recovery)
        index.clear()
    elif leftovers.foreign:
        recovery, refusal = Recovery(), "RabbitMQ has saved one of its own since"
        plan = judge(state, segments, leftovers)
    elif remembered is None or remembered.index == config.index.name:
        recovery = Recovery("trust")
        rescued = rescued_counts(index, state)
        plan = judge(state, segments, leftovers)
        refusal = _follow(
            plan, segments, index, index, recovery, progress, counted=counts is not None, keeps_copy=not read_only
        )
    else:
        recovery = Recovery("taken over")
        refusal, rescued = _take_over(
            config, catalogue, segments, index, remembered.index, leftovers, recovery, progress, counted=counts is not None
        )
    if refusal is not None:
        log.info("%s: the index is made anew from the segments: %s", config.path, refusal)
        broker = read_broker_counts(segments, leftovers, read_only=read_only) if leftovers.foreign and counts is None else None
        recovery = Recovery("rebuild", lost=recovery.lost)
        if plan is not None and plan.rows:
            recovery.distrust = refusal
            rebuild_distrusted(segments, index, plan, counts, recovery, progress, broker, keeps_copy=not read_only)
        else:
            rebuild(segments, index, counts, recovery, progress, broker)
        if counts is None:
            restore_counts(segments, index, rescued, recovery)
    tell_lost(segments, recovery)
    return recovery


def _take_over(
    config: StoreConfig,
    catalogue: Catalogue,
    segments: Segments,
    index: Index,
    name: str,
    leftovers: Leftovers,
    recovery: Recovery,
    progress: Progress | None,
    *,
    counted: bool,
) -> tuple[str | None, Mapping[bytes, int]]:
    """Move from the index of the last opening to the configured one, with every reference count. Returns why it cannot be, and
    the counts that were read from its damaged files."""
    try:
        other = make_remembered_index(name, config, catalogue, segments.files)
    except PluginError as error:
        if counted:
            return str(error), {}
        raise StoreMismatch(
            f"{config.path}: was last opened with the index {name!r}, which has the reference counts. To rebuild without it "
            f"pass them yourself (refcounts=, --refcounts); to use it: {error}"
        ) from error
    try:
        with of_index(name, config, catalogue, "load its entries in"):
            state = other.load() or {}
        plan = judge(state, segments, leftovers)
        refusal = _follow(plan, segments, other, index, recovery, progress, counted=counted, keeps_copy=False)
        return refusal, rescued_counts(other, state)
    finally:
        other.close(None)


def _follow(
    plan: Plan,
    segments: Segments,
    source: Index,
    index: Index,
    recovery: Recovery,
    progress: Progress | None,
    *,
    counted: bool,
    keeps_copy: bool,
) -> str | None:
    """Carry a plan out: check, take over if ``source`` is another index, scan the tails, mend. Returns why it cannot be.

    ``counted``: there are counts for a rebuild, which are better than those of an index that has to be mended. ``keeps_copy``:
    of the counts of an index that has to be reconciled; one that is taken over stays as it is.
    """
    recovery.lost = plan.lost
    refusal = plan.refusal or _refuted(plan, segments, source, recovery, progress)
    if refusal is not None and plan.rows and not counted:
        if source is not index:
            take_over(segments, index, source)
        reconcile(segments, index, plan, refusal, recovery, progress, keeps_copy=keeps_copy)
        return None
    if refusal is not None:
        return refusal
    if plan.lost and counted:
        return "segments are missing or shortened, and counts were given"
    if source is not index:
        take_over(segments, index, source)
    elif plan.tails:
        recovery.how = "tail"
    for segment, start in plan.tails:
        scan_tail(segments, index, segment, start, recovery)
    if plan.lost:
        mend(segments, index, recovery, progress)
    return None


def _refuted(plan: Plan, segments: Segments, source: Index, recovery: Recovery, progress: Progress | None) -> str | None:
    """What shows, in segments whose time has changed, that the index does not speak of them; None if nothing does."""
    meter = Meter(plan.verify, progress)
    for segment in plan.verify:
        if not verify(segments, source, segment, recovery):
            return f"{segment.path.name} was changed, and does not hold what the index has in it"
        meter.add(segment)
    return None


def _resume(config: StoreConfig, backends: Backends, segments: Segments) -> None:
    """Go on writing the newest segment if its end is clean, it is of the store's format, and there is room.

    One with several hard links is not continued: a copy of the directory (``cp -al``) has the same file, and may have a writer.
    """
    newest = segments.by_number[max(segments.by_number)] if segments.by_number else None
    if newest is None or not goes_on_in(newest, backends.write_format.name, config.file_size_limit):
        return
    with segments.errors(newest):
        _, links = segments.files.identity_and_links(newest.path)
    if links == 1:
        segments.resume(newest)


def goes_on_in(newest: Segment, format_name: str, size_limit: int) -> bool:
    """Whether a store that writes ``format_name`` goes on writing its newest segment."""
    return newest.appendable and newest.form.name == format_name and newest.header_bytes <= newest.size < size_limit
