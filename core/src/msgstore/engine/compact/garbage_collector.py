"""GarbageCollector: the actions that a GC policy plans, carried out one after the other, one collection at a time.

Runs on the thread that calls it, beside writers, readers and removers. A segment in which damage is met is quarantined; one
that cannot be read or written now is left for later; the others go on.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from msgstore.contract import Action, Combine, Compact, Drop, Migrate, SegmentStats, StoreIOError
from msgstore.engine.compact import copy_compaction as rewriting
from msgstore.engine.compact import in_place as compaction
from msgstore.engine.compact import policy_actions as plans
from msgstore.engine.compact import retention
from msgstore.engine.compact.collection_result import CollectionResult
from msgstore.engine.compact.gc_context import CollectionPreempted, GcContext
from msgstore.engine.compact.pinning import InconsistentSegment, Source, marked
from msgstore.engine.segment import erasing
from msgstore.engine.segment.segments import Segment, io_errors
from msgstore.engine.state.locks import release_on_exit
from msgstore.engine.write.writer import Writer

log = logging.getLogger("msgstore.collection")

Progress = Callable[[int, int], object]
"""Called with (done, total) of the actions."""


class GarbageCollector:
    """One for each open store."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._ledger = writer.ledger
        self._segments = writer.ledger.segments
        self._policy, self._may_drop = writer.backends.policy, writer.backends.may_drop
        name, catalogue = writer.config.index.name, writer.ledger.segments.formats.catalogue
        provider = catalogue.provider(catalogue.index(name))
        self._site = GcContext(writer.ledger, writer.backends.write_format, writer.config.file_size_limit, name, provider)

    def stats(self) -> list[SegmentStats]:
        """Under the writer's lock: every segment, in number order."""
        current, limit = self._segments.current, self._writer.config.file_size_limit
        return [segment.stats(current=segment is current, size_limit=limit) for segment in self._segments]

    def collect(self, *, everything: bool = False, progress: Progress | None = None) -> list[CollectionResult]:
        """What the policy plans, or compaction of everything with garbage; then empty segments are deleted.

        Raises StoreClosed, and StoreIOError when everything else is done, if the operating system refused something.
        """
        self._writer.flush()
        return self._collect_now(everything, progress)

    def collect_what_is_due(self) -> list[CollectionResult]:
        """As ``collect``, of what is on disk: what was just written is not flushed for it."""
        return self._collect_now(everything=False, progress=None)

    def _collect_now(self, everything: bool, progress: Progress | None) -> list[CollectionResult]:
        with self._site.collecting(now=self._told()):
            self._writer.check_open()
            with self._ledger.lock:
                stats, segments = self.stats(), self._segments.by_number.copy()
            eligible = [s for s in stats if not (s.current or s.quarantined)]
            if everything:
                actions: list[Action] = [Compact(s.number) for s in eligible if s.garbage_bytes and s.live_count]
            else:
                wanted = plans.ask(self._policy, stats, time.time())
                actions = plans.check(wanted, stats, segments, self._generation, may_drop=self._may_drop)
            return self._note_empty(eligible) + self._carry_out(actions, progress)

    def migrate(self, progress: Progress | None = None) -> list[CollectionResult]:
        """Rewrite every segment of an older format, also what the policy would leave. Raises as ``collect``."""
        self._writer.flush()
        with self._site.collecting(now=self._told()):
            self._writer.check_open()
            with self._ledger.lock:
                old = {s.number for s in self._segments if s.form.descriptor.generation < self._generation}
                stats = [s for s in self.stats() if s.number in old]
            actions = [Migrate(s.number) for s in stats if s.live_count]
            return self._note_empty(stats) + self._carry_out(actions, progress)

    def ended(self) -> contextlib.AbstractContextManager[None]:
        """Inside, nothing is collected. What was being collected ends where it is."""
        return self._site.ended()

    def locks_kept(self) -> contextlib.AbstractContextManager[None]:
        """Around all of this on a thread that signals come to: it leaves with the locks that it came with."""
        return release_on_exit(self._ledger.flushing, self._site.held)

    def _told(self) -> bool:
        """Whether the caller is a client that is being told, and has ``flushing``."""
        with self._ledger.flushing:
            return self._writer.depth > 0

    @property
    def mine(self) -> bool:
        """Whether the calling thread is collecting."""
        return self._site.mine

    @property
    def _generation(self) -> int:
        return self._writer.backends.write_format.descriptor.generation

    def _note_empty(self, stats: Sequence[SegmentStats]) -> list[CollectionResult]:
        """Those without a live record are deleted when everything else is done."""
        empty = [s for s in stats if not (s.live_count or s.current or s.quarantined)]
        with self._ledger.lock:
            for s in empty:
                if segment := self._segments.by_number.get(s.number):
                    self._ledger.note_empty(segment)
        return [CollectionResult(s.file, s.size, 0, outcome="deleted") for s in empty]

    def _carry_out(self, actions: Sequence[Action], progress: Progress | None) -> list[CollectionResult]:
        done: list[CollectionResult] = []
        failure: StoreIOError | None = None
        with contextlib.suppress(CollectionPreempted):
            for at, action in enumerate(actions):
                if self._site.wanted:
                    break
                try:
                    done += self._act(action)
                except StoreIOError as error:
                    log.warning("%r failed and is left for later: %s", action, error)
                    failure = failure or error
                if progress:
                    progress(at + 1, len(actions))
            self._delete_empty()
        if failure:
            raise failure
        return done

    def _act(self, action: Action) -> list[CollectionResult]:
        begin = time.perf_counter()
        self._segments.check_directory()
        try:
            with marked(self._site, plans.numbers_of(action)) as sources:
                done = self._collect(action, sources) if sources else []
        except InconsistentSegment as unsound:
            done = [self._leave(unsound)]
        else:
            if any(not found.size_after for found in done):
                self._delete_empty()
        for found in done:
            self._segments.telemetry.collected(found, time.perf_counter() - begin)
        return done

    def _collect(self, action: Action, sources: Sequence[Source]) -> list[CollectionResult]:
        if isinstance(action, Compact):
            if self._in_place(sources[0].segment):
                return [compaction.compact(self._site, sources[0])]
            return rewriting.rewrite(self._site, sources, "compacted")
        if isinstance(action, Drop):
            size = sources[0].segment.live_bytes
            found = retention.drop(self._site, sources[0], action.reason)
            self._segments.telemetry.dropped(found.file, found.dropped, size, action.reason)
            return [found]
        return rewriting.rewrite(self._site, sources, "combined" if isinstance(action, Combine) else "migrated")

    def _in_place(self, segment: Segment) -> bool:
        """Whether a segment is compacted where it is. Not if what was removed is to be overwritten, nor in a format that cannot
        hide what is being written in a gap: there a crash would leave bytes in which anything may be read."""
        return segment.form.compactable is not None and not self._segments.erase

    def _leave(self, unsound: InconsistentSegment) -> CollectionResult:
        """The segment is kept. If it is damaged, it is read like that from now on, and never collected. If a plugin failed, the
        policy does not get it compacted again before something in it dies."""
        segment = unsound.segment
        log.warning("%s: %s; the segment is kept as it is and not collected", segment.path, unsound.reason)
        if unsound.damaged:
            self._segments.telemetry.damage(segment.path.name, None, unsound.reason)
            with self._site.turn():
                self._segments.hints.drop(segment)  # it says nothing of damage
                with self._ledger.lock:
                    segment.quarantined = True
                    self._ledger.touch(segment)
                self._site.commit()
        else:
            segment.compacted_live_bytes = segment.live_bytes
        return CollectionResult(segment.path.name, segment.size, segment.size, skipped=unsound.reason, outcome="none")

    def _delete_empty(self) -> None:
        with self._site.turn():
            self._segments.check_directory()
            if self._ledger.has_empty:
                self._ledger.begin_change()
            self._writer.settle()
        self.erase()

    def erase(self) -> None:
        """Overwrite and unlink the segments that have lost their names, which must be on disk first. Raises StoreIOError."""
        pending_erase = self._segments.pending_erase
        if pending_erase:
            self._segments.sync_directory()
        while pending_erase:
            with io_errors(pending_erase[0]):
                erasing.remove(self._segments.files, pending_erase[0], erase=True)
            pending_erase.pop(0)
