"""A reader of the documentation, who does what a page says.

In a page every block is an example, in the order of the page, in one directory: ``python`` is executed, ``console``
is run and its output compared (``...`` stands for what is left out), a block of any language that begins with
``# NAME.EXTENSION`` is that file. ``expression  # -> value`` says what an expression gives, ``$ command  # exit N`` how a
command ends. A package whose ``pyproject.toml`` a page has shown is installed before the first block that is none of its files.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_PATTERNS = (
    "README.md", "SECURITY.md", "CONTRIBUTING.md", "docs/**/*.md", "core/*.md", "pipeline/README.md", "queues/README.md",
    "plugins/*/README.md", "libs/*/README.md", "examples/*/README.md",
)  # fmt: skip
PAGES = sorted(page for pattern in _PATTERNS for page in ROOT.glob(pattern))

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w./-]+\.\w+)\n")
_GIVES = re.compile(r"^(\s*)(.+?)  # -> (.+)$", re.MULTILINE)
_EXIT = re.compile(r"\s+# exit (\d+)$")
_CHOSEN = re.compile(r"^msgstore: runner \w+: .*\n", re.MULTILINE)
"""Note of ``--runner auto``, printed only if several runners are installed."""
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of each fenced block."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def _checked(line: re.Match[str]) -> str:
    return f"{line[1]}_gives(({line[2]}), {line[3]!r})"


def _gives(value: object, expected: str) -> None:
    assert repr(value) == expected, repr(value)


@attrs.define
class PageReader:
    """Does what a page says, in a directory of its own in which ``tests/data`` is that of the repository."""

    directory: Path
    names: dict[str, Any] = attrs.field(factory=lambda: {"_gives": _gives, "__name__": "example"})
    installed: list[str] = attrs.field(factory=list)
    """Directories in which Python finds what the page has written."""
    programs: Path = Path(sys.executable).parent
    """Where commands are looked for first."""
    environment: dict[str, str] = attrs.field(factory=dict)
    """What commands find there beside what this process has."""

    def block(self, language: str, text: str) -> None:
        file = _FILE.match(text)
        if not (file and (self.directory / file[1]).is_relative_to(self.directory / "acme")):
            self.install()
        if file:
            target = self.directory / file[1]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        elif language == "python":
            with contextlib.chdir(self.directory):
                exec(compile(_GIVES.sub(_checked, text), "example", "exec"), self.names)
        elif language == "console":
            for command, code, output in commands(text):
                self.command(command, code, output)

    def install(self) -> None:
        """The packages that the page has shown, as pip would install them."""
        for path in self.directory.glob("*/pyproject.toml"):
            site = path.parent / "src"
            if str(site) in self.installed:
                continue
            project = tomllib.loads(path.read_text())["project"]
            info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
            lines = [f"{name} = {value}" for name, value in project["entry-points"]["msgstore"].items()]
            (info / "entry_points.txt").write_text("\n".join(["[msgstore]", *lines]) + "\n")
            self.installed.append(str(site))
            sys.path.insert(0, str(site))
            importlib.invalidate_caches()

    def leave(self) -> None:
        """Nobody finds what the page has written any more."""
        for site in self.installed:
            sys.path.remove(site)
            for name in [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).startswith(site)]:
                del sys.modules[name]
        importlib.invalidate_caches()

    def shell(self, command: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.programs), os.environ.get("PATH", "")])
        environment = {**os.environ, "PATH": path, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
        environment |= {"PYTHONPATH": os.pathsep.join(self.installed), **self.environment}
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.directory, env=environment, encoding="utf-8",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        done.stdout = _CHOSEN.sub("", done.stdout)
        return done

    def command(self, command: str, code: int, expected: str) -> None:
        done = self.shell(command)
        assert done.returncode == code, f"$ {command}\n{done.stdout}"
        if expected.strip():
            same = doctest.OutputChecker().check_output(expected, done.stdout, _FLAGS)
            assert same, f"$ {command}\nexpected:\n{expected}\nprinted:\n{done.stdout}"


def commands(text: str) -> list[tuple[str, int, str]]:
    """(command, exit code, output) of a console block."""
    found = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        code = _EXIT.search(command)
        found.append((_EXIT.sub("", command), int(code[1]) if code else 0, output))
    return found
