"""The conformance kit: what every backend has to keep, as tests. Needs the extra ``testing`` (pytest, hypothesis).

Without a line of the author's::

    pytest --pyargs msgstore.testing.suite --msgstore-dist acme-audit-record

runs every test for every descriptor that the distribution registers. Or subclass, in a test module of your own, and say what
to test; the tests come with the class::

    from msgstore.testing import IndexTests, Subject

    class TestMine(IndexTests):
        @pytest.fixture
        def subject(self):
            return Subject.of(IndexDescriptor(name="mine", contract=(1, 0), factory="acme.index:Mine"))

A test asks for capabilities, never for names, and is skipped where the descriptor does not claim one; the end of the run lists
what was skipped for which. A test that a subclass deletes or overrides fails the run, unless it is marked with
:func:`replaces` and a reason; one that the run leaves out does, unless ``--msgstore-partial`` gives one.

Names are imported at first use: pytest imports this package wherever msgstore is installed, with the extra or without.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msgstore.testing.bodies import BodyCodecTests as BodyCodecTests
    from msgstore.testing.combinations import CombinationTests as CombinationTests
    from msgstore.testing.descriptors import DescriptorTests as DescriptorTests
    from msgstore.testing.formats import SegmentFormatTests as SegmentFormatTests
    from msgstore.testing.guard import KitTests as KitTests
    from msgstore.testing.guard import replaces as replaces
    from msgstore.testing.index import IndexTests as IndexTests
    from msgstore.testing.observers import ObserverTests as ObserverTests
    from msgstore.testing.policies import GcPolicyTests as GcPolicyTests
    from msgstore.testing.records import RecordTypeTests as RecordTypeTests
    from msgstore.testing.subjects import Subject as Subject

_MODULES = {
    "BodyCodecTests": "bodies",
    "CombinationTests": "combinations",
    "DescriptorTests": "descriptors",
    "GcPolicyTests": "policies",
    "IndexTests": "index",
    "KitTests": "guard",
    "ObserverTests": "observers",
    "RecordTypeTests": "records",
    "SegmentFormatTests": "formats",
    "Subject": "subjects",
    "replaces": "guard",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"msgstore.testing.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'msgstore.testing' has no attribute {name!r}")
