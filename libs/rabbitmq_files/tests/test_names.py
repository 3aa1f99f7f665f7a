"""Names of directories, and the files that say whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabbitmq_files import names

DATA = Path(__file__).parents[3] / "tests/data/rabbitmq-3.10"


@pytest.mark.parametrize(
    ("vhost", "queue", "hashed"),
    [
        (b"/", None, "628WB79CIFDYO9LJI6DKMI09L"),
        (b"orders", None, "14049IPWY5WMKYX4P32YLNPMV"),
        (b"/", b"fan.a", "3FTPYETAJKSZ6Y0OFFFEWPMO7"),
        (b"/", b"dead2.src", "6HZDOPC5FA58GA66M17135JC"),
        (b"/", "заказы é".encode(), "57LSBB5M8OHWFDMLNALTQNFI2"),
    ],
)  # fmt: skip
def test_example_of_directory(vhost, queue, hashed):
    assert (names.vhost_directory(vhost) if queue is None else names.queue_directory(vhost, queue)) == hashed
    assert names.HASHED.fullmatch(hashed)


def test_directories_of_real_nodes_have_the_hash_of_their_names():
    count = 0
    for path in DATA.rglob(".queue_name"):
        data = path.read_bytes()
        found = names.read_queue_name(data)
        assert names.queue_directory(found.vhost, found.queue) == path.parent.name
        assert names.encode_queue_name(found.vhost, found.queue, found.version) == data
        assert found.version == (1 if list(path.parent.glob("*.[ij][di][xf]")) else 2)
        count += found.queue[-2:-1] == b"\0"
    assert count > 5, "queues with priorities"


def test_directory_before_3_7_is_the_hash_of_a_term():
    """As Erlang/OTP 25 makes it: base36(md5(term_to_binary({resource, <<"/">>, queue, <<"q">>})))."""
    assert names.old_queue_directory(b"/", b"q") == "2YMNDMSE5ULTNMJGTIJR5PIGW"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"VHOST: /\nQUEUE: q\n", (b"/", b"q", 1)),
        (b"VHOST: /\nQUEUE: prio.v2\0\1\nINDEX: v2\n", (b"/", b"prio.v2\0\1", 2)),
        (b"VHOST: /\nQUEUE: q\0\n\n", (b"/", b"q\0\n", 1)),
        (b"VHOST: /\nQUEUE: q\0\n\nINDEX: v2\n", (b"/", b"q\0\n", 2)),
        (b"VHOST: \nQUEUE: \n", (b"", b"", 1)),
        (b"VHOST: a\nb\nQUEUE: c\nINDEX: v3\n", (b"a\nb", b"c\nINDEX: v3", 1)),
        (b"", None), (b"\n", None), (b"VHOST: /\nQUEUE: q", None), (b"VHOST: /\nINDEX: v2\n", None), (b"QUEUE: q\n", None),
        (b"\nQUEUE: q\n", None), (b"VHOST: /\nQUEUE:\nINDEX: v2\n", None), (b"VHOST: " + b"\nQUEUE: " * 100_000, None),
    ],
)  # fmt: skip
def test_queue_name_file(data, expected):
    found = names.read_queue_name(data)
    assert (found and (found.vhost, found.queue, found.version)) == expected


@given(st.binary(max_size=9).filter(lambda name: b"\n" not in name), st.binary(max_size=9), st.integers(0, 255), st.booleans())
def test_queue_name_round_trip(vhost, queue, priority, is_v2):
    for name in (queue, names.sub_queue(queue, priority)):
        found = names.read_queue_name(names.encode_queue_name(vhost, name, 1 + is_v2))
        assert (found.vhost, found.queue, found.version) == (vhost, name, 1 + is_v2)
    if queue:
        assert names.split_sub_queue(names.sub_queue(queue, priority)) == (queue, priority)
    if b"\0" not in queue:
        assert names.split_sub_queue(queue) == (queue, None)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"%% This file is auto-generated! Edit at your own risk!\n{segment_entry_count, 2048}.", 2048),
        (b"{ segment_entry_count ,16384 }.", 16384), (b"", None), (b"{" * 99_999 + b" " * 99_999, None),
        *((b"{segment_entry_count, %b}." % number, None) for number in (b"0", b"16385", b"x")),
    ],
)  # fmt: skip
def test_entries_of_a_segment(data, count):
    assert names.read_segment_entries(data) == count
