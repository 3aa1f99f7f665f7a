"""Records and files that RocketMQ's own classes wrote and read; records of the v2 layout."""

from __future__ import annotations

import json

import pytest

from msgstore_rocketmq_log import check, consume_queue_entry, decode, decode_v2, read_checkpoint, read_index, scan_file
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.files import FILLER, encode_checkpoint, index_parts
from msgstore_rocketmq_log.frame import read_frame
from msgstore_rocketmq_log.reflow import LAYOUTS, NotDeliverableError, to_v1, to_v2
from support import DATA

VECTORS = {vector["name"]: vector for vector in json.loads((DATA / "vectors/rocketmq.json").read_text())["vectors"]}
RECORDS = {name: vector for name, vector in VECTORS.items() if vector["kind"] == "record" and vector["hex"] is not None}
V2 = {vector["name"]: vector for vector in json.loads((DATA / "vectors/rocketmq_v2.json").read_text())["vectors"]}


@pytest.mark.parametrize("name", RECORDS)
def test_record(name):
    vector = RECORDS[name]
    data = bytes.fromhex(vector["hex"])
    assert decode(data) == vector["decode"]
    assert bool(decode(data, check_crc=True)) is vector["decode_with_crc_check"]
    assert check(data) == {key: value for key, value in vector["check"].items() if key != "consumed"}
    if "consume_queue_entry_hex" in vector:
        assert consume_queue_entry(data).hex() == vector["consume_queue_entry_hex"]


@pytest.mark.parametrize("name", [name for name, vector in VECTORS.items() if vector["kind"] == "file_scan"])
def test_file(name):
    vector = VECTORS[name]
    found = scan_file(bytes.fromhex(vector["file_hex"]), vector["file_from_offset"])
    assert found == {key: vector[key] for key in ("scan", "scan_ends", "valid_until")}


def test_index_is_read_and_written():
    vector = VECTORS["small_index_file"]
    data = bytes.fromhex(vector["hex"])
    found = read_index(data)
    assert found.slots == vector["hash_slots"]
    assert {key: found.lookup(key) for key in vector["lookups"]} == vector["lookups"]
    puts = [(put["key"], put["phy"], put["store_timestamp"]) for put in vector["puts"] if put["accepted"]]
    parts, size = index_parts(puts, vector["hash_slots"], vector["index_num"])
    written = bytearray(size)
    for at, part in parts:
        written[at : at + len(part)] = part
    assert bytes(written) == data
    with pytest.raises(ValueError, match="room for 7 keys"):
        index_parts([("t#k", 0, 0)] * 8, 5, 8)


@pytest.mark.parametrize("data", [b"", bytes(39), bytes(36) + b"\x7f\0\0\0", bytes(32) + bytes([0, 0, 0, 9, 0, 0, 0, 1])])
def test_bytes_that_are_no_index_are_refused(data):
    with pytest.raises(ValueError, match="index file"):
        read_index(data)


def test_checkpoint():
    vector = VECTORS["checkpoint_file"]
    found = read_checkpoint(bytes.fromhex(vector["first_40_hex"]).ljust(vector["file_size"], b"\0"))
    assert (found["min_timestamp"], found["min_timestamp_index"]) == (vector["min_timestamp"], vector["min_timestamp_index"])
    assert len(encode_checkpoint(5, 6)) == vector["file_size"]


def test_filler_entry():
    assert VECTORS["cq_pre_blank"]["hex"] == FILLER.hex()


@pytest.mark.parametrize("name", V2)
def test_record_of_v2(name):
    assert decode_v2(bytes.fromhex(V2[name]["hex"])) == V2[name]["decoded"]


GOOD = [name for name in RECORDS if check(bytes.fromhex(RECORDS[name]["hex"])).get("size", 0) == len(RECORDS[name]["hex"]) // 2]


@pytest.mark.parametrize("name", [name for name in GOOD if name not in ("v2_forced_short_topic", "reflow_v2_to_v1_size_kept")])
def test_v1_comes_back_from_v2_byte_for_byte(name):
    data = bytes.fromhex(RECORDS[name]["hex"])
    frame = to_v2(data)
    assert read_frame(frame.encode()) == frame
    assert to_v1(frame, LAYOUTS) == data


REASONS = {
    "v2_topic_40000": ["the topic has 40000 bytes"],
    "v2_topic_200": ["the topic has 200 bytes"],
    "v2_user_collides": [
        "the user property 'TAGS' has the name of a system property",
        "the user property '__CRC32#' has the name of a system property",
    ],
    "v2_user_separators": [
        "the property 'a' has a separator in its name or value",
        "the property 'empty' has an empty name or value",
        "the value of 'bin' is not UTF-8",
        "the user property 'k' is there twice",
    ],
    "v2_properties_40000": ["the properties have 40200 bytes"],
}


@pytest.mark.parametrize("name", [name for name in V2 if V2[name]["decoded"] is not None])
def test_v2_as_plain_v1(name):
    frame = read_frame(bytes.fromhex(V2[name]["hex"]))
    if name in REASONS:
        with pytest.raises(NotDeliverableError) as caught:
            to_v1(frame)
        assert caught.value.reasons == REASONS[name]
        return
    found, header = decode(to_v1(frame)), V2[name]["decoded"]["header"]
    assert (found["topic"], found["body"]) == (header["topic"], V2[name]["decoded"]["body"])
    assert (found["physical_offset"], found["queue_offset"]) == (frame.physical_offset, frame.queue_offset)
    if name == "v2_ipv6":
        assert (found["born_host"], found["properties"]["__BORN_HOST"]) == ("0.0.0.0", "[2001:db8::5]:54321")
        assert decode(to_v1(frame, LAYOUTS))["born_host"] == "2001:db8::5"


def test_delayed_delivery_after_the_end_of_time():
    """The broker's 64 bits wrap."""
    data = v1.encode(
        body=b"x", topic=v1.SCHEDULE_TOPIC.encode(), properties=b"DELAY\x013\x02", queue_offset=0, physical_offset=0,
        store_timestamp=2**63 - 1,
    )  # fmt: skip
    code = int.from_bytes(consume_queue_entry(data)[12:], "big", signed=True)
    assert code == -(2**63) + v1.DELAYS_MS[2] - 1
