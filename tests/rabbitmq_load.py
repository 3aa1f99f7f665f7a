"""Load for a node of RabbitMQ: many kinds of queues and messages, and a journal of what the clients sent and acknowledged."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import attrs
import pika
from pika.exceptions import AMQPError

from rabbitmq_broker import Broker

V2 = {"x-queue-version": 2}
LAZY = {"x-queue-mode": "lazy"}
QUEUES: dict[str, dict[str, Any]] = {
    "mail.v1": {}, "mail.v2": V2, "lazy.v1": LAZY, "lazy.v2": LAZY | V2, "fan.a": {}, "fan.b": V2, "fan.c": LAZY,
    "prio.v1": {"x-max-priority": 3}, "prio.v2": {"x-max-priority": 3} | V2, "ttl": {}, "dead.v2": V2,
    "source.v1": {"x-dead-letter-exchange": "dlx"}, "очередь/№1": V2,
}  # fmt: skip
DIRECT = [name for name in QUEUES if not name.startswith(("fan.", "dead"))]
FAN = ["fan.a", "fan.b", "fan.c"]
SIZES = [0, 1, 15, 300, 3000, 3900, 4090, 4096, 5000, 20_000]
LARGE = 5 * 2**20


@attrs.define
class Journal:
    """What the clients know. Thread-safe."""

    published: dict[str, tuple[pika.BasicProperties, bytes]] = attrs.field(factory=dict)
    queues: dict[str, list[str]] = attrs.field(factory=dict)
    """Queues into which a message goes."""
    confirmed: set[str] = attrs.field(factory=set)
    acknowledged: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Queue and message."""

    def wanted(self) -> dict[str, Counter[str]]:
        """Return the messages that each queue must have: confirmed, and never acknowledged."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for uid in self.confirmed:
            for queue in self.queues[uid]:
                if not self.acknowledged[queue, uid]:
                    found[queue][uid] += 1
        return found

    def unsure(self) -> Counter[str]:
        """Return how many messages each queue may have lost in a kill: acknowledged, or never confirmed."""
        unconfirmed = self.published.keys() - self.confirmed
        found = Counter(queue for uid in unconfirmed for queue in self.queues[uid])
        for (queue, _), count in self.acknowledged.items():
            found[queue] += count
        return found

    def possible(self, queue: str) -> set[str]:
        """Return the messages that a queue may have."""
        return {uid for uid, queues in self.queues.items() if queue in queues or queue == "dead.v2"}


@contextmanager
def channel_of(broker: Broker) -> Iterator[Any]:
    parameters = pika.URLParameters(f"{broker.url}/%2F")
    parameters.heartbeat = 0
    with closing(pika.BlockingConnection(parameters)) as connection:
        yield connection.channel()


def declare(broker: Broker) -> None:
    """Declare the queues and exchanges."""
    with channel_of(broker) as channel:
        channel.exchange_declare("fan", "fanout", durable=True)
        channel.exchange_declare("dlx", "fanout", durable=True)
        for name, arguments in QUEUES.items():
            channel.queue_declare(name, durable=True, arguments=arguments)
            if name.startswith("fan."):
                channel.queue_bind(name, "fan", "k")
        channel.queue_bind("dead.v2", "dlx")


def properties_of(rng: random.Random, uid: str, queue: str) -> pika.BasicProperties:
    kind = rng.randrange(4)
    found = pika.BasicProperties(delivery_mode=2, message_id=uid)
    if kind == 1:
        found.content_type, found.timestamp, found.type, found.app_id = "application/json", 1_700_000_000, "order", "load"
        found.correlation_id, found.reply_to, found.content_encoding, found.cluster_id = "c-1", "amq.reply", "identity", "cl"
    elif kind == 2:
        found.headers = {
            "nested": {"a": 1, "b": ["x", 2, False, None]}, "big": 2**40, "neg": -5, "money": decimal.Decimal("12.34"),
            "when": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), "blob": bytes(range(16)),
            "umlaut": "Grüße 日本", "empty": {},
        }  # fmt: skip
        found.user_id = "guest"
    elif kind == 3:
        found.headers = {"CC": ["nowhere"], "BCC": ["nowhere.else"], "uid": uid}
    if queue.startswith("prio"):
        found.priority = rng.randrange(5)
    if queue == "ttl":
        found.expiration = "86400000"
    return found


def publish(broker: Broker, journal: Journal, count: int, seed: int, large: int = 0) -> None:
    """Publish with confirms, a message at a time."""
    rng = random.Random(seed)
    with channel_of(broker) as channel:
        channel.confirm_delivery()
        for number in range(count):
            uid = f"m{seed}-{number:05}"
            is_fan = rng.random() < 0.2
            queue = "fan" if is_fan else DIRECT[number % len(DIRECT)]
            body = rng.randbytes(1) * (LARGE if number < large else rng.choice(SIZES))
            properties = properties_of(rng, uid, queue)
            journal.published[uid] = (properties, body)
            journal.queues[uid] = FAN if is_fan else [queue]
            channel.basic_publish("fan" if is_fan else "", "k" if is_fan else queue, body, properties)
            journal.confirmed.add(uid)


def consume(broker: Broker, journal: Journal, queue: str, count: int, *, reject: bool = False) -> None:
    """Get and acknowledge messages. An acknowledgement is noted before it is sent."""
    with channel_of(broker) as channel:
        for _ in range(count):
            method, properties, body = channel.basic_get(queue)
            if method is None:
                break
            uid = properties.message_id or hashlib.sha256(body).hexdigest()
            journal.acknowledged[queue, uid] += 1
            if reject:
                journal.queues[uid] = [*journal.queues[uid], "dead.v2"]
                channel.basic_reject(method.delivery_tag, requeue=False)
            else:
                channel.basic_ack(method.delivery_tag)


def under_load(broker: Broker, journal: Journal, *, seconds: float, end: Any) -> None:
    """Call ``end``, which ends the node, while clients publish and consume."""

    def until_the_end(call: Any, *arguments: Any) -> None:
        with suppress(AMQPError, OSError):
            call(broker, journal, *arguments)

    calls = [(publish, 100_000, 71), (publish, 100_000, 72), (consume, "mail.v1", 10_000), (consume, "fan.b", 10_000)]
    clients = [threading.Thread(target=until_the_end, args=arguments) for arguments in calls]
    for client in clients:
        client.start()
    threading.Event().wait(seconds)
    assert any(client.is_alive() for client in clients)
    end()
    for client in clients:
        client.join()


def drain(broker: Broker) -> dict[str, list[tuple[str, str, str, pika.BasicProperties]]]:
    """Get every message of the queues: hash of the body, exchange, routing key, properties."""
    found: dict[str, list[tuple[str, str, str, pika.BasicProperties]]] = {}
    with channel_of(broker) as channel:
        for queue in QUEUES:
            found[queue] = []
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                method, properties, body = got
                digest = hashlib.sha256(body).hexdigest()
                found[queue].append((digest, method.exchange, method.routing_key, properties))
    return found
