"""Sink: checksums, transactions, and names that it must not lose, redirect or write."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from msgstore.contract import SourceDamage
from msgstore.jobs.messages.conversion_plan import plan_convert
from msgstore.jobs.messages.convert import convert
from msgstore.jobs.messages.selection import select
from msgstore.jobs.messages.sources import open_source, source_spec
from msgstore.jobs.tasks import ProgressMeter
from msgstore.option_values import Backend
from msgstore.plugins.catalogue import load_catalogue
from msgstore_rocketmq_log import flat
from msgstore_rocketmq_log import properties as p
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.frame import make_frame
from msgstore_rocketmq_log.log import HALF_TOPIC, OP_TOPIC, OWN_TOPICS
from msgstore_rocketmq_log.reflow import WHOLE, ReflowOptions, reflowed, to_v1, to_v2
from support import json_lines

REAL = b"REAL_TOPIC\1T\2REAL_QID\x011\2"
HALF = REAL + b"UNIQ_KEY\1h\2"


def encode(text: bytes) -> str:
    return base64.b64encode(text).decode()


def row(body: bytes = b"x", **more: Any) -> dict[str, Any]:
    given = {name: encode(value) if isinstance(value, bytes) else value for name, value in more.items()}
    return {"system": "rocketmq", "queue": "T", "partition": 1, "body": encode(body), "timestamp_ms": 10**12} | given


def record(body: bytes = b"x", topic: str = "T", properties: bytes = b"", **fields: Any) -> bytes:
    fields = {"queue_id": 1, "store_timestamp": 10**12} | fields
    return v1.encode(body=body, topic=topic.encode(), properties=properties, **fields)


def written(path: Path, *rows: dict[str, Any], v2: bool = False) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Write rows, and return (topic, queue id, state, body, user properties) of what is read back, and why rows are refused."""
    sink = Backend("rocketmq", {"file_size": 2000, "v2": v2, "queue_entries": 10})
    job = plan_convert(
        load_catalogue(), json_lines(path / "m.jsonl", rows), str(path / "out"), select(everything=True), sink=sink
    )
    report, found = convert(job, ProgressMeter(0)), []
    if report.total("written"):
        with open_source(source_spec(load_catalogue(), path / "out")) as source:
            for info in source.queues():
                for item in source.messages(info.name, 0, None):
                    assert not isinstance(item, SourceDamage)
                    users = item.headers or [None] * len(item)
                    columns = zip(item.states, item.bodies, users, strict=True)
                    found += [(item.name.queue, item.name.partition, *column) for column in columns]
            assert not source.damage()
    assert report.total("written") == len(found) == len(rows) - report.total("refused")
    return found, sorted(report.reasons)


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("raw", [None, record(properties=b"a\1b\2__CRC32#\x01123\2k\1v\2" + bytes(20))])
def test_checksum_of_a_new_record_is_renewed(raw, v2, tmp_path):
    stale = b"__CRC32#\x01" + b"7" * 10 + b"\2k\1v"
    if raw is not None:
        raw = raw[:-20] + v1.crc_property(raw[:-20])
    found, refused = written(tmp_path, row(raw_properties=stale, raw=raw), v2=v2)
    assert [(one[2], one[3], one[4]["k"]) for one in found] == [("ready", b"x", "v")]
    assert not refused
    data = next((tmp_path / "out/commitlog").iterdir()).read_bytes()
    if not v2:
        assert v1.check(data)["success"]
        assert data.count(b"__CRC32#") == 1


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize(
    ("state", "topic", "properties"),
    [("delayed", v1.SCHEDULE_TOPIC, REAL + b"DELAY\x013\2"), ("half", HALF_TOPIC, HALF + b"TRAN_PREPARED_QUEUE_OFFSET\x015\2")],
)
def test_waiting_message_alone_keeps_its_topic(state, topic, properties, v2, tmp_path):
    raw = record(topic=topic, properties=properties)
    assert written(tmp_path, row(state=state, raw=raw), v2=v2) == ([("T", 1, state, b"x", {})], [])
    table = json.loads((tmp_path / "out/config/topics.json").read_bytes())["topicConfigTable"]
    assert table["T"]["writeQueueNums"] == 2
    assert b"TRAN_PREPARED" not in next((tmp_path / "out/commitlog").iterdir()).read_bytes()


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("form", ["v1", "v2"])
def test_commit_records_point_at_no_half_record(form, v2, tmp_path):
    """The half record stands where that of the committed messages did."""
    raws = [record(b"paid", sys_flag=v1.COMMITTED), record(b"paid", sys_flag=v1.COMMITTED)]
    raws.append(record(topic=HALF_TOPIC, properties=HALF))
    raws = [to_v2(raw).encode() if form == "v2" else raw for raw in raws]
    rows = [row(raw=raws[2], state="half"), *(row(b"paid", raw=raw, state="committed") for raw in raws[:2])]
    found, _ = written(tmp_path, *rows, v2=v2)
    assert [one[2] for one in found] == ["committed", "committed", "half"]


@pytest.mark.parametrize(
    ("state", "raw", "outcome"),
    [
        ("ready", record(topic=OP_TOPIC, properties=REAL), "ready"),  # it would end half messages of this log
        ("ready", record(topic=HALF_TOPIC, properties=HALF), "ready"),
        ("half", record(), None),  # it would be delivered
        ("half", record(sys_flag=v1.PREPARED), None),
        ("delayed", record(topic=HALF_TOPIC, properties=HALF), None),
        ("ready", record(queue_id=2), None),
        ("delayed", record(topic=v1.SCHEDULE_TOPIC, properties=REAL, queue_id=2**31 - 1), None),
        ("ready", record(store_timestamp=2**62), None),
        ("orphan", record(topic=HALF_TOPIC, properties=HALF), "half"),
    ],
)
def test_record_that_is_not_the_message_is_not_used(state, raw, outcome, tmp_path):
    found, refused = written(tmp_path, row(state=state, raw=raw))
    assert [one[2] for one in found] == [outcome] * bool(outcome)
    assert len(refused) == (not outcome)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        *(([row(queue=topic)], "of the broker's own: rename it") for topic in sorted(OWN_TOPICS)),
        *(([row(partition=number)], f"{number} is no queue id") for number in (-1, 65_536, 2**31 - 1)),
        ([row(queue="a-b"), row(vhost="a", queue="b")], "have one name here, 'a-b/1': rename one"),
        ([row(partition=None), row(partition=0)], "have one name here"),
        ([row(timestamp_ms=2**62, properties={"KEYS": "a"})], "is not between 1970 and 9999"),
        ([row(timestamp_ms=-1)], "is not between 1970 and 9999"),
        ([row(system="x", headers={WHOLE: "AAAA"})], "has the name of a system property"),
    ],
)
def test_names_and_times_no_broker_has_are_refused(rows, reason, tmp_path):
    found, refused = written(tmp_path, *rows)
    assert len(found) == len(rows) - 1
    assert len(refused) == 1
    assert reason in refused[0]


REDIRECT = encode(flat.encode_header({"topic": "payments", "queue_id": 7}))


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("value", ["x", "AAAA", "é", REDIRECT])
def test_header_in_a_property_does_not_redirect(value, v2, tmp_path):
    pairs = p.encode([("a", "b"), (WHOLE, value)]).encode()
    assert written(tmp_path, row(raw_properties=pairs), v2=v2) == ([("T", 1, "ready", b"x", {"a": "b", WHOLE: value})], [])
    stored = record(properties=pairs)
    assert to_v1(to_v2(stored)) == stored


def test_user_property_named_as_kept_string_is_listed(tmp_path):
    pairs = [("__V1_PROPERTIES", "v")]
    found, _ = written(tmp_path, row(raw_properties=p.encode(pairs).encode()), v2=True)
    assert found[0][4] == dict(pairs)


def test_kept_string_of_v2_does_not_redirect(tmp_path):
    """The properties and the string that stands in for them say different things."""
    untyped = [{"name": "__V1_PROPERTIES", "value": REAL.replace(b"T\2", b"U\2")}]
    system = {"real_topic": "T", "real_queue_id": 1, "untyped": untyped}
    frame = make_frame({"topic": v1.SCHEDULE_TOPIC, "system": system}, b"x", store_timestamp=1)
    found, refused = written(tmp_path, row(state="delayed", raw=frame.encode()))
    assert not found
    assert "cannot be renamed" in refused[0]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (v1.encode(body=b"x", topic=b"\xff", properties=b"", born_host=bytes(16)), "its topic is not UTF-8"),
        (record(born_host=bytes(16), properties=b"__CRC32#\x01123\2k\1v\2"), "no good record"),
    ],
)
def test_record_without_a_plain_form_has_a_reason(raw, reason):
    data, told = reflowed(raw, None, {"v1"}, ReflowOptions())
    assert data is None
    assert reason in told
