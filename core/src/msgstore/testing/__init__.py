"""Conformance kit: tests that every backend must pass. Needs the extra ``testing`` (pytest, hypothesis).

Without any code::

    pytest --pyargs msgstore.testing.suite --msgstore-dist acme-audit-record

runs every test for every descriptor that the distribution registers. Or write a subclass that names the subject::

    from msgstore.testing import IndexTests, Subject

    class TestMine(IndexTests):
        @pytest.fixture
        def subject(self):
            return Subject.of(IndexDescriptor(name="mine", contract=(1, 0), factory="acme.index:Mine"))

A test asks for capabilities, never for names, and is skipped if the descriptor does not claim one; the end of the run lists
skipped tests by capability. A run fails if a subclass deletes or overrides a test without :func:`replaces` and a reason, or
if a test is left out or skipped otherwise without ``--msgstore-partial`` and a reason.

Names are imported at first use: pytest imports this package wherever msgstore is installed, with the extra or without.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msgstore.testing.bodies import BodyCodecTests as BodyCodecTests
    from msgstore.testing.formats import SegmentFormatTests as SegmentFormatTests
    from msgstore.testing.index import IndexTests as IndexTests
    from msgstore.testing.messages.round_trips import RoundTripTests as RoundTripTests
    from msgstore.testing.messages.sinks import SinkTests as SinkTests
    from msgstore.testing.messages.sources import SourceTests as SourceTests
    from msgstore.testing.observers import ObserverTests as ObserverTests
    from msgstore.testing.plugin import KitTests as KitTests
    from msgstore.testing.plugin import replaces as replaces
    from msgstore.testing.policies import GcPolicyTests as GcPolicyTests
    from msgstore.testing.record_types import RecordTypeTests as RecordTypeTests
    from msgstore.testing.stores import CombinationTests as CombinationTests
    from msgstore.testing.subjects import DescriptorTests as DescriptorTests
    from msgstore.testing.subjects import Subject as Subject

_MODULES = {
    "DescriptorTests": "subjects", "SegmentFormatTests": "formats", "RecordTypeTests": "record_types", "IndexTests": "index",
    "GcPolicyTests": "policies", "BodyCodecTests": "bodies", "ObserverTests": "observers", "SourceTests": "messages.sources",
    "SinkTests": "messages.sinks", "RoundTripTests": "messages.round_trips", "CombinationTests": "stores",
    "KitTests": "plugin", "Subject": "subjects", "replaces": "plugin",
}  # fmt: skip
"""Name to the module that it is imported from. The suite runs the classes in this order: basic tests first."""
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"msgstore.testing.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'msgstore.testing' has no attribute {name!r}")
