"""Queue indexes of both versions: the worked examples, those of real nodes, cut and changed bytes."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabbitmq_files import index_v1, index_v2
from rabbitmq_files.messages import encode_message
from rabbitmq_files.names import queue_directory, read_segment_entries, vhost_directory
from rabbitmq_files.properties import encode_properties

CLEAN = Path(__file__).parents[3] / "tests/data/rabbitmq-3.10/clean"
ID = bytes.fromhex("d21eed111448014a88c4d45c3f47dcc6")


def directory(queue: str, vhost: str = "/") -> Path:
    hashed = queue_directory(vhost.encode(), queue.encode())
    return CLEAN / "msg_stores/vhosts" / vhost_directory(vhost.encode()) / "queues" / hashed


# -- version 1 ---------------------------------------------------------------------------------------------------------------


def test_example_of_segment():
    data = (directory("fan.a") / "0.idx").read_bytes()
    assert data.startswith(bytes.fromhex("c008") + ID + bytes(8) + bytes.fromhex("00007530000000004008"))
    found = index_v1.read_segment(data)
    assert found.damage == []
    assert found.publishes[8] == (0, 34, True, ID, 0, 30000, 34, 0)
    embedded, expiring = found.publishes[6], found.publishes[3]
    assert (embedded.body_size, embedded.term_size) == (300, 475)
    assert data[embedded.term_offset : embedded.term_offset + 4] == bytes.fromhex("83680664")
    assert (expiring.msg_id.hex(), expiring.expiry_us) == ("a5bb34a1066da2a62cbb96006af6ebd8", 0x00066460BE7A9A64)
    transient = bytes.fromhex("80272a52509cf8e22c72c25c1b83550d5dc7000000000000000000002ee000000000")
    assert index_v1.read_segment(transient).publishes[0x27].is_persistent is False


def test_example_of_journal():
    found = index_v1.read_journal((directory("fan.c") / "journal.jif").read_bytes())
    assert found.damage == []
    assert (found.publishes[11].body_size, found.publishes[11].term_size) == (0x4D, 0xF5)
    assert found.publishes[11].msg_id.hex().startswith("bc18d106")
    assert (found.publishes[13].body_size, found.publishes[13].term_size) == (7700, 0)
    assert 1 in found.acknowledged


MANIFEST = json.loads((CLEAN / "manifest.json").read_text())
QUEUES = {(one["vhost"], one["name"]): one for one in MANIFEST["queues"] if directory(one["name"], one["vhost"]).is_dir()}


@pytest.mark.parametrize(("vhost", "name"), QUEUES)
def test_live_entries_are_those_that_the_broker_delivered(vhost, name):
    place, live = directory(name, vhost), {}
    count = read_segment_entries((place.parent.parent / ".config").read_bytes())
    journal = place / "journal.jif"
    marks = index_v1.read_journal(journal.read_bytes()) if journal.exists() else index_v1.IndexFile()
    for path in place.glob("*.idx"):
        found = index_v1.read_segment(path.read_bytes())
        base = int(path.stem) * count
        live |= {base + row: one.body_size for row, one in found.publishes.items() if row not in found.acknowledged}
    live |= {number: one.body_size for number, one in marks.publishes.items()}
    for path in place.glob("*.qi"):
        segment = index_v2.read_index(path.read_bytes())
        assert (segment.first, segment.stop, segment.damage) == (int(path.stem) * 4096, (int(path.stem) + 1) * 4096, [])
        live |= {one.number: one.body_size for one in segment.entries}
    expected = {one["seq"]: one["size"] for one in QUEUES[vhost, name]["expected"]}
    assert {number: size for number, size in live.items() if number not in marks.acknowledged} == expected


NUMBERS, SIZES = st.integers(0, 2**14 - 1), st.integers(0, 2**32 - 1)
PUBLISHES = st.tuples(st.binary(min_size=16, max_size=16).filter(any), SIZES, st.binary(max_size=20), st.integers(0, 2**52 - 1))
ACTIONS = st.lists(st.tuples(st.integers(0, 7), st.booleans(), PUBLISHES | st.none()), max_size=12)


@pytest.mark.parametrize("is_journal", [False, True])
@given(actions=ACTIONS, cut=st.integers(0, 200))
def test_index_v1_round_trip_and_cut(is_journal, actions, cut):
    """Each prefix has a prefix of the entries. A cut is reported, unless it is between two entries."""
    data, publishes, marks, ends = b"", {}, [], [0]
    encode = index_v1.encode_journal_publish if is_journal else index_v1.encode_publish
    read = index_v1.read_journal if is_journal else index_v1.read_segment
    for number, flag, publish in actions:
        if publish is not None:
            msg_id, size, term, expiry = publish
            one = encode(number, index_v1.encode_body(msg_id, size, term, expiry), is_persistent=flag)
            head = len(one) - len(term)
            publishes.setdefault(number, (len(data), len(one), flag, msg_id, expiry, size, len(data) + head, len(term)))
            data += one
        elif is_journal:
            data += index_v1.encode_journal_mark(number, is_acknowledged=flag)
            marks += [number] * 2 * flag
        else:
            data += index_v1.encode_mark(number)
            marks.append(number)
        ends.append(len(data))
    found = read(data)
    assert (found.damage, found.publishes) == ([], publishes)
    assert found.acknowledged == {number for number in marks if marks.count(number) > 1}
    cut = min(cut, len(data))
    part = read(data[:cut])
    assert part.publishes.items() <= publishes.items()
    end = max(end for end in ends if end <= cut)
    assert [span[:2] for span in part.damage] == ([(end, cut - end)] if any(data[end:cut]) or (cut and not end) else [])
    assert not data or read(data + bytes(99)) == found
    for one in (data, data[:cut], data + bytes(99), data[:cut] + b"\x3f" + data[cut:]):
        assert_finds_the_same(one, is_journal)


def assert_finds_the_same(data, is_journal):
    """Places are those of the entries that are read."""
    read, find = index_v1.read_segment, index_v1.find_in_segment
    if is_journal:
        read, find = index_v1.read_journal, index_v1.find_in_journal
    found, places = read(data), find(data)
    assert places.publishes == {number: (one.offset, one.offset + one.size) for number, one in found.publishes.items()}
    assert (places.acknowledged, places.damage, places.end) == (found.acknowledged, found.damage, found.end)
    assert places.delivered == found.delivered


@pytest.mark.parametrize("is_persistent", [True, False])
@pytest.mark.parametrize("term", [b"", b"\x83h"])
def test_message_moves_from_journal_to_segment(is_persistent, term):
    journal = b"12345678" + index_v1.encode_journal_message(4097, ID, 9, term, 7, is_persistent=is_persistent)
    body = index_v1.encode_body(ID, 9, term, 7)
    end = len(journal) - index_v1.JOURNAL_MARK_SIZE
    assert journal[8:end] == index_v1.encode_journal_publish(4097, body, is_persistent=is_persistent)
    assert journal[end:] == index_v1.encode_journal_mark(4097, is_acknowledged=False)
    publish = index_v1.encode_publish(1, body, is_persistent=is_persistent)
    assert index_v1.move_to_segment(journal, 8, end, 1) == publish + index_v1.encode_mark(1)


def test_acknowledgements_of_a_journal_are_marks():
    one_by_one = [index_v1.encode_journal_mark(number, is_acknowledged=True) for number in (7, 2**40)]
    assert index_v1.encode_journal_acks([7, 2**40]) == b"".join(one_by_one)


@pytest.mark.parametrize("is_journal", [False, True])
def test_reading_goes_on_after_damage(is_journal):
    """Each byte in the middle of a real file is damaged in turn: the entries after it are there, and none that was not."""
    data = (directory("fan.c") / "journal.jif" if is_journal else directory("fan.a") / "0.idx").read_bytes()
    read = index_v1.read_journal if is_journal else index_v1.read_segment
    whole = read(data)
    last = max(whole.publishes.values())
    for at in range(0, last.offset - 8, 7):
        broken = data[:at] + bytes(2) + b"\x3f\xff" * 3 + data[at + 8 :]
        found = read(broken)
        assert_finds_the_same(broken, is_journal)
        new = found.publishes.items() - whole.publishes.items()
        assert all(one.offset <= at + 8 <= one.offset + one.size for _, one in new)
        assert found.damage == [] or last in found.publishes.values(), at


@pytest.mark.parametrize("is_journal", [False, True])
@pytest.mark.parametrize("left", [150, 400, 800])
def test_body_of_the_last_publish_if_cut_is_not_read(is_journal, left):
    """A body of zeros looks like the zeros that an unclean stop leaves behind the last entry."""
    encode, read = (
        (index_v1.encode_journal_publish, index_v1.read_journal)
        if is_journal
        else (index_v1.encode_publish, index_v1.read_segment)
    )
    term = encode_message(vhost=b"/", exchange=b"", routing_keys=[b"q"], raw_properties=b"\0\0", body=bytes(900), msg_id=ID)
    whole = encode(1, index_v1.encode_body(ID, 900, term))
    found = read(whole + encode(2, index_v1.encode_body(ID, 900, term))[:left])
    assert list(found.publishes) == [1]
    assert found.end == len(whole)
    assert [(offset, size) for offset, size, _ in found.damage] == [(len(whole), left)]


@pytest.mark.parametrize("is_journal", [False, True])
def test_index_in_the_body_of_a_message_is_not_read(is_journal):
    """After damage to the entry of that message."""
    encode = index_v1.encode_journal_publish if is_journal else index_v1.encode_publish

    def entry(number: int, body: bytes) -> bytes:
        msg_id = bytes([number + 1]) * 16
        term = encode_message(
            vhost=b"/", exchange=b"", routing_keys=[b"q"], raw_properties=encode_properties({}), body=body, msg_id=msg_id
        )
        return encode(number, index_v1.encode_body(msg_id, len(body), term))

    outer = bytearray(entry(1, entry(2, b"inner")))
    outer[index_v1.ID_OFFSET[is_journal] + 16] = 0xFF  # a time that is none
    data = entry(0, b"zero") + outer + entry(2, b"two")
    found = (index_v1.read_journal if is_journal else index_v1.read_segment)(data)
    assert found.publishes[2].offset == len(data) - len(entry(2, b"two"))
    assert sorted(found.publishes) == [0, 2]


# -- version 2 ---------------------------------------------------------------------------------------------------------------


def test_example_of_index_v2():
    data = (directory("fan.b") / "0.qi").read_bytes()
    assert data[:64] == index_v2.encode_header(index_v2.INDEX_MAGIC, 0, 4096)
    shared, own = index_v2.read_index(data).entries[:2]
    assert shared == (5, 224, True, "shared", bytes.fromhex("383a9d243bb39c67091c05590404ad89"), 0, 0, 0xAFC8, 0)
    assert own == (6, 256, True, "own", b"", 0xA05, 0x1DB, 300, 0)
    assert data[224:256] == index_v2.encode_shared(shared.msg_id, 0xAFC8)
    assert data[256:288] == index_v2.encode_own(0xA05, 0x1DB, 300)
    stored = (directory("fan.b") / "0.qs").read_bytes()
    assert stored[64:72] == bytes.fromhex("0000010f0194be00")
    assert index_v2.read_stored(stored, 0xA05, 0x1DB) == (0xA0D, True)
    places = list(index_v2.walk_stored(stored))
    assert (64, 271) in places
    assert list(index_v2.walk_stored(stored, places[1][0])) == places[1:]
    assert all(index_v2.encode_stored(stored[at + 8 : at + 8 + size]) == stored[at : at + 8 + size] for at, size in places)


QI, QS = (index_v2.encode_header(magic, 0, 4096) for magic in (index_v2.INDEX_MAGIC, index_v2.STORE_MAGIC))
SHARED = index_v2.encode_shared(bytes(range(16)), 5)
OWN = index_v2.encode_own(64, 5, 5)
MEMORY = b"\1\1" + bytes(22) + b"\5" + bytes(7)


@pytest.mark.parametrize(
    ("data", "numbers", "damage"),
    [
        (b"", [], []),
        (bytes(200), [], []),
        (QI, [], []),
        (QI[:40], [], [(0, 40, "shorter than a header")]),
        (bytes(64) + SHARED, [], [(0, 64, "begins with 00 00 00 00 00, not with RCQI and version 2")]),
        (b"RCQI\3" + QI[5:], [], [(0, 64, "begins with 52 43 51 49 03, not with RCQI and version 2")]),
        (index_v2.encode_header(b"RCQI", 9, 8), [], [(0, 64, "has the numbers 9 to 8")]),
        (QI + SHARED + bytes(32) + OWN + MEMORY, [0, 2, 3], []),
        (QI + b"\0" + SHARED[1:] + b"\2" + SHARED[1:] + SHARED[:3] + b"\3" + SHARED[4:], [],
         [(96, 32, "an entry that no broker writes"), (128, 32, "an entry that no broker writes")]),
        (QI + SHARED + SHARED[:9], [0], [(96, 9, "an entry that is cut, or after the last number of the segment")]),
        (index_v2.encode_header(b"RCQI", 7, 8) + SHARED * 2, [7],
         [(96, 32, "an entry that is cut, or after the last number of the segment")]),
        (QI + OWN + index_v2.encode_own(70, 90, 5) + index_v2.encode_own(77, 3, 5), [0, 2],
         [(96, 32, "an entry whose message overlaps that of another one")]),
    ],
)  # fmt: skip
def test_index_v2_with_damage(data, numbers, damage):
    found = index_v2.read_index(data)
    assert [entry.number for entry in found.entries] == numbers
    assert found.damage == damage
    for entry in found.entries:
        assert entry.place == ("own" if data[entry.offset + 3] == 2 else "shared" if data[entry.offset + 3] else "memory")


STORED = index_v2.encode_stored(b"term5")


@pytest.mark.parametrize(
    ("data", "offset", "size", "reason"),
    [
        (QS + STORED, 63, 5, "not in the file"),
        (QS + STORED, 64, 6, "not in the file"),
        (QS + STORED, 2**64, 2**32, "not in the file"),
        (QS + STORED, 64, 4, "no message of 4 bytes"),
        (QS + STORED[:4] + b"\2" + STORED[5:], 64, 5, "no message of 5 bytes"),
        (QS + STORED[:7] + b"\1" + STORED[8:], 64, 5, "no message of 5 bytes"),
        (QS + STORED[:8] + b"Term5", 64, 5, "checksum"),
    ],
)  # fmt: skip
def test_place_without_message_is_refused(data, offset, size, reason):
    with pytest.raises(index_v2.StoredError, match=reason):
        index_v2.read_stored(data, offset, size)


def test_message_without_checksum_is_not_verified():
    data = QS + STORED[:4] + bytes(4) + STORED[8:]
    assert index_v2.read_stored(data, 64, 5) == (72, False)


def test_walk_goes_on_behind_zeros():
    """RabbitMQ 4 leaves them for a message that is acknowledged before it is written."""
    long = index_v2.encode_stored(b"x" * 300)
    data = QS + STORED + bytes(21) + long + bytes(9) + STORED + bytes(50)
    assert list(index_v2.walk_stored(data)) == [(64, 5), (98, 300), (415, 5)]
    assert list(index_v2.walk_stored(data[:-52]))[:2] == [(64, 5), (98, 300)]


@pytest.mark.parametrize(
    ("data", "places", "rest"),
    [
        (b"", [], []), (QS, [], []), (QS + bytes(20), [], []), (QS + STORED * 2 + bytes(9), [(64, 5), (77, 5)], []),
        (QS + STORED + STORED[:-1], [(64, 5)], [(77, 4)]), (QS + STORED + b"x", [(64, 5)], [(77, 0)]),
        (QS + STORED + b"\xff" * 20, [(64, 5)], [(77, 12)]), (QI + STORED, [], [(0, 69)]), (QS[:9], [], [(0, 1)]),
    ],
)  # fmt: skip
def test_walk_yields_messages_and_the_bytes_that_are_none(data, places, rest):
    assert list(index_v2.walk_stored(data)) == places + rest
    for place in places:
        assert index_v2.read_stored(data, *place)[1]
    for place in rest:
        with pytest.raises(index_v2.StoredError):
            index_v2.read_stored(data, *place)


ENTRIES = st.lists(
    st.none()
    | st.tuples(st.binary(min_size=16, max_size=16), SIZES, st.booleans(), st.integers(0, 2**64 - 1))
    | st.tuples(st.binary(max_size=30), SIZES, st.booleans(), st.integers(0, 2**64 - 1)),
    max_size=8,
)


@given(ENTRIES, st.integers(0, 5))
def test_index_v2_round_trip(entries, segment):
    first = segment * 4096
    index, stored = index_v2.encode_header(b"RCQI", first, first + 4096), index_v2.encode_header(b"RCQS", first, first + 4096)
    expected = []
    for row, one in enumerate(entries):
        if one is None:
            index += bytes(32)
            continue
        body, size, persistent, expiry = one
        at = len(index)
        if len(body) == 16:
            index += index_v2.encode_shared(body, size, is_persistent=persistent, expiry_us=expiry)
            expected.append((first + row, at, persistent, "shared", body, 0, 0, size, expiry))
        else:
            index += index_v2.encode_own(len(stored), len(body), size, is_persistent=persistent, expiry_us=expiry)
            expected.append((first + row, at, persistent, "own", b"", len(stored), len(body), size, expiry))
            stored += index_v2.encode_stored(body)
    found = index_v2.read_index(index)
    assert (found.entries, found.damage, found.first, found.stop) == (expected, [], first, first + 4096)
    for entry in found.entries:
        if entry.place == "own" and entry.stored_size:
            at, verified = index_v2.read_stored(stored, entry.stored_offset, entry.stored_size)
            assert verified
            assert zlib.crc32(stored[at : at + entry.stored_size]) & 0xFFFF == int.from_bytes(stored[at - 3 : at - 1], "big")
