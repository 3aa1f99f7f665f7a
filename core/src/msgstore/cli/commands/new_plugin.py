"""Command ``new-plugin``: write the start of a plugin, whose tests pass. Templates: ``skeletons``, one directory per kind."""

from __future__ import annotations

import contextlib
import importlib.util
import keyword
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path
from string import Template
from typing import Any

import click

import msgstore
from msgstore.cli import options, output
from msgstore.contract import CONTRACT_VERSION, ConfigError
from msgstore.plugins.catalogue import load_catalogue
from msgstore.plugins.descriptor_checks import RESERVED_EXTENSIONS

_SKELETONS = resources.files("msgstore.cli") / "skeletons"
_STORE_EXTENSIONS = {".rdq", ".sqs", ".rdt", *RESERVED_EXTENSIONS}
"""Extensions of files in stores or next to them, whether or not a plugin reads them."""
_MAX_NAME = 40
"""Characters. Names of backends have at most 64."""
KINDS = ("record-type", "format", "index", "gc-policy", "body-codec", "source", "sink", "observer", "command")


@click.command(name="new-plugin")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option("--summary", metavar="TEXT", help="What the plugin does, in one line. Default: what its sample does.")
@options.file("--into", metavar="DIR", default=Path(), help="Parent of the new directory. It must exist.")
@options.as_json
def new_plugin(kind: str, name: str, summary: str | None, into: Path, out: output.Output) -> None:
    """Write the start of a plugin: a distribution that can be installed, works, and passes its tests.

    NAME is the name of the distribution, of its directory, and of the backend in a configuration, or of the command. The
    directory must not exist. Nothing is overwritten. If new-plugin fails, it leaves nothing behind.

    \b
    Examples:
      msgstore new-plugin record-type acme-audit
      msgstore new-plugin index acme-sqlite --summary "entries in one SQLite file" --into plugins
    """
    # The differences of the kind: its noun, the module ``part`` with the implementation, the ``library`` that it imports, texts
    # of the README, and its kind in the ``catalogue``, unless it has no name there.
    words = tomllib.loads((_SKELETONS / kind / "skeleton.toml").read_text(encoding="utf-8"))
    if summary is not None:
        if not summary.isprintable() or not summary.strip() or set(summary) & {'"', "\\"}:
            raise click.BadParameter(f"the summary {summary!r} is not one line of text without '\"' and '\\'")
        words["summary"] = summary.strip().rstrip(".")
    for error in _name_errors(kind, name, words):
        raise click.BadParameter(error)
    target = into / name
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target}: already exists. Choose another name, or another directory with --into.")
    if not into.is_dir():
        raise ConfigError(f"{into}: there is no such directory. Create it first.")
    files = _render(kind, name, words)
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=into) as temporary:
        for path, text in files.items():
            file = Path(temporary, name, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        Path(temporary, name).rename(target)
    out.emit({"kind": kind, "name": name, "path": str(target), "files": list(files)})
    for path in files:
        out.print(str(target / path), soft_wrap=True)
    if not out.as_json:
        output.note(f"next: cd {target} && pip install -e '.[test]' && pytest. README.md lists further steps.")


def _render(kind: str, name: str, words: dict[str, Any]) -> dict[str, str]:
    """Return path below the plugin's directory to text."""
    module = name.replace("-", "_")
    sources = {
        "README.md": "common/README.md",
        "pyproject.toml": "common/pyproject.toml",
        f"src/{module}/__init__.py": "common/__init__.py",
        f"src/{module}/plugin.py": f"{kind}/plugin.py",
        f"src/{module}/{words['part']}.py": f"{kind}/{words['part']}.py",
        f"tests/test_{module}.py": f"{kind}/test.py",
    }
    own = {"name": name, "module": module, "contract": str(CONTRACT_VERSION), "versions": _versions(msgstore.__version__)}
    own["use"] = Template(words["use"]).substitute(name=name, module=module)
    texts = {path: (_SKELETONS / f"{source}.tmpl").read_text(encoding="utf-8") for path, source in sources.items()}
    return {path: Template(text).substitute(words | own) for path, text in texts.items()}


def _versions(version: str) -> str:
    """Return the version range: from this minor version to the next breaking one. Below 1.0, each minor version may break."""
    major, minor = map(int, version.split(".")[:2])
    return f">={major}.{minor},<{f'0.{minor + 1}' if major == 0 else major + 1}"


def _name_errors(kind: str, name: str, words: dict[str, Any]) -> Iterator[str]:
    """Yield why a name is invalid, taken, or would hide something that is installed."""
    module = name.replace("-", "_")
    if re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) is None or len(name) > _MAX_NAME:
        yield (
            f"{name!r} is not a name: use words of lower-case letters and digits, joined by '-', a letter first, at most "
            f"{_MAX_NAME} characters, such as acme-{words['part']}"
        )
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("msgstore", "src", "test", "tests"):
        yield f"{name!r} cannot be the name of a package: {module!r} is a name of Python or of msgstore"
    program = click.get_current_context().find_root().command
    if kind == "command" and isinstance(program, click.Group) and name in program.commands:
        yield f"msgstore has a command {name!r}, and no plugin replaces it. Choose another name."
    catalogue, extension = load_catalogue(), f".{module}"
    owner = catalogue.formats_by_extension().get(extension)
    if kind == "format" and (owner or extension in _STORE_EXTENSIONS):
        others = f"those of the format {owner!r}" if owner else "other files of stores"
        yield f"the files of a format {name!r} would end in {extension}, as {others} do. Choose another name."
    for found in catalogue.registrations:
        if (found.kind, found.descriptor.name) == (words.get("catalogue"), name):
            yield f"{words['noun']} {name!r} already exists in {found.provider.distribution}. Choose another name."
    with contextlib.suppress(metadata.PackageNotFoundError):
        yield f"{name!r} would replace the distribution {name} {metadata.version(name)}, which is installed."
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.origin is not None:  # a directory without __init__.py has none
        yield f"{name!r} would replace the module {module}, which is installed. Choose another name."
