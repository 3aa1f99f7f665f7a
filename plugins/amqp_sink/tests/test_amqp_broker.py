"""The sink with Debian's RabbitMQ: bytes on the wire, refusals, alarms, kills and signals."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial

import pika
import pytest
from pika import spec

from msgstore.contract import MessageBatch, QueueName, SinkContext, StoreError
from msgstore_amqp_sink import link
from msgstore_amqp_sink.limits import ask_management
from msgstore_amqp_sink.link import RawProperties
from msgstore_amqp_sink.plugin import AmqpSinkOptions
from msgstore_amqp_sink.sink import AmqpSink
from rabbitmq_broker import Broker, needs_broker
from rabbitmq_files.properties import encode_properties

pytestmark = pytest.mark.broker
SETTINGS = ["max_message_size = 200000"]
OPENSSL = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test"]
OPENSSL += ["-addext", "subjectAltName=IP:127.0.0.1"]
LARGE = b"x" * 200_001
ODD = [
    encode_properties({"type": "t"}, {"float": 1.5, "late": {"$timestamp": 2**60}, "d": {"$decimal": "1.2"}}),
    encode_properties(
        {"timestamp": 2**63}, {"x-death": [{"count": 1, "queue": "q", "time": {"$timestamp": 1}}], "n": [[[]]], "": None}
    ),
    bytes.fromhex("a000") + b"\3\xff\0\xfe" + b"\0\0\0\x0d" + b"\1\xffS\0\0\0\2\xff\xfe" + b"\1bt\1",
    b"\0\0",
]
"""The third has text that is none. The broker does not look at it."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A file with a key and a certificate for 127.0.0.1."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run([*OPENSSL, "-keyout", path, "-out", path], check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def tls_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def broker(tmp_path_factory, certificate, tls_port):
    needs_broker()
    tls = [f"ssl_options.{name} = {certificate}" for name in ("cacertfile", "certfile", "keyfile")]
    settings = [*SETTINGS, f"listeners.ssl.default = 127.0.0.1:{tls_port}", *tls]
    with Broker(tmp_path_factory.mktemp("broker"), settings=settings, plugins=["rabbitmq_management"]) as node:
        yield node


@pytest.fixture
def channel(broker, monkeypatch):
    monkeypatch.setitem(spec.props, spec.BasicProperties.INDEX, RawProperties)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        yield connection.channel()


@pytest.fixture
def queue(channel, request):
    """Return a function that declares a queue."""
    names = []

    def declare(**arguments):
        names.append(f"{request.node.originalname}.{len(names)}")
        arguments = {name.replace("_", "-"): value for name, value in arguments.items()}
        channel.queue_declare(names[-1], durable=True, arguments=arguments)
        return names[-1]

    yield declare
    for name in names:
        channel.queue_delete(name)


def batch(queue, bodies, properties=None, **columns):
    count = len(bodies)
    return MessageBatch(
        name=QueueName("rabbitmq", vhost="/", queue=queue), bodies=bodies, positions=range(count), states=["ready"] * count,
        files=[""] * count, offsets=[0] * count, sizes=[1] * count, raw_properties=properties or [b"\0\0"] * count, **columns,
    )  # fmt: skip


def send(node, *batches, **options):
    """Return row and reason of what is refused, in ``refused`` or ``write``."""
    context = SinkContext(destination=node.url, target=node.url, options=AmqpSinkOptions(**options))
    found = []
    with closing(AmqpSink(context)) as sink:
        for one in batches:
            refused = dict(sink.refused(one))
            rows = [row for row in range(len(one)) if row not in refused]
            found += [*refused.items(), *((rows[row], reason) for row, reason in sink.write(one.take(rows)) if rows)]
        sink.flush()
        sink.finish()
    return sorted(found)


def drained(channel, queue):
    """Return bodies and property bytes, in order."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((got[2], got[1].raw))
    return found


def test_messages_arrive_in_order_byte_for_byte(broker, channel, queue, monkeypatch):
    monkeypatch.setattr(link, "_WINDOW", 7)
    name, count = queue(), 3000
    bodies = [b"%d" % number * (number % 5) + b"y" * (number % 11 == 0) * 190_000 for number in range(count)]
    properties = [ODD[number % len(ODD)] for number in range(count)]
    assert send(broker, batch(name, bodies[:2000], properties[:2000]), batch(name, bodies[2000:], properties[2000:])) == []
    assert drained(channel, name) == list(zip(bodies, properties, strict=True))


def test_properties_fill_one_frame(broker, channel, queue):
    """A frame has 131072 bytes, of which 20 are not properties."""
    name = queue()
    raw = [encode_properties({}, {"a": "b" * (131072 - 20 - 13 + more)}) for more in (0, 1)]
    assert send(broker, batch(name, [b"a", b"b"], raw)) == [(1, "its properties have more than 131052 bytes")]
    assert drained(channel, name) == [(b"a", raw[0])]


def test_header_cc_makes_no_copies(broker, channel, queue):
    name, other = queue(), queue()
    raw = encode_properties({}, {"CC": [other]})
    assert send(broker, batch(name, [b"a", b"b", b"c"], [b"\0\0", raw, b"\0\0"])) == []
    assert drained(channel, name) == [(b"a", b"\0\0"), (b"b", raw), (b"c", b"\0\0")]
    assert drained(channel, other) == []
    assert "msgstore-convert" not in broker.rabbitmqctl("list_exchanges")


def test_each_refusal_has_its_message(broker, channel, queue):
    """A message for which the broker closes the channel does not affect its neighbours."""
    name = queue()
    foreign = encode_properties({"user_id": "other"})
    bodies = [b"0", LARGE, b"2", b"3", LARGE, b"5"]
    found = send(broker, batch(name, bodies, [b"\0\0"] * 3 + [foreign] + [b"\0\0"] * 2), user_id="keep")
    assert [row for row, _ in found] == [1, 3, 4]
    assert "larger than configured max size 200000" in found[0][1]
    assert "user_id property set to 'other' but authenticated user was 'guest'" in found[1][1]
    assert [body for body, _ in drained(channel, name)] == [b"0", b"2", b"5"]
    assert send(broker, batch(name, [b"3"], [foreign])) == []
    assert drained(channel, name) == [(b"3", b"\0\0")]


def test_unroutable_messages_are_refused_one_by_one(broker, channel, queue, request):
    name, exchange = queue(), request.node.name
    channel.exchange_declare(exchange, "topic")
    channel.queue_bind(name, exchange, "in.*")
    keys = [["in.a"], ["out"], ["in.a"], ["out"], ["in.b", "cc"]] * 500
    messages = partial(batch, name, [b"same"] * 2500, exchanges=[exchange] * 2500, routing_keys=keys)
    found = send(broker, messages(properties=[ODD[0]] * 2500), to="exchange")
    assert [row for row, _ in found] == [row for row in range(2500) if keys[row] == ["out"]]
    assert {reason for _, reason in found} == {f"the broker routes it to no queue (NO_ROUTE): exchange {exchange!r}"}
    assert len(drained(channel, name)) == 1500
    assert send(broker, messages(), to="exchange", mandatory=False) == []
    refused = send(broker, batch(name, [b"a"], exchanges=["gone"], routing_keys=[["k"]]), to="exchange")
    assert refused == [(0, "there is no exchange 'gone' in the vhost '/': declare it there, or send straight to the queue")]


def test_missing_queue_is_refused_or_declared(broker, channel, request):
    name = request.node.name
    ((_, reason),) = send(broker, batch(name, [b"a"]))
    assert reason.startswith(f"there is no queue {name!r} in the vhost '/': declare it (--declare)")
    options = {"declare": True, "queue_arguments": {"x-queue-type": "quorum"}}
    assert send(broker, batch(name, [b"a"]), batch(name, [b"b"]), **options) == []
    assert [body for body, _ in drained(channel, name)] == [b"a", b"b"]
    ((_, reason),) = send(broker, batch("amq.gen-x", [b"a"]), declare=True)
    assert reason.startswith("the queue 'amq.gen-x' cannot be declared: ACCESS_REFUSED")


def test_full_queue_refuses_messages(broker, channel, queue):
    name = queue(x_max_length=2, x_overflow="reject-publish", x_max_priority=3, x_single_active_consumer=True)
    found = send(broker, *(batch(name, [b"%d" % number]) for number in range(5)))
    assert [reason.partition(":")[0] for _, reason in found] == ["the broker refuses it (basic.nack)"] * 3
    assert [body for body, _ in drained(channel, name)] == [b"0", b"1"]


@pytest.mark.parametrize(
    ("arguments", "limits", "by"),
    [
        ({"x_max_length": 5, "x_dead_letter_exchange": "o'dd"}, "x-max-length 5", "probe"),
        (
            {"x_message_ttl": 9, "x_queue_mode": "lazy", "x_max_length_bytes": 7},
            "x-message-ttl 9, x-max-length-bytes 7",
            "probe",
        ),
        ({"x_queue_type": "stream", "x_max_age": "1D"}, "x-max-age 1D", "probe"),
        ({"x_max_length": 5, "x_queue_type": "quorum"}, "x-max-length 5", "management"),
    ],
)
def test_queue_with_a_limit_is_an_error(arguments, limits, by, broker, channel, queue):
    name = queue(**arguments)
    management = f"http://127.0.0.1:{broker.management_port}" if by == "management" else None
    with pytest.raises(StoreError) as caught:
        send(broker, batch(name, [b"a"]), management=management)
    assert f"the queue {name!r} in the vhost '/' may discard messages: {limits}. Remove the limit" in str(caught.value)
    assert channel.queue_declare(name, passive=True).method.message_count == 0
    assert send(broker, batch(name, [b"a"]), anyway=True) == []


def test_limit_of_a_policy_is_seen_with_management(broker, channel, queue):
    name, management = queue(), f"http://127.0.0.1:{broker.management_port}"
    broker.rabbitmqctl("set_policy", "short", name, '{"message-ttl":60000}', "--apply-to", "queues")
    assert send(broker, batch(name, [b"a"])) == []
    for _ in range(60):  # the management API learns of a policy after some seconds
        if ask_management(management, ("guest", "guest"), "/", name):
            break
        time.sleep(0.5)
    for declare in (False, True):
        with pytest.raises(StoreError, match="may discard messages: x-message-ttl 60000"):
            send(broker, batch(name, [b"a"]), management=management, declare=declare)
        channel.queue_delete(name)
    with pytest.raises(StoreError, match="the management API does not answer"):
        send(broker, batch(queue(), [b"a"]), management=broker.url.replace("amqp://guest:guest@", "http://"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("guest:guest", "guest:secret"), "the broker refuses the login: the name or the password is wrong"),
        (("guest@", "guest@"), "the broker refuses the vhost (NOT_ALLOWED - vhost gone not found)"),
        (("amqp:", "amqps:"), "TLS failed: [SSL: WRONG_VERSION_NUMBER]"),
    ],
)
def test_connection_that_fails_is_said_plainly(change, reason, broker, monkeypatch):
    monkeypatch.setattr(broker, "url", broker.url.replace(*change) + "/gone")
    with pytest.raises(StoreError) as caught:
        send(broker, batch("q", [b"a"]))
    assert f"127.0.0.1:{broker.port}/gone: {reason}" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_tls_is_checked(broker, channel, queue, certificate, tls_port, monkeypatch):
    name = queue()
    monkeypatch.setattr(broker, "url", broker.url.replace("amqp:", "amqps:").replace(str(broker.port), str(tls_port)))
    with pytest.raises(StoreError, match=r"TLS failed: .*certificate verify failed"):
        send(broker, batch(name, [b"a"]))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert send(broker, batch(name, [b"a"] * 2000)) == []
    assert len(drained(channel, name)) == 2000


def test_alarm_is_waited_for(broker, channel, queue, caplog):
    name = queue()
    broker.rabbitmqctl("set_vm_memory_high_watermark", "0.0000001")
    ending = threading.Timer(1.0, broker.rabbitmqctl, ["set_vm_memory_high_watermark", "0.4"])
    try:
        with pytest.raises(StoreError, match=r"no messages for the time of blocked_timeout\. Of 1 messages of this batch 0"):
            send(broker, batch(name, [b"a"]), blocked_timeout=0.5)
        assert "the broker takes no messages now: low on memory" in caplog.text
        ending.start()
        assert send(broker, batch(name, [b"b"])) == []
    finally:
        ending.join()
    assert b"b" in [body for body, _ in drained(channel, name)]  # and the other: the broker had it in its buffers


def test_quiet_connection_that_was_closed_is_opened_anew(broker, request):
    name = request.node.name
    context = SinkContext(destination=broker.url, target="", options=AmqpSinkOptions(declare=True))
    with closing(AmqpSink(context)) as sink:
        for body in (b"a", b"b"):
            assert not sink.refused(batch(name, [body]))
            assert not sink.write(batch(name, [body]))
            broker.rabbitmqctl("close_all_connections", "for a test")
    assert f"{name}\t2" in broker.rabbitmqctl("list_queues")


PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background of a shell ignores it
from msgstore.jobs.messages import convert, json_lines
convert.FLUSH_MESSAGES, json_lines._BATCH = 1, 10_000
from msgstore.cli.main import main
main()
"""
COUNT, BATCH = 2000, 100
"""Messages, and those of a batch, at most."""
PERSISTENT = base64.b64encode(encode_properties({"delivery_mode": 2})).decode()


@pytest.fixture
def converting(broker, tmp_path):
    """Return a function that starts the conversion of a file with messages for the queue ``interrupted``."""
    rows = [
        {"system": "rabbitmq", "vhost": "/", "queue": "interrupted", "body": base64.b64encode(b"%d" % n).decode()}
        for n in range(COUNT)
    ]
    lines = "".join(json.dumps(row | {"raw_properties": PERSISTENT}) + "\n" for row in rows)
    (tmp_path / "m.jsonl").write_text(lines)
    arguments = ["convert", "m.jsonl", broker.url, "--declare", "--rate", "700", "--mark-duplicates", "--json"]
    running = []

    def start():
        pipe = subprocess.PIPE
        running.append(subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], cwd=tmp_path, stdout=pipe, stderr=pipe))
        return running[-1]

    yield start
    for child in running:
        child.kill()
        child.communicate()


def wait_for(broker, count):
    """Wait until that many messages are in the queue."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        while channel.queue_declare("interrupted", durable=True).method.message_count < count:
            time.sleep(0.01)


def check_whole(broker, monkeypatch):
    """All messages are there. Return the number of those that are there twice, each with the mark at least once."""
    monkeypatch.setitem(spec.props, spec.BasicProperties.INDEX, RawProperties)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        found = drained(connection.channel(), "interrupted")
        connection.channel().queue_delete("interrupted")
    unmarked = [body for body, raw in found if b"x-msgstore-redelivered" not in raw]
    assert len(unmarked) == len(set(unmarked))
    assert {int(body) for body, _ in found} == set(range(COUNT))
    return len(found) - COUNT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_interrupted_conversion_continues(number, broker, converting, monkeypatch):
    """A signal loses and duplicates nothing. A kill may repeat the batch that was not confirmed, marked."""
    for count in (300, 1000):
        child = converting()
        wait_for(broker, count)
        child.send_signal(number)
        _, told = child.communicate()
        if number != signal.SIGKILL:
            assert (child.returncode, b"the same command continues" in told) == (130, True)
    child = converting()
    output, told = child.communicate()
    summary = json.loads(output.splitlines()[-1])
    assert (child.returncode, told, summary["written"], summary["resumed"]) == (0, b"", COUNT, True)
    repeated = check_whole(broker, monkeypatch)
    assert repeated <= (2 * BATCH if number == signal.SIGKILL else 0)


def test_broker_that_is_killed_keeps_what_it_confirmed(broker, converting, monkeypatch):
    child = converting()
    wait_for(broker, 300)
    broker.kill()
    _, told = child.communicate()
    assert child.returncode == 2
    assert b"the connection failed: " in told
    assert b"are confirmed. Mend the cause and run the command again: it continues." in told
    broker.start()
    child = converting()
    _, told = child.communicate()
    assert (child.returncode, told) == (0, b"")
    check_whole(broker, monkeypatch)
