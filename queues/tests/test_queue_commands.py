"""Commands ``queue`` and ``vhost``."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from msgstore.contract import PluginError, StoreIOError
from msgstore_queues import VHost, open_vhost
from msgstore_queues.commands import counting
from support import command as run
from support import json_of


def bodies(*arguments: object) -> list[bytes]:
    """Return the bodies that ``queue get`` shows."""
    return [b64decode(one["body"]) for one in json_of("queue", "get", *arguments)]


def listed(path: Path, *options: str) -> dict[str, dict[str, Any]]:
    return {one["queue"]: one for one in json_of("queue", "ls", path, *options)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    run("vhost", "add", tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def served(data: Path) -> Iterator[VHost]:
    """A vhost that is open, with flushed messages, one of them unacked, one large, and one delayed."""
    with open_vhost(data) as vhost:
        jobs = vhost.queue("jobs")
        for body in (b"one", b"two", b"large" * 5000):
            jobs.publish(body)
        jobs.publish(b"later", delay=3600)
        jobs.receive()
        vhost.flush()
        yield vhost


# -- publish, get, purge --------------------------------------------------------------------------------------------------


def test_published_message_is_shown_then_taken(data):
    assert (
        run("queue", "publish", data, "jobs", "résumé", "--header", "kind=cv").stdout == "jobs: 1 message, 8 B (a new queue)\n"
    )
    shown = run("queue", "get", data, "jobs").stdout
    assert "kind" in shown
    assert shown.endswith("résumé\n\n")
    [taken] = json_of("queue", "get", data, "jobs", "--ack")
    assert (taken["headers"], taken["redelivered"], taken["attempts"], taken["acked"]) == ({"kind": "cv"}, False, 1, True)
    assert "has no message" in run("queue", "get", data, "jobs", code=1).stderr


def test_kept_messages_are_not_marked(data):
    """Looking changes nothing: neither the order, nor the mark of a redelivery, nor the number of deliveries."""
    run("queue", "publish", data, "jobs", "--lines", stdin="a\nb\nc\n")
    assert bodies(data, "jobs", "--count", 2) == [b"a", b"b"]
    found = json_of("queue", "get", data, "jobs", "--ack", "--count", 5)
    assert [(one["redelivered"], one["attempts"]) for one in found] == [(False, 1)] * 3


@pytest.mark.parametrize(
    ("arguments", "stdin", "expected"),
    [
        (["text"], None, [b"text"]),
        ([], b"from\nstdin\0\xff", [b"from\nstdin\0\xff"]),
        (["-"], b"x", [b"x"]),
        (["--lines"], b"a\r\n\nb", [b"a", b"", b"b"]),
        (["--lines", "--count", "2"], b"a\nb\n", [b"a", b"a", b"b", b"b"]),
        ([""], None, [b""]),
    ],
)
def test_publish_takes_bodies_from_everywhere(data, arguments, stdin, expected):
    run("queue", "publish", data, "jobs", *arguments, stdin=stdin)
    assert bodies(data, "jobs", "--count", 9) == expected


def test_publish_and_get_copy_a_file_byte_by_byte(data, tmp_path):
    content = bytes(range(256)) * 100
    (tmp_path / "body").write_bytes(content)
    run("queue", "publish", data, "jobs", "--file", tmp_path / "body")
    assert run("queue", "get", data, "jobs", "--raw").stdout_bytes == content
    assert "00 01 02" in run("queue", "get", data, "jobs").stdout


def test_publish_options_reach_the_message(data):
    run("queue", "publish", data, "jobs", "x", "--priority", 7, "--ttl", "1h")
    [shown] = json_of("queue", "get", data, "jobs")
    assert shown["properties"] == {"priority": 7}
    assert shown["expiry_ms"] is not None
    run("queue", "publish", data, "jobs", "x", "--delay", "1h")
    assert (listed(data)["jobs"]["messages"], listed(data)["jobs"]["delayed"]) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["publish", "{}", "q", "x", "--file", "y"], "BODY or --file FILE, not both"),
        (["publish", "{}", "q", "x", "--header", "y"], "'y' is not of the form NAME=VALUE"),
        (["publish", "{}", "q", "x", "--ttl", "soon"], "'soon' is not a time"),
        (["publish", "{}", "q", "--file", "missing"], "missing: No such file or directory"),
        (["publish", "{}/none", "q", "x"], "there is no such directory. Make a vhost in it: msgstore vhost add"),
        (
            ["publish", "{}", "q", "x", "--vhost", "other"],
            "there is no vhost 'other'. Vhosts: '/'. Make it: msgstore vhost add",
        ),
        (["get", "{}", "q"], "there is no queue 'q'. Queues: none"),
        (["purge", "{}", "q"], "there is no queue 'q'"),
        (["ls", "{}/none"], "there is no such directory"),
        (["ls", "work", "--config", "missing.toml"], "missing.toml: cannot be read"),
    ],
)
def test_mistake_is_one_line_without_traceback(data, arguments, message):
    done = run("queue", *(argument.format(data) for argument in arguments), code=2)
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert not listed(data)


def test_get_of_misspelt_queue_names_the_nearest(data):
    run("queue", "publish", data, "jobs", "x")
    assert "Did you mean 'jobs'" in run("queue", "get", data, "job", code=2).stderr


def test_purge_leaves_delayed_messages(data):
    run("queue", "publish", data, "jobs", "--lines", stdin="a\nb\n")
    run("queue", "publish", data, "jobs", "x", "--delay", "1h")
    assert json_of("queue", "purge", data, "jobs") == [{"kind": "purged", "queue": "jobs", "messages": 2}]
    assert (listed(data)["jobs"]["messages"], listed(data)["jobs"]["delayed"]) == (0, 1)


@pytest.mark.slow
def test_unprinted_message_is_not_acknowledged(data):
    """The reader of the output is gone: the messages are still there."""
    run("queue", "publish", data, "jobs", "--lines", stdin="".join(f"{number:0300000}\n" for number in range(5)))
    program = f"{sys.executable} -m msgstore queue get {data} jobs --ack --count 5 --raw"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # then a write to a pipe may end early without an error
    command = ["sh", "-c", f"{program} | head -c 10"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    assert listed(data)["jobs"]["messages"] == 5


# -- ls, top --------------------------------------------------------------------------------------------------------------


def test_ls_after_clean_stop_reads_saved_counts(data, monkeypatch):
    with open_vhost(data) as vhost:
        jobs = vhost.queue("jobs")
        for size in (10, 20, 30_000):
            jobs.publish(b"x" * size)
        jobs.receive()  # unacked at the stop: ready in the next run
        vhost.queue("memory", backing="memory").put(b"lost")
    monkeypatch.setattr(counting, "count_queues", None)  # the files are not read
    found = listed(data)["jobs"]
    expected = {
        "messages": 3,
        "bytes": 30_030,
        "unacked": 0,
        "delayed": 0,
        "state": "closed",
        "pid": None,
        "backing": "variable",
    }
    assert {name: found[name] for name in expected} == expected
    assert listed(data)["memory"]["messages"] == 0


def test_ls_beside_a_process_counts_files(data, served):
    """Also large messages in the store. Nothing is locked or changed, and the vhost goes on."""
    found = listed(data)["jobs"]
    expected = {"messages": 3, "bytes": 25_006, "unacked": None, "delayed": 1, "state": "open", "pid": os.getpid()}
    assert {name: found[name] for name in expected} == expected
    assert served.queue("jobs").receive().body == b"two"


def test_ls_adds_up_the_priorities_of_a_queue(data):
    with open_vhost(data) as vhost:
        jobs = vhost.queue("jobs", backing={"use": "priority", "levels": 3})
        for priority in (0, 1, 1, 2):
            jobs.publish(b"body", properties={"priority": priority})
        vhost.flush()
        assert {name: (one["messages"], one["bytes"]) for name, one in listed(data).items()} == {"jobs": (4, 16)}
    assert {name: (one["messages"], one["backing"]) for name, one in listed(data).items()} == {"jobs": (4, "priority")}


def test_ls_after_a_crash_counts_files(data, served):
    served.abandon()
    before = sorted((path, path.stat().st_mtime_ns) for path in data.rglob("*"))
    assert [(one["messages"], one["state"]) for one in listed(data).values()] == [(3, "crashed")]
    assert sorted((path, path.stat().st_mtime_ns) for path in data.rglob("*")) == before


def test_ls_after_a_crash_does_not_count_other_files(data, served):
    """The source sees no index in the directory, and must not say that it is empty."""
    served.queue("journal", backing="kestrel").publish(b"1")
    served.queue("mirrored", backing={"use": "mirror", "directory": data / "mirror"}).publish(b"1")
    served.flush()
    served.abandon()
    rows = json_of("queue", "ls", data, code=3)
    counts = {row["queue"]: row["messages"] for row in rows if row["kind"] == "queue"}
    assert (counts["journal"], counts["mirrored"]) == (None, 1)


def test_ls_without_source_says_what_is_missing(data, served, monkeypatch):
    def missing(*_: Any) -> Any:
        raise PluginError("no source 'rabbitmq' is installed")

    monkeypatch.setattr(counting, "source_spec", missing)
    done = run("queue", "ls", data, code=3)
    assert done.stderr == "msgstore: no source 'rabbitmq' is installed\n"
    assert "?" in done.stdout


def test_ls_counts_again_after_a_file_is_deleted(data, served, monkeypatch):
    """The process that has the vhost open deletes a segment between the listing of the directory and the reading."""
    count, failures = counting.count_queues, [StoreIOError("0.qs: No such file or directory")] * 2

    def fail_twice(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return count(*arguments)

    monkeypatch.setattr(counting, "count_queues", fail_twice)
    assert listed(data)["jobs"]["messages"] == 3
    assert not failures


def test_ls_shows_all_vhosts_or_one(data):
    run("vhost", "add", data, "second")
    run("queue", "publish", data, "b", "x", "--vhost", "second")
    run("queue", "publish", data, "a", "x")
    assert list(listed(data)) == ["a", "b"]
    assert list(listed(data, "--vhost", "second")) == ["b"]


def test_command_beside_a_process_is_refused(data, served):
    for command in (["publish", data, "jobs", "x"], ["get", data, "jobs"], ["purge", data, "jobs"]):
        assert "has the vhost '/' open. End it first." in run("queue", *command, code=2).stderr


def test_top_prints_once_to_a_pipe(data, served):
    assert "jobs" in run("queue", "top", data).stdout
    assert json_of("queue", "top", data)[0]["messages"] == 3


@pytest.mark.slow
def test_top_refreshes_until_interrupted(data, served):
    """On a terminal. The rate says that a message came in between."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "msgstore", "queue", "top", str(data), "--interval", "100ms"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    seen = b""
    try:
        while b"jobs" not in seen:
            seen += os.read(controller, 65536)
        served.queue("jobs").publish(b"more")
        served.flush()
        while b"+" not in seen:
            seen += os.read(controller, 65536)
        process.send_signal(2)
        with contextlib.suppress(OSError):  # raised when the process has ended
            while os.read(controller, 65536):
                pass
    finally:
        process.kill()
        code = process.wait()
        os.close(controller)
    assert code == 0


# -- with a configuration -------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "msgstore.toml"
    file.write_text(
        '[vhosts.work]\npath = "data"\nname = "w"\n[vhosts.work.queues.jobs]\nmax_length = 2\n'
        '[vhosts.work.queues.short]\nmax_length = 2\noverflow = "drop-head"\n'
    )
    return file


def test_config_names_vhost_and_options_apply(config):
    use = ["work", "--config", config]
    missing = run("queue", "publish", "work", "jobs", "x", *use[1:], code=2).stderr
    assert missing.endswith(f"Make a vhost in it: msgstore vhost add work --config {config}\n")
    assert run("vhost", "add", *use).stdout == "w: added (2 queues)\n"
    assert (
        "is full. Before, 2 messages got in."
        in run("queue", "publish", "work", "jobs", "x", "--count", 3, *use[1:], code=2).stderr
    )
    run("queue", "publish", "work", "short", "--lines", *use[1:], stdin="1\n2\n3\n")
    assert [one["messages"] for one in json_of("queue", "ls", *use)] == [2, 2]
    assert bodies("work", "short", "--count", 9, *use[1:]) == [b"2", b"3"]
    assert "w" in run("vhost", "ls", *use).stdout
    assert "name no other" in run("queue", "ls", *use, "--vhost", "x", code=2).stderr


# -- vhost ----------------------------------------------------------------------------------------------------------------


def test_vhost_is_added_listed_stopped_started_deleted(data):
    run("queue", "publish", data, "jobs", "x")
    run("queue", "publish", data, "jobs", "x", "--delay", "1h")
    [found] = json_of("vhost", "ls", data)
    assert (found["vhost"], found["state"], found["queues"], found["pid"]) == ("/", "closed", 1, None)
    assert "has the vhost '/' already" in run("vhost", "add", data, code=2).stderr
    assert run("vhost", "stop", data).stdout == "/: stopped (nobody has it open)\n"
    assert f"msgstore vhost start {data} /" in run("queue", "publish", data, "jobs", "y", code=2).stderr
    assert run("vhost", "start", data).stdout == "/: started (1 queue with 1 message)\n"
    refused = run("vhost", "delete", data, code=2).stderr
    assert "would delete the vhost '/' with 1 queue and all messages. Repeat the command with --yes." in refused
    assert listed(data)["jobs"]["messages"] == 1
    assert run("vhost", "delete", data, "--yes").stdout == "/: deleted (1 queue)\n"
    assert json_of("vhost", "ls", data) == []


def test_vhost_commands_beside_a_process_name_it(data, served):
    pid = os.getpid()
    assert str(pid) in run("vhost", "ls", data).stdout
    assert run("vhost", "stop", data).stdout == f"/: stopped (process {pid} has it open until it ends)\n"
    assert "open" in run("vhost", "delete", data, "--yes", code=2).stderr
    assert run("vhost", "start", data).stdout == "/: started (a process has it open already)\n"
    served.queue("jobs").put(b"it goes on")


def test_recovery_shows_no_bar_without_terminal(data, served):
    served.abandon()
    done = run("queue", "publish", data, "jobs", "x")
    assert done.stderr == ""
