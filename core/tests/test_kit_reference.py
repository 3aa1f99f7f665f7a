"""The kit's own backends keep what it asks of everybody's."""

from __future__ import annotations

import pytest

from msgstore.contract import IndexDescriptor, SegmentFormatDescriptor
from msgstore.testing import CombinationTests, IndexTests, SegmentFormatTests, Subject
from msgstore.testing.reference import DESCRIPTORS

pytestmark = pytest.mark.kit

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
