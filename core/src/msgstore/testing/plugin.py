"""Base class of the kit's tests, and its pytest plugin: options, subjects of each class, tests that are left out, summary.

Registered by an entry point of core, so that ``--msgstore-dist`` exists wherever msgstore is installed. Imports the rest of
the kit only if a run uses it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import pytest

import msgstore.testing

if TYPE_CHECKING:
    from msgstore.testing import Subject

F = TypeVar("F", bound=Callable[..., object])
SUITE = "msgstore.testing.suite"
_SKIPPED_FOR = "does not claim "
"""Begin of the reason of a skip that the summary lists by capability."""
_REASON = "__msgstore_replaces__"
_SUBJECT = "msgstore subject"
"""Property of a test: the name of its subject."""
_SHOWN = 5
"""Tests that are left out of which the summary gives the names."""


class KitTests:
    """Tests of one kind of backend. A subclass inherits all of them, and may add more."""

    kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of subjects to test."""

    @pytest.fixture
    def subject(self) -> Any:
        """Backend under test. A subclass overrides this fixture; classes of the suite get subjects from the options."""
        pytest.fail(f"{type(self).__name__} has nothing to test: give it a fixture 'subject'")


def replaces(reason: str) -> Callable[[F], F]:
    """Mark a test that replaces one of the kit. The reason is printed at the end of the run."""
    if not reason.strip():
        raise ValueError("say why the kit's own test does not do")

    def mark(test: F) -> F:
        setattr(test, _REASON, reason)
        return test

    return mark


def skip_without(capability: str) -> NoReturn:
    """Skip the test; the summary of the run lists it under ``capability``."""
    pytest.skip(f"{_SKIPPED_FOR}{capability}")


def _is_of_suite(cls: type) -> bool:
    return cls.__module__ == SUITE


def _replaced(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield (test, reason) of each test of the kit that ``cls`` deletes or overrides; the reason is empty if there is none."""
    for base in cls.__mro__:
        if base.__module__.startswith("msgstore.testing.") and not _is_of_suite(base):
            for name, test in vars(base).items():
                if name.startswith("test") and getattr(cls, name) is not test:
                    yield f"{cls.__name__}.{name}", getattr(getattr(cls, name), _REASON, "")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("msgstore", "msgstore's conformance kit")
    group.addoption(
        "--msgstore-dist",
        action="append",
        default=[],
        metavar="NAME",
        help=f"test every plugin that this distribution registers; with: --pyargs {SUITE}",
    )
    group.addoption(
        "--msgstore-partial",
        default="",
        metavar="REASON",
        help="why tests of the kit are left out, by -k, --deselect, a skip and the like: without it such a run fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    subjects: Sequence[Subject] = []
    if names := config.getoption("msgstore_dist"):
        if find_spec("hypothesis") is None:
            raise pytest.UsageError("--msgstore-dist: the kit needs hypothesis, too; try: pip install hypothesis")
        subjects = [subject for name in names for subject in msgstore.testing.Subject.registered_by(name)]
    config.pluginmanager.register(_Run(subjects, config.getoption("msgstore_partial").strip()), "msgstore-kit")


class _Run:
    """State of one run."""

    def __init__(self, subjects: Sequence[Subject], partial: str) -> None:
        """``partial``: reason for leaving tests out."""
        self._subjects = subjects
        self._partial = partial
        self._collected: list[Any] = []
        self._left_out: list[str] = []
        self._tests: set[str] = set()
        self._tested: set[str] = set()
        """Subjects of which a test was run."""
        self._skips: dict[str, list[str]] = defaultdict(list)
        self._replaced: dict[str, str] = {}

    def _for(self, cls: type[KitTests]) -> list[Subject]:
        return [subject for subject in self._subjects if subject.kind in cls.kinds]

    def pytest_pycollect_makeitem(self, collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
        """Drop the suite's classes for kinds of backends that the distribution does not register."""
        if not (isinstance(obj, type) and issubclass(obj, KitTests) and _is_of_suite(obj)):
            return None
        if not self._subjects:
            raise collector.CollectError(f"{SUITE}: say what to test: --msgstore-dist NAME, a distribution that is installed")
        return None if self._for(obj) else []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if metafunc.cls and _is_of_suite(metafunc.cls):
            metafunc.parametrize("subject", self._for(metafunc.cls), ids=str)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        if issubclass(getattr(item, "cls", None) or object, KitTests):
            self._collected.append(item)
            if "subject" in (params := item.callspec.params if hasattr(item, "callspec") else {}):
                item.user_properties.append((_SUBJECT, str(params["subject"])))  # pytest-xdist sends these with each report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note what has to run, and does not: tests that were collected, and those of the subjects that pytest never saw."""
        if session.config.option.collectonly:
            return
        chosen = {item.nodeid for item in session.items}
        self._tests = {item.nodeid for item in self._collected} & chosen
        if not (self._tests or self._subjects):  # a run of other tests, such as that of a marker
            return
        self._left_out = [item.nodeid for item in self._collected if item.nodeid not in chosen]
        in_suite = (item for item in self._collected if _is_of_suite(item.cls))
        seen = {(item.cls.__base__, item.originalname, str(item.callspec.params["subject"])) for item in in_suite}
        for kit in msgstore.testing.__all__ if self._subjects else ():
            tests = getattr(msgstore.testing, kit)
            for name in dir(tests) if kit.endswith("Tests") else ():
                missing = [subject for subject in self._for(tests) if (tests, name, str(subject)) not in seen]
                self._left_out += [f"{kit}.{name}[{subject}]" for subject in missing if name.startswith("test")]
        self._replaced = dict(found for item in self._collected for found in _replaced(item.cls))
        self._left_out += [test for test, reason in self._replaced.items() if not reason]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self._tested.update(str(value) for name, value in report.user_properties if name == _SUBJECT)
        if report.nodeid in self._tests and (report.skipped or hasattr(report, "wasxfail")):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            _, found, capability = reason.partition(_SKIPPED_FOR)
            (self._skips[capability] if found else self._left_out).append(report.nodeid.rpartition("::")[2])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of pytest-xdist has noted: only workers see the tests."""
        left_out, skips, self._replaced = getattr(node, "workeroutput", {}).get("msgstore_kit", ([], {}, self._replaced))
        self._left_out = list(dict.fromkeys([*self._left_out, *left_out]))
        for capability, tests in skips.items():
            self._skips[capability] += tests

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that left tests out without a reason, or skipped any for another reason than a capability not claimed."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["msgstore_kit"] = (self._left_out, dict(self._skips), self._replaced)
        if self._left_out and not self._partial and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        say = terminalreporter.line
        if self._subjects:
            terminalreporter.section("msgstore's conformance kit")
        for subject in (one for one in self._subjects if str(one) in self._tested):
            say(f"tested: {subject} of {subject.provider}")
        for capability, tests in sorted(self._skips.items()):
            say(f"skipped, not claimed: {capability}: {', '.join(sorted(tests))}")
        if self._left_out:
            more = len(self._left_out) - _SHOWN
            names = ", ".join(self._left_out[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
            if self._partial:
                say(f"left out: {names}: {self._partial}")
            else:
                say(f"left out, so the run has failed: {names}")
                say("Run them as they are, or say why not: --msgstore-partial REASON")
        for test, reason in self._replaced.items():
            say(f"replaced: {test}: {reason or 'without a reason'}")
