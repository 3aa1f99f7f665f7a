"""``python -m mutants [NAME ...]``, in ``tests/``: which test of the kit catches which fault.

The exit status is 1 if a mutant survives, or if the kit has something against a backend without a fault.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict

import hypothesis
import pytest
from rich.console import Console
from rich.table import Table

# A fault that is found is enough: nobody reads the smallest example. Before the kit is imported, which makes its settings.
_PHASES = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
hypothesis.settings.register_profile("mutants", phases=_PHASES, report_multiple_bugs=False)
hypothesis.settings.load_profile("mutants")

from mutants import MUTANTS, suite  # noqa: E402


class Watch:
    """Notes which test found what, and prints it at the end."""

    def __init__(self, only: list[str], enough: int) -> None:
        self.only = only
        self.enough = enough
        self.of: dict[str, tuple[str, str]] = {}
        """Id of a test to the names of its subject and of the test."""
        self.found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        """Name of a mutant or an original to the tests that "passed", "failed" (their own assertions did), or were "not run"
        because the subject could not even be made: such a mutant proves nothing."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            print(report.longreprtext)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            self.of[item.nodeid] = item.callspec.params["subject"].name, item.originalname  # type: ignore[attr-defined]
        items[:] = [item for item in items if not self.only or self.of[item.nodeid][0] in self.only]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        name, test = self.of[item.nodeid]
        failed = self.found[name]["failed"]
        if test in failed or len(failed) >= self.enough:
            pytest.skip("it is caught already, by this test with other arguments or by enough others")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name, test = self.of[report.nodeid]
        if report.when == "call" and not report.skipped:
            self.found[name][report.outcome].append(test)
        elif report.failed:
            self.found[name]["not run"].append(test)

    @pytest.hookimpl(trylast=True)  # after the kit's own, which counts skipped tests as failures
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            print(f"pytest has not run to its end: {session.exitstatus!r}; last were {', '.join(list(self.found)[-3:])}")
            return
        table = Table("mutant", "what is wrong", "caught by", box=None)
        tried = [mutant for mutant in MUTANTS if mutant.name in self.found]
        caught = {m.name for m in tried if self.found[m.name]["failed"] and not self.found[m.name]["not run"]}
        for mutant in sorted(tried, key=lambda mutant: mutant.name in caught):  # survivors first
            found = self.found[mutant.name]
            said = f"COULD NOT BE RUN: {', '.join(found['not run'][:3])}" if found["not run"] else "\n".join(found["failed"])
            table.add_row(mutant.name, mutant.fault, said or "NOTHING")
        Console(width=160, highlight=False).print(table)
        originals = sorted(suite.ORIGINALS.keys() & self.found.keys())
        bad = {name: {*self.found[name]["failed"], *self.found[name]["not run"]} for name in originals}
        for name in originals:
            if bad[name]:
                print(f"{name} has no fault, and fails: {', '.join(sorted(bad[name]))}")
        sound = [name for name in originals if self.found[name]["passed"] and not bad[name]]
        print(f"{len(caught)} of {len(tried)} mutants are caught; {len(sound)} originals pass")
        is_right = len(caught) == len(tried) and sound == originals
        session.exitstatus = pytest.ExitCode.OK if is_right else pytest.ExitCode.TESTS_FAILED


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    names = [*sorted(suite.ORIGINALS), *(mutant.name for mutant in MUTANTS)]
    parser.add_argument("names", nargs="*", choices=[*names, []], metavar="NAME", help="mutants or originals; without, all")
    parser.add_argument("--enough", type=int, default=3, help="tests that are printed for each mutant; the rest are not run")
    arguments = parser.parse_args()
    options = [suite.__file__, "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:terminal"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the kit is imported before pytest starts
    return pytest.main(options, plugins=[Watch(arguments.names, arguments.enough)])


if __name__ == "__main__":
    sys.exit(main())
