"""``erase = true``: of what was removed and collected no byte of its body is left in the directory, whatever is killed when."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest

from msgstore.contract import Combine, Compact, Drop
from msgstore.testing.faults import CHANGES, Crash, RecordingFiles, StoppingFiles
from support import ACME_CELLS, collect, contents, id_of, open_with, until

LIMIT = 20_000
KEYS = {"sync_interval": "1h", "file_size_limit": LIMIT, "erase": True}


def body_of(number: int) -> bytes:
    """No byte of it is zero."""
    return b"%08d" % number * (5 + number % 20)


def keys_of(cell):
    """A small map: it is copied and searched many times."""
    index = {"use": "lmdb", "map_size": "1MiB"} if cell.index == "lmdb" else cell.index
    return cell.keys | KEYS | {"index": index, "gc_interval": 0}


def filled(path, cell, files=None, **keys):
    """Two sealed segments of 60 messages each, and what is left when two thirds were removed."""
    store = open_with(path, files, **keys_of(cell) | keys)
    left, gone = [], []
    for begin in (100, 200):
        numbers = range(begin, begin + 60)
        client = store.client()
        client.write_many((id_of(number), body_of(number)) for number in numbers)
        store.roll()
        gone += [number for number in numbers if number % 3]
        left += [number for number in numbers if not number % 3]
    return store, left, gone


def traces(path, numbers) -> list[int]:
    """Of which of the messages there is a body in any file."""
    data = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    return [number for number in numbers if body_of(number)[:16] in data]


ACTIONS = {
    "compact": lambda one, two: [Compact(one), Compact(two)],
    "combine": lambda one, two: [Combine((one, two))],
}


@pytest.mark.parametrize("kind", ACTIONS)
def test_collection_erases_removed_bodies(kind, cell, tmp_path):
    store, left, gone = filled(tmp_path, cell)
    store.client().remove(map(id_of, gone))
    store.flush()
    assert traces(tmp_path, gone) == gone
    done = collect(store, *ACTIONS[kind](*(s.number for s in store.segments())))
    assert [one.skipped for one in done] == [None, None]
    assert traces(tmp_path, gone) == []
    assert contents(store) == {id_of(number): body_of(number) for number in left}
    assert not [file for file in tmp_path.iterdir() if file.suffix in (".tmp", ".erase")]
    store.close()


def test_deleted_segment_is_overwritten(cell, tmp_path):
    store, _, _ = filled(tmp_path, cell)
    first, second = (s.number for s in store.segments())
    done = collect(store, Drop(first, "old"))
    assert done[0].dropped == 60
    assert traces(tmp_path, range(100, 160)) == []
    store.client().remove(map(id_of, range(200, 260)))
    store.flush()
    assert [file.suffix for file in tmp_path.iterdir() if str(second) in file.name] == [".erase"]  # the collector does the rest
    store.close()
    assert traces(tmp_path, range(200, 260)) == []


def test_collector_erases_in_the_background(cell, tmp_path):
    store, left, gone = filled(tmp_path, cell, gc_interval="10ms")
    store.client().remove(map(id_of, gone + left))
    store.flush()
    until(lambda: not (traces(tmp_path, gone + left) or list(tmp_path.glob("*.erase"))))
    store.close()


def test_zeros_are_synced_before_unlink(cell, tmp_path):
    """Else the system would drop them with it."""
    files = RecordingFiles()
    store, left, gone = filled(tmp_path, cell, files)
    store.client().remove(map(id_of, gone + left))
    files.operations.clear()
    store.compact()
    name = next(path.rsplit("/", 1)[1] for kind, path, _ in files.operations if kind == "replace")
    kinds = [kind for kind, path, _ in files.operations if path.endswith(name) or kind == "sync_directory"]
    assert kinds[:6] == ["replace", "sync_directory", "open_write", "pwrite", "sync", "unlink"] or kinds[:7] == [
        "replace", "replace", "sync_directory", "open_write", "pwrite", "sync", "unlink",
    ]  # fmt: skip
    store.close()


def test_deletion_without_erase_overwrites_nothing(cell, tmp_path):
    files = RecordingFiles()
    store, left, gone = filled(tmp_path, cell, files, erase=False)
    store.client().remove(map(id_of, gone + left))
    files.operations.clear()
    store.compact()
    assert files.count("pwrite") == 0
    store.close()


@pytest.mark.crash
@pytest.mark.parametrize("kind", ACTIONS)
def test_erasing_killed_anywhere_is_completed_later(kind, cell, tmp_path):
    store, left, gone = filled(tmp_path / "start", cell)
    store.client().remove(map(id_of, gone))
    store.close()
    expected = {id_of(number): body_of(number) for number in left}

    def run(files):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(tmp_path / "start", tmp_path / "run")
        store = open_with(tmp_path / "run", files, **keys_of(cell))
        try:
            store.roll()
            collect(store, *ACTIONS[kind](*(s.number for s in store.segments() if s.live_count)))
        finally:
            store.abandon()

    whole = RecordingFiles()
    run(whole)
    count = sum(name in CHANGES for name, _, _ in whole.operations)
    assert count > 15
    for stop in range(count):
        with pytest.raises(Crash):
            run(StoppingFiles(stop, torn=512))
        counts = [(msg_id, 1) for msg_id in expected]
        store = open_with(tmp_path / "run", **keys_of(cell), refcounts=counts)
        assert contents(store) == expected
        store.roll()
        done = store.compact(everything=True)
        assert not [one.skipped for one in done if one.skipped]
        assert contents(store) == expected
        assert traces(tmp_path / "run", gone) == [], f"stopped at change {stop}"
        store.abandon()


# -- what a third party's record type keeps beside the body stays as it is ------------------------------------------------


def records(store):
    return {entry.msg_id: store.record(entry).data for entry in store.entries()}


@pytest.mark.skipif(not find_spec("acme_audit_record"), reason="pip install -e ./examples/acme_audit_record")
@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("action", [Combine((0, 1)), Compact(0)], ids=["combine", "compact"])
def test_records_are_moved_byte_for_byte(index, tmp_path, action, erase):
    cell = ACME_CELLS[f"{index}-v2-audit"]
    with open_with(tmp_path, **cell.keys, erase=erase) as store, store.client() as client:
        ids = [bytes([number]) * 16 for number in range(20)]
        for part in (ids[:10], ids[10:]):
            client.write_many((msg_id, msg_id * 9) for msg_id in part)
            store.roll()
        client.remove(ids[::3])
        store.flush()
        before = records(store)
        assert {done.outcome for done in collect(store, action)} <= {"combined", "compacted"}
        assert records(store) == before
        assert all(b"tests" in record for record in before.values())
