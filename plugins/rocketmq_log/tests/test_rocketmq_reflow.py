"""Reflow in both directions: what is kept, what is refused, and headers of other versions."""

from __future__ import annotations

import contextlib
import zlib

import flatbuffers
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore_rocketmq_log import decode, decode_v2, flat
from msgstore_rocketmq_log import properties as p
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.frame import Frame, make_frame, read_frame
from msgstore_rocketmq_log.reflow import LAYOUTS, WHOLE, NotDeliverableError, ReflowOptions, has_unknown, to_v1, to_v2

texts = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), min_size=1, max_size=12)
names = st.one_of(texts, st.sampled_from(sorted(p.SYSTEM - {p.CRC_NAME})))
hosts = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
i32, i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


@st.composite
def v1_records(draw):
    topic = draw(st.text(st.characters(max_codepoint=0x2FF, blacklist_categories=["Cs"]), max_size=200)).encode()
    pairs = draw(st.lists(st.tuples(names, texts), max_size=6))
    return v1.encode(
        body=draw(st.binary(max_size=40)),
        topic=topic,
        properties=draw(st.one_of(st.just(p.encode(pairs).encode()), st.binary(max_size=30))),
        queue_id=draw(i32),
        flag=draw(i32),
        queue_offset=draw(i64),
        physical_offset=draw(i64),
        sys_flag=draw(i32),
        born_timestamp=draw(i64),
        born_host=draw(hosts),
        born_port=draw(st.integers(0, 2**31 - 1)),
        store_timestamp=draw(i64),
        store_host=draw(hosts),
        store_port=draw(st.integers(0, 2**31 - 1)),
        reconsume_times=draw(i32),
        prepared_transaction_offset=draw(i64),
    )


@given(v1_records())
def test_v1_comes_back_byte_for_byte(record):
    if p.CRC_NAME in v1.properties_of(record, v1.read_fields(record)):
        return  # bytes that happen to have a wrong checksum
    frame = read_frame(to_v2(record).encode())
    assert to_v1(frame, LAYOUTS) == record
    assert frame.header()["body_crc" if frame.body else "topic"] == (
        zlib.crc32(frame.body) if frame.body else frame.header()["topic"]
    )


def test_checksum_of_record_is_made_anew():
    begin = v1.encode(body=b"x", topic=b"t", properties=bytes(p.CRC_BYTES), born_host=bytes(range(16)))[: -p.CRC_BYTES]
    record = begin + v1.crc_property(begin)
    assert v1.check(record)["success"]
    found = to_v1(to_v2(record))  # without the address
    assert v1.check(found)["success"]
    assert decode(found)["properties"]["__BORN_HOST"].startswith("[1:")


def v2(**header) -> Frame:
    return make_frame({"topic": "t"} | header, b"body", physical_offset=7, queue_offset=3, store_timestamp=9)


def test_options_for_what_has_no_form():
    frame = v2(user_properties=[{"name": "TAGS", "value": b"mine"}, {"name": "a", "value": b"x\x02%"}], topic_incarnation=5)
    with pytest.raises(NotDeliverableError) as caught:
        to_v1(frame)
    assert len(caught.value.reasons) == 2
    found = decode(to_v1(frame, options=ReflowOptions(prefix=True, escape=True, incarnation=True)))["properties"]
    assert found == {"USER.TAGS": "mine", "a": "x%02%25", "__ESCAPED": "1", "__TOPIC_INC": "5"}
    with pytest.raises(NotDeliverableError, match="the body has 4 bytes"):
        to_v1(v2(), options=ReflowOptions(max_body=3))


def test_key_with_a_space_has_no_form():
    with pytest.raises(NotDeliverableError, match="a key has a space"):
        to_v1(v2(system={"keys": ["a b"]}))


def frame_of_version(fields: int, field: int, value: int) -> Frame:
    """A frame of a version whose headers have so many fields: a topic, and a number in one field. This version has 13."""
    builder = flatbuffers.Builder(64)
    topic = builder.CreateString("t")
    builder.StartObject(fields)
    builder.PrependUOffsetTRelativeSlot(0, topic, 0)
    builder.PrependInt32Slot(field, value, 0)
    builder.Finish(builder.EndObject(), file_identifier=flat.IDENTIFIER)
    return Frame(1, 2, 3, bytes(builder.Output()), b"body")


def test_field_of_a_newer_version_goes_along():
    frame = frame_of_version(14, field=13, value=77)
    assert has_unknown(frame.header())
    assert decode_v2(frame.encode())["header"] == {"topic": "t", "unknown_fields": [13]}
    copied = read_frame(frame.encode())
    assert copied == frame
    reflowed = to_v1(copied)
    assert WHOLE in decode(reflowed)["properties"]
    assert to_v2(reflowed) == frame


def test_header_of_an_older_version_is_read():
    """Without the newest field, ``user_properties``."""
    frame = frame_of_version(12, field=2, value=4)
    assert frame.header() == {"topic": "t", "queue_id": 4}
    assert decode(to_v1(frame))["queue_id"] == 4


@given(st.data())
def test_mutated_header_is_read_or_refused(data):
    good = flat.encode_header({
        "topic": "topic", "system": {"tags": "a", "keys": ["k", "l"], "untyped": [{"name": "n", "value": b"v"}]},
        "user_properties": [{"name": "n", "value": b"v"}] * 3,
    })  # fmt: skip
    mutated = bytearray(good)
    for at in data.draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=4)):
        mutated[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(flat.InvalidError):
        flat.read_header(bytes(mutated))


def test_values_that_share_bytes_are_read_a_bounded_number_of_times():
    builder = flatbuffers.Builder(2**16)
    name, value = builder.CreateString("n"), builder.CreateByteVector(bytes(10_000))
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUOffsetTRelativeSlot(1, value, 0)
    one = builder.EndObject()
    builder.StartVector(4, 5000, 4)
    for _ in range(5000):
        builder.PrependUOffsetTRelative(one)
    many, topic = builder.EndVector(), builder.CreateString("t")
    builder.StartObject(13)
    builder.PrependUOffsetTRelativeSlot(0, topic, 0)
    builder.PrependUOffsetTRelativeSlot(12, many, 0)
    builder.Finish(builder.EndObject(), file_identifier=flat.IDENTIFIER)
    with pytest.raises(flat.InvalidError, match="share bytes"):
        flat.read_header(bytes(builder.Output()))
