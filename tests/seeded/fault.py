"""A fault as data: an edit of one named function, which survives a rewrite of everything around that function."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
"""The checkout."""
_EDIT = ("fragment", "replacement")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ENTRY = re.compile(
    r"(?P<name>[a-z0-9-]+): (?P<symptom>.+(?:\n    .+)*)\n"
    r"  (?P<function>\S+)  (?P<caught_by>\S+::\S+)\n"
    r"(?:  = (?P<old>.+) => (?P<new>.+)\n|(?P<fragment>(?:  -.*\n)+)(?P<replacement>(?:  \+.*\n)+))"
)


class NotApplicable(Exception):
    """The code is not what the fault was written for; the message says what is missing."""


@attrs.frozen
class Fault:
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
        stem = self.module.replace(".", "/")
        names = [f"{part}/src/{stem}{end}" for part in ("core", "plugins/*") for end in (".py", "/__init__.py")]
        found = [path for name in names for path in ROOT.glob(name)]
        if not found:
            raise NotApplicable(f"there is no module {self.module} in {ROOT}")
        return found[0]

    def applied(self) -> str:
        """Return the source of the module with the fault in it. Raises NotApplicable, SyntaxError."""
        source = self.path.read_text()
        begin, end = _span(source, self)
        body = source[begin:end]
        found = body.count(self.fragment)
        if found != 1:
            raise NotApplicable(f"{self.name}: the fragment stands {found} times in {self.module}.{self.function}")
        edited = source[:begin] + body.replace(self.fragment, self.replacement) + source[end:]
        if ast.dump(ast.parse(edited)) == ast.dump(_parse(source)):
            raise NotApplicable(f"{self.name}: the replacement says what the fragment says")
        compile(edited, str(self.path), "exec")
        return edited


def parsed(text: str) -> list[Fault]:
    """Return the faults of a table. After ``@ module`` each entry has three parts: the name and the symptom; the function and
    the test that catches the fault; the edit. An edit of one line is ``= old text => new text``, a longer one has lines of the
    function's text after ``-``, and those that replace them after ``+``."""
    faults = []
    for module, entries in re.findall(r"^@ (\S+)\n((?:[^@].*\n)+)", text, re.MULTILINE):
        if rest := _ENTRY.sub("", entries):
            raise ValueError(f"not an entry of {module}: {rest}")
        for match in _ENTRY.finditer(entries):
            entry = match.groupdict()
            old, new = entry.pop("old"), entry.pop("new")
            edit = {part: "\n".join(line[4:] for line in (entry.pop(part) or "").splitlines()) for part in _EDIT}
            entry |= {"fragment": old, "replacement": new} if old else edit
            faults.append(Fault(module=module, **entry | {"symptom": re.sub(r"\n +", " ", entry["symptom"])}))
    return faults


@functools.lru_cache
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


def _span(source: str, fault: Fault) -> tuple[int, int]:
    """Where the text of the function begins and ends."""
    node: ast.AST | None = _parse(source)
    for name in fault.function.split("."):
        inner = (child for child in ast.walk(node) if isinstance(child, _DEFINITIONS) and child is not node)
        node = next((child for child in inner if child.name == name), None)
        if node is None:
            raise NotApplicable(f"{fault.name}: there is no {fault.function} in {fault.module}")
    assert isinstance(node, _DEFINITIONS)
    assert node.end_lineno is not None
    lines = source.splitlines(keepends=True)
    return len("".join(lines[: node.lineno - 1])), len("".join(lines[: node.end_lineno]))


_MODULES = ("writing", "collecting", "opening", "backends")
FAULTS = [fault for name in _MODULES for fault in parsed(importlib.import_module(f"seeded.{name}").FAULTS)]
"""All faults, in the order of a message's life."""
