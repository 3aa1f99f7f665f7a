"""Random histories in which one file operation fails, once: the call is repeated, and nothing is lost, doubled or stuck."""

from __future__ import annotations

import random

import pytest

from msgstore.contract import MsgStoreError
from msgstore.testing.faults import CHANGES, OPENINGS, FailingFiles, RecordingFiles
from msgstore_queues.testing.history import NAME, History
from msgstore_queues.testing.subjects import installed_queue_indexes


class Again:
    """Passes calls on, and repeats one in which an operation failed."""

    def __init__(self, what, files):
        self._what, self._files = what, files

    def __getattr__(self, name):
        call = getattr(self._what, name)
        return (lambda *given, **named: again(self._files, call, *given, **named)) if callable(call) else call


def again(files, call, *given, **named):
    try:
        return call(*given, **named)
    except (MsgStoreError, OSError):
        assert files.failed
        return call(*given, **named)


class FailingHistory(History):
    files: FailingFiles

    def open(self):
        self.vhost = Again(again(self.files, self.subject.open, self.path, self.files), self.files)
        self.queue = Again(self.vhost.queue(NAME, **self.subject.queue_options(self.path)), self.files)

    def check(self):
        self.files.fail, fail = None, self.files.fail
        super().check()
        self.files.fail = fail

    def purge(self):
        """Without the number: a purge that failed has dropped a part, and the next one drops the rest."""
        self.queue.purge()
        self.model.acked += self.model.ready
        self.model.ready = []


@pytest.mark.slow
@pytest.mark.parametrize("subject", installed_queue_indexes(), ids=str)
def test_operation_that_fails_once_loses_nothing(subject, tmp_path):
    whole, seed = RecordingFiles(), 1
    History(subject, tmp_path / "whole", whole, seed).run_whole()
    operations = whole.count(*CHANGES, *OPENINGS)
    for fail in random.Random(seed).sample(range(operations), 25):
        FailingHistory(subject, tmp_path / str(fail), FailingFiles(fail), seed).run_whole()
