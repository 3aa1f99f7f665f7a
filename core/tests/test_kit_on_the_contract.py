"""The complete backends that the contract's docstrings show pass the kit: who copies one begins with something sound. So
does a policy that computes with dates."""

from __future__ import annotations

import datetime
import importlib
import inspect
import io
import os
import re
import struct
import sys
import textwrap
import time
import zlib
from itertools import accumulate, chain, repeat
from pathlib import Path
from types import ModuleType

import pytest

from msgstore import contract
from msgstore.testing import BodyCodecTests, GcPolicyTests, RecordTypeTests, SegmentFormatTests, SinkTests, SourceTests, Subject

GIVEN = vars(contract) | {"struct": struct, "zlib": zlib, "time": time, "chain": chain, "repeat": repeat}
GIVEN |= {"accumulate": accumulate, "io": io, "os": os, "Path": Path}
SHOWN = ModuleType("shown_by_the_contract")
"""Where factories are imported from."""


class Weekdays:
    """A policy that computes with dates, and asks no clock."""

    def __init__(self, options):
        pass

    def plan(self, segments, now):
        if datetime.datetime.fromtimestamp(now, datetime.UTC).weekday() > 4:
            return []
        at_rest = (s for s in segments if not (s.current or s.quarantined))
        return [contract.Compact(s.number) for s in at_rest if s.garbage_bytes > s.live_bytes]


def sample(directory):
    """Write a file for the contract's example of a source."""
    (directory / "sample.lines").write_bytes(b"one\ntwo\r\n\nfour\n")
    return directory / "sample.lines"


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    vars(SHOWN).update(Weekdays=Weekdays, sample=sample)
    for module in ("formats", "records", "indexes", "policies", "bodies", "sources", "sinks"):
        text = inspect.getdoc(importlib.import_module(f"msgstore.contract.{module}"))
        found = re.search(r"::\n\n((?:    .*\n|\n)+)", text + "\n")
        exec(compile(textwrap.dedent(found[1]), f"<example of {module}>", "exec"), GIVEN | vars(SHOWN), vars(SHOWN))
    monkeypatch.setitem(sys.modules, SHOWN.__name__, SHOWN)


BACKENDS = [
    (SegmentFormatTests, contract.SegmentFormatDescriptor, "Plain", {"extension": ".plain", "generation": 1}),
    (RecordTypeTests, contract.RecordTypeDescriptor, "Stamped", {"format": "v2"}),
    (GcPolicyTests, contract.GcPolicyDescriptor, "NearlyEmpty", {}),
    (GcPolicyTests, contract.GcPolicyDescriptor, "Weekdays", {}),
    (BodyCodecTests, contract.BodyCodecDescriptor, "Zlib", {}),
    (SourceTests, contract.SourceDescriptor, "LinesSource", {key: f"{SHOWN.__name__}:{key}" for key in ("detect", "sample")}),
    (SinkTests, contract.SinkDescriptor, "LinesSink", {"endings": (".lines",)}),
]
"""Tests, class of the descriptor, name of the backend's class, and what its descriptor says besides."""


def described(kind, name, members):
    """Return a fixture: the subject of one backend."""
    members = {"name": name.lower(), "contract": (1, 0), "factory": f"{SHOWN.__name__}:{name}"} | members
    return pytest.fixture(lambda self: Subject.of(kind(**members)), name="subject")


for _tests, _kind, _name, _members in BACKENDS:
    _class = type(f"Test{_name}", (_tests,), {"__module__": __name__, "subject": described(_kind, _name, _members)})
    globals()[_class.__name__] = pytest.mark.kit(_class)


def test_index_of_contract_keeps_its_promises():
    """The kit asks for more: it saves nothing."""
    index, ids = SHOWN.Dict(None), [bytes([n]) * 16 for n in range(1, 4)]
    assert index.load() is None
    index.enter(ids, [10, 20, 30], [1, 2, 1])
    assert index.add_reference(ids[2])
    assert not index.add_reference(bytes(16))
    done = index.release([ids[0], ids[1], bytes(16)])
    assert (done.freed, done.missing) == ([(ids[0], 10)], [bytes(16)])
    assert index.relocate(ids, [10, 20, 31], [11, 21, 32]) == 1
    assert sorted(index.items()) == [(ids[1], 21, 1), (ids[2], 30, 2)]
    assert (len(index), index.get(ids[0]), index.references(ids[0])) == (2, None, 0)
    index.clear()
    assert len(index) == 0
