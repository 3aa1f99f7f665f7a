"""CPython's own tests of ``queue.Queue``, ``queue.SimpleQueue`` and ``asyncio.Queue``, run against our queues.

A queue of these tests is one of ours: bounded by ``max_length``, with items of any kind. Every test that does not run is in the
table ``NOT_RUN``, with its reason.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import queue
import sys
import tempfile
import types
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from msgstore_queues import VHost, aio, open_vhost, stdlib

NO_TESTS = "this Python was installed without CPython's tests (the package 'test'); those of CI have them"
test_queue = pytest.importorskip("test.test_queue", reason=NO_TESTS, exc_type=ImportError)
test_queues = pytest.importorskip("test.test_asyncio.test_queues", reason=NO_TESTS, exc_type=ImportError)

RUN = {
    test_queue: ["PyQueueTest", "PySimpleQueueTest"],
    test_queues: ["QueueBasicTests", "QueueGetTests", "QueuePutTests", "QueueJoinTests"],
}
"""Classes of tests that run against our queues."""

_FIFO = "our queues are first in, first out"
_AGAIN = "the tests of the class beside it, for CPython's other implementation"
_HOOKS = "overrides _put and _get, by which queue.Queue is implemented"
_WAITERS = "looks at the private lists of waiting tasks; test_aio.py tests that a cancelled call leaves nothing"
_REPR = "looks at the private state in the repr"

NOT_RUN = {
    test_queue: {
        "CQueueTest": _AGAIN,
        "CSimpleQueueTest": f"{_AGAIN}; and put in a destructor that interrupts a put, which needs a put without a lock",
        "PyLifoQueueTest": _FIFO,
        "CLifoQueueTest": _FIFO,
        "PyPriorityQueueTest": _FIFO,
        "CPriorityQueueTest": _FIFO,
        "PyFailingQueueTest": _HOOKS,
        "CFailingQueueTest": _HOOKS,
        "PyQueueTest.test_shrinking_queue": "sets maxsize; the limit of our queue is an option, fixed when it is declared",
        "PySimpleQueueTest.test_references": "the items are of a local class, for which there is no codec",
    },
    test_queues: {
        "LifoQueueTests": _FIFO,
        "LifoQueueJoinTests": _FIFO,
        "PriorityQueueTests": _FIFO,
        "PriorityQueueJoinTests": _FIFO,
        "QueueBasicTests.test_repr": _REPR,
        "QueueBasicTests.test_str": _REPR,
        "QueueBasicTests.test_generic_alias": "our queue is not generic: its items have the type of the codec",
        "QueueGetTests.test_get_with_putters": _WAITERS,
        "QueueGetTests.test_cancelled_getters_not_being_held_in_self_getters": _WAITERS,
        "QueuePutTests.test_cancelled_puts_not_being_held_in_self_putters": _WAITERS,
        "QueuePutTests.test_float_maxsize": "max_length is a whole number",
        "QueueJoinTests.test_format": "calls the private method _format",
    },
}
"""Classes, and tests of classes that run, with the reason why each does not."""

if sys.version_info >= (3, 13):  # shutdown
    RUN[test_queues].append("QueueShutdownTests")
    NOT_RUN[test_queues] |= {
        "LifoQueueShutdownTests": _FIFO,
        "PriorityQueueShutdownTests": _FIFO,
        "QueueShutdownTests.test_format": "calls the private method _format",
    }

SLOW = {
    "test_many_threads",
    "test_many_threads_nonblock",
    "test_many_threads_timeout",
    "test_shutdown_all_methods_in_many_threads",
    "test_shutdown_immediate_all_methods_in_many_threads",
}


class Adapted(unittest.TestCase):
    """Opens a vhost for each test, and puts queues of it in the place of CPython's."""

    def setUp(self) -> None:
        directory = self.enterContext(tempfile.TemporaryDirectory())
        self.vhost = open_vhost(directory)
        self.addCleanup(self.vhost.close)
        self.adapt()
        super().setUp()

    def adapt(self) -> None:
        raise NotImplementedError


class AdaptedThreads(Adapted):
    def adapt(self) -> None:
        ours = adapter(functools.partial(declare, self.vhost))
        self.queue = types.SimpleNamespace(
            Queue=ours, _PySimpleQueue=ours, Full=queue.Full, Empty=queue.Empty, ShutDown=stdlib.ShutDown
        )


class AdaptedTasks(Adapted):
    def adapt(self) -> None:
        vhost = aio.VHost(self.vhost)
        ours = adapter(lambda maxsize: aio.Queue(vhost, declare(self.vhost, maxsize)))
        replaced = types.ModuleType("asyncio")
        replaced.__dict__.update(vars(asyncio), Queue=ours)
        self.enterContext(mock.patch.object(test_queues, "asyncio", replaced))
        self.q_class = ours


def declare(vhost: VHost, maxsize: int) -> Any:
    """Return a new queue."""
    return vhost.queue(f"queue {len(vhost.queues())}", items="pickle", max_length=maxsize if maxsize > 0 else None)


def adapter(make: Callable[[int], Any]) -> type:
    """Return a class that is called as CPython's are, and makes our queues."""

    class Queue:
        def __init__(self, maxsize: int = 0) -> None:
            self._ours = make(maxsize)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._ours, name)

    return Queue


def slow(test: Any) -> Any:
    """Return a test of CPython with our mark. CPython's own stays as it is."""

    @functools.wraps(test)
    def marked(self: Any) -> None:
        test(self)

    return pytest.mark.slow(marked)


def adapted(module: Any, name: str) -> type:
    """Return a class of CPython's tests that runs against our queues, without those of the table."""
    base = getattr(module, name)
    names = unittest.defaultTestLoader.getTestCaseNames(base)
    changes: dict[str, Any] = {test: slow(getattr(base, test)) for test in names if test in SLOW}
    changes |= {test: None for test in names if f"{name}.{test}" in NOT_RUN[module]}
    return type(name, (AdaptedThreads if module is test_queue else AdaptedTasks, base), changes)


for _module, _names in RUN.items():
    globals().update({f"Test{_name}": adapted(_module, _name) for _name in _names})


@pytest.mark.parametrize("module", RUN)
def test_each_class_runs_or_has_a_reason(module):
    classes = {name for name, one in vars(module).items() if isinstance(one, type) and issubclass(one, unittest.TestCase)}
    assert {*RUN[module], *(name for name in NOT_RUN[module] if "." not in name)} == classes


@pytest.mark.parametrize("module", RUN)
def test_each_listed_test_exists(module):
    for listed in NOT_RUN[module]:
        name, _, test = listed.partition(".")
        assert not test or (name in RUN[module] and callable(getattr(getattr(module, name), test)))


def test_adapted_classes_run_the_other_tests():
    found = adapted(test_queue, "PyQueueTest")
    names = set(unittest.defaultTestLoader.getTestCaseNames(test_queue.PyQueueTest))
    assert set(unittest.defaultTestLoader.getTestCaseNames(found)) == names - {"test_shrinking_queue"}
    assert importlib.import_module("test.test_queue").PyQueueTest.queue.Queue.__module__ == "queue"
