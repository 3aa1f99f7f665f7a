"""The program as a process, ``plugins``, ``config check`` and ``demo``."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import msgstore
from core_support import BROKER, copy_of, objects, raising, refused, rows_of, run, store_of
from msgstore.cli.commands import demo
from msgstore.cli.main import _ErrorEcho, main

PROGRAM = [sys.executable, "-m", "msgstore"]
CLEAN = store_of("v2_clean")


def shell(arguments, redirection=""):
    """Return (exit code, output, errors) of a process."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_path_above_table_is_in_one_piece(tmp_path):
    """A path that is cut looks like another one."""
    store = copy_of("v2_dirty", tmp_path / ("long" * 20))
    for verb in ("scan", "info", "inventory"):
        assert str(store) in run(verb, store, columns=40).stdout.splitlines()


def test_version_and_help_are_printed():
    assert msgstore.__version__ in run("--version").stdout
    for verb in (name for name, command in main.commands.items() if not command.deprecated):
        text = run(verb, "--help").stdout
        parts = ["Usage:"] if verb == "config" else ["Usage:", "--json", "Examples:"]
        assert [part for part in parts if part not in text] == []


@pytest.mark.slow
def test_program_as_process_has_exit_codes(tmp_path):
    code, output, errors = shell(["scan", "--json", store_of("v2_dirty_torn")])
    assert (code, len(objects(output)), errors) == (1, 2, "")
    assert shell(["scan", "nowhere"]) == (2, "", "msgstore: nowhere: there is no such file or directory\n")
    msgstore.open_store(tmp_path).close()
    assert shell(["put", tmp_path, "00" * 16], "<&-") == (2, "", "msgstore: standard input: is closed\n")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_reader_that_goes_away_is_no_error():
    command = [*PROGRAM, "scan", "--json", BROKER / "*" / "store"]  # more than a pipe holds
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


CLOSED = "msgstore: standard output is closed. To discard the output, write >/dev/null.\n"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full, and a shell that closes files")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["scan", "--help"], ["plugins", "--json"], ["scan", str(CLEAN)]], ids=" ".join
)
def test_output_that_cannot_be_written_is_one_line(arguments):
    """Otherwise a program that reads the exit code alone would take it for an empty answer."""
    assert shell(arguments, ">/dev/full") == (2, "", "msgstore: No space left on device\n")
    assert shell(arguments, "1>&-") == (2, "", CLOSED)
    assert shell(arguments, "1>&- 2>&-") == (2, "", "")
    code, output, errors = shell(arguments, "2>&-")
    assert (code, bool(output), errors) == (0, True, "")


@pytest.mark.parametrize(
    ("function", "error", "code", "message"),
    [
        ("cli.commands.scan.load_catalogue", KeyboardInterrupt(), 130, "interrupted"),
        ("files.Files.view", PermissionError(13, "Permission denied", "some/file"), 2, "some/file: Permission denied"),
    ],
)
def test_error_is_one_line(monkeypatch, function, error, code, message):
    monkeypatch.setattr(f"msgstore.{function}", raising(error))
    assert run("scan", CLEAN, code=code).stderr == f"msgstore: {message}\n"


@pytest.mark.parametrize(
    ("message", "error", "printed"),
    [
        ("the policy failed", ValueError("no\n limit"), "the policy failed: ValueError: no limit"),
        ("the policy failed", ValueError(), "the policy failed: ValueError"),
        ("dropped: hm", ValueError("hm"), "dropped: hm"),
        ("two  words", None, "two  words"),
    ],
)
def test_logged_error_says_why(message, error, printed):
    info = (type(error), error, None) if error else None
    with CliRunner().isolation() as streams:
        _ErrorEcho([]).emit(logging.LogRecord("msgstore.x", logging.ERROR, "x.py", 1, message, (), info))
        assert streams[1].getvalue().decode() == f"msgstore: {printed}\n"


# -- plugins --------------------------------------------------------------------------------------------------------------


def test_plugins_lists_what_is_installed(monkeypatch):
    found = {(entry["kind"], entry["name"]): entry for entry in rows_of("plugins", "--check")}
    assert {("format", "v1"), ("format", "v2"), ("index", "ets"), ("gc", "half-empty"), ("body", "raw")} <= set(found)
    observer, v2 = found["observer", "prometheus-observer"], found["format", "v2"]
    assert observer["distribution"] == "msgstore-prometheus-observer"
    assert "msgstore_store_opened" in observer["events"]
    assert (v2["distribution"], v2["contract"]) == ("msgstore-format-v2", [1, 0])
    assert v2["capabilities"] == ["compactable", "self-describing", "typed-records", "verbatim"]
    text = run("plugins", columns=80).stdout
    assert all(part in text for part in ("msgstore-format-v2", "contract 1.0; ", "prometheus-observer", "no problems"))
    assert max(map(len, text.splitlines())) <= 80
    monkeypatch.setattr("msgstore.plugins.catalogue.Catalogue.problems", lambda _: iter(["it does not load"]))
    run("plugins", code=0)
    assert rows_of("plugins", "--check", code=2)[-1] == {"kind": "problem", "message": "it does not load"}
    assert "problem: it does not load" in run("plugins", "--check").stdout


# -- config check ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def check(tmp_path):
    """``check(text)``: the result of ``config check`` of a file with this text."""

    def checked(text, *options, code=2):
        (tmp_path / "msgstore.toml").write_text(text)
        return run("config", "check", "--config", tmp_path / "msgstore.toml", *options, code=code)

    return checked


def test_config_check_of_good_file_names_stores(check, tmp_path, monkeypatch):
    text = '[stores.a]\npath = "a"\nindex = { use = "lmdb", map_size = "1GiB" }\n[stores.b]\npath = "b"\n'
    result = check(text, code=0)
    assert (result.stderr, result.stdout) == ("", f"a: ok ({tmp_path / 'a'})\nb: ok ({tmp_path / 'b'})\n")
    assert [entry["ok"] for entry in objects(check(text, "--json", code=0))] == [True, True]
    (tmp_path / "msgstore.toml").unlink()
    assert not list(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    assert "msgstore.toml: cannot be read" in run("config", "check", code=2).stderr


def test_config_check_reports_error_of_each_store(check, tmp_path):
    text = """
        disabld = []
        [stores.a]
        path = "a"
        indx = "ets"
        durability = "never"
        [stores.b]
        path = "b"
        index = { use = "lmdb", map_sze = 1 }
        format = { use = "v2", records = { checksum = 5 } }
        body = "erlan"
        gc = "none"
        [stores.c]
        format = "v2"
        [stores.d]
        path = "d"
        """
    result = check(text)
    parts = ("'disabled'", "'index'", "'os', 'fsync'", "map_size", "checksum = 5", "'erlang'", "half-empty", "'path' is")
    assert [part for part in parts if part not in result.stderr] == []
    assert all(line.startswith(f"msgstore: {tmp_path / 'msgstore.toml'}") for line in result.stderr.splitlines())
    assert result.stdout == f"d: ok ({tmp_path / 'd'})\n"
    by_store = {entry["store"]: entry for entry in objects(check(text, "--json"))}
    assert len(by_store["b"]["errors"]) == 4
    assert by_store[None]["ok"] is False


STORE = "[stores.a]\npath = 'a'\n"
STAMPED = f'{STORE}record = {{ use = "acme-stamp"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[stores.a]\npath = "a\\u0000b"', "NUL"),
        (f"{STORE}sync_interval = {'9' * 400}", "at most 36500d"),
        (f"{STORE}sync_interval = {'9' * 5000}", "is not TOML"),
        (f"{STORE}index = {'[' * 50_000}", "nested too deeply"),
        (f'{STORE}index = {{ use = "ets", deep = 1 }}', "unknown key"),
        (f"disabled = 4\n{STORE}", "is not a list. Write it in brackets"),
        ("", "there is no table [stores.NAME]"),
        ("[sinks.jsonl]\na = 1", "options of a sink are given on the command line, with --sink-option"),
        (f'{STAMPED} }}\nformat = "v3"', "128 } }."),
        (f'{STAMPED}, byte = 200, source = "shop" }}\nformat = {{ use = "v3" }}', "{ byte = 200, ... } } }."),
    ],
    ids=lambda text: text[:40],
)
def test_config_check_of_strange_value_fails(check, tmp_path, text, message):
    assert message in check(text).stderr
    run("info", "a", "--config", tmp_path / "msgstore.toml", code=2)


def test_configuration_from_a_pipe_is_refused(tmp_path):
    """Several parts of a command read the file."""
    os.mkfifo(tmp_path / "msgstore.toml")
    error = run("config", "check", "--config", tmp_path / "msgstore.toml", code=2).stderr
    assert f"{tmp_path / 'msgstore.toml'}: cannot be read: is not a regular file" in error


# -- demo -----------------------------------------------------------------------------------------------------------------


def test_demo_runs_its_commands_and_keeps_store(tmp_path, monkeypatch):
    lines = run("demo", "--dir", tmp_path / "tour", code=0).stdout.splitlines()
    assert lines[-1] == "all 468 live messages intact"
    assert lines.count("   468 of 468 live messages have the expected hash and count") == 4
    run("verify", tmp_path / "tour", code=0)
    assert "is not empty" in refused("demo", "--dir", tmp_path / "tour")
    *rows, summary = rows_of("demo")
    assert summary == {"kind": "summary", "messages": 468, "intact": True}
    commands = [row["command"].split()[1] for row in rows if row.get("kind") == "step"]
    assert commands == ["scan", "map", "migrate", "compact", "info", "map"]
    assert [row["messages"] for row in rows if row.get("kind") == "verified"] == [468] * 4
    expected = demo.expected_messages()
    expected[next(iter(expected))] = 1, "0" * 64
    monkeypatch.setattr(demo, "expected_messages", lambda: expected)
    assert "467 of 468" in run("demo", code=1).stdout


def test_demo_ships_what_the_broker_wrote():
    shipped, original = Path(msgstore.__file__).parent / "demo" / "mixed_upgrade", store_of("mixed_upgrade")
    assert {p.name: p.read_bytes() for p in shipped.iterdir()} == {p.name: p.read_bytes() for p in original.iterdir()}
