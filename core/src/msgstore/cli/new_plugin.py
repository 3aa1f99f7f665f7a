"""``new-plugin``: a distribution to begin with, whose tests pass. The templates are in ``skeletons``, one directory a kind."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import keyword
import re
import secrets
import shutil
import sys
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import attrs
import click

import msgstore
from msgstore import contract
from msgstore.cli import options, output
from msgstore.contract import CONTRACT_VERSION, ConfigError
from msgstore.contract.formats import RESERVED_EXTENSIONS
from msgstore.plugins.catalogue import load_catalogue

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PROBE = "probe-of-names"
_OF_STORES = {".rdq", ".sqs", ".rdt", *RESERVED_EXTENSIONS}
"""How files end that are in stores or beside them, whatever is installed."""
_MAX_NAME = 40
"""Characters; names of backends have 64 at most."""


@attrs.frozen
class Kind:
    """What differs from one kind of plugin to another."""

    noun: str
    part: str
    """The module that does the work."""
    summary: str
    use: str
    """How the README says that it is turned on."""
    contract_module: str
    catalogue: str | None
    """The catalogue's name for the kind; None if there is nothing to select it by."""


def _toml(text: str) -> str:
    return f'```toml\n# msgstore.toml\n[stores.orders]\npath = "data/orders"\n{text}\n```'


KINDS = {
    "record-type": Kind(
        "a record type", "record", "A record type of segment format v2 that keeps a time and a source with each message",
        _toml('record = "$name"\nformat = { use = "v2", records = { $name = { byte = 200, source = "shop" } } }')
        + "\n\nThe byte, from 128 to 255, is chosen once: the directory remembers it.", "records", "record",
    ),
    "format": Kind(
        "a segment format", "format", "A segment format of marked records with a checksum",
        _toml('format = "$name"'), "formats", "format",
    ),
    "index": Kind("an index", "index", "An index in memory", _toml('index = "$name"'), "indexes", "index"),
    "gc-policy": Kind(
        "a GC policy", "policy", "A GC policy that compacts what is nearly all garbage",
        _toml('gc = { use = "$name", garbage = 0.8 }'), "policies", "gc",
    ),
    "body-codec": Kind(
        "a body codec", "codec", "A body codec that compresses with zlib",
        _toml('body = { use = "$name", level = 9 }'), "bodies", "body",
    ),
    "observer": Kind(
        "an observer", "counting", "An observer that counts what stores do",
        "Nothing selects it: what is installed observes. `disabled` in a configuration leaves it out.", "events", None,
    ),
}  # fmt: skip


@click.command(name="new-plugin")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("name")
@click.option("--into", type=click.Path(path_type=Path), metavar="DIR", default=Path(), help="Where to make its directory.")
@options.as_json
def new_plugin(kind: str, name: str, into: Path, as_json: bool) -> None:
    """Write a plugin to begin with: a distribution that can be installed, that works, and whose tests pass.

    NAME is the distribution's, and that by which a configuration selects the backend. Its directory, of that name, must not be
    there: nothing is overwritten, and if anything fails nothing is left.

    \b
    Examples:
      msgstore new-plugin record-type acme-audit
      msgstore new-plugin index acme-sqlite --into plugins
    """
    _check_name(kind, name)
    target = into / name
    files = render(kind, name)
    _write(target, files)
    if as_json:
        output.emit({"kind": kind, "name": name, "path": str(target), "files": list(files)})
        return
    for file in files:
        click.echo(str(target / file))
    output.note(f"now: cd {target} && pip install -e '.[test]' && pytest; its README.md says what comes next")


def render(kind: str, name: str) -> dict[str, str]:
    """Path below the plugin's directory to text."""
    made = KINDS[kind]
    module = name.replace("-", "_")
    words = {
        "name": name,
        "module": module,
        "class_name": _class_name(name),
        "part": made.part,
        "summary": made.summary,
        "a_noun": made.noun,
        "contract": str(CONTRACT_VERSION),
        "contract_module": made.contract_module,
        "versions": _versions(msgstore.__version__),
        "use": Template(made.use).substitute(name=name),
    }
    templates = resources.files("msgstore.cli") / "skeletons"
    own, common = templates / kind, templates / "common"
    sources = {
        "README.md": common / "README.md.tmpl",
        "pyproject.toml": common / "pyproject.toml.tmpl",
        f"src/{module}/__init__.py": common / "__init__.py.tmpl",
        f"src/{module}/plugin.py": own / "plugin.py.tmpl",
        f"src/{module}/{made.part}.py": own / f"{made.part}.py.tmpl",
        f"tests/test_{module}.py": own / "test.py.tmpl",
    }
    return {path: _fill(source, words) for path, source in sources.items()}


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def _fill(source: Traversable, words: dict[str, str]) -> str:
    return Template(source.read_text(encoding="utf-8")).substitute(words)


def _versions(version: str) -> str:
    """From this minor version on, up to the next that may break: below 1.0 that is every minor one."""
    major, minor = map(int, version.split(".")[:2])
    return f">={major}.{minor},<{f'0.{minor + 1}' if major == 0 else major + 1}"


def _check_name(kind: str, name: str) -> None:
    if _NAME.fullmatch(name) is None or len(name) > _MAX_NAME:
        raise click.BadParameter(
            f"{name!r} is not words of lower-case letters and digits with '-' between them, a letter first, at most "
            f"{_MAX_NAME} characters, such as acme-{KINDS[kind].part}"
        )
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("msgstore", "src", "test", "tests"):
        raise click.BadParameter(f"{name!r} cannot be a package of its own: Python has something else of the name {module!r}")
    class_name = _class_name(name)
    if keyword.iskeyword(class_name) or class_name in contract.__all__ or class_name in _names_written(kind):
        raise click.BadParameter(
            f"{name!r} cannot be the name of a class: what is written uses {class_name} for something else"
        )
    catalogue_kind, catalogue = KINDS[kind].catalogue, load_catalogue()
    extension = f".{module}"
    if kind == "format" and (extension in _OF_STORES or extension in catalogue.formats_by_extension()):
        whose = catalogue.formats_by_extension().get(extension)
        whose = f"those of the format {whose!r}" if whose else "other files of stores"
        raise click.BadParameter(f"the files of a format {name!r} would end in {extension}, as {whose} do; choose another name")
    for found in catalogue.registrations:
        if (found.kind, found.descriptor.name) == (catalogue_kind, name):
            raise click.BadParameter(f"{KINDS[kind].noun} {name!r} is there already, from {found.provider.distribution}")
    if taken := _installed(name, module):
        raise click.BadParameter(f"{name!r} would take the place of {taken}; choose another name")


def _names_written(kind: str) -> set[str]:
    """What the templates of the kind call anything by: a class of the same name would be something else in one of them."""
    python = (text for path, text in render(kind, _PROBE).items() if path.endswith(".py"))
    nodes = [node for text in python for node in ast.walk(ast.parse(text))]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    imported = {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    made = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    return (used | imported | made) - {_class_name(_PROBE)}


def _installed(name: str, module: str) -> str | None:
    """What of this environment would be replaced or hidden by a distribution of the name, such as ``click``."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return f"the distribution {name} {metadata.version(name)}, which is installed"
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.origin is not None:  # a mere directory has none
        return f"the module {module}, which is installed"
    return None


def _write(target: Path, files: dict[str, str]) -> None:
    """All of it or nothing: written beside its place, and renamed."""
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target}: is there already; choose another name, or another directory with --into")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent}: there is no such directory; make it first")
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        for path, text in files.items():
            file = temporary / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
