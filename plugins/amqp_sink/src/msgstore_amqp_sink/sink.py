"""Sink ``amqp``: sends messages to a broker, and waits for its confirms."""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgstore.contract import ConfigError, MessageBatch, SinkContext
from msgstore.contract.messages import MAYBE_DUPLICATE
from msgstore_amqp_sink.broker import Broker, own_exchange
from msgstore_amqp_sink.limits import discarding
from msgstore_amqp_sink.link import Publication
from msgstore_amqp_sink.plugin import AmqpSinkOptions
from rabbitmq_files.properties import NAMES, add_headers, encode_header, encode_properties, read_properties

_MARK = b"x-msgstore-redelivered"
_MAX_NAME = 255
_MAX_EXPIRATION = 3650 * 24 * 3600 * 1000
_USER_ID = 1 << 4
"""Flag of the content header."""
_BURST_SECONDS = 0.05
"""Time of messages that ``rate`` lets catch up after a pause."""
_PERSISTENT = 2
_COPIES = ("CC", "BCC")
_log = logging.getLogger("msgstore.amqp")


class AmqpSink:
    """Sender with confirms. ``write`` returns when the broker has answered for each message.

    Kept: body, order, properties and headers, byte for byte if the source has the bytes. Exchange and routing keys are left out
    on the way straight to a queue. The time of ``expiration`` begins anew.
    """

    def __init__(self, context: SinkContext) -> None:
        self._options: AmqpSinkOptions = context.options
        if not self._options.anyway and (found := discarding(self._options.queue_arguments)):
            raise ConfigError(f"queue_arguments: the queue may discard messages: {found}. Leave it out, or add --anyway.")
        self._broker = Broker(context.destination, self._options)
        self._broker.is_begun = context.token is not None
        self._user_ids: int = context.token["user_ids"] if context.token else 0
        """Messages that were sent without their ``user_id``."""
        self._is_unflushed = False
        self._due = 0.0
        self._is_stopping = False
        self._handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._on_signal)

    def refused(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        if self._is_stopping and not self._is_unflushed:
            raise KeyboardInterrupt
        if reason := self._queue_refusal(batch):
            return [(row, reason) for row in range(len(batch))]
        return self._publications(batch)[1]

    def write(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        vhost, queue = self._vhost(batch), batch.name.queue or ""
        is_direct = self._options.to == "queue"
        if is_direct and (reason := self._broker.declare_missing(vhost, queue)):
            return [(row, reason) for row in range(len(batch))]
        found, refused = self._publications(batch)
        own = {row for row, message in found.items() if message.exchange} if is_direct else set()
        if own and (reason := self._broker.bind(vhost, queue)):
            refused += [(row, reason) for row in own]
            found = {row: message for row, message in found.items() if row not in own}
        link, rows = self._broker.link(vhost), list(found)
        self._is_unflushed = self._broker.is_begun = True
        failed = link.publish(list(found.values()), self._delay, mandatory=self._options.mandatory)
        if own:
            self._broker.unbind(vhost, queue)
        self._user_ids += sum(message.is_anonymous for message in found.values())
        return [*refused, *((rows[number], reason) for number, reason in failed)]

    def flush(self) -> Mapping[str, Any]:
        self._is_unflushed = False
        return {"user_ids": self._user_ids}

    def finish(self) -> None:
        if self._user_ids:
            what = "messages went without their user_id, which is not the login's"
            _log.warning("%s: %d %s", self._broker.place, self._user_ids, what)

    def close(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._broker.close()

    def _on_signal(self, number: int, _: object) -> None:
        """Stop at the first call of ``refused`` after a ``flush``: what is sent is confirmed then, and the journal has it. A
        second Ctrl-C stops at once."""
        if self._is_stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._is_stopping = True

    def _delay(self) -> float:
        """Return the seconds until the next message may be sent. After a signal, the rest of the batch does not wait."""
        if self._options.rate is None or self._is_stopping:
            return 0.0
        now = time.monotonic()
        self._due = max(self._due, now - _BURST_SECONDS)
        if self._due > now:
            return self._due - now
        self._due += 1 / self._options.rate
        return 0.0

    def _vhost(self, batch: MessageBatch) -> str:
        vhost = batch.name.vhost if self._broker.vhost is None else self._broker.vhost
        return "/" if vhost is None else vhost

    def _queue_refusal(self, batch: MessageBatch) -> str:
        """Return the reason for which no message of a queue can be sent, or an empty text."""
        vhost, queue = self._vhost(batch), batch.name.queue or ""
        if not (_is_name(vhost) and _is_name(queue)):
            return f"the name of its vhost or queue is not one of at most {_MAX_NAME} bytes of UTF-8: rename it"
        if self._options.to == "exchange":
            self._broker.link(vhost)
            return ""
        return (
            self._broker.refusal(vhost, "queue", queue)
            if queue
            else "it is in no queue: send it to its exchange (--to-exchange)"
        )

    def _publications(self, batch: MessageBatch) -> tuple[dict[int, Publication], list[tuple[int, str]]]:
        """Return the form of each message that can be sent, by its row, and row and reason of the others."""
        found, refused = {}, []
        max_properties = self._broker.link(self._vhost(batch)).max_properties
        for row in range(len(batch)):
            try:
                message = self._publication(batch, row)
                if len(message.properties) > max_properties:
                    raise ValueError(f"its properties have more than {max_properties} bytes")
                found[row] = message
            except ValueError as error:
                refused.append((row, str(error)))
        return found, refused

    def _publication(self, batch: MessageBatch, row: int) -> Publication:
        """Raises ValueError."""
        raw = batch.raw_properties[row] if batch.raw_properties is not None and batch.name.system == "rabbitmq" else None
        if raw is None:
            raw = _encode(batch, row)
        properties, headers = read_properties(raw)
        user, login = properties.get("user_id"), self._broker.parameters.credentials.username
        is_anonymous = user is not None and user != login and self._options.user_id == "drop"
        if is_anonymous:
            raw, user = _without_user_id(raw, properties), None
        _check(raw, properties, headers or {})
        if batch.certainties is not None and batch.certainties[row] == MAYBE_DUPLICATE and _MARK not in raw:
            raw = add_headers(raw, [encode_header(_MARK, "bool", "true")])
        exchange, key = self._way(batch, row, headers or {})
        return Publication(exchange, key, raw, batch.bodies[row], f"{exchange}\0{user or ''}", is_anonymous)

    def _way(self, batch: MessageBatch, row: int, headers: Mapping[str, Any]) -> tuple[str, str]:
        """Return exchange and routing key. Raises ValueError."""
        queue = batch.name.queue or ""
        if self._options.to == "queue":
            # The broker sends a copy to each queue in CC, also from the default exchange.
            is_copied = any(name != queue for header in _COPIES for name in headers.get(header, ()))
            return own_exchange(queue) if is_copied else "", queue
        exchange = batch.exchanges[row] if batch.exchanges is not None else None
        keys = batch.routing_keys[row] if batch.routing_keys is not None else None
        key = keys[0] if keys else ""
        if exchange is None:
            raise ValueError("it has no exchange: send it straight to its queue")
        if not (_is_name(exchange) and _is_name(key)):
            raise ValueError(f"its exchange or routing key is not one of at most {_MAX_NAME} bytes of UTF-8")
        if exchange and (reason := self._broker.refusal(self._vhost(batch), "exchange", exchange)):
            raise ValueError(reason)
        return exchange, key


def _is_name(text: str) -> bool:
    try:
        return len(text.encode()) <= _MAX_NAME
    except UnicodeEncodeError:
        return False


def _check(raw: bytes, properties: Mapping[str, Any], headers: Mapping[str, Any]) -> None:
    """Raise ValueError for properties by which a broker closes the channel or the connection."""
    expiration = str(properties.get("expiration", 0))
    if not re.fullmatch(r"\+?[0-9]+", expiration) or int(expiration) > _MAX_EXPIRATION:
        raise ValueError(f"its expiration is not a number of milliseconds up to {_MAX_EXPIRATION}")
    if properties.get("delivery_mode", 1) not in (1, 2):
        raise ValueError("its delivery_mode is neither 1 nor 2")
    if not all(isinstance(headers.get(header, []), list) for header in _COPIES):
        raise ValueError("its header CC or BCC is not an array")
    if (b"\x7f" in raw or b"\xff" in raw) and '"$float"' in json.dumps(headers):  # a byte of each such number
        raise ValueError("a header is infinite or not a number")


def _encode(batch: MessageBatch, row: int) -> bytes:
    """Return the one encoding of properties that a source does not have as bytes. What is no property of AMQP becomes a header.
    Messages of other systems are persistent. Raises ValueError."""
    given = dict(batch.properties[row] or {}) if batch.properties is not None else {}
    headers = dict(batch.headers[row] or {}) if batch.headers is not None else {}
    properties = {name: given.pop(name) for name in NAMES if name in given and name != "headers"}
    if batch.name.system != "rabbitmq":
        properties.setdefault("delivery_mode", _PERSISTENT)
        time_ms = batch.timestamps_ms[row] if batch.timestamps_ms is not None else None
        if time_ms is not None and time_ms >= 0:
            properties.setdefault("timestamp", time_ms // 1000)
    return encode_properties(properties, headers | given or None)


def _without_user_id(raw: bytes, properties: Mapping[str, Any]) -> bytes:
    """Cut the third last property out."""

    def size(*names: str) -> int:
        return len(encode_properties({name: properties[name] for name in names if name in properties})) - 2

    end = len(raw) - size("app_id", "cluster_id")
    flags = int.from_bytes(raw[:2], "big") & ~_USER_ID
    return flags.to_bytes(2, "big") + raw[2 : end - size("user_id")] + raw[end:]
