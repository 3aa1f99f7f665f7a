"""A fault as data: an edit of one named function, which survives a rewrite of everything around that function."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
"""The checkout."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


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
    def package(self) -> Path:
        """The top-level package that is edited."""
        return package_directory(self.module)

    @property
    def file(self) -> Path:
        """The module's source, from the directory that has the package in it."""
        relative = Path(*self.module.split("."))
        source = self.package.parent
        return relative / "__init__.py" if (source / relative).is_dir() else relative.with_suffix(".py")

    def applied(self) -> str:
        """Return the source of the module with the fault in it. Raises NotApplicable, SyntaxError."""
        source = (self.package.parent / self.file).read_text()
        begin, end = _span(source, self)
        body = source[begin:end]
        found = body.count(self.fragment)
        if found != 1:
            raise NotApplicable(f"{self.name}: the fragment stands {found} times in {self.module}.{self.function}")
        edited = source[:begin] + body.replace(self.fragment, self.replacement) + source[end:]
        if ast.dump(ast.parse(edited)) == _dump(source):
            raise NotApplicable(f"{self.name}: the replacement says what the fragment says")
        compile(edited, str(self.file), "exec")
        return edited


def package_directory(module: str) -> Path:
    """The directory of the top-level package of a module, in this checkout."""
    top = module.partition(".")[0]
    found = [*ROOT.glob(f"core/src/{top}"), *ROOT.glob(f"plugins/*/src/{top}")]
    if not found:
        raise NotApplicable(f"there is no package {top} in {ROOT}")
    return found[0]


@functools.lru_cache
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


@functools.lru_cache
def _dump(source: str) -> str:
    return ast.dump(_parse(source))


def _span(source: str, fault: Fault) -> tuple[int, int]:
    """Where the text of the function begins and ends."""
    node: ast.AST = _parse(source)
    for name in fault.function.split("."):
        inner = [child for child in ast.walk(node) if isinstance(child, _DEFINITIONS) and child is not node]
        found = [child for child in inner if child.name == name]
        if not found:
            raise NotApplicable(f"{fault.name}: there is no {fault.function} in {fault.module}")
        node = found[0]
    assert isinstance(node, _DEFINITIONS)
    assert node.end_lineno is not None
    lines = source.splitlines(keepends=True)
    return len("".join(lines[: node.lineno - 1])), len("".join(lines[: node.end_lineno]))
