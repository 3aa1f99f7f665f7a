"""Watches a run of :mod:`mutants.suite`, and writes down which test found what."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import hypothesis
import pytest

# A fault that is found is enough: nobody reads the smallest example. Before the kit is imported, which makes its settings.
hypothesis.settings.register_profile(
    "mutants", phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate], report_multiple_bugs=False
)
hypothesis.settings.load_profile("mutants")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, required=True, metavar="FILE", help="where the outcomes are written, as JSON")
    parser.addoption("--enough", type=int, required=True, help="tests that have caught a mutant; the rest are not run for it")
    parser.addoption("--only", action="append", default=[], metavar="NAME", help="mutants, or what they were made of")


def pytest_configure(config: pytest.Config) -> None:
    only, file, enough = map(config.getoption, ("--only", "--outcomes", "--enough"))
    config.pluginmanager.register(_Watch(only, file, enough))


class _Watch:
    def __init__(self, only: list[str], file: Path, enough: int) -> None:
        self._only = only
        self._file = file
        self._enough = enough
        self._of: dict[str, tuple[str, str]] = {}
        self._found: dict[str, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        wanted = [item for item in items if (name := _subject(item)) and (not self._only or name in self._only)]
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = wanted
        for item in items:
            self._of[item.nodeid] = _subject(item), item.name.partition("[")[0]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        name, test = self._of[item.nodeid]
        failed = self._found[name]["failed"]
        if test in failed or len(failed) >= self._enough:
            pytest.skip("it is caught already, by this test with other arguments or by enough others")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name, test = self._of[report.nodeid]
        if report.when == "call" and not report.skipped:
            self._found[name][report.outcome][test] = None
        elif report.failed:
            self._found[name]["not_run"][test] = None

    def pytest_sessionfinish(self) -> None:
        keys = ("passed", "failed", "not_run")
        outcomes = [{"name": name} | {key: list(found[key]) for key in keys} for name, found in self._found.items()]
        self._file.write_text(json.dumps(outcomes, indent=2))


def _subject(item: pytest.Item) -> str:
    """The name of what a test is run for; empty in a class for which there is no mutant."""
    found = item.callspec.params["subject"]  # type: ignore[attr-defined]
    return found[0].name if isinstance(found, tuple) else ""
