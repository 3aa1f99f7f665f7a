"""``top``: what two looks at a directory tell, and that looking disturbs nobody."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

import msgstore
from core_support import objects, refused, run, store_of
from msgstore.cli.commands.top import DirectorySampler, DirectorySnapshot, IndexFigures, SnapshotDiff, Totals
from msgstore.cli.stores import StoreArgument
from msgstore.files import Files

IDS = [bytes([n]) * 16 for n in range(100)]
ONCE = ("top", "--once", "--interval", "100ms")


def shown(store):
    (found,) = objects(run(*ONCE, "--json", store, code=0))
    return found


def look(at, segments, messages=None):
    sizes = {name: (size, 0) for name, size in segments.items()}
    figures = None if messages is None else IndexFigures(messages, {}, 0)
    return DirectorySnapshot(at, 0.0, sizes, 0, is_open=False, writer=None, index_figures=figures)


def test_snapshot_diff_sums_sizes_and_names():
    before = look(10.0, {"0.sqs": 1000, "1.sqs": 5000, "2.sqs": 100}, 50)
    after = look(12.0, {"1.sqs": 2000, "2.sqs": 600, "3.sqs": 64}, 46)
    change = SnapshotDiff.between(before, after)
    assert (change.seconds, change.written, change.freed, change.messages) == (2.0, 564, 4000, -4)
    assert (change.created, change.deleted, change.shrunk) == (["3.sqs"], ["0.sqs"], ["1.sqs"])
    totals = Totals()
    totals.add(change, after)
    totals.add(SnapshotDiff.between(after, after), after)
    assert (totals.created, totals.deleted, totals.shrunk, totals.freed) == (1, 1, 1, 4000)
    assert totals.last_collection.startswith("cut 1.sqs and 1 more at ")
    assert SnapshotDiff.between(before, look(12.0, {})).messages is None


def test_snapshots_of_a_working_store_agree_with_counters(tmp_path):
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
        assert (change.deleted, change.shrunk, change.created) == (["0.sqs"], ["1.sqs"], ["3.sqs"])
        assert change.written == counters.written_bytes - 20 * 1021 + 64
        assert change.freed == store.stats().counters.collected_bytes


@pytest.mark.parametrize("index", ["ets", "lmdb"])
def test_top_of_closed_store_shows_its_statistics(tmp_path, index):
    with msgstore.open_store(tmp_path, index=index) as store, store.client() as client:
        client.write_many((msg_id, bytes(1000)) for msg_id in IDS[:20])
        store.flush()
        client.remove(IDS[:5])
        store.flush()
        stats = store.stats()
    expected = {name: getattr(stats, name) for name in ("messages", "segments", "bytes_on_disk", "live_bytes", "garbage_bytes")}
    expected |= {"open": False, "writer": None, "written_per_second": 0, "freed_per_second": 0, "messages_per_second": 0}
    assert expected.items() <= shown(tmp_path).items()
    text = run(*ONCE, tmp_path).stdout
    assert all(part in text for part in ("open for writing  no process", "15  +0/s", "0.sqs"))


def test_top_of_crashed_store_does_not_read_it(tmp_path):
    """Nor one of a broker: with ``ets``, each snapshot would scan all segments."""
    store = msgstore.open_store(tmp_path)
    store.client().write(IDS[0], b"body")
    store.flush()
    store.abandon()
    for path in (tmp_path, store_of("mixed_upgrade"), store_of("v2_dirty_torn")):
        assert shown(path)["messages"] is None
    assert "only the index knows" in run(*ONCE, tmp_path).stdout


def test_closed_store_is_asked_once(tmp_path, monkeypatch):
    with msgstore.open_store(tmp_path) as store, store.client() as client:
        client.write(IDS[0], b"body")
    sampler = DirectorySampler(StoreArgument(str(tmp_path)).find(), Files())
    asked, ask = [], DirectorySampler._read_index
    monkeypatch.setattr(DirectorySampler, "_read_index", lambda self: asked.append(1) or ask(self))
    assert [sampler.sample().index_figures for _ in range(3)][2] is not None
    assert len(asked) == 1


def test_directory_that_goes_away_is_one_line(tmp_path, monkeypatch):
    store = tmp_path / "store"
    msgstore.open_store(store).close()
    monkeypatch.setattr(time, "sleep", lambda _: shutil.rmtree(store))
    assert "No such file or directory" in refused(*ONCE, store)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("extra", [["--json"], []])
def test_ctrl_c_ends_top(tmp_path, extra):
    msgstore.open_store(tmp_path).close()
    command = [sys.executable, "-u", "-c", "from msgstore.cli.main import main; main()", "top", str(tmp_path), *extra]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what runs in the background of a shell does not hear it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "--interval", "100ms"], **pipes, preexec_fn=heard) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, b"")
