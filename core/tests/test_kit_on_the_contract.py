"""The complete backends that the contract's docstrings show pass the kit: who copies one begins with something sound."""

from __future__ import annotations

import inspect
import re
import struct
import sys
import textwrap
import time
import zlib
from itertools import chain
from types import ModuleType

import pytest

from msgstore.contract import (
    BodyCodecDescriptor,
    GapFill,
    RecordError,
    SegmentFormatDescriptor,
    SegmentScan,
    StoredBody,
    bodies,
    formats,
)
from msgstore.testing import BodyCodecTests, SegmentFormatTests, Subject

pytestmark = pytest.mark.kit

GIVEN = {
    "struct": struct, "zlib": zlib, "time": time, "chain": chain, "RecordError": RecordError, "SegmentScan": SegmentScan,
    "GapFill": GapFill, "StoredBody": StoredBody,
}  # fmt: skip
SHOWN = ModuleType("shown_by_the_contract")
"""Where factories are imported from."""


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    for module in (formats, bodies):
        shown = re.search(r"::\n\n((?:    .*\n|\n)+)", inspect.getdoc(module) + "\n")
        exec(textwrap.dedent(shown[1]), GIVEN | vars(SHOWN), vars(SHOWN))
    monkeypatch.setitem(sys.modules, SHOWN.__name__, SHOWN)


class TestPlain(SegmentFormatTests):
    @pytest.fixture
    def subject(self):
        return Subject.of(
            SegmentFormatDescriptor(
                name="plain", contract=(1, 0), factory="shown_by_the_contract:Plain", extension=".plain", generation=1
            )
        )


class TestZlib(BodyCodecTests):
    @pytest.fixture
    def subject(self):
        return Subject.of(BodyCodecDescriptor(name="zlib", contract=(1, 0), factory="shown_by_the_contract:Zlib"))
