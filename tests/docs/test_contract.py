"""The complete, minimal backends that the contract's docstrings show, tried as they stand there."""

from __future__ import annotations

import importlib
import inspect
import re
import struct
import textwrap
import time
import zlib
from itertools import chain, repeat
from typing import Any

import pytest

import msgstore.contract
from msgstore.contract import FormatContext, NoOptions, RecordContext, SegmentScan, SegmentStats

IDS = [bytes([n]) * 16 for n in range(1, 4)]
BODIES = [b"", b"hello", bytes(100)]


def example(module: str, name: str) -> Any:
    """The class of a docstring, with the imports that the docstring leaves out."""
    text = inspect.getdoc(importlib.import_module(f"msgstore.contract.{module}"))
    assert text
    block = re.search(rf"^    class {name}:\n(?:(?:    .*)?\n)+", text + "\n", re.MULTILINE)
    assert block, f"{module} shows no {name}"
    names = {**vars(msgstore.contract), "struct": struct, "time": time, "zlib": zlib, "chain": chain, "repeat": repeat}
    # In angle brackets, as of what is no file: coverage looks for the source of every other name.
    exec(compile(textwrap.dedent(block[0]), f"<example of {module}>", "exec"), names)
    return names[name]


def test_a_format():
    plain = example("formats", "Plain")(FormatContext(NoOptions()))
    data, sizes = plain.encode(IDS, BODIES)
    scan = plain.scan(data)
    assert (scan.records.id_list(), list(scan.records.sizes), scan.end.state) == (IDS, sizes, "clean")
    at = scan.records.offsets
    for msg_id, body, offset, size in zip(IDS, BODIES, at, sizes, strict=True):
        assert plain.decode(msg_id, data[offset : offset + size]) == body
        assert data[slice(*plain.body_span(data, offset, size))] == body
    assert plain.scan(data[:-1]).end.state == "torn"
    assert plain.scan(data + bytes(20)).end == SegmentScan().ended("corrupt", len(data), "invalid_message_size").end
    assert plain.find_chain(data, 1) == sizes[0]


def test_a_record_type():
    stamped = example("records", "Stamped")(RecordContext(NoOptions(), 200))
    data, sizes = stamped.encode(IDS, BODIES)
    assert (data[0], len(data), sizes) == (200, sum(sizes), [29 + len(body) for body in BODIES])
    assert stamped.decode(data[29:63]) == BODIES[1]
    assert data[slice(*stamped.body_span(29, 34))] == BODIES[1]
    assert stamped.check(data, 0, 29) is None


def test_an_index():
    index = example("indexes", "Dict")(None)
    assert index.load() is None
    index.enter(IDS, [10, 20, 30], [1, 2, 1])
    assert index.add_reference(IDS[2])
    assert not index.add_reference(bytes(16))
    done = index.release([IDS[0], IDS[1], bytes(16)])
    assert (done.freed, done.missing) == ([(IDS[0], 10)], [bytes(16)])
    assert index.relocate(IDS, [10, 20, 31], [11, 21, 32]) == 1
    assert sorted(index.items()) == [(IDS[1], 21, 1), (IDS[2], 30, 2)]
    assert (len(index), index.get(IDS[0]), index.references(IDS[0])) == (2, None, 0)
    index.clear()
    assert len(index) == 0


@pytest.mark.parametrize(("live", "current", "planned"), [(100, False, 1), (100, True, 0), (500, False, 0)])
def test_a_policy(live, current, planned):
    policy = example("policies", "NearlyEmpty")(NoOptions())
    segment = SegmentStats(0, "0.sqs", "v2", 2064, 1, live, 64, current, False)
    assert len(policy.plan([segment], 0.0)) == planned


def test_a_codec():
    codec = example("bodies", "Zlib")(NoOptions())
    for msg_id, body in zip(IDS, BODIES, strict=True):
        stored = codec.encode(msg_id, body)
        assert codec.decode(msg_id, stored) == body
        assert codec.is_valid(msg_id, stored)
    assert not codec.is_valid(IDS[0], b"no")
