"""Commands that plugins add to the program ``msgstore``: called, listed, and blamed if they fail."""

from __future__ import annotations

import importlib
import sys

import pytest
from click.testing import CliRunner, Result

from msgstore.cli.main import main

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
    package, info = tmp_path / "acme_commands", tmp_path / "acme_commands-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text(PLUGIN)
    (package / "commands.py").write_text(COMMANDS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-commands\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[msgstore]\nacme = acme_commands\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.startswith("acme_commands")]:
        del sys.modules[name]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_command_of_plugin_is_called():
    assert run("good").output == "called\n"


def test_help_lists_commands_without_importing_them():
    listed = run("--help").output.partition("Commands of plugins:")[2]
    assert "good" in listed
    assert "scan" not in listed
    assert "acme_commands.commands" not in sys.modules


def test_exception_is_fault_of_plugin():
    failed = run("fails")
    assert failed.exit_code == 2
    assert "the command 'fails' of acme-commands 1.0" in failed.stderr
    assert "KeyError: 'key'" in failed.stderr


def test_exit_code_of_command_is_kept():
    assert run("exits").exit_code == 3


def test_error_of_msgstore_is_one_line():
    misused = run("misused")
    assert misused.exit_code == 2
    assert misused.stderr.startswith("msgstore: missing: ")
    assert "acme" not in misused.stderr


def test_factory_that_is_no_command_is_an_error():
    refused = run("number")
    assert refused.exit_code == 2
    assert "acme_commands.commands:number is not a click.Command" in refused.stderr


def test_command_of_two_plugins_is_refused_and_listed_once(tmp_path):
    """No configuration can disable one: commands are found before their options are read."""
    (tmp_path / "acme_commands-1.0.dist-info/entry_points.txt").write_text("[msgstore]\nacme = acme_commands\nb = acme_again\n")
    (tmp_path / "acme_again.py").write_text("from acme_commands import msgstore_commands")
    assert run("--help").output.count("Call good.") == 1
    refused = run("good")
    assert refused.exit_code == 2
    assert refused.stderr.endswith("Keep one: 'pip uninstall' the others' distributions.\n")


def test_command_that_cannot_be_imported_is_named(tmp_path):
    (tmp_path / "acme_commands/__init__.py").write_text("import no_such_module")
    refused = run("good")
    assert refused.exit_code == 2
    assert "No such command 'good'. Failed to load: acme-commands 1.0" in refused.stderr
    assert "No module named 'no_such_module'" in refused.stderr


def test_own_command_is_not_replaced():
    assert "not ours" not in run("scan", "--help").output
    checked = run("plugins", "--check")
    assert checked.exit_code == 2
    assert "the command 'scan' of acme-commands 1.0" in " ".join(checked.output.split())
    assert "is not a click.Command" in " ".join(checked.output.split())
