"""``python tests/seeded_faults.py [--only NAME]``: which of the faults in ``tests/seeded`` the tests catch.

Each fault is an edit of one named function, and survives a rewrite around that function. It is applied to a copy of the
package, and the test that catches it runs against the copy, in a pytest process that uses this module as a plugin. Exit code 1
if a fault survives, or a test fails without any fault.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest

ROOT = Path(__file__).parents[1]
"""The checkout."""
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_ENTRY = re.compile(
    r"(?P<name>[a-z0-9-]+): (?P<symptom>.+(?:\n    .+)*)\n"
    r"  (?P<function>\S+)  (?P<caught_by>\S+::\S+)\n"
    r"(?:  = (?P<old>.+) => (?P<new>.+)\n|(?P<fragment>(?:  -.*\n)+)(?P<replacement>(?:  \+.*\n)+))"
)


class NotApplicable(Exception):
    """The code is not what the fault was written for; the message says what is missing."""


@attrs.frozen
class SeededFault:
    name: str
    module: str
    function: str
    """Qualified name in the module."""
    fragment: str
    """Text of the function's source that stands there exactly once."""
    replacement: str
    symptom: str
    """A sentence: what a user would see."""
    caught_by: str
    """``file::function`` of a test that fails with the fault, from the root of the checkout."""

    @property
    def path(self) -> Path:
        """The module's source in this checkout."""
        return _path(self.module)

    def applied(self) -> str:
        """Return the source of the module with the fault in it. Raises NotApplicable, SyntaxError."""
        source = self.path.read_text()
        node = _function(_parse(source), self)
        lines = source.splitlines(keepends=True)
        begin, end = (len("".join(lines[:number])) for number in (node.lineno - 1, node.end_lineno))
        body = source[begin:end]
        found = body.count(self.fragment)
        if found != 1:
            raise NotApplicable(f"{self.name}: the fragment stands {found} times in {self.module}.{self.function}")
        edited = source[:begin] + body.replace(self.fragment, self.replacement) + source[end:]
        tree = ast.parse(edited)
        if ast.dump(_function(tree, self)) == ast.dump(node):
            raise NotApplicable(f"{self.name}: the replacement says what the fragment says")
        compile(tree, str(self.path), "exec")
        return edited


def parsed(text: str) -> list[SeededFault]:
    """Return the faults of a table. After ``@ module`` each entry has three parts: the name and the symptom; the function and
    the test that catches the fault; the edit. An edit of one line is ``= old text => new text``, a longer one has lines of the
    function's text after ``-``, and those that replace them after ``+``."""
    faults = []
    for module, entries in re.findall(r"^@ (\S+)\n((?:[^@].*\n)+)", text, re.MULTILINE):
        if rest := _ENTRY.sub("", entries):
            raise ValueError(f"not an entry of {module}: {rest}")
        for match in _ENTRY.finditer(entries):
            entry = match.groupdict()
            for part, short in (("fragment", entry.pop("old")), ("replacement", entry.pop("new"))):
                entry[part] = short or "\n".join(line[4:] for line in (entry[part] or "").splitlines())
            entry["symptom"] = re.sub(r"\n +", " ", entry["symptom"])
            faults.append(SeededFault(module=module, **entry))
    return faults


@functools.cache
def _path(module: str) -> Path:
    stem = module.replace(".", "/")
    names = [f"{part}/src/{stem}{end}" for part in ("core", "libs/*", "plugins/*") for end in (".py", "/__init__.py")]
    found = [path for name in names for path in ROOT.glob(name)]
    if not found:
        raise NotApplicable(f"there is no module {module} in {ROOT}")
    return found[0]


@functools.lru_cache
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


def _function(tree: ast.AST, fault: SeededFault) -> _Definition:
    node = tree
    for name in fault.function.split("."):
        inner = (child for child in ast.walk(node) if isinstance(child, _Definition) and child is not node)
        found = next((child for child in inner if child.name == name), None)
        if found is None:
            raise NotApplicable(f"{fault.name}: there is no {fault.function} in {fault.module}")
        node = found
    assert isinstance(node, _Definition)
    return node


_MODULES = ("writing", "collecting", "opening", "backends")
FAULTS = [fault for name in _MODULES for fault in parsed(importlib.import_module(f"seeded.{name}").FAULTS)]
"""All faults, in the order of a message's life."""


# -- running them ----------------------------------------------------------------------------------------------------------

OPTIONS = ("-x", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", "--tb=short")
TIMEOUT_SECONDS = 300
_SEED = {"MSGSTORE_TESTS_SEED": "0", "PYTHONHASHSEED": "0"}
"""For sweeps and random histories: the same each time."""
MODULE, FILE = "MSGSTORE_SEEDED_MODULE", "MSGSTORE_SEEDED_FILE"
"""Environment variables: the module with the fault, and the path of its edited source."""


def run(fault: SeededFault) -> tuple[str, str]:
    """Run the test that catches the fault with the fault in the code. Return the result and what pytest printed.

    The result is ``caught``, ``survived``, or ``not run``: pytest itself failed, or never ended. Such a fault proves nothing.
    """
    sources = next(path for path in fault.path.parents if path.name == "src")
    package = fault.module.partition(".")[0]
    with TemporaryDirectory(prefix="seeded-") as directory:
        shutil.copytree(sources / package, Path(directory, package), ignore=shutil.ignore_patterns("__pycache__"))
        edited = Path(directory, fault.path.relative_to(sources))
        edited.write_text(fault.applied())
        environment = {MODULE: fault.module, FILE: str(edited)}
        code, text = _pytest([fault.caught_by, "-p", "seeded_faults"], [directory], environment)
    return {1: "caught", 0: "survived"}.get(code, "not run"), text


def failing_without_faults(faults: Sequence[SeededFault]) -> str:
    """Run the tests that catch these faults on the code as it is. Return what pytest printed if one fails, else nothing."""
    code, text = _pytest([*{fault.caught_by for fault in faults}], [], {})
    return text if code else ""


def _pytest(arguments: Sequence[str], path: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """Return the exit code and what was printed; -1 if pytest does not end."""
    found = os.pathsep.join([*path, str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *arguments],
            cwd=ROOT, env={**os.environ, **_SEED, **environment, "PYTHONPATH": found},
            capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"no end after {TIMEOUT_SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def pytest_collection_finish() -> None:
    """End the run unless the module with the fault is the one that tests import."""
    module, expected = os.environ[MODULE], Path(os.environ[FILE])
    found = importlib.import_module(module).__file__
    if found is None or not expected.samefile(found):
        raise pytest.UsageError(f"{module} is imported from {found}, not from {expected}: the fault is not there")


def main() -> int:
    parser = argparse.ArgumentParser(prog="seeded_faults", description="Put faults into the code, and see which tests fail.")
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", action="append", default=[], choices=names, metavar="NAME", help="this fault; repeatable")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    if text := failing_without_faults(faults):
        print(text, "a test fails without any fault: what it says of faults is worth nothing", sep="\n")
        return 1
    caught = 0
    for fault in faults:
        result, text = run(fault)
        print(f"{result:9} {fault.name}: {fault.caught_by}", flush=True)
        caught += result == "caught"
        if result != "caught":
            print(f"          {fault.symptom}\n{text}")
    print(f"{len(faults)} faults, {caught} caught")
    return int(caught < len(faults))


if __name__ == "__main__":
    sys.exit(main())
