"""Tests of the command ``find``, through the program ``msgstore``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import msgstore
from msgstore.cli.main import main

FIRST, SECOND = bytes(16), bytes(range(16))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with msgstore.open_store(tmp_path / "orders") as opened, opened.client() as client:
        client.write(FIRST, b"pay 10")
        client.write(SECOND, b"pay 20")
    return tmp_path / "orders"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["find", *map(str, arguments)])


def test_messages_with_text_are_found(store):
    assert run(store, "20").output == f"{SECOND.hex()}\n"
    assert run(store, "30").output == ""


def test_json_has_size_and_references(store):
    assert json.loads(run(store, "10", "--json").output) == {"id": FIRST.hex(), "size": 6, "refs": 1}


def test_store_of_a_configuration_has_a_name(store, tmp_path):
    (tmp_path / "msgstore.toml").write_text('[stores.mail]\npath = "orders"\n')
    assert run("mail", "20", "--config", tmp_path / "msgstore.toml").output == f"{SECOND.hex()}\n"


def test_missing_store_is_an_error(tmp_path):
    missing = run(tmp_path / "missing", "x")
    assert (missing.exit_code, "no such directory" in missing.output) == (2, True)


def test_help_lists_command_of_plugin():
    assert "Find messages by a text" in CliRunner().invoke(main, ["--help"]).output.partition("Commands of plugins:")[2]
