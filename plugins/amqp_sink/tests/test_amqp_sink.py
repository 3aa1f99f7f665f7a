"""The sink without a broker: options, refusals, property bytes, signals, and errors in plain words."""

from __future__ import annotations

import json
import signal
import socket
from typing import ClassVar

import pytest
from pika import frame, spec

from msgstore.contract import ConfigError, MessageBatch, QueueName, SinkContext, StoreError
from msgstore_amqp_sink import broker, limits, link, sink
from msgstore_amqp_sink.link import RawProperties
from msgstore_amqp_sink.plugin import AmqpSinkOptions
from rabbitmq_files.properties import encode_properties, read_properties
from support import command

ODD = encode_properties(
    {"content_type": "a", "timestamp": 2**64 - 1}, {"f": 1.5, "t": {"$timestamp": 2**60}, "n": [[{"a": None}]]}
)


EXPIRATIONS = ["", "1 h", "-1", "\u0663", "315360000001"]


class FakeLink:
    """Takes every message. ``replies``: name of a queue or exchange to the broker's reply."""

    max_properties = 1000
    replies: ClassVar[dict[str, str]] = {}

    def __init__(self, *_: object) -> None:
        self.sent = []

    def is_alive(self):
        return True

    def ask(self, method, **given):
        return self.replies.get(given.get("queue") or given.get("exchange"))

    def publish(self, publications, delay, *, mandatory):
        self.sent += publications
        return []

    def close(self):
        pass


@pytest.fixture
def opened(monkeypatch):
    """Return a function that opens a sink with a fake connection."""
    monkeypatch.setattr(broker, "Link", FakeLink)
    sinks = []

    def open_it(url="amqp://h", token=None, **options):
        sinks.append(sink.AmqpSink(SinkContext(destination=url, target=url, options=AmqpSinkOptions(**options), token=token)))
        return sinks[-1]

    yield open_it
    for one in sinks:
        one.close()


def batch(bodies=(b"a",), queue="q", system="rabbitmq", vhost=None, **columns):
    count = len(bodies)
    return MessageBatch(
        name=QueueName(system, vhost=vhost, queue=queue), bodies=bodies, positions=range(count), states=["ready"] * count,
        files=[""] * count, offsets=[0] * count, sizes=[1] * count, **columns,
    )  # fmt: skip


def sent(one: sink.AmqpSink, messages: MessageBatch):
    assert not one.refused(messages)
    one.write(messages)
    return one._broker._link.sent[-len(messages) :]


def test_header_frame_has_the_stored_bytes(monkeypatch):
    """Also where pika can neither encode nor decode them."""
    content = frame.Header(1, 5, RawProperties(ODD)).marshal()
    assert content[7 + 12 : -1] == ODD
    with pytest.raises(OSError, match="too large"):
        frame.decode_frame(content)
    monkeypatch.setitem(spec.props, spec.BasicProperties.INDEX, RawProperties)
    size, decoded = frame.decode_frame(content)
    assert (size, decoded.body_size, decoded.properties.raw) == (len(content), 5, ODD)


def test_equal_messages_that_return_are_told_apart():
    """Their confirms may come later."""
    one = link.Link.__new__(link.Link)
    one._todo, one._waiting, one._refused = [link.Publication("", "q", ODD, b"a", "")] * 3, {7: 0, 8: 1, 9: 2}, []
    for _ in range(2):
        one._on_return(None, spec.Basic.Return(312, "NO_ROUTE", "", "q"), RawProperties(ODD), b"a")
    assert [number for number, _ in one._refused] == [0, 1]
    assert list(one._waiting) == [7, 8, 9]


@pytest.mark.parametrize("tail", [{}, {"app_id": "ä", "cluster_id": "c"}])
def test_foreign_user_id_is_cut_out_and_counted(tail, opened, caplog):
    given = [encode_properties({"type": "t", "user_id": user} | tail, {"user_id": "x"}) for user in ("other", "me")]
    one = opened("amqp://me:secret@h")
    found = sent(one, batch([b"a", b"b"], raw_properties=given))
    assert [message.properties for message in found] == [encode_properties({"type": "t"} | tail, {"user_id": "x"}), given[1]]
    token = one.flush()
    opened("amqp://me:secret@h", token=json.loads(json.dumps(token))).finish()
    assert "1 messages went without their user_id" in caplog.text
    kept = sent(opened(user_id="keep"), batch([b"a", b"b"], raw_properties=given))
    assert [message.properties for message in kept] == given


@pytest.mark.parametrize(
    ("messages", "properties", "headers"),
    [
        (batch(), {}, None),
        (batch(properties=[{"type": "t"}], headers=[{"n": 1}]), {"type": "t"}, {"n": 1}),
        (batch(system="kestrel", timestamps_ms=[1999]), {"delivery_mode": 2, "timestamp": 1}, None),
        (
            batch(system="rocketmq", properties=[{"KEYS": "k"}], headers=[{"a": "b"}], raw_properties=[b"KEYS\1k\2"]),
            {"delivery_mode": 2},
            {"a": "b", "KEYS": "k"},
        ),
    ],
)
def test_properties_without_bytes_get_one_encoding(messages, properties, headers, opened):
    (message,) = sent(opened(), messages)
    assert read_properties(message.properties) == (properties, headers)


def test_possible_duplicates_get_one_header(opened):
    one = opened()
    marked = batch(raw_properties=[ODD], certainties=["maybe_duplicate"])
    (message,) = sent(one, marked)
    assert read_properties(message.properties)[1].pop("x-msgstore-redelivered") is True
    (again,) = sent(one, batch(raw_properties=[message.properties], certainties=["maybe_duplicate"]))
    assert again.properties == message.properties


@pytest.mark.parametrize(
    ("messages", "options", "reason"),
    [
        (batch(queue="ä" * 128), {}, "not one of at most 255 bytes"),
        (batch(queue="\udc80"), {}, "not one of at most 255 bytes"),
        (batch(queue=None), {}, "it is in no queue"),
        (batch(queue="gone"), {}, "there is no queue 'gone' in the vhost 'v'"),
        (batch(queue="mine"), {}, "the broker refuses the queue 'mine': RESOURCE_LOCKED"),
        (batch(raw_properties=[b"\x80"]), {}, "the properties are cut"),
        *((batch(raw_properties=[encode_properties({"expiration": e})]), {}, "its expiration is not") for e in EXPIRATIONS),
        (batch(raw_properties=[b"\x10\0\3"]), {}, "its delivery_mode is neither 1 nor 2"),
        (batch(raw_properties=[encode_properties({}, {"a": [{"$float": "-inf"}]})]), {}, "a header is infinite"),
        (batch(raw_properties=[encode_properties({}, {"CC": "q"})]), {}, "CC or BCC is not an array"),
        (batch(raw_properties=[encode_properties({}, {"a": "b" * 999})]), {}, "more than 1000 bytes"),
        (batch(properties=[{"type": 1}]), {}, "the property type"),
        (batch(), {"to": "exchange"}, "it has no exchange"),
        (batch(exchanges=["gone"]), {"to": "exchange"}, "there is no exchange 'gone'"),
        (batch(exchanges=[""], routing_keys=[["x" * 256]]), {"to": "exchange"}, "routing key is not one of"),
    ],
)
def test_refused_says_why(messages, options, reason, opened, monkeypatch):
    lost = {"gone": "NOT_FOUND - no queue", "mine": "RESOURCE_LOCKED - exclusive"}
    monkeypatch.setattr(FakeLink, "replies", lost)
    one = opened("amqp://h/v", **options)
    ((row, found),) = one.refused(messages)
    assert row == 0
    assert reason in found
    assert list(one.refused(messages)) == [(0, found)]


def test_ways_of_messages(opened):
    """Straight to the queue, through an exchange of its own if the broker would send copies, or by exchange and first key."""
    copies = [encode_properties({}, {"CC": names}) for names in (["q"], ["q", "other"])]
    found = sent(opened(), batch([b"a", b"b"], vhost="v", raw_properties=copies))
    assert [message[:2] for message in found] == [("", "q"), (broker.own_exchange("q"), "q")]
    orphans = batch([b"a", b"b"], queue=None, exchanges=["x", ""], routing_keys=[["k", "cc"], None])
    assert [message[:2] for message in sent(opened(to="exchange"), orphans)] == [("x", "k"), ("", "")]


@pytest.mark.parametrize(
    ("url", "options", "vhost"),
    [("amqp://h", {}, "own"), ("amqp://h/", {}, "own"), ("amqp://h/%2F", {}, "/"), ("amqp://h/a", {"vhost": "b"}, "b")],
)
def test_vhost_is_of_option_url_or_queue(url, options, vhost, opened):
    one = opened(url, **options)
    sent(one, batch(vhost="own"))
    assert one._broker.parameters.virtual_host == vhost


WRONG = "amqp://u:se/cret@h amqp://u:se#cret@h amqp://u:1/se@h amqp://secret@h amqp://h?secret=1 amqp://[secret amqp:// amqp://h:99999"


@pytest.mark.parametrize("url", WRONG.split())
def test_url_that_is_wrong_is_not_quoted(url, opened):
    with pytest.raises(ConfigError, match="is not of the form amqp://USER:PASSWORD@HOST") as caught:
        opened(url)
    assert "se" not in str(caught.value).partition("Write")[0].replace("USER:PASSWORD", "")


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("rate=0", "rate"),
        ("to=topic", "to"),
        ("blocked_timeout=soon", "blocked_timeout"),
        ('queue_arguments={"x-expires":1}', "x-expires 1"),
    ],
)
def test_options_that_are_wrong_are_refused(option, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.jsonl").write_text("")
    assert reason in command("convert", "m.jsonl", "amqp://h", "--source", "jsonl", "--sink-option", option, code=2).stderr


DIFFERENT = "PRECONDITION_FAILED - inequivalent arg"


def test_arguments_are_found_by_refused_declarations():
    actual = {
        "durable": False, "x-message-ttl": 5, "x-max-length": 9, "x-single-active-consumer": True, "x-overflow": "drop-head",
    }  # fmt: skip
    asked = []

    def declare(queue, arguments, **flags):
        asked.append(arguments.copy())
        for name, value in actual.items():
            if (flags | arguments).get(name) == value:
                continue
            kind = {bool: "bool", int: "signedint", str: "longstr"}[type(value)]
            current = f"'{value}'".lower() if name == "durable" else f"the value '{value}' of type '{kind}'".replace("T", "t")
            return f"{DIFFERENT} '{name}' for queue '{queue}' in vhost '/': received none but current is {current}"
        return None

    assert limits.probe(declare, "o'dd") == "x-message-ttl 5, x-max-length 9"
    actual["x-overflow"] = "reject-publish"
    assert limits.probe(declare, "q") == "x-message-ttl 5"
    cut = f"{DIFFERENT} 'x-{{}}' for queue 'nnn..."
    assert limits.probe(lambda **_: cut.format("max-length"), "q") == "x-max-length of unknown value"
    assert "cannot be read" in limits.probe(lambda **_: cut.format("max-priority"), "q")
    assert "cannot be read" in limits.probe(lambda **_: "ACCESS_REFUSED", "q")


@pytest.mark.parametrize("token", [None, {"user_ids": 0}])
def test_limit_is_an_error_until_something_is_sent(token, opened, monkeypatch):
    monkeypatch.setattr(broker, "probe", lambda declare, queue: "x-max-length 5")
    one = opened(token=token)
    if token is None:
        with pytest.raises(
            StoreError, match=r"^amqp://h: the queue 'q' in the vhost '/' may discard messages: x-max-length 5\. Rem"
        ):
            one.refused(batch())
    else:
        assert "may discard" in one.refused(batch())[0][1]
    assert not opened(token=token, anyway=True).refused(batch())


@pytest.fixture
def interruptible():
    """Let SIGINT interrupt. What runs in the background of a shell ignores it from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_sigterm_stops_after_the_flush(opened):
    """The journal has all sent messages then. A second Ctrl-C stops at once."""
    one, handler = opened(rate=0.001), signal.getsignal(signal.SIGTERM)
    sent(one, batch())
    one._due = float("inf")
    assert one._delay() > 0
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
    assert one._delay() == 0
    sent(one, batch())
    one.flush()
    with pytest.raises(KeyboardInterrupt):
        one.refused(batch())
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    one.close()
    assert signal.getsignal(signal.SIGTERM) is not handler


def test_rate_is_kept_without_large_bursts(opened, monkeypatch):
    now = 100.0
    monkeypatch.setattr(sink.time, "monotonic", lambda: now)
    one, times = opened(rate=100), []
    while len(times) < 50:
        if (seconds := one._delay()) > 0:
            now += seconds
        else:
            times.append(now)
    assert times[-1] - times[0] == pytest.approx(0.44, abs=0.02)
    assert times.count(100.0) <= 6


@pytest.mark.parametrize("scheme", ["amqp", "amqps"])
def test_connection_that_is_refused_is_said_plainly(scheme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    row = {"system": "rabbitmq", "vhost": "/", "queue": "q", "body": "YQ=="}
    (tmp_path / "m.jsonl").write_text(json.dumps(row) + "\n")
    done = command("convert", "m.jsonl", f"{scheme}://u:secret@127.0.0.1:{port}", "--source", "jsonl", code=2)
    assert f"{scheme}://127.0.0.1:{port}/%2F: the connection failed: Connection refused." in done.stderr
    assert "secret" not in done.output
    assert not (tmp_path / "msgstore-convert.jsonl").exists()
