"""BaseQueue: how messages come into a queue."""

from __future__ import annotations

from collections.abc import Mapping
from queue import Full
from typing import Any

import attrs

from msgstore.contract import MsgStoreError
from msgstore_queues.contract import Delivery, Message
from msgstore_queues.delivering import DeliveringQueue
from msgstore_queues.keys import KEY
from msgstore_queues.message import NO_PROPERTIES, time_us
from msgstore_queues.queue_state import OnConfirm, OnLost, deadline_of
from rabbitmq_files.properties import encode_properties


class BaseQueue(DeliveringQueue):
    """A queue without consumers and without the methods of others, which :class:`~msgstore_queues.queue.Queue` adds."""

    def publish(
        self,
        body: bytes,
        *,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        persistent: bool = True,
        ttl: float | None = None,
        delay: float = 0.0,
        key: str | None = None,
        block: bool = True,
        timeout: float | None = None,
        on_confirm: OnConfirm | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        """Add a message at the end. ``on_confirm()`` is called by the flush that confirms it, on the flushing thread.
        ``on_lost(error)`` is called instead if the queue or the vhost fails before: the message may be there, or not.

        ``properties``: those of AMQP 0-9-1, such as ``content_type``. ``ttl``: seconds after which it is not delivered any
        more. ``delay``: seconds before which it is not delivered. ``key``: while a message with it is ready, unacked or
        delayed, nothing is added, and ``on_confirm`` is called when that message is confirmed. A message that has expired
        does not count, nor a transient one for a persistent one. ``block`` and ``timeout``: for a full queue, as in ``put``.
        Raises TypeError (body, key), ValueError (ttl, delay), PropertiesError, queue.Full, ShutDown, StoreClosed,
        StoreIOError, QueueFailed, StoreFailed.
        """
        if (
            headers is None and properties is None and persistent and ttl is None and not delay and key is None
            and (timeout is None or timeout >= 0) and on_confirm is None and on_lost is None
            and type(body) is bytes and len(body) < self._bodies_below
        ):  # fmt: skip
            # Most messages: with as few calls as possible.
            try:
                with self.lock:
                    if self._is_shut_down or self.closed is not None:
                        self._refuse()
                    self._add_body(body)
                    was_changed, self.is_changed = self.is_changed, True
                    self.counts["published"] += 1
                    if self._waiting:
                        self._not_empty.notify()
                    unwritten = self.backing.unwritten
                if self._watchers:
                    self._call_watchers()
                if not was_changed or unwritten > self._flush_above:
                    self.vhost.note_change(unwritten)
            except BaseException:
                with self.guard:  # which does nothing for a change that succeeds
                    raise
            return
        message = self.make_message(body, headers=headers, properties=properties, persistent=persistent, ttl=ttl, key=key)
        if delay > 0:
            due_us = time_us(delay, "delay")
            if self._is_shut_down or self.closed is not None:
                self._refuse()
            self._delayed().add(message, due_us, on_confirm, on_lost, key=key)
            return
        deadline = deadline_of(block, timeout)
        while not self._add_if_room(message, on_confirm, on_lost, key):
            if not block or self.options.overflow == "reject":
                raise Full
            self._wait_for_room(len(body), deadline)

    def make_message(
        self,
        body: bytes,
        *,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        persistent: bool = True,
        ttl: float | None = None,
        key: str | None = None,
    ) -> Message:
        """Return a message with a new id. Raises TypeError, PropertiesError."""
        if type(body) is not bytes:
            raise TypeError(f"a body is bytes, not {type(body).__name__}")
        if key is not None:
            if type(key) is not str:
                raise TypeError(f"a key is a str, not {type(key).__name__}")
            headers = {**(headers or {}), KEY: key}
        raw = NO_PROPERTIES if headers is None and not properties else encode_properties(properties or {}, headers)
        if ttl is None:
            ttl = self.options.message_ttl
        elif self.options.message_ttl is not None:
            ttl = min(ttl, self.options.message_ttl)
        expiry_us = 0 if ttl is None else time_us(ttl, "ttl")
        return Message(self.vhost.next_id(), body, persistent, expiry_us, b"", self._routing_keys, raw)

    def limited(self, message: Message) -> Message:
        """Return a message of another queue with the time to live of this one."""
        if self.options.message_ttl is None:
            return message
        expiry_us = time_us(self.options.message_ttl, "message_ttl")
        return attrs.evolve(message, expiry_us=min(message.expiry_us or expiry_us, expiry_us))

    def add(
        self,
        message: Message,
        on_confirm: OnConfirm | None = None,
        on_lost: OnLost | None = None,
        *,
        key: str | None = None,
        instead_of: tuple[BaseQueue, int] | None = None,
    ) -> None:
        """Add a message at the end, also to a queue that is full or shut down. ``publish`` is for users. ``on_lost`` is also
        called if the message is not added. ``key``: adds nothing if a message has it. ``instead_of``: queue and position of a
        message whose key this one takes over."""
        with self.guard:
            try:
                with self.lock:
                    if key is None or not self.is_duplicate(key, message, on_confirm, on_lost):
                        self._append(message, on_confirm, on_lost)
                        if instead_of is not None:
                            other, position = instead_of
                            with other.lock:
                                other.keys.forget([position])
            except Exception as error:
                if on_lost is not None:
                    on_lost(self.as_lost(error))
                raise
            if self._watchers:
                self._call_watchers()
            self.vhost.note_change(self.backing.unwritten)

    def is_duplicate(self, key: str, message: Message, on_confirm: OnConfirm | None, on_lost: OnLost | None) -> bool:
        """Return True if a message with this key is in the queue, or delayed. ``on_confirm`` is called by the next flush then,
        which confirms that message at the latest. Caller holds the lock."""
        if self.closed is not None:
            raise self.closed
        self.note_use()
        if self.keys.has(key, persistent=message.is_persistent):
            self.confirm_later(on_confirm, on_lost)
            return True
        return self.delays is not None and self.delays.is_duplicate(key, message, on_confirm, on_lost)

    def _append(self, message: Message, on_confirm: OnConfirm | None, on_lost: OnLost | None) -> None:
        """Add a message at the end. Caller holds the lock."""
        if self.closed is not None:
            raise self.closed
        position = self.backing.publish(message)
        if message.raw_properties is not NO_PROPERTIES:
            self.keys.note(position, message)
        if self.options.expires is not None:
            self.note_use()
        if on_confirm is not None or on_lost is not None:
            self._confirms.append((on_confirm, on_lost))
        self.is_changed = True
        self.counts["published"] += 1
        if self._waiting:
            self._not_empty.notify()

    def _add_if_room(self, message: Message, on_confirm: OnConfirm | None, on_lost: OnLost | None, key: str | None) -> bool:
        """Add a message at the end, if there is room, or the first messages may be dropped. Return False if not. A duplicate
        needs no room."""
        size, dropped = len(message.body), list[Delivery]()
        with self.guard:
            try:
                with self.lock:
                    if self._is_shut_down or self.closed is not None:
                        self._refuse()
                    generation = self.generation
                    if key is None or not self.is_duplicate(key, message, on_confirm, on_lost):
                        if self._has_limits and self._is_over(size):
                            if self.options.overflow != "drop-head":
                                self.note_use()
                                return False
                            while self._is_over(size) and (delivery := self._fetch()) is not None:
                                dropped.append(delivery)
                        self._append(message, on_confirm, on_lost)
            except (OSError, MsgStoreError):
                if dropped:  # they make no room: the message is not there
                    self.return_to_places([one.position for one in dropped], generation, is_counted=False)
                raise
            if self._watchers:
                self._call_watchers()
            self._bury_all(dropped, "maxlen", generation)
            self.vhost.note_change(self.backing.unwritten)
        return True

    def add_taken(self, message: Message, on_confirm: OnConfirm | None, on_lost: OnLost | None) -> tuple[int, int]:
        """Add a message to a queue without ready ones, and take it at once. Return its position and generation."""
        with self.lock:
            if self.closed is not None:
                self._refuse()
            position = self.backing.publish_delivered(message).position
            if on_confirm is not None or on_lost is not None:
                self._confirms.append((on_confirm, on_lost))
            self.is_changed = True
            return position, self.generation

    def _wait_for_room(self, size: int, deadline: float | None) -> None:
        with self.lock:
            while self._is_over(size) and not self._is_shut_down and self.closed is None:
                self._wait(self._not_full, deadline, Full)

    def has_room(self, size: int) -> bool:
        """Return True if a message with a body of ``size`` bytes would not have to wait."""
        return not self._has_limits or not self._is_over(size)

    def _is_over(self, size: int) -> bool:
        length, in_bytes = self.options.max_length, self.options.max_bytes
        if length is not None and len(self.backing) >= max(length, 1):
            return True
        return in_bytes is not None and len(self.backing) > 0 and self.backing.body_bytes + size > in_bytes
