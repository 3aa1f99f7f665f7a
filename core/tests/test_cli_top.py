"""``top``: what two looks at a directory tell, and that looking disturbs nobody."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import msgstore
from msgstore.cli.commands.top import DirectorySampler, DirectorySnapshot, IndexFigures, SnapshotDiff, Totals
from msgstore.cli.main import main
from msgstore.cli.stores import StoreArgument
from msgstore.files import Files

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "msg-store"
IDS = [bytes([n]) * 16 for n in range(100)]


def top(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["top", "--once", "--interval", "100ms", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def shown(*arguments: object) -> dict[str, Any]:
    result = top("--json", *arguments)
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    return dict(json.loads(line))


def snapshot(at: float, segments: dict[str, int], messages: int | None = None) -> DirectorySnapshot:
    figures = None if messages is None else IndexFigures(messages, {}, 0)
    return DirectorySnapshot(
        at, 0.0, {name: (size, 0) for name, size in segments.items()}, 0, is_open=False, writer=None, index_figures=figures
    )


def test_snapshot_diff_sums_sizes_and_names() -> None:
    before = snapshot(10.0, {"0.sqs": 1000, "1.sqs": 5000, "2.sqs": 100}, 50)
    after = snapshot(12.0, {"1.sqs": 2000, "2.sqs": 600, "3.sqs": 64}, 46)
    change = SnapshotDiff.between(before, after)
    assert (change.seconds, change.written, change.freed, change.messages) == (2.0, 564, 4000, -4)
    assert (change.created, change.deleted, change.shrunk) == (["3.sqs"], ["0.sqs"], ["1.sqs"])
    totals = Totals()
    totals.add(change, after)
    totals.add(SnapshotDiff.between(after, after), after)
    assert (totals.created, totals.deleted, totals.shrunk, totals.freed) == (1, 1, 1, 4000)
    assert totals.last_collection.startswith("cut 1.sqs and 1 more at ")
    assert SnapshotDiff.between(before, snapshot(12.0, {})).messages is None


def test_snapshots_of_a_working_store_agree_with_counters(tmp_path: Path) -> None:
    """Sizes equal those of the writer, and two snapshots show what it did in between."""
    with msgstore.open_store(tmp_path, file_size_limit="8KiB", gc_interval=0) as store, store.client() as client:
        client.write_many((msg_id, bytes(1000)) for msg_id in IDS[:20])
        store.flush()
        sampler = DirectorySampler(StoreArgument(str(tmp_path)).find(), Files())
        before = sampler.sample()
        assert (before.is_open, before.writer, before.index_figures) == (True, os.getpid(), None)
        assert before.bytes_on_disk == store.stats().bytes_on_disk
        client.remove(IDS[:15])
        client.write_many((msg_id, bytes(1000)) for msg_id in IDS[30:40])
        store.roll()
        counters = store.stats().counters
        (done,) = store.compact(everything=True)
        change = SnapshotDiff.between(before, sampler.sample())
        assert done.size_after
        assert change.deleted == ["0.sqs"]
        assert change.shrunk == ["1.sqs"]
        assert change.created == ["3.sqs"]
        assert change.written == counters.written_bytes - 20 * 1021 + 64
        assert change.freed == store.stats().counters.collected_bytes


@pytest.mark.parametrize("index", ["ets", "lmdb"])
def test_a_store_that_nobody_has_open(tmp_path: Path, index: str) -> None:
    with msgstore.open_store(tmp_path, index=index) as store, store.client() as client:
        client.write_many((msg_id, bytes(1000)) for msg_id in IDS[:20])
        store.flush()
        client.remove(IDS[:5])
        store.flush()
        stats = store.stats()
    found = shown(tmp_path)
    assert (found["open"], found["writer"]) == (False, None)
    for member in ("messages", "segments", "bytes_on_disk", "live_bytes", "garbage_bytes"):
        assert found[member] == getattr(stats, member), member
    assert (found["written_per_second"], found["freed_per_second"], found["messages_per_second"]) == (0, 0, 0)
    text = top(tmp_path).stdout
    assert "open for writing  no process" in text
    assert "15  +0/s" in text
    assert "0.sqs" in text


def test_a_crashed_store_is_not_read_for_it(tmp_path: Path) -> None:
    """With ``ets``, each snapshot would scan all segments."""
    store = msgstore.open_store(tmp_path)
    store.client().write(IDS[0], b"body")
    store.flush()
    store.abandon()
    assert shown(tmp_path)["messages"] is None
    assert "only the index knows" in top(tmp_path).stdout


def test_nothing_is_written(tmp_path: Path) -> None:
    for name, known in (("mixed_upgrade", False), ("v2_dirty_torn", False)):
        copy = shutil.copytree(DATA / name / "store", tmp_path / name)
        before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in copy.iterdir()}
        assert (shown(copy)["messages"] is not None) == known
        assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in copy.iterdir()} == before


def test_a_closed_store_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with msgstore.open_store(tmp_path) as store, store.client() as client:
        client.write(IDS[0], b"body")
    sampler = DirectorySampler(StoreArgument(str(tmp_path)).find(), Files())
    asked = []
    ask = DirectorySampler._read_index
    monkeypatch.setattr(DirectorySampler, "_read_index", lambda self: asked.append(1) or ask(self))
    assert [sampler.sample().index_figures for _ in range(3)][2] is not None
    assert len(asked) == 1


def test_wrong_arguments(tmp_path: Path) -> None:
    assert top(tmp_path / "nowhere").exit_code == 2
    for interval, message in (
        ("0", "at least 100ms"),
        ("soon", "is not a time"),
        ("nan", "is not a time"),
        ("1e99", "too large"),
    ):
        result = CliRunner().invoke(main, ["top", str(tmp_path), "--interval", interval])
        assert result.exit_code == 2
        assert message in result.stderr


def test_a_directory_that_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    msgstore.open_store(store).close()
    monkeypatch.setattr(time, "sleep", lambda _: shutil.rmtree(store))
    result = top(store)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "No such file or directory" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("extra", [["--json"], []])
def test_ctrl_c_ends_it(tmp_path: Path, extra: list[str]) -> None:
    msgstore.open_store(tmp_path).close()
    command = [sys.executable, "-u", "-c", "from msgstore.cli.main import main; main()", "top", str(tmp_path), *extra]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what runs in the background of a shell does not hear it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "--interval", "100ms"], **pipes, preexec_fn=heard) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, b"")
