"""``top``: what two snapshots of a directory show, and that watching disturbs nobody."""

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
from core_support import raising, refused, rows_of, run, store_of
from msgstore.cli.commands import info
from msgstore.cli.options import target_of

IDS = [bytes([n]) * 16 for n in range(100)]
ONCE = ("top", "--once", "--interval", "100ms")


def test_snapshots_of_working_store_agree_with_counters(tmp_path):
    """Sizes equal those of the writer, and two snapshots show what it did in between."""
    with msgstore.open_store(tmp_path, file_size_limit="8KiB", gc_interval=0) as store, store.client() as client:
        client.write_many((msg_id, bytes(1000)) for msg_id in IDS[:20])
        store.flush()
        target = target_of(tmp_path)
        before = info.take_snapshot(target)
        assert (before.writer.pid, before.figures) == (os.getpid(), None)
        assert sum(before.segments.values()) == store.stats().bytes_on_disk
        client.remove(IDS[:15])
        client.write_many((msg_id, bytes(1000)) for msg_id in IDS[30:40])
        store.roll()
        counters = store.stats().counters
        (done,) = store.compact(everything=True)
        change = info.compare(target, before, info.take_snapshot(target, before))
        assert done.size_after
        assert (change["deleted"], change["shrunk"], change["created"]) == (["0.sqs"], ["1.sqs"], ["3.sqs"])
        written, freed = counters.written_bytes - 20 * 1021 + 64, store.stats().counters.collected_bytes
        assert change["written_per_second"] / change["freed_per_second"] == pytest.approx(written / freed, rel=0.01)
        assert change["messages"] is change["messages_per_second"] is None


@pytest.mark.parametrize("index", ["ets", "lmdb"])
def test_top_of_closed_store_shows_its_statistics(tmp_path, index, monkeypatch):
    with msgstore.open_store(tmp_path, index=index) as store, store.client() as client:
        client.write_many((msg_id, bytes(1000)) for msg_id in IDS[:20])
        store.flush()
        client.remove(IDS[:5])
        store.flush()
        stats = store.stats()
    expected = {name: getattr(stats, name) for name in ("messages", "segments", "bytes_on_disk", "live_bytes", "garbage_bytes")}
    expected |= {"open": False, "writer": None, "written_per_second": 0, "freed_per_second": 0, "messages_per_second": 0}
    asked, ask = [], info.read_index
    monkeypatch.setattr(info, "read_index", lambda target: asked.append(1) or ask(target))
    [shown] = rows_of(*ONCE, tmp_path)
    assert expected.items() <= shown.items()
    assert len(asked) == 1  # nothing has changed since
    text = run(*ONCE, tmp_path).stdout
    assert all(part in text for part in ("open for writing  no process", "15  +0/s", "0.sqs"))
    monkeypatch.setattr(info, "open_configured", raising(msgstore.StoreIOError("it cannot be read")))
    [shown] = rows_of(*ONCE, tmp_path)
    assert (shown["messages"], shown["segments"]) == (None, 1)


def test_top_of_crashed_store_does_not_read_it(tmp_path):
    """Nor one of a broker: with ``ets``, each snapshot would scan all segments."""
    store = msgstore.open_store(tmp_path)
    store.client().write(IDS[0], b"body")
    store.flush()
    store.abandon()
    for path in (tmp_path, store_of("mixed_upgrade"), store_of("v2_dirty_torn")):
        assert rows_of(*ONCE, path)[0]["messages"] is None
    assert "only the index knows" in run(*ONCE, tmp_path).stdout


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("extra", [["--json"], []])
def test_top_ends_with_ctrl_c_or_directory(tmp_path, extra, monkeypatch):
    msgstore.open_store(tmp_path / "store").close()
    command = [sys.executable, "-um", "msgstore", "top", str(tmp_path / "store"), *extra, "--interval", "100ms"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what runs in the background of a shell does not hear it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, preexec_fn=heard) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, b"")
    monkeypatch.setattr(time, "sleep", lambda _: shutil.rmtree(tmp_path / "store"))
    assert "No such file or directory" in refused(*ONCE, tmp_path / "store")
