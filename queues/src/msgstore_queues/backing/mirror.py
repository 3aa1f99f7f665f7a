"""Backing queue ``mirror``: every message is in two directories, and the queue lives on in the one if the other is lost.

The first copy is in the directory of the queue, the second below the option ``directory``. Both hold everything, large messages
too. Each call goes to both; the first one that works, the *primary*, answers. Both give the same messages in the same order, so
a copy knows nothing of the positions of the other but those of unacked messages.

Each copy has a file that says its epoch and its position, the number of its last flush; see :mod:`.mirror_copies`. A copy that
fails is left out until the next opening, and the epoch of the other is raised before anything else is confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import RLock
from typing import Any, TypeVar

from msgstore.contract import MsgStoreError, StoreIOError
from msgstore_queues.backing.mirror_copies import Copy, open_copies
from msgstore_queues.contract import BackingQueue, BackingQueueContext, Delivery, Message

log = logging.getLogger("msgstore.queues")

T = TypeVar("T")


class MirrorQueue:
    """Implements :class:`msgstore_queues.contract.BackingQueue`.

    A position is the id of the message, as a number: the queue knows positions of messages that are not taken yet, and these
    stay the same when the primary fails.
    """

    def __init__(self, context: BackingQueueContext) -> None:
        self._files = context.files
        self._is_synced = context.is_synced
        self._copies = open_copies(context)
        """Copies that work, the primary first."""
        self._lost: list[Copy] = []
        """Copies that have failed, until they are closed."""
        self._second = self._copies[-1].second_directory
        self._unacked: dict[int, dict[int, int]] = {}
        """For each unacked message its position in each copy, by the number of the copy."""
        self._states = RLock()
        """Guards what follows, and the states of copies: a sync runs without the lock of the queue."""
        self._epoch = max(copy.state.epoch for copy in self._copies)
        """No state on disk has a higher epoch, not even one whose write has failed."""
        self._flushes = max(copy.state.position for copy in self._copies)
        """Position of the last flush that all copies have noted."""

    # -- copies -----------------------------------------------------------------------------------------------------------

    @property
    def _primary(self) -> Copy:
        return self._copies[0]

    def _on_each(
        self, call: Callable[[Copy], T], *, of: Iterable[Copy] | None = None, is_repeated: bool = False
    ) -> dict[int, T]:
        """Return what a call gives for each copy, by its number. Copies that fail are dropped, unless all do. ``of``: not
        those that work now. ``is_repeated``: the next flush repeats the call, so a copy that has failed may stay."""
        found, failed = dict[int, T](), list[tuple[Copy, OSError | MsgStoreError]]()
        for copy in self._copies if of is None else of:
            try:
                found[copy.number] = call(copy)
            except (OSError, MsgStoreError) as error:
                failed.append((copy, error))
        if failed and not found:
            raise failed[0][1]
        for copy, reason in failed:
            self._drop(copy, reason, must_save=is_repeated)
        return found

    def _drop(self, copy: Copy, reason: object, *, must_save: bool = False) -> None:
        """Go on without a copy. The other has a higher epoch from now on, so that the copy is never taken for it. If the other
        cannot save that, and ``must_save``, both have failed: both stay, and an OSError is raised. Otherwise, the copies have
        different messages, so one of them must go; the next flush saves the epoch before it confirms anything."""
        with self._states:
            if copy not in self._copies:
                return
            if len(self._copies) == 1:
                raise StoreIOError(f"{copy.directory}: {reason}. The other copy of the queue has failed before.")
            (other,) = (one for one in self._copies if one is not copy)
            self._epoch += 1
            try:
                other.save_state(is_open=True, epoch=self._epoch)
            except OSError as error:
                if must_save:
                    raise
                log.warning("%s: cannot save that it goes on alone: %s. The next flush tries again.", other.directory, error)
            log.warning("%s: is left out of the mirror: %s. The queue goes on in %s", copy.directory, reason, other.directory)
            self._copies = [other]
            self._lost.append(copy)

    def _close_lost(self) -> None:
        while self._lost:
            self._lost.pop().abandon()

    # -- questions --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._primary.queue)

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    @property
    def body_bytes(self) -> int:
        return self._primary.queue.body_bytes

    @property
    def unwritten(self) -> int:
        return self._primary.queue.unwritten

    def info(self) -> Mapping[str, object]:
        copies = [str(copy.directory) for copy in self._copies]
        return {"copies": copies, "epoch": self._primary.state.epoch, **self._primary.queue.info()}

    # -- messages ---------------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> int:
        self._on_each(lambda copy: copy.queue.publish(message))
        return _position(message)

    def publish_delivered(self, message: Message) -> Delivery:
        return self._taken(self._on_each(lambda copy: copy.queue.publish_delivered(message)))

    def fetch(self) -> Delivery | None:
        found = self._on_each(lambda copy: copy.queue.fetch())
        mine = found[self._primary.number]
        if any(_body(mine) != _body(other) for other in found.values()):
            fewest = min(self._copies, key=lambda copy: (found[copy.number] is not None, len(copy.queue)))
            kept = next(copy for copy in self._copies if copy is not fewest)
            self._drop(fewest, "a message cannot be read, which the other copy has")
            mine = found[kept.number]
        return None if mine is None else self._taken(found)

    def _taken(self, found: Mapping[int, Delivery | None]) -> Delivery:
        deliveries = {number: delivery for number, delivery in found.items() if delivery is not None}
        mine = deliveries[self._primary.number]
        position = _position(mine.message)
        while position in self._unacked:  # a second message with the same id
            position += 1
        self._unacked[position] = {number: delivery.position for number, delivery in deliveries.items()}
        return mine._replace(position=position)

    def peek(self) -> Message | None:
        return self._on_each(lambda copy: copy.queue.peek())[self._primary.number]

    def ack(self, positions: Iterable[int]) -> None:
        self._settle(positions, lambda queue, below: queue.ack(below))

    def requeue(self, positions: Iterable[int]) -> None:
        self._settle(positions, lambda queue, below: queue.requeue(below))

    def _settle(self, positions: Iterable[int], call: Callable[[BackingQueue, list[int]], None]) -> None:
        taken = {position: self._unacked[position] for position in positions}
        self._on_each(lambda copy: call(copy.queue, [below[copy.number] for below in taken.values()]))
        for position in taken:  # not earlier: if both copies have failed, nothing has changed
            del self._unacked[position]

    def purge(self) -> int:
        return self._on_each(lambda copy: copy.queue.purge())[self._primary.number]

    def fold(self, call: Callable[[int, Message], object]) -> None:
        self._primary.queue.fold(lambda _, message: call(_position(message), message))

    def fold_acks(self, call: Callable[[int, Message], object]) -> None:
        number = self._primary.number
        outer = {positions[number]: position for position, positions in self._unacked.items()}
        self._primary.queue.fold_acks(lambda position, message: call(outer[position], message))

    def set_memory_target(self, messages: int | None) -> None:
        self._on_each(lambda copy: copy.queue.set_memory_target(messages))

    # -- flushes and the end ----------------------------------------------------------------------------------------------

    def shared(self) -> Iterator[bytes]:
        return iter(())

    def begin_flush(self) -> None:
        self._close_lost()
        self._on_each(lambda copy: copy.queue.begin_flush(), is_repeated=True)

    def write(self) -> None:
        """The primary first: what the others have, it has, too."""
        self._on_each(lambda copy: copy.queue.write(), is_repeated=True)
        if not self._is_synced:
            self._note_flush()

    def _note_flush(self) -> None:
        """Save that the copies have all of a flush, the primary first: the others are never ahead. A flush that failed has not
        used up its number: the primary may have saved it alone."""
        with self._states:
            number = self._flushes + 1
            for copy in list(self._copies):
                try:
                    copy.note_flush(self._epoch, number)
                except OSError as error:
                    if len(self._copies) == 1:
                        raise
                    self._drop(copy, error, must_save=True)
            self._flushes = number

    def sync(self) -> Callable[[], None]:
        """Each function that a copy returned is called, also after another one failed: no later flush repeats it."""
        syncs = {copy: _or_raise(copy.queue.sync) for copy in self._copies}

        def run() -> None:
            self._on_each(lambda copy: syncs[copy](), of=syncs, is_repeated=True)
            self._note_flush()

        return run

    def end_flush(self) -> None:
        self._on_each(lambda copy: copy.queue.end_flush(), is_repeated=True)

    def terminate(self) -> Mapping[str, Any]:
        self._close_lost()
        terms = {str(copy.number): copy.close() for copy in self._copies}
        state = self._primary.state
        return {"epoch": state.epoch, "position": state.position, "copies": terms}

    def abandon(self) -> None:
        self._close_lost()
        for copy in self._copies:
            copy.abandon()

    def delete_and_terminate(self) -> None:
        """The second copy first: as long as the first one is there, the queue is."""
        self._close_lost()
        for copy in reversed(self._copies):
            copy.queue.delete_and_terminate()
            copy.release()
        self._files.remove_tree(self._second)


def _body(delivery: Delivery | None) -> bytes | None:
    return None if delivery is None else delivery.message.body


def _position(message: Message) -> int:
    return int.from_bytes(message.msg_id, "big")


def _or_raise(begin: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """Return what ``begin()`` returns, or a function that raises the error of it."""
    try:
        return begin()
    except (OSError, MsgStoreError) as error:
        failure = error

    def fail() -> None:
        raise failure

    return fail
