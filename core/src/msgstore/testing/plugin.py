"""Pytest plugin of the kit: options, subjects of each class, detection of overridden tests, summary.

Registered by an entry point of core, so that ``--msgstore-dist`` exists wherever msgstore is installed. Imports the rest of
the kit only if a run uses it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from msgstore.testing.subjects import Subject

_SUITE = "msgstore.testing.suite"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("msgstore", "msgstore's conformance kit")
    group.addoption(
        "--msgstore-dist",
        action="append",
        default=[],
        metavar="NAME",
        help=f"test every plugin that this distribution registers; with: --pyargs {_SUITE}",
    )
    group.addoption(
        "--msgstore-partial",
        metavar="REASON",
        help="why tests of the kit are left out, by -k, --deselect, --ignore and the like: without it such a run fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    subjects: Sequence[Subject] = []
    if config.getoption("msgstore_dist"):
        if find_spec("hypothesis") is None:
            raise pytest.UsageError("--msgstore-dist: the kit needs hypothesis, too; try: pip install 'msgstore[testing]'")
        from msgstore.testing.subjects import NothingToTest, subjects_of

        try:
            subjects = [subject for name in config.getoption("msgstore_dist") for subject in subjects_of(name)]
        except NothingToTest as error:
            raise pytest.UsageError(f"--msgstore-dist: {error}") from error
    config.pluginmanager.register(_Kit(subjects, config.getoption("msgstore_partial")), "msgstore-kit")


class _Kit:
    """State of one run."""

    def __init__(self, subjects: Sequence[Subject], partial: str | None) -> None:
        """``partial``: reason for leaving tests out."""
        self._subjects = subjects
        self._partial = (partial or "").strip() or None
        self._collected: list[pytest.Item] = []
        self._ignored: list[Path] = []
        self._left_out: list[str] = []
        self._classes: dict[type[Any], None] = {}
        self._skips: dict[str, list[str]] = defaultdict(list)
        self._tests: set[str] = set()
        self._unproven: list[str] = []
        self._reasons: list[tuple[str, str]] = []

    @pytest.fixture
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        """A backend that the distribution of ``--msgstore-dist`` registers. A class can override the fixture."""
        if not hasattr(request, "param"):  # for tests that are not of the kit there is no such fixture
            raise pytest.FixtureLookupError("subject", request)
        found: Subject = request.param
        return found

    def pytest_pycollect_makeitem(self, collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
        """Drop the suite's classes for kinds of backends that the distribution does not register."""
        if not isinstance(obj, type) or not _is_kit_class(obj) or not _module(collector).startswith(_SUITE):
            return None
        if not self._subjects:
            raise collector.CollectError(f"{_SUITE}: say what to test: --msgstore-dist NAME, a distribution that is installed")
        return None if self._for(obj) else []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        cls = metafunc.cls
        if cls is None or not _is_kit_class(cls):
            return
        self._classes[cls] = None
        if "subject" in metafunc.fixturenames and not _has_fixture(metafunc):
            subjects = self._for(cls)
            if not subjects:
                pytest.fail(f"{cls.__name__} has nothing to test: give it a fixture 'subject', or the run --msgstore-dist NAME")
            metafunc.parametrize("subject", subjects, indirect=True, ids=str)

    def _for(self, cls: type[Any]) -> list[Subject]:
        return [subject for subject in self._subjects if subject.kind in cls.kinds]

    @pytest.hookimpl(wrapper=True)
    def pytest_ignore_collect(self, collection_path: Path) -> Generator[None, bool | None, bool | None]:
        is_ignored = yield
        if is_ignored:
            self._ignored.append(collection_path)
        return is_ignored

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        if getattr(item, "cls", None) in self._classes:
            self._collected.append(item)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Fail the run before it begins if tests of the kit are deleted or overridden without a reason."""
        from msgstore.testing.guard import replaced

        self._tests = {item.nodeid for item in session.items if getattr(item, "cls", None) in self._classes}
        if (self._tests or self._subjects) and not session.config.option.collectonly:
            from msgstore.testing.deselected import modules_of_kit, not_collected

            self._left_out += modules_of_kit(self._ignored, session.config)
            self._left_out += not_collected(self._subjects, self._collected)
            self._left_out += (item.nodeid for item in self._collected if item.nodeid not in self._tests)
        silent = []
        for cls in self._classes:
            for test, reason in replaced(cls):
                if reason is None:
                    silent.append(test)
                else:
                    self._reasons.append((test, reason))
        if silent:
            raise pytest.UsageError(
                f"tests of the kit are deleted or overridden: {', '.join(silent)}. Mark what takes their place with "
                '@msgstore.testing.replaces("why"), or leave them as they are.'
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid not in self._tests or not (report.skipped or hasattr(report, "wasxfail")):
            return
        from msgstore.testing.subjects import SKIPPED_FOR

        test = report.nodeid.rpartition("::")[2]
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, "")
        _, found, capability = reason.partition(SKIPPED_FOR)
        if found:
            self._skips[capability].append(test)
        else:
            self._unproven.append(test)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that left tests out without a reason, or skipped any for another reason than a capability not claimed."""
        if (self._unproven or (self._left_out and self._partial is None)) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._subjects:
            terminalreporter.section("msgstore's conformance kit")
            for subject in self._subjects:
                terminalreporter.line(f"tested: {subject} of {subject.provider}")
        for capability, tests in sorted(self._skips.items()):
            terminalreporter.line(f"skipped, not claimed: {capability}: {', '.join(sorted(tests))}")
        if self._unproven:
            terminalreporter.line(f"skipped or expected to fail, so the run has failed: {', '.join(sorted(self._unproven))}")
        if self._left_out:
            from msgstore.testing.deselected import summary

            for line in summary(self._left_out, self._partial):
                terminalreporter.line(line)
        for test, reason in self._reasons:
            terminalreporter.line(f"replaced: {test}: {reason}")


def _is_kit_class(cls: type[Any]) -> bool:
    from msgstore.testing.guard import KitTests

    return issubclass(cls, KitTests)


def _module(collector: pytest.Collector) -> str:
    module = collector.getparent(pytest.Module)
    return module.obj.__name__ if module is not None else ""


def _has_fixture(metafunc: pytest.Metafunc) -> bool:
    """Return True if the class or its module has its own fixture ``subject``."""
    assert metafunc.cls is not None
    return any("subject" in vars(base) for base in metafunc.cls.__mro__) or hasattr(metafunc.module, "subject")
