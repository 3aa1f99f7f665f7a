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


def test_path_above_table_is_in_one_piece(tmp_path):
    """A path that is cut looks like another one."""
    store = copy_of("v2_dirty", tmp_path / ("long" * 20))
    for verb in ("scan", "info", "inventory"):
        assert str(store) in run(verb, store, columns=40).stdout.splitlines()


def test_version_and_help_are_printed():
    assert msgstore.__version__ in run("--version").stdout
    for verb in main.commands:
        text = run(verb, "--help").stdout
        parts = ["Usage:"] if verb == "config" else ["Usage:", "--json", "Examples:"]
        assert [part for part in parts if part not in text] == []


def test_program_as_process_has_exit_codes():
    done = subprocess.run([*PROGRAM, "scan", "--json", store_of("v2_dirty_torn")], capture_output=True, check=False)
    assert (done.returncode, len(objects(done.stdout.decode())), done.stderr) == (1, 2, b"")
    done = subprocess.run([*PROGRAM, "scan", "nowhere"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines() == ["msgstore: nowhere: there is no such file or directory"]


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_reader_that_goes_away_is_no_error():
    command = [*PROGRAM, "scan", "--json", BROKER / "*" / "store"]  # more than a pipe holds
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


VERBS = [["--help"], ["--version"], ["scan", "--help"], ["plugins", "--json"], ["scan", str(CLEAN)]]
CLOSED = b"msgstore: standard output is closed. To discard the output, write >/dev/null.\n"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full, and a shell that closes files")
@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_output_that_cannot_be_written_is_one_line(arguments):
    """Otherwise a program that reads the exit code alone would take it for an empty answer."""

    def run_with(redirection):
        command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *PROGRAM, *arguments]
        done = subprocess.run(command, capture_output=True, check=False)
        return done.returncode, bool(done.stdout), done.stderr

    assert run_with(">/dev/full") == (2, False, b"msgstore: No space left on device\n")
    assert run_with("1>&-") == (2, False, CLOSED)
    assert run_with("1>&- 2>&-") == (2, False, b"")
    assert run_with("2>&-") == (0, True, b"")


def test_closed_input_is_one_line(tmp_path):
    msgstore.open_store(tmp_path).close()
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *PROGRAM, "put", str(tmp_path), "00" * 16]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "msgstore: standard input: is closed\n")


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


def test_logged_error_says_why():
    handler = _ErrorEcho([])

    def printed(message, error):
        info = error and (type(error), error, None)
        with CliRunner().isolation() as streams:
            handler.emit(logging.LogRecord("msgstore.x", logging.ERROR, "x.py", 1, message, (), info or None))
            return streams[1].getvalue().decode()

    assert printed("the policy failed", ValueError("no\n limit")) == "msgstore: the policy failed: ValueError: no limit\n"
    assert printed("the policy failed", ValueError()) == "msgstore: the policy failed: ValueError\n"
    assert printed("dropped: hm", ValueError("hm")) == "msgstore: dropped: hm\n"
    assert printed("two  words", None) == "msgstore: two  words\n"


# -- plugins --------------------------------------------------------------------------------------------------------------


def test_plugins_lists_what_is_installed():
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


def test_plugins_with_problem_fails_on_check(monkeypatch):
    monkeypatch.setattr("msgstore.plugins.catalogue.Catalogue.problems", lambda _: iter(["it does not load"]))
    run("plugins", code=0)
    assert rows_of("plugins", "--check", code=2)[-1] == {"kind": "problem", "message": "it does not load"}
    assert "problem: it does not load" in run("plugins", "--check").stdout


# -- config check ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def check(tmp_path):
    """``check(text)``: what ``config check`` says of a file with this text, or the objects that it prints."""

    def checked(text, *options, code=2):
        (tmp_path / "msgstore.toml").write_text(text)
        return run("config", "check", "--config", tmp_path / "msgstore.toml", *options, code=code)

    return checked


def test_config_check_of_good_file_names_stores(check, tmp_path):
    text = '[stores.a]\npath = "a"\nindex = { use = "lmdb", map_size = "1GiB" }\n[stores.b]\npath = "b"\n'
    result = check(text, code=0)
    assert result.stderr == ""
    assert result.stdout.splitlines() == [f"a: ok ({tmp_path / 'a'})", f"b: ok ({tmp_path / 'b'})"]
    assert not (tmp_path / "a").exists()
    assert [entry["ok"] for entry in objects(check(text, "--json", code=0))] == [True, True]


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
    parts = ("'disabled'", "'index'", "'os', 'fsync'", "map_size", "checksum = 5", "'erlang'", "half-empty", "path is missing")
    assert [part for part in parts if part not in result.stderr] == []
    assert all(line.startswith(f"msgstore: {tmp_path / 'msgstore.toml'}") for line in result.stderr.splitlines())
    assert result.stdout == f"d: ok ({tmp_path / 'd'})\n"
    by_store = {entry["store"]: entry for entry in objects(check(text, "--json"))}
    assert len(by_store["b"]["errors"]) == 4
    assert by_store[None]["ok"] is False


STORE = "[stores.a]\npath = 'a'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[stores.a]\npath = "a\\u0000b"', "NUL"),
        (f"{STORE}sync_interval = {'9' * 400}", "at most 365d"),
        (f"{STORE}sync_interval = {'9' * 5000}", "is not TOML"),
        (f"{STORE}index = {'[' * 50_000}", "nested too deeply"),
        (f'{STORE}index = {{ use = "ets", deep = 1 }}', "unknown key"),
        (f'{STORE}format = {{ use = "v2", records = {{ message = 200 }} }}', "message is the format's own record type"),
        (f"disabled = 4\n{STORE}", "is not a list. Write ["),
        ("", "there is no table [stores.NAME]"),
    ],
    ids=lambda text: text[:40],
)
def test_config_check_of_strange_value_fails(check, tmp_path, text, message):
    assert message in check(text).stderr
    if "records" not in text:
        run("info", "a", "--config", tmp_path / "msgstore.toml", code=2)


def test_config_check_without_file_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "msgstore.toml: cannot be read" in run("config", "check", code=2).stderr


@pytest.mark.parametrize(
    ("record", "form", "bound"),
    [
        ('{ use = "acme-stamp" }', 'format = "v3"', 'format = { use = "v3", records = { acme-stamp = 128 } }'),
        ('{ use = "acme-stamp", byte = 200, source = "shop" }', 'format = { use = "v2" }',
         'format = { use = "v2", records = { acme-stamp = { byte = 200, ... } } }'),
    ],
)  # fmt: skip
def test_record_type_with_options_is_reported(check, tmp_path, record, form, bound):
    [error] = check(f"{STORE}record = {record}\n{form}\n").stderr.splitlines()
    assert error.startswith(f"msgstore: {tmp_path / 'msgstore.toml'}: [stores.a] record: {{'use': 'acme-stamp'")
    assert error.endswith(f'is not a name. Write record = "acme-stamp" and {bound}.')


# -- demo -----------------------------------------------------------------------------------------------------------------


def test_demo_runs_its_commands_and_keeps_store(tmp_path):
    lines = run("demo", "--dir", tmp_path / "tour", code=0).stdout.splitlines()
    assert lines[-1] == "all 468 live messages intact"
    assert lines.count("   468 of 468 live messages have the expected hash and count") == 4
    run("verify", tmp_path / "tour", code=0)
    assert "is not empty" in refused("demo", "--dir", tmp_path / "tour")


def test_demo_json_has_objects_of_each_step():
    *rows, summary = rows_of("demo")
    assert summary == {"kind": "summary", "messages": 468, "intact": True}
    commands = [row["command"].split()[1] for row in rows if row.get("kind") == "step"]
    assert commands == ["scan", "map", "migrate", "compact", "info", "map"]
    assert [row["messages"] for row in rows if row.get("kind") == "verified"] == [468] * 4


def test_demo_notices_what_is_lost(monkeypatch):
    expected = demo.expected_messages()
    expected[next(iter(expected))] = 1, "0" * 64
    monkeypatch.setattr(demo, "expected_messages", lambda: expected)
    assert "467 of 468" in run("demo", code=1).stdout


def test_demo_ships_what_the_broker_wrote():
    shipped, original = Path(msgstore.__file__).parent / "demo" / "mixed_upgrade", store_of("mixed_upgrade")
    assert {p.name: p.read_bytes() for p in shipped.iterdir()} == {p.name: p.read_bytes() for p in original.iterdir()}
