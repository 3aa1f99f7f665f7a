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
from typing import Any, TypeVar

from msgstore.contract import MsgStoreError
from msgstore_queues.backing.mirror_copies import Copy, open_copies
from msgstore_queues.contract import BackingQueue, BackingQueueContext, Delivery, Message

log = logging.getLogger("msgstore.queues")

T = TypeVar("T")
_COPIES = 2


class MirrorQueue:
    """Implements :class:`msgstore_queues.contract.BackingQueue`.

    A position is that in the copy which is the primary when it is given out, times 2, plus the number of that copy.
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

    # -- copies -----------------------------------------------------------------------------------------------------------

    @property
    def _primary(self) -> Copy:
        return self._copies[0]

    def _on_primary(self, call: Callable[[BackingQueue], T]) -> T:
        """Return what a call gives that changes nothing. If it fails, the next copy becomes the primary."""
        while True:
            try:
                return call(self._primary.queue)
            except (OSError, MsgStoreError) as error:
                if len(self._copies) == 1:
                    raise
                self._drop(self._primary, error)

    def _on_each(self, call: Callable[[Copy], T]) -> dict[int, T]:
        """Return what a call gives for each copy, by its number. A copy that fails is dropped, unless it is the last one."""
        found = {}
        for copy in list(self._copies):
            try:
                found[copy.number] = call(copy)
            except (OSError, MsgStoreError) as error:
                if len(self._copies) == 1:
                    raise
                self._drop(copy, error)
        return found

    def _drop(self, copy: Copy, reason: object) -> None:
        """Go on without a copy. The others have a higher epoch from now on, so that it is never taken for one of them."""
        others = [other for other in self._copies if other is not copy]
        log.warning("%s: is left out of the mirror: %s. The queue goes on in %s", copy.directory, reason, others[0].directory)
        for other in others:
            other.state.epoch += 1
            other.save_state(is_open=True)
        self._copies = others
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

    def _outer(self, positions: Mapping[int, int]) -> int:
        """Return the position of a message by those in the copies."""
        number = self._primary.number
        return positions[number] * _COPIES + number

    def publish(self, message: Message) -> int:
        return self._outer(self._on_each(lambda copy: copy.queue.publish(message)))

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
        positions = {number: delivery.position for number, delivery in deliveries.items()}
        position = self._outer(positions)
        self._unacked[position] = positions
        return deliveries[self._primary.number]._replace(position=position)

    def peek(self) -> Message | None:
        return self._on_primary(lambda queue: queue.peek())

    def ack(self, positions: Iterable[int]) -> None:
        self._settle(positions, lambda queue, below: queue.ack(below))

    def requeue(self, positions: Iterable[int]) -> None:
        self._settle(positions, lambda queue, below: queue.requeue(below))

    def _settle(self, positions: Iterable[int], call: Callable[[BackingQueue, list[int]], None]) -> None:
        taken = [self._unacked.pop(position) for position in positions]
        self._on_each(lambda copy: call(copy.queue, [one[copy.number] for one in taken]))

    def purge(self) -> int:
        return self._on_each(lambda copy: copy.queue.purge())[self._primary.number]

    def fold(self, call: Callable[[int, Message], object]) -> None:
        number = self._primary.number
        self._primary.queue.fold(lambda position, message: call(position * _COPIES + number, message))

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
        self._on_each(lambda copy: copy.queue.begin_flush())

    def write(self) -> None:
        """The primary first: what the others have, it has, too."""
        self._on_each(lambda copy: copy.queue.write())
        if not self._is_synced:
            self._on_each(Copy.note_flush)

    def sync(self) -> Callable[[], None]:
        syncs = self._on_each(lambda copy: copy.queue.sync())

        def run() -> None:
            self._on_each(lambda copy: syncs[copy.number]())
            self._on_each(Copy.note_flush)

        return run

    def end_flush(self) -> None:
        self._on_each(lambda copy: copy.queue.end_flush())

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
