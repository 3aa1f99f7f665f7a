"""The broker as the sink sees it: a connection to one vhost after the other, and what can be sent to a queue or an exchange."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import quote, urlsplit

import pika

from msgstore.contract import ConfigError, StoreError
from msgstore_amqp_sink.limits import ask_management, probe
from msgstore_amqp_sink.link import Link
from msgstore_amqp_sink.plugin import AmqpSinkOptions

_HINTS = {
    "queue": "declare it (--declare), or send by exchange (--to-exchange)",
    "exchange": "declare it there, or send straight to the queue",
}


class Broker:
    """Queues and exchanges are looked at once."""

    def __init__(self, url: str, options: AmqpSinkOptions) -> None:
        """Connect to nothing yet. Raises ConfigError."""
        self.parameters, self.place, vhost = parse_url(url)
        self.parameters.blocked_connection_timeout = options.blocked_timeout
        self.vhost = vhost if options.vhost is None else options.vhost
        """Vhost of all messages, or None."""
        self.is_begun = False
        """Messages have been sent."""
        self._options = options
        self._link: Link | None = None
        self._reasons: dict[tuple[str, str, str], str] = {}
        """(vhost, "queue" or "exchange", name) to the reason for which nothing is sent there; empty if it is sound."""
        self._missing: set[tuple[str, str]] = set()
        """Queues to declare."""

    def link(self, vhost: str) -> Link:
        """Return a connection. The broker may have closed one that was quiet for long; nothing is in flight then."""
        if self._link is None or self.parameters.virtual_host != vhost or not self._link.is_alive():
            self.close()
            self.parameters.virtual_host = vhost
            self._link = Link(self.parameters, f"{self.place}/{quote(vhost, safe='')}")
        return self._link

    def refusal(self, vhost: str, kind: str, name: str) -> str:
        """Return the reason for which nothing can be sent to a queue or an exchange, or an empty text. Changes nothing."""
        place = (vhost, kind, name)
        if place not in self._reasons:
            self._reasons[place] = self._look(*place)
        return self._reasons[place]

    def _look(self, vhost: str, kind: str, name: str) -> str:
        reply = self.link(vhost).ask(f"{kind}_declare", **{kind: name}, passive=True)
        if reply is None:
            return self._limits(vhost, name) if kind == "queue" else ""
        if not reply.startswith("NOT_FOUND"):
            return f"the broker refuses the {kind} {name!r}: {reply}"
        if kind == "queue" and self._options.declare:
            self._missing.add((vhost, name))
            return ""
        return f"there is no {kind} {name!r} in the vhost {vhost!r}: {_HINTS[kind]}"

    def _limits(self, vhost: str, queue: str) -> str:
        """Return the limits of a queue as a reason. Raises StoreError for them if nothing has been sent yet."""
        found, url, login = "", self._options.management, self.parameters.credentials
        if url is not None and not self._options.anyway:
            found = ask_management(url, (login.username, login.password), vhost, queue)
        elif not self._options.anyway:
            link = self.link(vhost)
            found = probe(lambda **given: link.ask("queue_declare", **given), queue)
        if not found:
            return ""
        reason = f"the queue {queue!r} in the vhost {vhost!r} may discard messages: {found}"
        if not self.is_begun:
            raise StoreError(f"{self.place}: {reason}. Remove the limit, or send anyway (--anyway).")
        return reason

    def declare_missing(self, vhost: str, queue: str) -> str:
        """Declare a queue that is missing. Return the reason for which nothing can be sent to it, or an empty text."""
        if (vhost, queue) in self._missing:
            self._missing.discard((vhost, queue))
            arguments = dict(self._options.queue_arguments)
            reply = self.link(vhost).ask("queue_declare", queue=queue, durable=True, arguments=arguments)
            reason = "" if reply is None else f"the queue {queue!r} cannot be declared: {reply}"
            if not reason and self._options.management is not None:
                reason = self._limits(vhost, queue)
            self._reasons[vhost, "queue", queue] = reason
        return self._reasons[vhost, "queue", queue]

    def bind(self, vhost: str, queue: str) -> str:
        """Make the exchange of :func:`own_exchange`. Return the reason for which that cannot be, or an empty text."""
        link, own = self.link(vhost), own_exchange(queue)
        reply = link.ask("exchange_declare", exchange=own, exchange_type="fanout", auto_delete=True)
        reply = reply or link.ask("queue_bind", queue=queue, exchange=own)
        return f"it has a header CC, and the exchange for such messages cannot be made: {reply}" if reply else ""

    def unbind(self, vhost: str, queue: str) -> None:
        self.link(vhost).ask("exchange_delete", exchange=own_exchange(queue))

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def own_exchange(queue: str) -> str:
    """Return the name of a fanout exchange with one queue. The default exchange sends copies to the queues in the header CC."""
    return f"msgstore-convert.{hashlib.blake2b(queue.encode(), digest_size=8).hexdigest()}"


def parse_url(url: str) -> tuple[Any, str, str | None]:
    """Return pika's parameters, the URL without login and vhost, and the vhost if it has one. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        if "@" in parts.path + parts.query or not parts.hostname:
            raise ValueError("an @ of the password")
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        parameters = pika.URLParameters(url)
    except Exception:
        raise ConfigError(
            "the destination is not of the form amqp://USER:PASSWORD@HOST:PORT/VHOST. Write % and two hexadecimal digits for "
            "each character that is no letter or digit, and check parameters behind a question mark."
        ) from None
    return parameters, place, parameters.virtual_host if len(parts.path) > 1 else None
