"""DeliveringQueue: messages that are taken, acknowledged or given back, and moved to other queues."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty

from msgstore.contract import MsgStoreError
from msgstore_queues.contract import Delivery, Message
from msgstore_queues.keys import Keys
from msgstore_queues.message import ATTEMPTS, Received, death, time_us, with_headers
from msgstore_queues.queue_state import HeldBack, OnConfirm, OnLost, QueueState, Taker, deadline_of

log = logging.getLogger("msgstore.queues")

RETRY_SECONDS = 1.0
"""Pause before what a failure has left undone is tried again."""


class DeliveringQueue(QueueState):
    """Delivers the messages of a queue, and moves them to other queues."""

    def receive(self, block: bool = True, timeout: float | None = None) -> Received:
        """Take the first message. It is unacked until ``ack`` or ``nack``. Raises queue.Empty, ShutDown, StoreClosed."""
        deadline = deadline_of(block, timeout)
        while (received := self.take()) is None:
            self._wait_for_message(block, deadline)
        return received

    def take(self, consumer: Taker | None = None, owner: object = None) -> Received | None:
        """Take the first message, or return None if there is none. ``owner``: who calls ``task_done`` for it. Raises ShutDown
        after ``shutdown(immediate=True)``, and for a consumer that is closed. For :class:`Consumer` and the asyncio API."""
        expired: list[Delivery] = []
        received, failure = None, None
        try:
            with self.lock:
                if self.closed is not None or self._is_stopped or (consumer is not None and consumer.is_closed):
                    self._refuse()
                generation = self.generation
                if self.options.expires is not None:
                    self.note_use()
                try:
                    while (delivery := self._fetch() if self.keys.positions else self.backing.fetch()) is not None:
                        position, message, is_redelivered = delivery
                        if message.expiry_us and message.expiry_us <= time.time() * 1e6:
                            expired.append(delivery)
                            continue
                        received = Received(self, position, message, is_redelivered, generation)
                        if is_redelivered:
                            self.counts["redelivered"] += 1
                        self._out[position] = consumer
                        if consumer is not None:
                            consumer.unacked[position] = received
                        elif owner is not None:
                            self._taken.append((owner, received))
                        break
                except (OSError, MsgStoreError) as error:
                    failure = error  # those that have expired before it are taken, and are buried first
                if self._has_limits:
                    self._note_room(len(expired) + 1)
            if self._watchers and (self._has_limits or expired):
                self._call_watchers()
            if expired:
                failure_of_target = self._bury_all(expired, "expired", generation)
                failure = failure or failure_of_target
            if failure is not None and received is None:
                raise failure
        except BaseException:
            with self.guard:  # which does nothing for a change that succeeds
                raise
        return received

    def _fetch(self) -> Delivery | None:
        """Take the first message. Keys of those that are skipped, because they cannot be read, are forgotten. Caller holds the
        lock."""
        ready = len(self.backing)
        delivery = self.backing.fetch()
        if self.keys.positions and len(self.backing) + (delivery is not None) < ready:
            with suppress(OSError, MsgStoreError):  # the message that was taken must reach its consumer
                self.keys.keep(self.backing.fold, self.backing.fold_acks)
        return delivery

    def _wait_for_message(self, block: bool, deadline: float | None, consumer: Taker | None = None) -> None:
        if deadline is not None and time.monotonic() >= deadline:
            raise Empty
        with self.lock:
            while self._is_stopped or not len(self.backing):
                if self._is_shut_down or self.closed is not None or (consumer is not None and consumer.is_closed):
                    self._refuse()
                if not block:
                    raise Empty
                self._waiting += 1
                try:
                    self._wait(self._not_empty, deadline, Empty)
                finally:
                    self._waiting -= 1
                    self.note_use()

    def _note_room(self, messages: int) -> None:
        """So many messages have left the queue. Caller holds the lock."""
        if self.options.max_bytes is None:
            self._not_full.notify(messages)
        else:
            self._not_full.notify_all()  # the first publisher may have a message that is too large, and the next a small one

    def ack(self, *messages: Received) -> None:
        """Say that messages are done with. Those that are not unacked any more are passed over. Raises TypeError, ValueError
        (a message of another queue), StoreClosed, StoreIOError."""
        self._check_own(messages)
        self.acknowledge(messages)

    def acknowledge(self, messages: Sequence[Received]) -> None:
        """As ``ack``, for messages of this queue."""
        try:
            with self.lock:
                if self.closed is not None:
                    self._refuse()
                was_changed = self.is_changed
                positions = self._let_go(messages)
                try:
                    self.backing.ack(positions)
                except (OSError, MsgStoreError):
                    self._keep_unacked(positions)
                    raise
                self._note_settled(positions)
            if self._watchers or not was_changed or self._flush_above < 0:
                self._announce_settled(was_changed=was_changed)
        except BaseException:
            with self.guard:  # which does nothing for a change that succeeds
                raise

    def settle(self, positions: list[int], generation: int | None = None) -> None:
        """Acknowledge unacked messages that no consumer has. Those of an earlier ``generation`` are passed over."""
        with self.guard:
            with self.lock:
                if self.closed is not None:
                    self._refuse()
                was_changed = self.is_changed
                if generation is None or generation == self.generation:
                    self.backing.ack(positions)
                    self._note_settled(positions)
            self._announce_settled(was_changed=was_changed)

    def _announce_settled(self, *, was_changed: bool) -> None:
        """Messages are acknowledged: tell watchers and the flusher. Caller does not hold the lock."""
        if self._watchers:
            self._call_watchers()
        if not was_changed or self._flush_above < 0:
            self.vhost.note_change(0)

    def _check_own(self, messages: Sequence[Received]) -> None:
        """Raise an error for an argument that is no message of this queue."""
        for received in messages:
            if not isinstance(received, Received):
                raise TypeError(f"{self}: {type(received).__name__} is no message that was taken; each is an argument")
            if received.queue is not self:
                raise ValueError(f"{self}: the message was taken from the {received.queue}")

    def _keep_unacked(self, positions: Iterable[int]) -> set[int]:
        """A change of these messages has failed: whoever has one may try again. Return those that are still unacked. Caller
        holds the lock."""
        unacked = set[int]()
        self.backing.fold_acks(lambda position, _: unacked.add(position))
        unacked.intersection_update(positions)
        self._out.update(dict.fromkeys(unacked))
        return unacked

    def _let_go(self, messages: Sequence[Received]) -> list[int]:
        """Take unacked messages from their consumers. Return the positions of those that one had. Caller holds the lock."""
        known = []
        for received in messages:
            position = received.position
            if received.generation == self.generation and position in self._out:
                known.append(position)
                if (consumer := self._out.pop(position)) is not None:
                    del consumer.unacked[position]
                    consumer.has_room.notify()
        if self._unreturned:
            self._unreturned.difference_update(known)
        return known

    def _note_settled(self, positions: list[int]) -> None:
        """The backing queue has acknowledged messages. Caller holds the lock."""
        self.is_changed = True
        self.counts["acknowledged"] += len(positions)
        if self.keys.positions:
            self.keys.forget(positions)
        if self.options.expires is not None:
            self.note_use()
        if self._returns:
            for position in positions:
                self._returns.pop(position, None)
        if self._joining and not self.unfinished_tasks:
            self._all_done.notify_all()

    def nack(self, *messages: Received, requeue: bool = True, delay: float | None = None) -> None:
        """Give messages back. See :meth:`Received.nack`."""
        if delay is not None:
            delay = float(delay)
            time_us(delay, "delay")  # raises before anything is changed
        self._check_own(messages)
        with self.guard:
            with self.lock:
                if self.closed is not None:
                    self._refuse()
                generation, positions = self.generation, set(self._let_go(messages))
            mine = [one for one in messages if one.generation == generation and one.position in positions]
            self._give_back(mine, requeue=requeue, delay=delay)
            if self._watchers:
                self._call_watchers()

    def _give_back(self, messages: list[Received], *, requeue: bool, delay: float | None) -> None:
        """Caller holds no lock. If that of one fails, those behind it are ready again."""
        at_once, waiting = list[int](), list(messages)
        try:
            while waiting:
                self._give_back_one(waiting.pop(0), at_once, requeue=requeue, delay=delay)
        except BaseException:
            at_once += [received.position for received in waiting]
            raise
        finally:
            if at_once:
                self.return_to_places(at_once, messages[0].generation, is_counted=True)

    def _give_back_one(self, received: Received, at_once: list[int], *, requeue: bool, delay: float | None) -> None:
        """Dead-letter a message, or delay it, or add its position to ``at_once``."""
        limit, attempts = self.options.max_attempts, received.attempts
        delivery = Delivery(received.position, received.message, received.is_redelivered)
        if not requeue or (limit is not None and attempts >= limit):
            self._bury(delivery, "rejected" if not requeue else "delivery_limit", received.generation)
            return
        if delay is None:
            delay = min(self.options.retry_delay * 2 ** min(attempts - 1, 50), self.options.max_retry_delay)
        if delay > 0:
            self._retry_later(delivery, attempts, delay, received.generation)
        else:
            at_once.append(received.position)

    def return_to_places(self, positions: list[int], generation: int, *, is_counted: bool) -> None:
        """Make unacked messages ready again. ``is_counted``: each counts as an attempt. Those of an earlier ``generation`` are
        ready already. Raises StoreIOError: then the thread of the vhost tries again."""
        with self.guard:
            with self.lock:
                if self.closed is not None:
                    self._refuse()
                if generation != self.generation:
                    return
                try:
                    self.backing.requeue(positions)
                except (OSError, MsgStoreError):
                    self._unreturned |= self._keep_unacked(positions)
                    self.vhost.wake_at(time.time() + RETRY_SECONDS)
                    raise
                if is_counted:
                    for position in positions:
                        self._returns[position] = self._returns.get(position, 0) + 1
                self.note_use()
                self._not_empty.notify(len(positions))
            if self._watchers:
                self._call_watchers()

    def return_again(self) -> None:
        """Make messages ready that a failure has left unacked. Raises as ``return_to_places``."""
        with self.lock:
            positions, generation = list(self._unreturned), self.generation
            self._unreturned.clear()
            for position in positions:
                del self._out[position]
        if positions:
            self.return_to_places(positions, generation, is_counted=False)

    def returns(self, position: int) -> int:
        """Return how often the message at a position came back in this run."""
        return self._returns.get(position, 0)

    def purge(self) -> int:
        """Drop all ready messages. Return their number."""
        with self.guard:
            with self.lock:
                if self.closed is not None:
                    self._refuse()
                try:
                    count = self.backing.purge()
                except (OSError, MsgStoreError):
                    self.keys = Keys()  # a part may be gone: a duplicate is better than a message that is not added
                    raise
                if self.keys.positions:
                    self.keys.keep(self.backing.fold_acks)
                self._note_settled([])
                self._not_full.notify_all()
            if self._watchers:
                self._call_watchers()
            self.vhost.note_change(0)
        return count

    def _bury(self, delivery: Delivery, reason: str, generation: int) -> None:
        """Dead-letter a message that was taken, or drop it. The target confirms it before it is acknowledged here. From now on
        a publish with its key adds a message."""
        position, message, _ = delivery
        if (target := self.options.dead_letter) is None:
            self.settle([position], generation)
            return
        with self.lock:
            if generation == self.generation:
                self.keys.forget([position])
        letter = with_headers(message, self.vhost.next_id(), death(message, self.name, reason), expiry_us=0)
        confirmed, lost = self._when_moved(position, message, generation)
        with self._losing(lost):
            other = self.vhost.target(target)
        other.add(other.limited(letter), confirmed, lost)
        self.counts["dead_lettered"] += 1

    def _bury_all(self, deliveries: Sequence[Delivery], reason: str, generation: int) -> MsgStoreError | None:
        """Dead-letter messages that were taken. One whose target fails is ready again; return the last such error."""
        failure = None
        for delivery in deliveries:
            try:
                self._bury(delivery, reason, generation)
            except MsgStoreError as error:
                log.warning("%s: %s", self, error)
                failure = error
        return failure

    def _retry_later(self, delivery: Delivery, attempts: int, delay: float, generation: int) -> None:
        position, message, _ = delivery
        copy = with_headers(message, self.vhost.next_id(), {ATTEMPTS: attempts}, expiry_us=message.expiry_us)
        confirmed, lost = self._when_moved(position, message, generation)
        with self._losing(lost):
            delays = self._delayed()
        delays.add(copy, time_us(delay, "delay"), confirmed, lost, instead_of=position)

    def _when_moved(self, position: int, message: Message, generation: int) -> tuple[OnConfirm, OnLost]:
        """Return the callbacks of a copy in another queue: it is confirmed, or lost, and then the message is ready again."""

        def lost(_: MsgStoreError) -> None:
            with self.lock:
                if generation == self.generation:
                    self.keys.note(position, message)
            self.return_to_places([position], generation, is_counted=False)

        return lambda: self.settle([position], generation), lost

    @contextmanager
    def _losing(self, on_lost: OnLost) -> Iterator[None]:
        """Call ``on_lost`` if the block, which gets the queue that a message moves to, fails."""
        try:
            yield
        except Exception as error:
            on_lost(self.as_lost(error))
            raise

    def _delayed(self) -> HeldBack:
        return self.vhost.delays_of(self) if self.delays is None else self.delays
