"""Connection to one vhost of a broker: pika's asynchronous connection, driven until the broker has answered."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pika import exceptions, spec
from pika.adapters.select_connection import IOLoop, SelectConnection

from msgstore.contract import StoreError

_WINDOW = 1024
"""Messages without a confirm, at most."""
_MAX_WAIT_SECONDS = 1.0
"""Time after which a wait for the next message looks anew how long it is."""
_CLOSE_SECONDS = 5.0
_NACKED = "the broker refuses it (basic.nack): the queue is full, or the message could not be stored"
_log = logging.getLogger("msgstore.amqp")
logging.getLogger("pika").addHandler(logging.NullHandler())  # what it logs is said by our errors


class Publication(NamedTuple):
    """A message to send."""

    exchange: str
    routing_key: str
    properties: bytes
    """From the flags of the content header on."""
    body: bytes
    risk: str
    """Exchange and user id, because of which the broker may close the channel."""
    is_anonymous: bool = False
    """A user id was left out."""


class RawProperties(spec.BasicProperties):  # type: ignore[misc]  # pika has no types
    """Properties as bytes: pika cannot encode each type of header, nor decode each."""

    def __init__(self, raw: bytes = b"\0\0") -> None:
        self.raw = raw

    def encode(self) -> list[bytes]:
        return [self.raw]

    def decode(self, encoded: bytes, offset: int = 0) -> RawProperties:
        self.raw = bytes(encoded[offset:])
        super().__init__()
        with suppress(Exception):  # for users of pika in other threads
            super().decode(encoded, offset)
        return self


class Link:
    """A connection, and a channel with confirms. Nothing is in flight after a call has returned."""

    def __init__(self, parameters: Any, place: str) -> None:
        """Connect. ``place``: the URL without its password, for errors. Raises StoreError."""
        self._place = place
        self._lost: BaseException | None = None
        self._channel: Any = None
        self._todo: Sequence[Publication] = ()
        self._next = 0
        self._waiting: dict[int, int] = {}
        """Delivery tag to the number in ``_todo``, or -1 if the message was returned."""
        self._tag = 0
        self._refused: list[tuple[int, str]] = []
        self._is_alone = False
        """The one message that waits may close the channel."""
        self._taken: set[str] = set()
        """Risks that the broker has taken."""
        self._largest = -1
        """Size of the largest body that it has taken."""
        self._timer: object = None
        self._mandatory = True
        self._delay: Callable[[], float] = float
        self._loop = IOLoop()
        self._connection = SelectConnection(
            parameters,
            on_open_callback=lambda _: self._loop.stop(),
            on_open_error_callback=self._on_lost,
            on_close_callback=self._on_lost,
            custom_ioloop=self._loop,
        )
        self._connection.add_on_connection_blocked_callback(self._on_blocked)
        try:
            self._run()
        except BaseException:
            self._loop.close()
            raise
        self.max_properties = self._connection.params.frame_max - 8 - 12
        """Bytes of properties: the frame with them cannot be split."""

    def is_alive(self) -> bool:
        """Return False if the broker has closed the connection since the last call."""
        self._loop.call_later(0, self._loop.stop)
        with suppress(StoreError):
            self._run()
        return self._lost is None

    def ask(self, method: str, **arguments: Any) -> str | None:
        """Call a method on a channel of its own. Return the reply with which the broker closes that, else None."""
        replies: list[Any] = []

        def closed(_: object, reason: Any) -> None:
            replies.append(reason)
            self._loop.stop()

        def opened(channel: Any) -> None:
            channel.add_on_close_callback(closed)
            getattr(channel, method)(**arguments, callback=lambda _: channel.close())

        self._connection.channel(on_open_callback=opened)
        self._run()
        (reason,) = replies
        return reason.reply_text if isinstance(reason, exceptions.ChannelClosedByBroker) else None

    def publish(
        self, publications: Sequence[Publication], delay: Callable[[], float], *, mandatory: bool
    ) -> list[tuple[int, str]]:
        """Send messages, and wait for all confirms. Return the number and the reason of those that the broker has refused.

        ``delay`` is called before each message. It returns the seconds to wait, or 0 if the message may be sent now.
        """
        self._todo, self._next, self._refused, self._delay = publications, 0, [], delay
        self._mandatory = mandatory
        if self._channel is None:
            self._open_channel()
        else:
            self._feed()
        self._run()
        self._todo = ()
        return self._refused

    def close(self) -> None:
        """Close the connection. A broker that does not answer is left alone."""
        if self._connection.is_open:
            self._connection.close()
            self._loop.call_later(_CLOSE_SECONDS, self._loop.stop)
            self._loop.start()
        self._loop.close()

    def _run(self) -> None:
        """Run until a callback stops the loop. Raises StoreError if the connection is lost."""
        usual, spec.props[spec.BasicProperties.INDEX] = spec.props[spec.BasicProperties.INDEX], RawProperties
        try:
            if self._lost is None:
                self._loop.start()
        finally:
            spec.props[spec.BasicProperties.INDEX] = usual
        if self._lost is not None:
            sent = ""
            if self._todo:
                confirmed = self._next - len(self._waiting) - len(self._refused)
                sent = f" Of {len(self._todo):,} messages of this batch {confirmed:,} are confirmed"
                sent += f", {len(self._refused):,} refused." if self._refused else "."
            raise StoreError(
                f"{self._place}: {describe(self._lost)}.{sent} Mend the cause and run the command again: it continues."
            ) from self._lost

    def _on_lost(self, _: object, reason: BaseException) -> None:
        self._lost = self._lost or reason
        self._loop.stop()

    def _on_blocked(self, _: object, frame: Any) -> None:
        _log.warning("%s: the broker takes no messages now: %s. Waiting for it.", self._place, frame.method.reason)

    def _open_channel(self) -> None:
        def opened(channel: Any) -> None:
            channel.add_on_close_callback(self._on_channel_closed)
            channel.add_on_return_callback(self._on_return)
            channel.confirm_delivery(self._on_confirm, callback=confirming)

        def confirming(_: object) -> None:
            self._channel, self._tag = channel, 0
            self._feed()

        channel = self._connection.channel(on_open_callback=opened)

    def _feed(self) -> None:
        """Send messages as long as the broker keeps up. One that may close the channel is sent when no other waits for its
        confirm, so that only this one is refused."""
        if self._channel is None:  # it was closed, and the callbacks of this turn of the loop are still called
            return
        while self._next < len(self._todo):
            message = self._todo[self._next]
            is_risky = message.risk not in self._taken or len(message.body) > self._largest
            if len(self._waiting) >= _WINDOW or (self._waiting and (self._is_alone or is_risky)) or self._timer is not None:
                return
            if (seconds := self._delay()) > 0:
                self._timer = self._loop.call_later(min(seconds, _MAX_WAIT_SECONDS), self._on_timer)
                return
            self._tag += 1
            self._waiting[self._tag] = self._next
            self._next += 1
            self._is_alone = is_risky
            properties = RawProperties(message.properties)
            self._channel.basic_publish(message.exchange, message.routing_key, message.body, properties, self._mandatory)
        if not self._waiting:
            self._loop.stop()

    def _on_timer(self) -> None:
        self._timer = None
        self._feed()

    def _on_confirm(self, frame: Any) -> None:
        last, is_nack = frame.method.delivery_tag, isinstance(frame.method, spec.Basic.Nack)
        tags = [last]
        if frame.method.multiple:
            tags = [tag for tag in self._waiting if tag <= last or not last]
        for tag in tags:
            number = self._waiting.pop(tag, -1)
            if number >= 0 and is_nack:
                self._refused.append((number, _NACKED))
            if self._is_alone:
                message = self._todo[self._next - 1]
                self._taken.add(message.risk)
                self._largest = max(self._largest, len(message.body))
        self._feed()

    def _on_return(self, _: object, method: Any, properties: Any, body: bytes) -> None:
        """A message that cannot be routed comes back before its confirm, and without its tag."""
        for tag, number in self._waiting.items():
            message = self._todo[number]
            if number >= 0 and (message.body, message.properties, message.routing_key, message.exchange) == (
                body, properties.raw, method.routing_key, method.exchange,
            ):  # fmt: skip
                self._refused.append((number, f"the broker routes it to no queue ({method.reply_text}): {_target(message)}"))
                self._waiting[tag] = -1
                return

    def _on_channel_closed(self, _: object, reason: BaseException) -> None:
        self._channel = None
        if isinstance(reason, exceptions.ChannelClosedByBroker) and self._is_alone and self._waiting:
            (_, number) = self._waiting.popitem()
            self._refused.append((number, f"the broker refuses it: {reason.reply_text}"))
            self._open_channel()
        elif not isinstance(reason, exceptions.ChannelClosedByClient):
            self._on_lost(None, reason)


def _target(message: Publication) -> str:
    return f"exchange {message.exchange!r}" if message.exchange else f"queue {message.routing_key!r}"


def describe(error: BaseException) -> str:
    """Return the reason for a lost connection in plain words."""
    while inner := [
        one
        for one in (*getattr(error, "exceptions", ())[-1:], getattr(error, "exception", None), *error.args)
        if isinstance(one, BaseException)
    ]:
        error = inner[0]
    if isinstance(error, exceptions.ProbableAuthenticationError):
        return "the broker refuses the login: the name or the password is wrong"
    if isinstance(error, exceptions.ProbableAccessDeniedError):
        found = re.search(r"'(.*)'", str(error))
        return f"the broker refuses the vhost ({found[1] if found else error})"
    if isinstance(error, exceptions.ConnectionBlockedTimeout):
        return "the broker has taken no messages for the time of blocked_timeout"
    if isinstance(error, exceptions.ConnectionOpenAborted | exceptions.IncompatibleProtocolError):
        return "nothing there answers in AMQP 0-9-1"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.strerror or error}"
    if isinstance(error, exceptions.ChannelClosedByBroker):
        return f"the broker closed the channel: {error.reply_text}"
    text = getattr(error, "reply_text", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"the connection failed: {text}"
