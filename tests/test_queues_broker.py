"""A vhost that we wrote is served by RabbitMQ 3.10, and one that it wrote is served by us."""

from __future__ import annotations

import pytest

from msgstore_queues import open_vhost
from rabbitmq_broker import Broker, needs_broker

pika = pytest.importorskip("pika")
pytestmark = pytest.mark.broker
SIZES = [0, 1, 300, 3000, 4095, 4096, 30_000]


def declared(broker, queues):
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for name, version in queues.items():
            channel.queue_declare(name, durable=True, arguments={"x-queue-version": version})


def drained(broker, queue):
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel, found = connection.channel(), []
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((body, properties.headers, properties.content_type))


def messages(count):
    return [(b"%06d" % number + bytes(SIZES[number % len(SIZES)]), {"number": number}, "text/plain") for number in range(count)]


@pytest.mark.parametrize("version", [1, 2])
def test_broker_boots_on_what_we_wrote_and_delivers_it(version, tmp_path):
    needs_broker()
    sent = messages(300)
    with Broker(tmp_path, segment_size=2**18) as broker:
        declared(broker, {"jobs": version, "empty": version})
    with open_vhost(broker.data, "/", layout="rabbitmq-3.10") as vhost:
        jobs = vhost.queue("jobs", index=f"v{version}")
        for body, headers, kind in sent:
            jobs.publish(body, headers=headers, properties={"content_type": kind})
        for _ in range(50):
            jobs.receive().ack()
    with broker.start():
        assert drained(broker, "jobs") == sent[50:]
        assert drained(broker, "empty") == []


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_we_serve_what_a_broker_wrote_and_give_it_back(version, killed, tmp_path):
    needs_broker()
    sent = messages(300)
    with Broker(tmp_path, segment_size=2**18) as broker:
        declared(broker, {"jobs": version})
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for body, headers, kind in sent:
                properties = pika.BasicProperties(headers=headers, content_type=kind, delivery_mode=2)
                channel.basic_publish("", "jobs", body, properties)
        if killed:
            broker.kill()
    with open_vhost(broker.data, "/", layout="rabbitmq-3.10") as vhost:
        jobs, found = vhost.queue("jobs"), []
        for _ in range(200):
            received = jobs.receive(timeout=1)
            found.append((received.body, received.headers, received.properties["content_type"]))
            received.ack()
        jobs.publish(b"ours", headers={"number": 300}, properties={"content_type": "text/plain"})
    assert found == sent[:200]
    with broker.start():
        assert drained(broker, "jobs") == [*sent[200:], (b"ours", {"number": 300}, "text/plain")]
