"""``erase = true``: of what was removed and collected no byte of its body is left in the directory, whatever is killed when."""

from __future__ import annotations

import shutil
from contextlib import suppress
from importlib.util import find_spec

import pytest

from msgstore.contract import Combine, Compact, Drop
from msgstore.testing.faults import Crash, RecordingFiles
from support import ACME_CELLS, collect, contents, id_of, open_with, stops, until

KEYS = {"sync_interval": "1h", "file_size_limit": 20_000, "gc_interval": 0}
ACTIONS = {"compact": lambda one, two: [Compact(one), Compact(two)], "combine": lambda one, two: [Combine((one, two))]}
FIRST, SECOND = range(100, 160), range(200, 260)
LEFT = [number for number in (*FIRST, *SECOND) if not number % 3]
GONE = [number for number in (*FIRST, *SECOND) if number % 3]


def body_of(number: int) -> bytes:
    """No byte of it is zero."""
    return b"%08d" % number * (5 + number % 20)


BODIES = {id_of(number): body_of(number) for number in LEFT}
"""Messages that are still there when those of GONE are removed: id to body."""


def opened(path, cell, files=None, **keys):
    index = {"use": "lmdb", "map_size": "1MiB"} if cell.index == "lmdb" else cell.index  # small, for it is searched often
    return open_with(path, files, **cell.keys | KEYS | {"index": index, "erase": True} | keys)


def filled(path, cell, files=None, **keys):
    """A store of two sealed segments."""
    store = opened(path, cell, files, **keys)
    for numbers in (FIRST, SECOND):
        store.client().write_many((id_of(number), body_of(number)) for number in numbers)
        store.roll()
    return store


def traces(path, numbers) -> list[int]:
    """Of which of the messages there is a body in any file."""
    data = b""
    for file in path.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):  # deleted meanwhile
            data += file.read_bytes()
    return [number for number in numbers if body_of(number)[:16] in data]


@pytest.mark.parametrize("kind", ACTIONS)
def test_collection_erases_removed_bodies(kind, cell, tmp_path):
    with filled(tmp_path, cell) as store:
        store.client().remove(map(id_of, GONE))
        store.flush()
        assert traces(tmp_path, GONE) == GONE
        done = collect(store, *ACTIONS[kind](*(s.number for s in store.segments())))
        assert [one.skipped for one in done] == [None, None]
        assert traces(tmp_path, GONE) == []
        assert contents(store) == BODIES
        assert not [file for file in tmp_path.iterdir() if file.suffix in (".tmp", ".erase")]


def test_deleted_segment_is_overwritten(cell, tmp_path):
    with filled(tmp_path, cell) as store:
        first, second = (s.number for s in store.segments())
        assert collect(store, Drop(first, "old"))[0].dropped == 60
        assert traces(tmp_path, FIRST) == []
        store.client().remove(map(id_of, SECOND))
        store.flush()
        assert [file.suffix for file in tmp_path.iterdir() if str(second) in file.name] == [".erase"]  # for the collector
    assert traces(tmp_path, SECOND) == []


def test_collector_erases_in_the_background(cell, tmp_path):
    with filled(tmp_path, cell, gc_interval="10ms") as store:
        store.client().remove(map(id_of, GONE + LEFT))
        store.flush()
        until(lambda: not (traces(tmp_path, GONE + LEFT) or list(tmp_path.glob("*.erase"))))


@pytest.mark.parametrize("erase", [True, False])
def test_zeros_are_synced_before_unlink(cell, tmp_path, erase):
    """Else the system would drop them with it. Without the key nothing is overwritten."""
    files = RecordingFiles()
    store = filled(tmp_path, cell, files, erase=erase)
    store.client().remove(map(id_of, GONE + LEFT))
    files.operations.clear()
    store.compact()
    if erase:
        name = next(path.rsplit("/", 1)[1] for kind, path, _ in files.operations if kind == "replace")
        kinds = [kind for kind, path, _ in files.operations if path.endswith(name) or kind == "sync_directory"]
        begin = kinds.index("sync_directory")
        assert set(kinds[:begin]) == {"replace"}
        assert kinds[begin : begin + 5] == ["sync_directory", "open_write", "pwrite", "sync", "unlink"]
    else:
        assert files.count("pwrite") == 0
    store.close()


@pytest.mark.crash
@pytest.mark.parametrize("kind", ACTIONS)
def test_erasing_killed_anywhere_is_completed_later(kind, cell, tmp_path):
    store = filled(tmp_path / "start", cell)
    store.client().remove(map(id_of, GONE))
    store.close()
    for stop, files in stops(15, torn=512):
        path, store = tmp_path / stop, None
        shutil.copytree(tmp_path / "start", path)
        with suppress(Crash):
            store = opened(path, cell, files)
            store.roll()
            collect(store, *ACTIONS[kind](*(s.number for s in store.segments() if s.live_count)))
        if store is not None:
            store.abandon()
        store = opened(path, cell, refcounts=[(msg_id, 1) for msg_id in BODIES])
        assert contents(store) == BODIES
        store.roll()
        assert not [one.skipped for one in store.compact(everything=True) if one.skipped]
        assert contents(store) == BODIES
        assert traces(path, GONE) == [], f"stopped at change {stop}"
        store.abandon()
        shutil.rmtree(path)


# -- what a third party's record type keeps beside the body stays as it is ------------------------------------------------


@pytest.mark.skipif(not find_spec("acme_audit_record"), reason="pip install -e ./examples/acme_audit_record")
@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("action", [Combine((0, 1)), Compact(0)], ids=["combine", "compact"])
def test_records_are_moved_byte_for_byte(index, tmp_path, action, erase):
    with filled(tmp_path, ACME_CELLS[f"{index}-v2-audit"], erase=erase) as store:

        def records():
            return {entry.msg_id: store.record(entry).data for entry in store.entries()}

        store.client().remove(map(id_of, GONE))
        store.flush()
        before = records()
        assert {done.outcome for done in collect(store, action)} <= {"combined", "compacted"}
        assert records() == before
        assert all(b"tests" in record for record in before.values())
