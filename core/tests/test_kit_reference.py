"""The kit's own backends keep what it asks of everybody's."""

from __future__ import annotations

import zlib
from unittest import mock

import pytest

from msgstore.contract import FormatContext, IndexDescriptor, NoOptions, SegmentFormatDescriptor
from msgstore.testing import CombinationTests, IndexTests, SegmentFormatTests, Subject
from msgstore.testing.reference import DESCRIPTORS, PlainFormat

pytestmark = pytest.mark.kit


def test_reference_format_finds_nothing_inside_its_header():
    form = PlainFormat(FormatContext(NoOptions()))
    data, _ = form.encode([bytes(16)], [b"body"])
    for start in range(1, len(form.header)):
        assert form.scan(form.header + data, start=start).records == form.scan(form.header + data).records


def test_reference_format_finds_chains_in_linear_time():
    """Heads of records that each claim half of the file: their checksums are compared for a few times its size."""
    form = PlainFormat(FormatContext(NoOptions()))
    size = 200_000
    head = bytes([form.encode([bytes(16)], [b""])[0][0]]) + (size // 2).to_bytes(4)
    with mock.patch("msgstore.testing.reference.zlib.crc32", side_effect=zlib.crc32) as crc32:
        form.find_chain(form.header + head * (size // len(head)), len(form.header))
    assert 0 < sum(len(call.args[0]) for call in crc32.call_args_list) < 10 * size


INDEXES = [found for found in DESCRIPTORS if isinstance(found, IndexDescriptor)]
FORMATS = [found for found in DESCRIPTORS if isinstance(found, SegmentFormatDescriptor)]


@pytest.fixture
def subject(request):
    return Subject.of(request.param)


@pytest.mark.parametrize("subject", INDEXES, ids=lambda found: found.name, indirect=True)
class TestIndex(IndexTests):
    pass


@pytest.mark.parametrize("subject", FORMATS, ids=lambda found: found.name, indirect=True)
class TestFormat(SegmentFormatTests):
    pass


@pytest.mark.parametrize("subject", DESCRIPTORS, ids=lambda found: found.name, indirect=True)
class TestCombination(CombinationTests):
    pass
