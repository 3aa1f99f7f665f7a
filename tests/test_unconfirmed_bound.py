"""``max_unconfirmed`` bounds what is written and not confirmed, and what is removed and not committed."""

from __future__ import annotations

import pytest

from msgstore.testing.faults import UnsyncedFiles
from support import open_with

BOUND = 64 * 1024
DURABILITIES = ["os", "fsync", {"fsync_every": "1h"}]
KEYS = {"sync_interval": "1h", "max_unconfirmed": BOUND, "gc_interval": 0}


@pytest.mark.parametrize("durability", DURABILITIES, ids=["os", "fsync", "fsync_every"])
@pytest.mark.parametrize("clients", [1, 5])
def test_unconfirmed_bytes_stay_within_the_bound(durability, clients, index, tmp_path):
    """One message more, since a writer looks behind it."""
    unconfirmed: dict[bytes, int] = {}

    def confirmed(ids):
        for msg_id in ids:
            del unconfirmed[msg_id]

    store = open_with(tmp_path, UnsyncedFiles(), index=index, durability=durability, **KEYS)
    writers = [store.client(on_confirm=confirmed) for _ in range(clients)]
    most, sizes = 0, [10, 500, 3000, 9000]
    for number in range(600):
        msg_id, body = number.to_bytes(16), bytes(sizes[number % 4])
        unconfirmed[msg_id] = len(body)
        writers[number % clients].write(msg_id, body)
        most = max(most, sum(unconfirmed.values()))
    store.abandon()
    assert most <= BOUND + max(sizes), f"{most} bytes were unconfirmed, {BOUND} are allowed"


def test_many_clients_share_one_bound(tmp_path):
    """Each reports rarely, and all of them together in time."""
    store = open_with(tmp_path, UnsyncedFiles(), **KEYS)
    unconfirmed: set[bytes] = set()
    clients = [store.client(on_confirm=unconfirmed.difference_update) for _ in range(100)]
    most = 0
    for number in range(1000):
        unconfirmed.add(number.to_bytes(16))
        clients[number % 100].write(number.to_bytes(16), b"")
        most = max(most, len(unconfirmed))
    store.abandon()
    assert most <= BOUND // 1024 + 100, f"{most} empty messages of 1 KiB each were unconfirmed"


@pytest.mark.parametrize("each", [100, 4000], ids=["flushes between", "at once"])
def test_removals_with_delayed_sync_commit_at_the_bound(each, tmp_path, monkeypatch):
    """Flushes that do not commit leave the changes uncommitted."""
    keys = KEYS | {"index": "lmdb", "durability": {"fsync_every": "1h"}, "max_unconfirmed": "1MiB"}
    ids = [number.to_bytes(16) for number in range(4000)]
    with open_with(tmp_path, UnsyncedFiles(), **keys) as store, store.client() as client:
        client.write_many((msg_id, b"x") for msg_id in ids)
        store.flush()
        commits = []
        usual = store._index.commit
        monkeypatch.setattr(store._index, "commit", lambda: (commits.append(None), usual()))
        for at in range(0, len(ids), each):
            client.remove(ids[at : at + each])
            assert store._flusher.uncommitted_bytes <= 2**20
            store.flush()
    assert len(commits) >= (3 if each == 100 else 1)
