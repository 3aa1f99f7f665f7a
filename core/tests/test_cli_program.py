"""The program as a process, ``plugins``, ``config check`` and ``demo``."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import msgstore
from msgstore.cli.main import _ErrorEcho, main

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "msg-store"
PROGRAM = [sys.executable, "-m", "msgstore"]


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_path_above_a_table_is_in_one_piece(tmp_path: Path) -> None:
    """However narrow the terminal: a path that is cut looks like another one."""
    store = shutil.copytree(DATA / "v2_dirty" / "store", tmp_path / ("long" * 20))
    for verb in ("scan", "info", "inventory"):
        assert str(store) in CliRunner(env={"COLUMNS": "40"}).invoke(main, [verb, str(store)]).stdout.splitlines()


def test_version_and_help() -> None:
    assert msgstore.__version__ in run("--version").stdout
    for verb in main.commands:
        text = run(verb, "--help").stdout
        assert "Usage:" in text
        if verb != "config":
            assert "--json" in text
            assert "Examples:" in text


def test_as_a_process() -> None:
    done = subprocess.run([*PROGRAM, "scan", "--json", DATA / "v2_dirty_torn" / "store"], capture_output=True, check=False)
    assert done.returncode == 1
    assert len(objects(done.stdout.decode())) == 2
    assert done.stderr == b""
    done = subprocess.run([*PROGRAM, "scan", "nowhere"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines() == ["msgstore: nowhere: there is no such file or directory"]


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [*PROGRAM, "scan", "--json", *[str(DATA / "v2_clean" / "store")] * 20]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


VERBS = [["--help"], ["--version"], ["scan", "--help"], ["plugins", "--json"], ["scan", str(DATA / "v2_clean" / "store")]]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_output_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (2, b"msgstore: No space left on device\n")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a shell that closes files")
@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_closed_output_is_misuse(arguments: list[str]) -> None:
    """Nothing is printed then, and a program that reads the exit code alone would take it for an empty answer."""

    def closing(*numbers: str) -> subprocess.CompletedProcess[bytes]:
        script = f'exec "$@" {" ".join(f"{number}>&-" for number in numbers)}'
        return subprocess.run(["sh", "-c", script, "sh", *PROGRAM, *arguments], capture_output=True, check=False)

    done = closing("1")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"msgstore: standard output is closed. To discard the output, write >/dev/null.\n"
    assert closing("1", "2").returncode == 2
    done = closing("2")
    assert done.returncode == 0
    assert done.stdout


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("msgstore.cli.commands.scan.load_catalogue", interrupt)
    result = run("scan", DATA)
    assert (result.exit_code, result.stderr) == (130, "msgstore: interrupted\n")


def test_an_error_of_the_operating_system_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "some/file")

    monkeypatch.setattr("msgstore.files.Files.view", refuse)
    result = run("scan", DATA / "v2_clean" / "store")
    assert (result.exit_code, result.stderr) == (2, "msgstore: some/file: Permission denied\n")


def test_plugins() -> None:
    result = run("plugins", "--check", "--json")
    assert result.exit_code == 0
    found = {(entry["kind"], entry["name"]): entry for entry in objects(result.stdout)}
    assert {("format", "v1"), ("format", "v2"), ("index", "ets"), ("gc", "half-empty"), ("body", "raw")} <= set(found)
    observer = found["observer", "prometheus-observer"]
    assert observer["distribution"] == "msgstore-prometheus-observer"
    assert "msgstore_store_opened" in observer["events"]
    v2 = found["format", "v2"]
    assert (v2["distribution"], v2["contract"]) == ("msgstore-format-v2", [1, 0])
    assert v2["capabilities"] == ["compactable", "self-describing", "typed-records", "verbatim"]
    for width in ("80", "150"):
        text = CliRunner(env={"COLUMNS": width}).invoke(main, ["plugins"]).stdout
        assert "msgstore-format-v2" in text
        assert "prometheus-observer" in text
        assert "no problems" in text
        assert max(map(len, text.splitlines())) <= int(width)


def test_plugins_with_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msgstore.plugins.catalogue.Catalogue.problems", lambda _: iter(["it does not load"]))
    assert run("plugins").exit_code == 0
    result = run("plugins", "--check", "--json")
    assert result.exit_code == 2
    assert objects(result.stdout)[-1] == {"kind": "problem", "message": "it does not load"}
    assert "problem: it does not load" in run("plugins", "--check").stdout


def test_config_check(tmp_path: Path) -> None:
    file = tmp_path / "msgstore.toml"
    file.write_text('[stores.a]\npath = "a"\nindex = { use = "lmdb", map_size = "1GiB" }\n[stores.b]\npath = "b"\n')
    result = run("config", "check", "--config", file)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [f"a: ok ({tmp_path / 'a'})", f"b: ok ({tmp_path / 'b'})"]
    assert not (tmp_path / "a").exists()
    assert [entry["ok"] for entry in objects(run("config", "check", "--json", "--config", file).stdout)] == [True, True]


def test_config_check_tells_every_error(tmp_path: Path) -> None:
    file = tmp_path / "msgstore.toml"
    file.write_text(
        """
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
    )
    result = run("config", "check", "--config", file)
    assert result.exit_code == 2
    errors = result.stderr
    for part in (
        "'disabled'",
        "'index'",
        "'os', 'fsync'",
        "map_size",
        "checksum = 5",
        "'erlang'",
        "half-empty",
        "path is missing",
    ):
        assert part in errors
    assert all(line.startswith(f"msgstore: {file}") for line in errors.splitlines())
    assert result.stdout == f"d: ok ({tmp_path / 'd'})\n"
    by_store = {entry["store"]: entry for entry in objects(run("config", "check", "--json", "--config", file).stdout)}
    assert len(by_store["b"]["errors"]) == 4
    assert by_store[None]["ok"] is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('path = "~nosuchuser/x"', "there is no such user"),
        ('path = "a\\u0000b"', "NUL"),
        (f'path = "a"\nfile_size_limit = "{"9" * 400}B"', "less than 1 TiB"),
        (f'path = "a"\nsync_interval = {"9" * 400}', "at most 365d"),
        ('path = "a"\nsync_interval = 1e300', "at most 365d"),
        (f'path = "a"\nsync_interval = {"9" * 5000}', "is not TOML"),
        (f'path = "a"\nindex = {"[" * 50_000}', "nested too deeply"),
        ('path = "a"\nindex = { use = "ets", deep = 1 }', "unknown key"),
        ('path = "a"\nformat = { use = "v2", records = { message = 200 } }', "message is the format's own record type"),
    ],
    ids=lambda text: text[:30],
)
def test_a_strange_value_is_told(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "msgstore.toml"
    file.write_text(f"[stores.a]\n{text}\n")
    for arguments in (["config", "check", "--config", file], ["info", "a", "--config", file]):
        result = run(*arguments)
        if arguments[0] == "config" or "records" not in text:
            assert result.exit_code == 2
            assert message in result.stderr or arguments[0] == "info"


@pytest.mark.parametrize(
    ("record", "form", "bound"),
    [
        ('{ use = "acme-stamp", byte = 200 }', "", 'format = { use = "v2", records = { acme-stamp = 200 } }'),
        ('{ use = "acme-stamp" }', 'format = "v3"', 'format = { use = "v3", records = { acme-stamp = 128 } }'),
        ('{ use = "acme-stamp", byte = 200, source = "shop" }', 'format = { use = "v2" }',
         'format = { use = "v2", records = { acme-stamp = { byte = 200, ... } } }'),
    ],
)  # fmt: skip
def test_a_record_type_is_named_and_bound_with_the_format(tmp_path: Path, record: str, form: str, bound: str) -> None:
    file = tmp_path / "msgstore.toml"
    file.write_text(f"[stores.a]\npath = 'a'\nrecord = {record}\n{form}\n")
    [error] = run("config", "check", "--config", file).stderr.splitlines()
    assert error.startswith(f"msgstore: {file}: [stores.a] record: {{'use': 'acme-stamp'")
    assert error.endswith(f'is not a name. Write record = "acme-stamp" and {bound}.')


def test_what_is_logged_with_an_error_says_why() -> None:
    handler = _ErrorEcho([])

    def printed(message: str, error: Exception | None) -> str:
        info = error and (type(error), error, None)
        with CliRunner().isolation() as streams:
            handler.emit(logging.LogRecord("msgstore.x", logging.ERROR, "x.py", 1, message, (), info or None))
            return streams[1].getvalue().decode()

    assert printed("the policy failed", ValueError("no\n limit")) == "msgstore: the policy failed: ValueError: no limit\n"
    assert printed("the policy failed", ValueError()) == "msgstore: the policy failed: ValueError\n"
    assert printed("dropped: hm", ValueError("hm")) == "msgstore: dropped: hm\n"
    assert printed("two  words", None) == "msgstore: two  words\n"


@pytest.mark.parametrize("verb", ["inventory", "export", "salvage", "diff"])
def test_directories_beneath_a_store_are_named_by_every_job(verb: str, tmp_path: Path) -> None:
    store = shutil.copytree(DATA / "v2_dirty" / "store", tmp_path / "store")
    shutil.copytree(DATA / "v2_dirty" / "store", store / "backup")
    more = {"export": [tmp_path / "to"], "salvage": [tmp_path / "to"], "diff": [store / "backup"]}
    lines = run(verb, store, *more.get(verb, [])).stderr.splitlines()
    named = f"left out, beneath directories that have segments of their own: {store / 'backup'}; name"
    assert [named in line for line in lines].count(True) == 1


def test_disabled_is_a_list(tmp_path: Path) -> None:
    file = tmp_path / "msgstore.toml"
    for value in ('"lmdb"', "{ a = 1 }", "4"):
        file.write_text(f"disabled = {value}\n[stores.a]\npath = 'a'\n")
        result = run("config", "check", "--config", file)
        assert result.exit_code == 2
        assert "is not a list. Write [" in result.stderr


def test_config_check_of_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("config", "check")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "msgstore.toml: cannot be read" in result.stderr
    (tmp_path / "msgstore.toml").write_text("[stores")
    assert "is not TOML" in run("config", "check").stderr
    (tmp_path / "msgstore.toml").write_text("disabled = ['nothing']\n[stores.a]\npath = 'a'\n")
    assert "no installed distribution has an entry point 'nothing'" in run("config", "check").stderr
    (tmp_path / "msgstore.toml").write_text("")
    assert "there is no table [stores.NAME]" in run("config", "check").stderr


def test_demo(tmp_path: Path) -> None:
    result = run("demo", "--dir", tmp_path / "tour")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "all 468 live messages intact"
    assert result.stdout.count("468 of 468 live messages") == 4
    assert run("verify", tmp_path / "tour").exit_code == 0
    again = run("demo", "--dir", tmp_path / "tour")
    assert again.exit_code == 2
    assert "is not empty" in again.stderr


def test_demo_for_programs() -> None:
    result = run("demo", "--json")
    assert result.exit_code == 0
    *steps, summary = objects(result.stdout)
    assert summary == {"kind": "summary", "messages": 468, "intact": True}
    assert [step["verified"] for step in steps if "verified" in step] == [468] * 4


def test_demo_notices_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from msgstore.cli.commands import demo

    expected = demo.expected_messages()
    expected[next(iter(expected))] = demo.ExpectedMessage(1, "0" * 64)
    monkeypatch.setattr(demo, "expected_messages", lambda: expected)
    assert run("demo").exit_code == 1


def test_the_demo_ships_what_the_broker_wrote() -> None:
    shipped = Path(msgstore.__file__).parent / "demo" / "mixed_upgrade"
    original = DATA / "mixed_upgrade" / "store"
    assert {p.name: p.read_bytes() for p in shipped.iterdir()} == {p.name: p.read_bytes() for p in original.iterdir()}
