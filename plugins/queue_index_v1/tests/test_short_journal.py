"""The kit for queue indexes, with a journal that is moved to the segments every few entries."""

from __future__ import annotations

from typing import Any

import pytest

from msgstore_queue_index_v1.plugin import msgstore_queue_indexes
from msgstore_queues.testing import QueueIndexTests, Subject


class TestShortJournal(QueueIndexTests):
    histories, crash_histories, crash_points = 3, 1, 10
    test_descriptor_is_complete = None  # starts a process

    @pytest.fixture
    def subject(self, monkeypatch: pytest.MonkeyPatch) -> Subject:
        monkeypatch.setattr("msgstore_queue_index_v1.index.JOURNAL_ENTRIES", 8)
        return Subject(msgstore_queue_indexes()[0])

    @pytest.mark.slow
    def test_acknowledged_messages_take_no_space(self, log: Any) -> None:
        super().test_acknowledged_messages_take_no_space(log)
