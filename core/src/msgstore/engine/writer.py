"""The writing side: from the intake to the segments and the index, and then to the clients.

``write`` puts a body into the intake and returns. Up to WINDOW bytes stay there, because a message that is removed before it is
written costs nothing; what is above goes to the segments in steps, taken by the writers themselves, each so short that nobody
notices. A *flush* writes all that was there when it began, commits, deletes empty segments, and tells the clients. Whoever asks
for a flush while one is under way waits for it and for at most one more, which serves all who wait: so many threads share one
sync.

Data is written before the index says so; the index says so before anything old is deleted. With ``durability = "fsync"`` no
writer takes steps: the flush does, each with a sync behind it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from msgstore.config import StoreConfig
from msgstore.contract import (
    BodyRefused,
    Index,
    MessageNotFound,
    MessageTooLarge,
    MsgStoreError,
    StoreClosed,
    StoreIOError,
    StoreReadOnly,
)
from msgstore.engine.appender import Appender
from msgstore.engine.backends import Backends
from msgstore.engine.batches import Batches, Written
from msgstore.engine.encoding import Encoder, Refused
from msgstore.engine.flag import Flag
from msgstore.engine.flusher import Wakeup
from msgstore.engine.intake import OVERHEAD, Entry, Gate, Intake
from msgstore.engine.ledger import Ledger
from msgstore.engine.locks import left_without
from msgstore.engine.refusals import Refusals
from msgstore.engine.segments import io_error
from msgstore.engine.turns import Turns

if TYPE_CHECKING:
    from types import TracebackType

    from msgstore.engine.client import Client

log = logging.getLogger("msgstore.writer")

WINDOW = 16 * 2**20
"""Bytes that may stay in the intake, OVERHEAD of each message included."""
STEP = 2**18
"""Bytes that a writer writes at once, when there are more: so long may the slowest ``write`` take. A client reports what it
has written after each STEP, more often if there are many clients."""
PORTION = 2**21
"""Bytes that a flush writes at once."""
_MOMENT = 0.02
"""Seconds."""
MOST = 4096
"""Messages that are looked at for one step or portion."""


class Writer:
    """One for each open store."""

    def __init__(self, config: StoreConfig, backends: Backends, ledger: Ledger, *, read_only: bool) -> None:
        self.config = config
        self.backends = backends
        self.ledger = ledger
        self.intake = Intake()
        self.appender = Appender(config, backends, ledger)
        self._encoder = Encoder(backends)
        self.refusals = Refusals(config)
        self._batches = Batches(self.intake, self._encoder, self.refusals, self.appender, ledger)
        self.wakeup = Wakeup()
        self.clients: list[Client] = []
        self.callback_failures = 0
        self.unconfirmed: dict[int, list[bytes]] = {}
        """What each client waits for, by its number. Refers to no client, as the warning for an unclosed store needs it."""
        self._untold: deque[tuple[Client, list[bytes]]] = deque()
        """Under ``flushing``: who is to be told of what, in this order, whatever flushes those who are told ask for."""
        self.depth = 0
        """Under ``flushing``: how many flushes the thread that holds it is in, one inside the other."""
        self.index: Index = ledger.index
        self._at_once = not config.sync_interval
        self._syncs = config.durability == "fsync"
        self._held = 0
        """Bytes in the intake, OVERHEAD included, as far as is known; less by what was removed, until they are counted
        again."""
        self._window = min(WINDOW, config.max_unconfirmed)
        self._unconfirmed = 0
        """Bytes that clients have reported, OVERHEAD included, since the last flush that succeeded began."""
        self._portion = self._brink = 0
        """What a client may write before it reports; and how much may be unconfirmed, less what was not reported."""
        self._shrunk = Flag()
        """Set by a writer who finds no more in the intake than the window allows."""
        self._since_count = 0
        self._average = 0.0
        """Bytes of a message, OVERHEAD included, in what was written last."""
        self._uncommitted = 0
        """Bytes, OVERHEAD included, that went to the segments and whose entries a persistent index has not on disk yet."""
        self._wake_flusher_above = config.max_unconfirmed // 4
        """Uncommitted bytes above which the background flusher is woken."""
        self._turns = Turns(ledger.flushing)
        self._big = min(config.large_message, self._encoder.threshold)
        self._refusal: MsgStoreError | None = None
        self.broken: StoreClosed | None = None
        """Set if a change was interrupted in its middle: what is in memory may be half done, what is on disk is not."""
        self._is_stuck = False
        """True after an attempt to write failed, until one succeeds: each ``write`` flushes before it takes its message."""
        self._must_check_files = False
        """True if something was written since a flush last found the directory and the current segment in place."""
        if read_only:
            self.refuse(StoreReadOnly(f"{config.path}: was opened with mode='r'; open it with mode='rw' to change it"))

    # -- clients ----------------------------------------------------------------------------------------------------------

    def admit(self, client: Client) -> Gate:
        """The client's way in. Under the lock."""
        self._share(len(self.clients) + 1)
        gate = self.intake.gate(
            client.number, client.unconfirmed, self._limit, self._portion, self.wakeup.changed, self.due, client.slowly
        )
        self.clients.append(client)
        if client.unconfirmed is not None:
            self.unconfirmed[client.number] = client.unconfirmed
        return gate

    def _share(self, count: int) -> None:
        """Have ``count`` clients report so often that all of them together stay within ``max_unconfirmed``."""
        if self._at_once:
            return
        most = 1 << (count - 1).bit_length()  # or each new client would change all the others
        portion = min(STEP // (1 + most // 8), self.config.max_unconfirmed // (2 * most))
        self._brink = self.config.max_unconfirmed - portion * most
        if portion != self._portion:
            self._portion = portion
            for client in self.clients:
                client.gate.portion(portion)

    def dismiss(self, client: Client) -> None:
        """Under the lock: it is not told of anything any more."""
        if client in self.clients:
            self.clients.remove(client)
            self.unconfirmed.pop(client.number, None)

    def refuse(self, error: MsgStoreError | None) -> None:
        """Every later change raises ``error``; None: none does any more."""
        self._refusal = error
        self._set_gates()

    @property
    def _limit(self) -> int:
        """Bytes from which on a body does not pass a gate, but comes to ``write_slowly``."""
        return 0 if self._refusal is not None or self._is_stuck else self._big

    def _set_gates(self) -> None:
        for client in self.clients:
            client.gate.limit(self._limit)

    def check_whole(self, error: BaseException) -> None:
        """A change has raised ``error``. If that came from outside (Ctrl-C, a signal's handler, a plugin that exits), nobody
        knows where, and the store ends here as a killed process's does: only what is on disk is known to hold together."""
        if isinstance(error, Exception) or self.broken is not None:
            return
        self.broken = self._refusal = StoreClosed(
            f"{self.config.path}: {type(error).__name__} came in the middle of a change, so the store was closed as by a "
            "killed process. What was confirmed is on disk: open it again."
        )
        for client in list(self.clients):
            client.end(self.broken)

    def whole(self) -> AbstractContextManager[None]:
        """Around a change: see ``check_whole``. For what is not done for each message."""
        return _Whole(self)

    def _check_writable(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def check_open(self) -> None:
        if isinstance(self._refusal, StoreClosed):
            raise self._refusal

    def write_slowly(self, client: Client, msg_id: bytes, body: bytes) -> None:
        """What the gate did not take: a second reference, a large body, a buffer of another kind, or a mistake."""
        check_id(msg_id)
        body = _as_bytes(body)
        if self._refusal is not None:
            raise self._refusal
        if len(body) >= self._big:
            self._check_big(msg_id, body)
        if self._is_stuck:
            self._flush_first("The message was not taken: repeat the write.")
        self.wakeup.changed()
        try:
            with self.ledger.lock:
                self.intake.add(msg_id, body, client.number)
        except BaseException as error:
            self.check_whole(error)
            raise
        if client.unconfirmed is not None:
            client.unconfirmed.append(msg_id)
        self.due(len(body) + OVERHEAD)

    def remove_slowly(self, client: Client, popped: Sequence[tuple[bytes, Entry | None]]) -> None:
        """One reference less for each. Raises MessageNotFound for the absent ones when the others are removed."""
        try:
            for msg_id, _ in popped:
                check_id(msg_id)
            with self.ledger.lock:
                client.check_open()
                self._check_writable()  # with the lock: who closes the store has had it since
                count, missing = self._release(popped, client.number)
        except (ValueError, StoreClosed, StoreReadOnly):
            self._hand_back(popped)
            raise
        except StoreIOError as error:
            if error.applied:
                raise
            self._hand_back(popped)
            ids = [msg_id for msg_id, _ in popped]
            outcome = f"{len(ids)} ids lost no reference: repeat the removal with error.ids, {ids[0].hex()} first."
            raise _with_outcome(error, outcome, applied=False, ids=ids) from error.__cause__
        except BaseException as error:
            self.check_whole(error)
            raise
        if count:
            self.wakeup.changed()
            if self.ledger.persistent:
                self._uncommitted += count * OVERHEAD
            if self._at_once or self._uncommitted > self._wake_flusher_above:
                self._after(lambda: self._bound(0), "The messages were removed: do not repeat the removal.")
        if missing:
            raise MessageNotFound(missing, str(self.config.path))

    def _release(self, popped: Sequence[tuple[bytes, Entry | None]], number: int) -> tuple[int, list[bytes]]:
        """Under the lock. Returns how many ids the index was asked for, and those that are absent. The index comes first,
        because only it may fail: then nothing was removed."""
        intake = self.intake
        pending, shared = intake.pending, intake.shared
        on_disk = [msg_id for msg_id, entry in popped if entry is None and msg_id not in pending and msg_id not in shared]
        held: list[tuple[bytes, Entry | None]] = []
        if len(on_disk) < len(popped):  # sorted once more, each into one list: writers come and go meanwhile
            on_disk = []
            for msg_id, entry in popped:
                if entry is None and msg_id not in pending and msg_id not in shared:
                    on_disk.append(msg_id)
                else:
                    held.append((msg_id, entry))
        try:
            released = self.index.release(on_disk)
        except OSError as error:
            raise io_error(self.config.path, None, error) from error
        if not released.missing or len(released.missing) < len(on_disk):  # or nothing has changed
            self.ledger.bury(released.freed)
        if not held:
            return len(on_disk), released.missing
        late = [msg_id for msg_id, entry in held if not intake.take_one(msg_id, number, entry)]
        if not late:
            return len(on_disk), released.missing
        # Named more often than the intake has references, or removed from there since.
        try:
            more = self.index.release(late)
        except OSError as error:
            outcome = f"All was removed but one reference each of {len(late)} messages, {late[0].hex()} first."
            raise _with_outcome(io_error(self.config.path, None, error), outcome, applied=True, ids=late) from error
        self.ledger.bury(more.freed)
        return len(on_disk) + len(late), released.missing + more.missing

    def _hand_back(self, popped: Sequence[tuple[bytes, Entry | None]]) -> None:
        """Nothing of it was removed. It is flushed at once: a flush that did not find it may have confirmed it."""
        with self.ledger.lock:
            self.intake.hand_back(popped, lambda msg_id: self.index.get(msg_id) is not None)
        if any(entry for _, entry in popped):
            with contextlib.suppress(MsgStoreError):
                self.flush()

    def references(self, msg_id: bytes) -> int:
        """Under the lock: references of a message; 0 if there is none."""
        return self.intake.references(msg_id) + self.index.references(msg_id)

    def _check_big(self, msg_id: bytes, body: bytes) -> None:
        try:
            self._encoder.check(body)
        except MessageTooLarge as error:
            raise MessageTooLarge(f"{self.config.path}: {error}") from error.__cause__
        except Refused as refused:
            raise self.refusals.not_taken(msg_id, refused.errors[0]) from refused.errors[0]
        self.appender.seen_large |= len(body) >= self.config.large_message

    # -- when to write ----------------------------------------------------------------------------------------------------

    def due(self, weight: int) -> None:
        """Somebody has written so many bytes more, OVERHEAD included. Writes what is above the window, or has it written."""
        self._after(lambda: self._due(weight), "The message was taken: do not repeat the write.")

    def _due(self, weight: int) -> None:
        if self._at_once:
            self._flush_now()
            return
        with self.ledger.lock:
            self._held += weight
            self._since_count += weight
            self._unconfirmed += weight
        bounded = self._unconfirmed > self._brink
        if self._held <= self._window and not bounded:
            return
        collector = self.ledger.collector
        if collector is not None and collector.behind and not self.ledger.mine:
            collector.catch_up()
        if bounded:
            self._flush_now()
        elif self._syncs:
            self.wakeup.hurry()
        else:
            self._shrink()

    def _after(self, work: Callable[[], object], outcome: str) -> None:
        """Do what is due behind a change that has taken effect. If each change is flushed, an error says ``outcome``.
        Otherwise an error is logged, and the next ``write`` meets it again before it takes its message."""
        try:
            work()
        except BodyRefused:
            raise
        except Exception as error:
            self._set_stuck(True)
            if not self._at_once:
                if not isinstance(error, StoreClosed):
                    log.warning("%s: writing failed, and is tried again before the next write: %s", self.config.path, error)
                return
            if isinstance(error, OSError):
                raise _with_outcome(io_error(self.config.path, None, error), outcome, applied=True) from error
            if isinstance(error, StoreIOError):
                raise _with_outcome(error, outcome, applied=True) from error.__cause__
            raise
        except BaseException as error:
            self.check_whole(error)
            raise

    def _flush_first(self, outcome: str) -> None:
        """Before a change, after a failure: or what cannot be written would pile up in memory. Raises what says ``outcome``."""
        try:
            self._flush_now()
        except StoreIOError as error:
            raise _with_outcome(error, outcome, applied=False) from error.__cause__

    def _flush_before_removal(self, ids: Iterable[bytes]) -> None:
        """Refuse a removal while a commit is failing."""
        if self._uncommitted > self.config.max_unconfirmed:
            try:
                self._flush_now()
            except StoreIOError as error:
                outcome = "Nothing was removed: repeat the removal."
                raise _with_outcome(error, outcome, applied=False, ids=list(ids)) from error.__cause__

    def _count(self) -> int:
        """Bytes in the intake. They are counted if much was removed since they were, as the average message betrays."""
        if self._since_count >= WINDOW // 2 and self._held > 1.5 * self._average * len(self.intake.pending):
            with self.ledger.lock:
                self._held, self._since_count = self.intake.weight(), 0
        return self._held

    def _shrink(self) -> None:
        """A step or two, unless somebody else is at it."""
        flushing = self.ledger.flushing
        with left_without(flushing):
            if flushing.acquire(blocking=False):
                try:
                    self._take_steps()
                finally:
                    flushing.release()

    def _take_steps(self) -> None:
        """Two at most, since a call that has brought one comes soon again; with ``flushing``."""
        for _ in range(2):
            if self._refusal is not None or self._held <= self._window or self._count() <= self._window:
                self._shrunk.set()
                break
            self.ledger.segments.check_files()
            ids = self.intake.oldest(STEP * (len(self.intake.pending) + 1) // self._held + 1)
            self._bound(self._write_some(ids, STEP).weight)

    def invite(self) -> None:
        """Before a flush in the background: writers who come by in the next moments write what is held back. Beside a writer
        that computes, the thread of the flush would have to wait for the interpreter's lock after each part of it."""
        if not self._syncs and self._held > 2 * STEP:
            self._shrunk.clear()
            self._window = STEP
            self._shrunk.wait(_MOMENT)
            self._window = min(WINDOW, self.config.max_unconfirmed)

    def _bound(self, weight: int) -> None:
        """Entries of a persistent index that are not committed: from the bound on, whoever adds some waits."""
        if self._at_once:
            self._flush_now()
        elif self.ledger.persistent:
            self._uncommitted += weight
            if self._uncommitted > self.config.max_unconfirmed:
                self.intake.before_removals[:] = [self._flush_before_removal]
                self._flush_now()
            elif self._uncommitted > self._wake_flusher_above:
                self.wakeup.hurry()

    def _flush_now(self) -> None:
        """A flush that nobody asked for. Who is told of a flush, and writes so much that another is due, is told of that one
        when it has returned: or a client that writes the next message whenever it is told would be told ever deeper."""
        if self.ledger.mine and self.depth:
            self._check_writable()
            self._note(self.write_out())
        else:
            self.flush()
            if self._at_once:
                self.refusals.raise_once()

    def flush(self) -> None:
        """Write everything that is in the intake, and tell the clients. When it returns, all that was written before is
        confirmed, but for what ``refusals`` has to say."""
        self._check_writable()
        if self.ledger.mine:
            self._flush()
        else:
            self._turns.take(self._flush)

    # -- with ``flushing`` ------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._check_writable()  # once more: who waited for another flush may find the store closed
        self.depth += 1
        try:
            self.tell(self.write_out())
        finally:
            self.depth -= 1

    def write_out(self, *, last: bool = False) -> list[tuple[Client, int]]:
        """Everything to disk and into the index. Returns whom to ``tell`` of how many. ``last``: the store is about to
        close."""
        try:
            with self.whole():
                confirmed = self._write_out(last=last)
        except Exception:
            self._set_stuck(True)
            raise
        self._set_stuck(False)
        return confirmed

    def _set_stuck(self, stuck: bool) -> None:
        if self._is_stuck != stuck and self._refusal is None:
            self._is_stuck = stuck
            self._set_gates()

    def _write_out(self, *, last: bool) -> list[tuple[Client, int]]:
        segments = self.ledger.segments
        with self.ledger.lock:
            confirmed = [(client, len(client.unconfirmed)) for client in self.clients if client.unconfirmed]
            ids = self.intake.ids()
            unconfirmed = self._unconfirmed
        if last or self.ledger.changed or ids or confirmed or segments.hints.finished:
            self._must_check_files = True
        while ids:
            at = 0
            again: list[bytes] = []
            while at < len(ids):
                written = self._write_some(ids[at : at + MOST], PORTION)
                at += written.looked_at
                again += written.late
            ids = again
        with self.ledger.lock:
            self._held, self._since_count = self.intake.weight() if self.intake.pending else 0, 0
        if self._must_check_files:  # records in a file that was removed or replaced meanwhile are not safe
            segments.check_files()
            self._must_check_files = False
        overdue = self._uncommitted > self.config.max_unconfirmed
        self.settle(sync=last or overdue or not segments.sync_later)
        if unconfirmed:
            with self.ledger.lock:
                self._unconfirmed -= unconfirmed
        return confirmed

    @property
    def has_work(self) -> bool:
        """Whether a flush would find anything. Without the lock a hint."""
        segments = self.ledger.segments
        if self.intake.pending or self.intake.shared or self._untold or segments.hints.finished:
            return True
        # A flush may have come between a message and its entry in the list of those to be confirmed, or have failed behind it.
        return self.ledger.changed or segments.unsynced or any(client.unconfirmed for client in self.clients)

    def settle(self, *, sync: bool = True, hints: bool = False) -> None:
        """Commit, and delete what is empty. Not ``sync``: the index must not get ahead of what is synced, so it waits.
        ``hints``: write them all, ripe or not."""
        segments = self.ledger.segments
        if segments.hints.finished:
            for segment in segments.hints.save(everything=hints):
                self.ledger.touch(segment)
        if sync:
            if segments.sync_later:
                segments.sync_written()
            uncommitted = self._uncommitted
            self.ledger.commit()
            self._uncommitted -= uncommitted  # what came meanwhile stays counted, and all of it while a commit is failing
            self.intake.before_removals.clear()
            self.ledger.delete_empty()

    def _write_some(self, ids: Sequence[bytes], weight: int) -> Written:
        written = self._batches.write(ids, weight)
        if written.messages:
            self._must_check_files = True
            with self.ledger.lock:
                self._held -= written.weight
                self._average = written.weight / written.messages
        return written

    def tell(self, confirmed: Iterable[tuple[Client, int]]) -> None:
        """Without the lock. Who is told may flush: then the others are told of this flush first, inside of that one."""
        self._note(confirmed)
        while self._untold:
            client, ids = self._untold.popleft()
            try:
                client.confirm(ids)
            except Exception:
                self.callback_failures += 1
                log.exception("%s: on_confirm of client %r failed for %d ids", self.config.path, client.name, len(ids))

    def _note(self, confirmed: Iterable[tuple[Client, int]]) -> None:
        """These are to be told."""
        confirmable = self.refusals.confirmable
        self._untold.extend([(client, confirmable(client.number, client.take_unconfirmed(n))) for client, n in confirmed])


class _Whole(AbstractContextManager[None]):
    """No generator: see :class:`msgstore.engine.locks.left_without`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._writer.check_whole(error)


def _with_outcome(error: StoreIOError, outcome: str, *, applied: bool, ids: Sequence[bytes] = ()) -> StoreIOError:
    """The same error, which also says what became of the call."""
    return StoreIOError(f"{error} {outcome}", applied=applied, ids=ids)


def check_id(msg_id: object) -> None:
    """Raises ValueError unless ``msg_id`` is 16 bytes."""
    if not isinstance(msg_id, bytes):
        raise ValueError(f"a message id is 16 bytes, not {type(msg_id).__name__}")  # noqa: TRY004 - documented as ValueError
    if len(msg_id) != 16:
        raise ValueError(f"a message id is 16 bytes, not {len(msg_id)}: {msg_id!r}")


def _as_bytes(body: object) -> bytes:
    """A copy of a mutable buffer; subclasses of bytes pass."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a body is bytes, not {type(body).__name__}")
