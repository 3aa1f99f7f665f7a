"""Conformance kit: tests that every backing queue and every queue index must pass. Needs the extra ``testing``.

Without any code, for all that are installed, or for those whose names have a text::

    pytest --pyargs msgstore_queues.testing.suite
    pytest --pyargs msgstore_queues.testing.suite -k sqlite

Or write a subclass that names the subject::

    from msgstore_queues.testing import BackingQueueTests, Subject

    class TestMine(BackingQueueTests):
        @pytest.fixture
        def subject(self):
            return Subject(BackingQueueDescriptor(name="mine", contract=(1, 0), factory="acme.queue:Mine", summary="..."))

A descriptor is tested once with each of its ``examples``. A test of a capability that it does not claim is skipped.
"""

from __future__ import annotations

import pytest

# Before the modules are imported: otherwise their assertions say nothing.
for _module in ("history", "backing_queues", "queue_indexes", "subjects"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")

from msgstore_queues.testing.backing_queues import BackingQueueTests  # noqa: E402
from msgstore_queues.testing.queue_indexes import QueueIndexTests  # noqa: E402
from msgstore_queues.testing.subjects import Subject  # noqa: E402

__all__ = ["BackingQueueTests", "QueueIndexTests", "Subject"]
