"""Commands that plugins add to the program ``msgstore``: called, listed, and blamed if they fail."""

from __future__ import annotations

import sys

import pytest

from core_support import installed, refused, run

PLUGIN = """
from msgstore import hookimpl
from msgstore.contract import CommandDescriptor

@hookimpl
def msgstore_commands():
    return [CommandDescriptor(name=name, contract=(1, 0), factory=f"acme_commands.commands:{name}", summary=f"Call {name}.")
            for name in ("good", "fails", "exits", "misused", "number", "scan")]
"""
COMMANDS = """
import sys
import click
import msgstore

good = click.Command("good", callback=lambda: click.echo("called"))
fails = click.Command("fails", callback=lambda: {}["key"])
exits = click.Command("exits", callback=lambda: sys.exit(3))
misused = click.Command("misused", callback=lambda: msgstore.open_store("missing", mode="r"))
scan = click.Command("scan", callback=lambda: click.echo("not ours"))
number = 42
"""


@pytest.fixture(autouse=True)
def acme(tmp_path, monkeypatch):
    """A distribution with six commands."""
    package = tmp_path / "acme_commands"
    package.mkdir()
    (package / "__init__.py").write_text(PLUGIN)
    (package / "commands.py").write_text(COMMANDS)
    monkeypatch.chdir(tmp_path)
    with installed(tmp_path, "acme-commands", {"acme": "acme_commands"}, monkeypatch):
        yield


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("good", 0, []),
        ("exits", 3, []),
        ("fails", 2, ["the command 'fails' of acme-commands 1.0", "KeyError: 'key'"]),
        ("number", 2, ["acme_commands.commands:number is not a click.Command"]),
    ],
)
def test_command_of_plugin_is_called_or_blamed(command, code, said):
    result = run(command, code=code)
    assert result.stdout == ("called\n" if command == "good" else "")
    assert all(part in result.stderr for part in said)


def test_error_of_msgstore_is_one_line():
    said = refused("misused")
    assert said.startswith("msgstore: missing: ")
    assert "acme" not in said


def test_help_lists_commands_without_importing_them():
    listed = run("--help").output.partition("Commands of plugins:")[2]
    assert "good" in listed
    assert "scan" not in listed
    assert "acme_commands.commands" not in sys.modules


def test_command_of_two_plugins_is_refused_and_listed_once(tmp_path):
    """No configuration can disable one: commands are found before their options are read."""
    (tmp_path / "acme_commands-1.0.dist-info/entry_points.txt").write_text("[msgstore]\nacme = acme_commands\nb = acme_again\n")
    (tmp_path / "acme_again.py").write_text("from acme_commands import msgstore_commands")
    assert run("--help").output.count("Call good.") == 1
    assert run("good", code=2).stderr.endswith("Keep one: 'pip uninstall' the others' distributions.\n")


def test_command_that_cannot_be_imported_is_named(tmp_path):
    (tmp_path / "acme_commands/__init__.py").write_text("import no_such_module")
    said = run("good", code=2).stderr
    assert "No such command 'good'. Failed to load: acme-commands 1.0" in said
    assert "No module named 'no_such_module'" in said


def test_own_command_is_not_replaced():
    assert "not ours" not in run("scan", "--help").output
    checked = " ".join(run("plugins", "--check", code=2).output.split())
    assert "the command 'scan' of acme-commands 1.0" in checked
    assert "is not a click.Command" in checked
