"""``python -m mutants [NAME ...]``, in ``tests/``: which test of the kit catches which fault.

The exit status is 1 if a mutant survives, or if the kit has something against a backend without a fault.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from rich.console import Console
from rich.table import Table

# A fault that is found is enough: nobody reads the smallest example. Before the kit is imported, which makes its settings.
_PHASES = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
hypothesis.settings.register_profile("mutants", phases=_PHASES, report_multiple_bugs=False)
hypothesis.settings.load_profile("mutants")

from mutants import MUTANTS, suite  # noqa: E402

CAUGHT_BY = Path(__file__).with_name("caught_by.json")
"""Name of a mutant to the quickest test that has caught it, which is tried first. ``--record`` writes it."""


class Watch:
    """Notes which test found what, and prints it at the end."""

    def __init__(self, only: list[str], enough: int, record: bool) -> None:
        originals = {mutant.name: mutant.original.name for mutant in MUTANTS}
        self.only = {*only, *(name for name, original in originals.items() if original in only)}
        self.enough = enough
        self.record = record
        self.caught_by: dict[str, str] = json.loads(CAUGHT_BY.read_text())
        self.names: dict[str, tuple[str, str]] = {}
        """Id of a test to the names of its subject and of the test."""
        self.found: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        """Name of a mutant or an original to the tests that "passed", "failed" (their own assertions did), or were "not run"
        because the subject, or its change, could not even be made: such a mutant proves nothing. And the seconds of each."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            print(report.longreprtext)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests of each subject up to enough that catch it, that of ``caught_by`` first."""
        tests: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            assert isinstance(item, pytest.Function)
            subject: Any = item.callspec.params["subject"]
            name, test = subject.name, item.originalname
            self.names[item.nodeid] = name, test
            if not self.only or name in self.only:
                tests[name].insert(0 if test == self.caught_by.get(name) else len(tests[name]), item)
        for name, items in tests.items():
            failed = self.found[name]["failed"]
            for item in items:
                if len(failed) < self.enough and self.names[item.nodeid][1] not in failed:
                    session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name, test = self.names[report.nodeid]
        if report.failed and (report.when != "call" or "NameError: " in report.longreprtext):  # a table with a misspelt name
            self.found[name]["not run"][test] = report.duration
        elif report.when == "call" and not report.skipped:
            self.found[name][report.outcome][test] = report.duration

    @pytest.hookimpl(trylast=True)  # after the kit's own, which counts skipped tests as failures
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            print(f"pytest has not run to its end: {session.exitstatus!r}; last were {', '.join(list(self.found)[-3:])}")
            return
        faults = {mutant.name: mutant.fault for mutant in MUTANTS}
        table = Table("backend", "what is wrong", "caught by", box=None)
        right = {False: 0, True: 0}
        """Backends that the kit judged as it should: without a fault, and with one."""
        for name, found in sorted(self.found.items(), key=lambda item: bool(item[1]["failed"])):  # survivors first
            is_faulty, failed, not_run = name in faults, found["failed"], found["not run"]
            right[is_faulty] += not not_run and bool(failed) == is_faulty and bool(failed or found["passed"])
            said = f"COULD NOT BE RUN: {', '.join([*not_run][:3])}" if not_run else "\n".join(failed) or "NOTHING"
            table.add_row(name, faults.get(name, "nothing"), said)
            if is_faulty and failed:
                self.caught_by[name] = min(failed, key=failed.__getitem__)
        Console(width=160, highlight=False).print(table)
        tried = len(self.found.keys() & faults.keys())
        originals = len(self.found) - tried
        if not self.only:
            assert tried == len(MUTANTS), f"not tried, or of one name: {len(MUTANTS) - tried} mutants"
        if self.record:
            known = {name: test for name, test in sorted(self.caught_by.items()) if name in faults}
            CAUGHT_BY.write_text(json.dumps(known, indent=1) + "\n")
        also = f"; {right[False]} of {originals} originals pass" if originals else ""
        print(f"{right[True]} of {tried} mutants are caught{also}")
        is_right = right == {True: tried, False: originals}
        session.exitstatus = pytest.ExitCode.OK if is_right else pytest.ExitCode.TESTS_FAILED


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    names = [*sorted({mutant.original.name for mutant in MUTANTS}), *(mutant.name for mutant in MUTANTS)]
    parser.add_argument(
        "names",
        nargs="*",
        choices=[*names, []],
        metavar="NAME",
        help="backends with their mutants, or single mutants; without, all",
    )
    parser.add_argument("--enough", type=int, default=3, help="tests that are printed for each mutant; the rest are not run")
    parser.add_argument("--record", action="store_true", help=f"write {CAUGHT_BY.name}: the quickest of them is tried first")
    arguments = parser.parse_args()
    options = [suite.__file__, "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:terminal"]
    options += ["-p", "no:unraisableexception"]  # a file that a failed test has left open, in the test that comes next
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the kit is imported before pytest starts
    return pytest.main(options, plugins=[Watch(arguments.names, arguments.enough, arguments.record)])


if __name__ == "__main__":
    sys.exit(main())
