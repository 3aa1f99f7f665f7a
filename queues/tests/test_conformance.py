"""The conformance kit: a short form for the backing queues of this distribution, and the whole for all that is installed as
``slow``. Broken backing queues show that it fails where it must.
"""

from __future__ import annotations

import pytest

from msgstore_queues.backing.variable import VariableQueue
from msgstore_queues.builtin import VariableOptions
from msgstore_queues.catalogue import load_catalogue
from msgstore_queues.contract import BackingQueueDescriptor, Capability
from msgstore_queues.testing import BackingQueueTests, QueueIndexTests, Subject
from msgstore_queues.testing.subjects import installed_backing_queues, installed_queue_indexes
from queues_support import typical_backing_queues


def each(subjects):
    """Return the fixture of a test class: these subjects."""
    return pytest.fixture(params=subjects, ids=str)(lambda self, request: request.param)


class TestBackingQueueBriefly(BackingQueueTests):
    histories, crash_histories, crash_points = 1, 1, 4
    test_descriptor_is_complete = None  # starts a process

    subject = each(typical_backing_queues())


class TestQueueIndexBriefly(QueueIndexTests):
    histories, crash_histories, crash_points = 1, 1, 4
    test_descriptor_is_complete = None  # starts a process
    test_acknowledged_messages_take_no_space = None  # writes 40,000 messages

    subject = each(installed_queue_indexes())


@pytest.mark.slow
class TestBackingQueueFully(BackingQueueTests):
    subject = each(installed_backing_queues())


def proxy(name, **options):
    return Subject(load_catalogue().backings[name], options)


@pytest.mark.slow
class TestProxiesOverOthers(BackingQueueTests):
    subject = each([
        proxy("mirror", directory="mirror", over={"use": "priority", "levels": 2}),
        proxy("priority", levels=2, over={"use": "mirror", "directory": "mirror"}),
        proxy("priority", levels=2, over="kestrel"),
        proxy("priority", levels=2, over="memory"),
    ])  # fmt: skip


@pytest.mark.slow
class TestQueueIndexFully(QueueIndexTests):
    subject = each(installed_queue_indexes())


class ForgetsAcks(VariableQueue):
    """Acknowledgements do not reach disk."""

    def ack(self, positions):
        super().ack(positions)
        self._acks.clear()


class ConfirmsTooEarly(VariableQueue):
    """A flush writes only every second time."""

    is_turn = True

    def write(self):
        ConfirmsTooEarly.is_turn = not self.is_turn
        if self.is_turn:
            super().write()


class ForgetsOrder(VariableQueue):
    """Requeued messages come last."""

    def requeue(self, positions):
        returned = [self._unacked.pop(position) for position in positions]
        for held in returned:
            held.is_redelivered = True
            self._body_bytes += held.body_size
        self._q4.extend(returned)


@pytest.mark.parametrize("broken", [ForgetsAcks, ConfirmsTooEarly, ForgetsOrder])
def test_kit_fails_a_broken_backing_queue(broken, tmp_path, monkeypatch):
    monkeypatch.setattr(BackingQueueDescriptor, "load_factory", lambda self: broken)
    capabilities = {Capability.PERSISTENT, Capability.PROPERTIES}
    subject = Subject(
        BackingQueueDescriptor(
            name="broken", contract=(1, 0), factory="a.b:C", options=VariableOptions, summary="-", capabilities=capabilities
        )
    )
    with pytest.raises(AssertionError):
        BackingQueueTests().test_end_of_process_after_each_step_loses_nothing(subject, tmp_path)
