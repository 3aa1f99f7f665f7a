"""Garbage collector: asks the GC policy for actions and carries them out, one collection at a time.

Runs next to writers, readers and removers. A damaged segment is quarantined; one that cannot be read or written now is left
for the next collection; the others are collected all the same.

A background thread starts a collection every ``gc_interval``, and soon after a segment is sealed, or records of 4 MiB have
died. What a collection could not do, for example on a full disk, is garbage still, and the next one finds it again. Writers
wait for the thread if it falls behind.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import (
    Action,
    BrokenPlugin,
    Combine,
    Compact,
    Drop,
    Migrate,
    MsgStoreError,
    SegmentStats,
    StoreClosed,
    StoreIOError,
)
from msgstore.contract.events import CollectionFinishedEvent, MessagesDroppedEvent
from msgstore.engine.backends import Backends
from msgstore.engine.compact.copy_compaction import compact_by_copy
from msgstore.engine.compact.gc_context import (
    RELOCATED_AT_ONCE,
    CollectionResult,
    GcContext,
    InconsistentSegment,
    PinnedSegment,
    pin,
)
from msgstore.engine.compact.in_place import compact_in_place
from msgstore.engine.compact.policy_actions import numbers_of, plan_of, validate_actions
from msgstore.engine.segment.segment import Segment, io_errors, remove_file
from msgstore.engine.state.accounting import LiveAccounting
from msgstore.engine.state.lifecycle import Lifecycle
from msgstore.files import READ_WHOLE
from msgstore.plugins.loader import comes_from_outside

log = logging.getLogger("msgstore.collection")

SPARE_SEGMENTS = 2
"""Writers wait if all segments together exceed twice the live bytes plus this many segments."""
_POLL_SECONDS = 0.005
_PAUSE_SECONDS = 0.02
"""Shortest time between two collections of the thread, unless writers wait."""
_REPEAT_SECONDS = 3600.0
"""A warning is logged again after this time: a collection may fail in the same way each second."""
_MAX_WARNINGS = 1000
"""Number of warnings that are remembered for that."""
_CLOCK_STEP_SECONDS = 60.0
"""A larger step of the clock is logged."""
_CLOCK_WAS_SET = "%s: the clock was set forward by %.0f s. For the GC policy no message is older until the store opens again"
_FIELDS_ARE_LOST = "%s: the format %s does not keep the fields of the migrated records, except what is in bodies: %s"
DAMAGE_ADVICE = "'msgstore verify' lists the damage, 'msgstore salvage' copies all intact records"
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that is never set; with BOOTTIME it also counts the sleep of the machine."""
ProgressCallback = Callable[[int, int], object]
"""Called with (done, total) actions."""
_Plan = Callable[[Sequence[SegmentStats], dict[int, Segment]], list[Action]]


class GarbageCollector:
    """One instance per open store. Thread-safe: takes the GC lock. While the ``thread`` is not started, nobody waits."""

    def __init__(
        self,
        config: StoreConfig,
        backends: Backends,
        accounting: LiveAccounting,
        lifecycle: Lifecycle,
        reclaim: Callable[[], None],
    ) -> None:
        """``reclaim`` commits and deletes empty segments; the caller holds the flush lock."""
        self.gc_lock = threading.Lock()
        """Held by the one thread that collects, and by a thread that closes the store."""
        self.is_stopping = False
        """Set by a thread that closes the store: a running collection ends after the current action."""
        self._context = GcContext(accounting, backends.write_format, config.file_size_limit)
        self._accounting = accounting
        self._segments = accounting.segments
        self._lifecycle = lifecycle
        self._policy, self._policy_name, self._may_drop = backends.policy, config.gc.name, backends.may_drop
        self._generation = backends.write_format.descriptor.generation
        self._reclaim = reclaim
        self.is_behind = False
        """True if writers must wait for the collection that runs or comes next. May be read without a lock."""
        self._interval = min(config.gc_interval, threading.TIMEOUT_MAX)
        self._opened, self._has_warned = time.time() - time.clock_gettime(_STEADY), False
        self._warned: dict[str, float] = {}
        """Warning to the steady time at which it was logged."""
        self._requests: SimpleQueue[None] = SimpleQueue()
        self._is_stopped = False
        name = f"msgstore-collector {accounting.segments.directory}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def stats(self) -> list[SegmentStats]:
        """Return statistics of all segments in number order. Caller holds the state lock."""
        current, limit = self._segments.current, self._context.size_limit
        return [segment.stats(current=segment is current, size_limit=limit) for segment in self._segments]

    def collect(self, *, everything: bool = False, progress: ProgressCallback | None = None) -> list[CollectionResult]:
        """Carry out what the policy plans, or with ``everything`` compact every segment with garbage; delete empty segments.

        Raises StoreClosed; after everything else is done StoreIOError, if a file operation failed, or BrokenPlugin.
        """

        def compact_all(stats: Sequence[SegmentStats], _: object) -> list[Action]:
            eligible = (s for s in stats if s.live_count and not (s.current or s.quarantined))
            return [Compact(s.number) for s in eligible if s.garbage_bytes]

        return self._carry_out(compact_all if everything else self._plan, progress)

    def migrate(self, progress: ProgressCallback | None = None) -> list[CollectionResult]:
        """Copy every segment of another format into the store's format, whatever the policy plans. Raises as ``collect``.

        Logs a warning with the fields of records that the store's format does not keep.
        """

        def plan(stats: Sequence[SegmentStats], segments: dict[int, Segment]) -> list[Action]:
            own = self._context.form.descriptor
            chosen = [s.number for s in stats if s.live_count and s.format != own.name]
            kept = [bound for number in chosen for bound in segments[number].form.with_fields.values()]
            if lost := {field.name for bound in kept for field in bound.fields}:
                log.warning(_FIELDS_ARE_LOST, self._segments.directory, own.name, ", ".join(sorted(lost)))
            return [Migrate(number) for number in chosen]

        return self._carry_out(plan, progress)

    def _plan(self, stats: Sequence[SegmentStats], segments: dict[int, Segment]) -> list[Action]:
        """Return the actions of the policy that can be carried out. Raises BrokenPlugin if it raises."""
        catalogue, where = self._segments.formats.catalogue, self._segments.directory
        try:
            actions = plan_of(self._policy, stats, self._now())
        except (Exception, SystemExit) as error:
            if comes_from_outside(error):
                raise
            text = catalogue.broken(catalogue.gc_policy(self._policy_name), "failed in plan", error)
            raise BrokenPlugin(f"{where}: nothing is collected but empty segments: {text}") from error
        good: list[Action] = []
        for action, reason in validate_actions(actions, stats, segments, self._generation, may_drop=self._may_drop):
            if reason is None:
                good.append(action)
            elif reason:
                named = self._policy_name, catalogue.provider(catalogue.gc_policy(self._policy_name)).distribution
                self._warn("%s: %.100r of the GC policy %r of %s is skipped: %s", where, action, *named, reason)
        return good

    def _warn(self, text: str, *arguments: object, traceback: bool = False) -> None:
        """Log a warning, unless the same one was logged in the last hour."""
        line, now = text % arguments, time.monotonic()
        if now - self._warned.get(line, -math.inf) < _REPEAT_SECONDS:
            return
        if len(self._warned) >= _MAX_WARNINGS:
            self._warned.clear()
        self._warned[line] = now
        log.log(logging.ERROR if traceback else logging.WARNING, "%s", line, exc_info=traceback)

    def _now(self) -> float:
        """Return the time for the policy: a clock that was set forward since the opening makes no message older (logged)."""
        now, passed = time.time(), self._opened + time.clock_gettime(_STEADY)
        if now > passed + _CLOCK_STEP_SECONDS and not self._has_warned:
            self._has_warned = True
            log.warning(_CLOCK_WAS_SET, self._segments.directory, now - passed)
        return min(now, passed)

    def _carry_out(self, plan: _Plan, progress: ProgressCallback | None) -> list[CollectionResult]:
        with self.gc_lock:
            self._lifecycle.check_open()
            with self._accounting.state_lock:
                stats, segments = self.stats(), self._segments.by_number.copy()
            failure: MsgStoreError | None = None
            try:
                actions = plan(stats, segments)
            except BrokenPlugin as error:
                actions, failure = [], error
            empty = [s for s in stats if not (s.live_count or s.current or s.quarantined)]
            with self._accounting.state_lock:
                for s in empty:
                    if s.number in self._segments.by_number:
                        self._accounting.queue_deletion(segments[s.number])
            done = [CollectionResult(s.file, s.size, 0, outcome="deleted") for s in empty]
            for at, action in enumerate(actions):
                if self.is_stopping:
                    break
                try:
                    done += self._act(action)
                except StoreIOError as error:
                    self._warn("%r failed and is left for the next collection: %s", action, error)
                    failure = failure or error
                if progress:
                    with self._lifecycle.callbacks.running():
                        progress(at + 1, len(actions))
            if done or self._accounting.has_empty:
                self._delete_empty()
            self.erase()
            if failure:
                raise failure
            return done

    def _act(self, action: Action) -> list[CollectionResult]:
        begin = time.perf_counter()
        self._segments.check_directory()
        try:
            with pin(self._context, numbers_of(action)) as pinned:
                done = self._collect(action, pinned) if pinned else []
        except InconsistentSegment as error:
            done = [self._skip(error)]
        else:
            if any(not result.size_after for result in done):
                self._delete_empty()
        seconds = time.perf_counter() - begin
        for result in done:
            self._segments.telemetry.note(CollectionFinishedEvent, seconds=seconds, **attrs.asdict(result))
        return done

    def _collect(self, action: Action, pinned: Sequence[PinnedSegment]) -> list[CollectionResult]:
        segment = pinned[0].segment
        if isinstance(action, Drop):
            return [self._drop(pinned[0], action.reason)]
        if not isinstance(action, Compact):
            return compact_by_copy(self._context, pinned, "combined" if isinstance(action, Combine) else "migrated")
        if segment.header_bytes + segment.live_bytes == segment.size:
            return []  # no garbage: the policy was asked while a flush wrote it, before the index had its records
        in_place = self._may_change(segment)
        if in_place and (result := compact_in_place(self._context, pinned[0])) is not None:
            return [result]
        try:
            return compact_by_copy(self._context, pinned, "compacted")
        except StoreIOError:
            if in_place and (result := compact_in_place(self._context, pinned[0], math.inf)) and result.outcome != "none":
                return [result]  # a full disk has no room for a copy: what gaps can take is freed all the same
            raise

    def _may_change(self, segment: Segment) -> bool:
        """Return True if a segment may be compacted in place. Otherwise it is copied. Raises StoreIOError.

        Not if removed bodies must be overwritten: a crash would leave them in the gaps. Nor if other processes map the file:
        a truncation would kill them. Nor if it has further hard links: another directory, made by ``cp -al``, has it as well.
        """
        if segment.form.compactable is None or self._segments.erase or segment.size > READ_WHOLE:
            return False
        with self._segments.errors(segment):
            return self._segments.files.identity_and_links(segment.path)[1] == 1

    def _drop(self, source: PinnedSegment, reason: str) -> CollectionResult:
        """Release all references of every message in a pinned segment. Raises InconsistentSegment, StoreIOError."""
        segment, index, size, released = source.segment, self._accounting.index, source.segment.live_bytes, 0
        with self._segments.errors(segment), self._segments.files.view(segment.path) as data:
            live = source.live(self._context, data)
        for begin in range(0, len(live), RELOCATED_AT_ONCE):
            part = live.part(begin, begin + RELOCATED_AT_ONCE)
            with self._accounting.state_lock, self._accounting.change:
                located = zip(part.ids, part.locations(segment.number), strict=True)
                ids = [msg_id for msg_id, location in located if location not in source.died]
                references = [msg_id for msg_id in ids for _ in range(index.references(msg_id))]
                self._accounting.mark_dead(self._accounting.release(references).freed)
            released += len(ids)
        self._context.commit()
        log.warning("%s: dropped with %d live messages: %s", segment.path, released, reason)
        event = {"file": segment.path.name, "messages": released, "bytes": size, "reason": reason}
        self._segments.telemetry.note(MessagesDroppedEvent, **event)
        return CollectionResult(segment.path.name, segment.size, 0, outcome="dropped", dropped=released)

    def _skip(self, error: InconsistentSegment) -> CollectionResult:
        """Leave a segment as it is. A damaged one is quarantined; after a failure of a plugin the policy does not get it again
        before more of it has died."""
        segment = error.segment
        advice = f". {DAMAGE_ADVICE}" if error.damaged else ""
        what = "%s: %s; the segment is kept as it is and not collected%s"
        log.warning(what, segment.path, error.reason.rstrip("."), advice)
        if error.damaged:
            self._segments.telemetry.damage(segment.path.name, None, error.reason)
            with self._accounting.flush_lock:
                self._segments.hints.drop(segment)  # a hint file does not know of damage
                with self._accounting.state_lock:
                    segment.quarantined = True
                    self._accounting.mark_dirty(segment)
            self._context.commit()
        else:
            segment.compacted_live_bytes = segment.live_bytes
        return CollectionResult(segment.path.name, segment.size, segment.size, skipped=error.reason, outcome="none")

    def _delete_empty(self) -> None:
        with self._accounting.flush_lock, self._accounting.change:
            self._segments.check_directory()
            if self._accounting.has_empty:
                self._accounting.begin_change()
            self._reclaim()
        self.erase()

    def erase(self) -> None:
        """Overwrite and unlink deleted segments, whose renames must be on disk first. Raises StoreIOError."""
        pending = self._segments.pending_erase
        if pending:
            self._segments.sync_directory()
        while pending:
            with io_errors(pending[0]):
                remove_file(self._segments.files, pending[0], erase=True)
            pending.pop(0)

    # -- in the background ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the thread after its current action, and wait for it. Caller holds no lock."""
        self._is_stopped = self.is_stopping = True
        self._requests.put(None)
        if self.thread.is_alive() and threading.current_thread() is not self.thread:
            self.thread.join()

    def request(self, *, has_grown: bool = False) -> None:
        """Start a collection soon. ``has_grown``: let writers wait for it if there is too much garbage. Takes no lock."""
        if has_grown and self.thread.is_alive() and self._excess() is not None:
            self.is_behind = True
        if not self._requests.qsize():
            self._requests.put(None)

    def wait_for_backlog(self) -> None:
        """Block until garbage is below the limit or none can be collected. Caller does not hold the flush lock."""
        while self.is_behind and self.thread.is_alive():
            time.sleep(_POLL_SECONDS)

    def _run(self) -> None:
        store = self._segments.directory
        self._lifecycle.own_threads.add(threading.get_ident())
        while not self._is_stopped:
            with suppress(Empty):
                self._requests.get(timeout=self._interval)
            try:
                while not self._is_stopped and self._collect_backlog():
                    pass
            except StoreClosed:
                break
            except MsgStoreError as error:
                self._warn("%s: a collection failed and is tried again: %s", store, error)
            except (Exception, SystemExit) as error:  # writers must not wait for a thread that has ended
                self._warn("%s: a collection failed and is tried again: %r", store, error, traceback=True)
            self.is_behind = False
            if not self._is_stopped:
                time.sleep(_PAUSE_SECONDS)
        self.is_behind = False

    def _collect_backlog(self) -> bool:
        """Run one collection. Return True if writers must wait for the next one, which may free something."""
        before = self._excess()
        self.is_behind = before is not None
        self.collect()
        after = self._excess()
        return after is not None and (before is None or after < before)

    def _excess(self) -> int | None:
        """Return the bytes of all segments if writers have to wait, else None."""
        size, live = self._accounting.total_bytes()
        return size if size > 2 * live + SPARE_SEGMENTS * self._context.size_limit else None
