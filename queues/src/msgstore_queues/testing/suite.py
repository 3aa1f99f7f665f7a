"""The kit as a suite: ``pytest --pyargs msgstore_queues.testing.suite``, with ``-k NAME`` for one backing queue or index."""

from __future__ import annotations

import pytest

from msgstore_queues.testing import BackingQueueTests, QueueIndexTests
from msgstore_queues.testing.subjects import installed_backing_queues, installed_queue_indexes


class TestBackingQueue(BackingQueueTests):
    subjects = staticmethod(installed_backing_queues)


class TestQueueIndex(QueueIndexTests):
    subjects = staticmethod(installed_queue_indexes)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("subject", metafunc.cls.subjects(), ids=str)
