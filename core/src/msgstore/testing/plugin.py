"""Pytest plugin of the kit: options, subjects of each class, tests that are overridden or left out, summary.

Registered by an entry point of core, so that ``--msgstore-dist`` exists wherever msgstore is installed. Imports the rest of
the kit only if a run uses it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import msgstore.testing
from msgstore.testing.guard import SKIPPED_FOR, KitTests, replaced

if TYPE_CHECKING:
    from msgstore.testing.subjects import Subject

_SUITE = "msgstore.testing.suite"
_NAMES = [name for name in msgstore.testing.__all__ if name.endswith("Tests")]
_USES = re.compile(rf"\b(?:{'|'.join(_NAMES)})\b")
_SHOWN = 5
"""Tests that are left out of which the summary gives the names."""


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
        self._partial = (partial or "").strip()
        self._collected: list[pytest.Item] = []
        self._ignored: list[Path] = []
        self._left_out: list[str] = []
        self._classes: dict[type[Any], None] = {}
        self._skips: dict[str, list[str]] = defaultdict(list)
        self._tests: set[str] = set()
        self._unproven: list[str] = []
        self._replaced: list[tuple[str, str]] = []

    @pytest.fixture
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        """A backend that the distribution of ``--msgstore-dist`` registers. A class can override the fixture."""
        if not hasattr(request, "param"):  # for tests that are not of the kit there is no such fixture
            raise pytest.FixtureLookupError("subject", request)
        found: Subject = request.param
        return found

    def pytest_pycollect_makeitem(self, collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
        """Drop the suite's classes for kinds of backends that the distribution does not register."""
        module = collector.getparent(pytest.Module)
        is_suite = module is not None and module.obj.__name__.startswith(_SUITE)
        if not (isinstance(obj, type) and issubclass(obj, KitTests) and is_suite):
            return None
        if not self._subjects:
            raise collector.CollectError(f"{_SUITE}: say what to test: --msgstore-dist NAME, a distribution that is installed")
        return None if self._for(obj) else []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        cls = metafunc.cls
        if cls is None or not issubclass(cls, KitTests):
            return
        self._classes[cls] = None
        has_fixture = any("subject" in vars(base) for base in cls.__mro__) or hasattr(metafunc.module, "subject")
        if "subject" in metafunc.fixturenames and not has_fixture:
            subjects = self._for(cls)
            if not subjects:
                pytest.fail(f"{cls.__name__} has nothing to test: give it a fixture 'subject', or the run --msgstore-dist NAME")
            metafunc.parametrize("subject", subjects, indirect=True, ids=str)

    def _for(self, cls: type[KitTests]) -> list[Subject]:
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
        self._tests = {item.nodeid for item in session.items if getattr(item, "cls", None) in self._classes}
        if (self._tests or self._subjects) and not session.config.option.collectonly:
            self._left_out += self._modules_left_out(session.config)
            self._left_out += self._never_collected()
            self._left_out += (item.nodeid for item in self._collected if item.nodeid not in self._tests)
        self._replaced = [found for cls in self._classes for found in replaced(cls)]
        if silent := [test for test, reason in self._replaced if not reason]:
            raise pytest.UsageError(
                f"tests of the kit are deleted or overridden: {', '.join(silent)}. Mark what takes their place with "
                '@msgstore.testing.replaces("why"), or leave them as they are.'
            )

    def _never_collected(self) -> Iterator[str]:
        """Yield the tests of the subjects that pytest never saw: a file was ignored, or only other tests were named."""
        seen = {
            (kit, getattr(item, "originalname", None), str(item.callspec.params.get("subject")))
            for item in self._collected
            if self._subjects and hasattr(item, "callspec")
            for kit in item.cls.__mro__  # type: ignore[attr-defined]
        }
        for subject in self._subjects:
            for kit in (getattr(msgstore.testing, name) for name in _NAMES):
                if subject.kind in kit.kinds:
                    tests = (name for name in dir(kit) if name.startswith("test"))
                    yield from (f"{kit.__name__}.{name}[{subject}]" for name in tests if (kit, name, str(subject)) not in seen)

    def _modules_left_out(self, config: pytest.Config) -> Iterator[str]:
        """Yield the ignored test modules that name a class of the kit, also those in ignored directories."""
        patterns, never = config.getini("python_files"), config.getini("norecursedirs")
        for path in self._ignored:
            if path.is_dir() and (any(fnmatch(path.name, name) for name in never) or (path / "pyvenv.cfg").exists()):
                continue
            for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                is_test = any(fnmatch(module.name, pattern) for pattern in patterns)
                if is_test and _USES.search(module.read_text(errors="replace")):
                    yield str(module)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid not in self._tests or not (report.skipped or hasattr(report, "wasxfail")):
            return
        test = report.nodeid.rpartition("::")[2]
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        _, found, capability = reason.partition(SKIPPED_FOR)
        (self._skips[capability] if found else self._unproven).append(test)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that left tests out without a reason, or skipped any for another reason than a capability not claimed."""
        if (self._unproven or (self._left_out and not self._partial)) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        say = terminalreporter.line
        if self._subjects:
            terminalreporter.section("msgstore's conformance kit")
        for subject in self._subjects:
            say(f"tested: {subject} of {subject.provider}")
        for capability, tests in sorted(self._skips.items()):
            say(f"skipped, not claimed: {capability}: {', '.join(sorted(tests))}")
        if self._unproven:
            say(f"skipped or expected to fail, so the run has failed: {', '.join(sorted(self._unproven))}")
        if self._left_out:
            more = len(self._left_out) - _SHOWN
            names = ", ".join(self._left_out[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
            if self._partial:
                say(f"left out: {names}: {self._partial}")
            else:
                say(f"left out, so the run has failed: {names}")
                say("Run them, or say why not: --msgstore-partial REASON")
        for test, reason in self._replaced:
            say(f"replaced: {test}: {reason}")
