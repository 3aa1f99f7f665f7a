"""After any failed operation the store has what its calls say: ``write`` and ``remove`` did it or did not."""

from __future__ import annotations

from collections import Counter

import pytest

import msgstore
from msgstore.testing.faults import FailingFiles
from support import FullDisk, failing, open_with

IDS = [bytes([n]) * 16 for n in range(40)]
FAULTS = [(last, sync) for last in (1, 6) for sync in ("1h", 0)]


class Faults(FailingFiles):
    """Fails ``last`` changes or openings on end, the commits of the index among them."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def _note(self, name, path, size=0):
        super()._note(name, path, size)
        if self.failed and self.last > 1:
            self.last -= 1
            failing()()

    def commit_first(self, commit):
        def committing():
            self._note("sync", "the index")
            commit()

        return committing


class Counted:
    """A client and the references that its calls say there are."""

    def __init__(self, client):
        self.client = client
        self.expected = Counter()

    def write(self, *ids):
        """Write one message by ``write``, several by ``write_many``."""
        taken = len(ids)
        try:
            if taken == 1:
                self.client.write(ids[0], ids[0] * 60)
            else:
                self.client.write_many([(msg_id, msg_id * 60) for msg_id in ids])
        except msgstore.StoreIOError as error:
            taken = getattr(error, "taken", 0) if len(ids) > 1 else int(getattr(error, "applied", False))
        self.expected.update(ids[:taken])

    def remove(self, ids):
        kept = ()
        try:
            self.client.remove(ids)
        except msgstore.StoreIOError as error:
            kept = getattr(error, "ids", () if getattr(error, "applied", False) else ids)
        self.expected.update(dict.fromkeys(set(ids) - set(kept), -1))


def work(counted):
    """Writes beyond the bound, second references of what is on disk and what is not, removals of both."""
    for msg_id in IDS[:12]:
        counted.write(msg_id)
    counted.write(*IDS[12:24])
    for msg_id in IDS[:30]:
        counted.write(msg_id)
    present = [msg_id for msg_id in IDS if counted.expected[msg_id] > 0]
    for first in range(0, len(present), 3):
        counted.remove(present[first : first + 3])
    for msg_id in IDS[30:]:
        counted.write(msg_id)


def run(path, index, fail, last, sync):
    """Returns whether something failed, and then for which ids the store has other counts than its calls say."""
    files = Faults(last)
    store = open_with(path, files, index=index, sync_interval=sync, max_unconfirmed="12KiB", large_message=800, gc_interval=0)
    try:
        commit = store._accounting.index.commit
        store._accounting.index.commit = files.commit_first(commit)
        counted = Counted(store.client())
        files.fail = fail
        work(counted)
        failed = files.failed
        files.fail, files.last = None, 0
        store.close()
    finally:
        store.abandon()
    with open_with(path, index=index) as store:
        wrong = {
            msg_id[0]: f"{store.references(msg_id)} references, its calls say {counted.expected[msg_id]}"
            for msg_id in IDS
            if store.references(msg_id) != counted.expected[msg_id]
        }
    return failed, wrong


@pytest.mark.parametrize(("last", "sync"), FAULTS)
def test_calls_under_any_fault_say_what_they_did(index, last, sync, tmp_path):
    fail, step = 0, 9 if sync else 61  # each of them would take half a minute
    while True:
        failed, wrong = run(tmp_path / str(fail), index, fail, last, sync)
        assert not wrong, f"after {failed or 'no fault'}, operation {fail}"
        if not failed:
            break
        fail += step
    assert fail > 30, "the work does too little with the disk"


@pytest.fixture
def full(tmp_path):
    """A store that flushes with each write, a client, and its disk."""
    files = FullDisk()
    store = open_with(tmp_path, files, sync_interval=0)
    yield store, store.client(), files
    store.abandon()


def test_write_that_flushes_says_it_was_taken(full):
    store, client, files = full
    files.full = True
    with pytest.raises(msgstore.StoreIOError, match="The message was taken: do not repeat the write") as caught:
        client.write(IDS[1], b"1")
    assert (caught.value.applied, caught.value.taken, client.read(IDS[1])) == (True, 1, b"1")
    with pytest.raises(msgstore.StoreIOError, match="The message was not taken: repeat the write") as caught:
        client.write(IDS[2], b"2")
    assert (caught.value.applied, caught.value.taken, client.contains(IDS[2])) == (False, 0, False)
    files.full = False
    client.write(IDS[2], b"2")
    assert (store.references(IDS[1]), store.references(IDS[2])) == (1, 1)


def test_write_many_says_how_many_were_taken(full):
    _, client, files = full

    def pairs():
        for msg_id in IDS[:5]:
            files.full = msg_id == IDS[3]
            yield msg_id, b"body"

    with pytest.raises(msgstore.StoreIOError, match="The 3 messages before it were taken") as caught:
        client.write_many(pairs())
    assert (caught.value.applied, caught.value.taken) == (True, 4)
    assert [client.contains(msg_id) for msg_id in IDS[:5]] == [True] * 4 + [False]


def test_write_many_of_a_list_counts_the_taken(tmp_path):
    files = FullDisk()
    store = open_with(tmp_path, files, sync_interval="1h", max_unconfirmed="4KiB", gc_interval=0)
    client = store.client()
    files.full = True
    with pytest.raises(msgstore.StoreIOError) as caught:
        client.write_many([(msg_id, msg_id * 30) for msg_id in IDS])
    taken = caught.value.taken
    assert [client.contains(msg_id) for msg_id in IDS] == [True] * taken + [False] * (40 - taken)
    assert 0 < taken < 10
    store.abandon()


def test_remove_of_unreadable_entries_removes_none(tmp_path, index, monkeypatch):
    """What is on disk keeps its references; a repeated call with ``error.ids`` removes one of each."""
    store = open_with(tmp_path, index=index, sync_interval="1h", gc_interval=0)
    client, other = store.client(), store.client()
    client.write_many([(msg_id, b"disk") for msg_id in IDS[:3]])
    store.flush()
    client.write(IDS[4], b"memory")
    other.write(IDS[4], b"memory")
    monkeypatch.setattr(store._accounting.index, "release", failing())
    with pytest.raises(msgstore.StoreIOError) as caught:
        client.remove([IDS[0], IDS[4], IDS[1]])
    assert (caught.value.applied, caught.value.ids) == (False, (IDS[0], IDS[1]))
    assert [store.references(msg_id) for msg_id in (IDS[0], IDS[1], IDS[4])] == [1, 1, 1], "a failed removal took references"
    monkeypatch.undo()
    client.remove(caught.value.ids)
    assert [store.references(msg_id) for msg_id in (IDS[0], IDS[1], IDS[4])] == [0, 0, 1]
    store.close()


def test_repeated_removal_takes_no_second_reference(tmp_path, index, monkeypatch):
    """Of a message on disk that has another reference in memory only: that one is gone when the removal fails."""
    store = open_with(tmp_path, index=index, sync_interval="1h", gc_interval=0)
    client = store.client()
    client.write_many([(msg_id, b"disk") for msg_id in IDS[:2]])
    store.flush()
    client.write(IDS[0], b"disk")

    monkeypatch.setattr(store._accounting.index, "release", failing())
    with pytest.raises(msgstore.StoreIOError) as caught:
        client.remove(IDS[:2])
    monkeypatch.undo()
    client.remove(getattr(caught.value, "ids", IDS[:2]))
    assert (store.references(IDS[0]), store.references(IDS[1])) == (1, 0), "a message lost more references than were removed"
    store.close()
