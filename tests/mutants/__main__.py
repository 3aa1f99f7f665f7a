"""``python -m mutants [NAME ...]``, in ``tests/``: which test of the kit catches which fault.

The exit status is 1 if a mutant survives, or if the kit has something against a backend without a fault. One pytest process
runs :mod:`mutants.suite`, with this module as its plugin.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import hypothesis
import pytest
from rich.console import Console
from rich.table import Table

SUITE = Path(__file__).with_name("suite.py")
# A fault that is found is enough: nobody reads the smallest example. Before the kit is imported, which makes its settings.
_PHASES = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
hypothesis.settings.register_profile("mutants", phases=_PHASES, report_multiple_bugs=False)
hypothesis.settings.load_profile("mutants")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--enough", type=int, required=True, help="tests that have caught a mutant; the rest are not run for it")
    parser.addoption("--only", action="append", default=[], metavar="NAME", help="mutants, or what they were made of")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Watch(config.getoption("--only"), config.getoption("--enough")))


class _Watch:
    """Notes which test found what, and prints it at the end."""

    def __init__(self, only: list[str], enough: int) -> None:
        self._only = only
        self._enough = enough
        self._of: dict[str, tuple[str, str]] = {}
        """Id of a test to the names of its subject and of the test."""
        self._found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        """Name of a mutant or an original to the tests that "passed", "failed" (their own assertions did), or were "not run"
        because the subject could not even be made: such a mutant proves nothing."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            print(report.longreprtext)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            self._of[item.nodeid] = item.callspec.params["subject"].name, item.originalname  # type: ignore[attr-defined]
        items[:] = [item for item in items if not self._only or self._of[item.nodeid][0] in self._only]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        name, test = self._of[item.nodeid]
        failed = self._found[name]["failed"]
        if test in failed or len(failed) >= self._enough:
            pytest.skip("it is caught already, by this test with other arguments or by enough others")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name, test = self._of[report.nodeid]
        if report.when == "call" and not report.skipped:
            self._found[name][report.outcome].append(test)
        elif report.failed:
            self._found[name]["not run"].append(test)

    @pytest.hookimpl(trylast=True)  # after the kit's own, which counts skipped tests as failures
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        from mutants.suite import MUTANTS, ORIGINALS

        if session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            print(f"pytest has not run to its end: {session.exitstatus!r}; last were {', '.join(list(self._found)[-3:])}")
            return
        table = Table("mutant", "kind", "what is wrong", "caught by", box=None)
        tried = [mutant for mutant in MUTANTS if mutant.name in self._found]
        caught = {name for name, found in self._found.items() if found["failed"] and not found["not run"]}
        caught &= {mutant.name for mutant in tried}
        for mutant in sorted(tried, key=lambda mutant: mutant.name in caught):  # survivors first
            found = self._found[mutant.name]
            said = f"COULD NOT BE RUN: {', '.join(found['not run'][:3])}" if found["not run"] else "\n".join(found["failed"])
            table.add_row(mutant.name, mutant.kind, mutant.fault, said or "NOTHING")
        Console(width=160, highlight=False).print(table)
        sound = ORIGINALS.keys() & self._found.keys()
        for name in sorted(sound):
            bad = {*self._found[name]["failed"], *self._found[name]["not run"]}
            if bad or not self._found[name]["passed"]:
                print(f"{name} has no fault, and fails: {', '.join(sorted(bad))}")
                sound.remove(name)
        print(f"{len(caught)} of {len(tried)} mutants are caught; {len(sound)} originals pass")
        is_right = len(caught) == len(tried) and sound == ORIGINALS.keys() & self._found.keys()
        session.exitstatus = pytest.ExitCode.OK if is_right else pytest.ExitCode.TESTS_FAILED


def main() -> int:
    from mutants.suite import MUTANTS, ORIGINALS

    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    names = [*sorted(ORIGINALS), *(mutant.name for mutant in MUTANTS)]
    parser.add_argument("names", nargs="*", choices=[*names, []], metavar="NAME", help="mutants or originals; without, all")
    parser.add_argument("--enough", type=int, default=3, help="tests that are printed for each mutant; the rest are not run")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "pytest", str(SUITE), "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:terminal"]
    command += ["-p", "mutants.__main__", f"--enough={arguments.enough}", *(f"--only={name}" for name in arguments.names)]
    path = os.pathsep.join([str(SUITE.parents[1]), os.environ.get("PYTHONPATH", "")])
    status = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode
    if status < 0:
        print(f"the pytest process was ended by signal {-status}")
    return status


if __name__ == "__main__":
    sys.exit(main())
