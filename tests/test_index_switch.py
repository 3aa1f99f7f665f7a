"""From one index to another and back: every entry and every reference count goes along."""

from __future__ import annotations

import pytest

import msgstore
from msgstore.plugins.catalogue import load_catalogue
from support import RealDirectory, hashes, open_with


@pytest.mark.parametrize("clean", [True, False])
def test_there_and_back(clean, tmp_path):
    real = RealDirectory.load("mixed_upgrade")
    path = real.copy(tmp_path)
    counts = real.refcounts
    open_with(path, adopt=True, index="lmdb", refcounts=counts.items()).close()
    if not clean:  # only the lmdb index has the counts of a dirty stop
        open_with(path, index="lmdb").abandon()
    for index in ("ets", "lmdb", "ets"):
        with open_with(path, index=index) as store:
            assert store.stats().recovery.how == "taken over"
            assert hashes(store) == real.live
            assert {e.msg_id: e.references for e in store.entries()} == counts


def test_a_stale_index_is_never_trusted(tmp_path):
    """Messages removed under ets stay removed when lmdb, which still knows them, comes back."""
    ids = [bytes([n]) * 16 for n in range(10)]
    with open_with(tmp_path, index="lmdb") as store, store.client() as client:
        client.write_many((i, i) for i in ids)
    with open_with(tmp_path, index="ets") as store, store.client() as client:
        client.remove(ids[:5])
    with open_with(tmp_path, index="lmdb") as store:
        assert {entry.msg_id for entry in store.entries()} == set(ids[5:])


def test_without_the_old_indexs_plugin_the_counts_are_not_dropped_in_silence(tmp_path, monkeypatch):
    with open_with(tmp_path, index="lmdb") as store, store.client() as client:
        client.write(bytes(16), b"1")
    without = load_catalogue(["lmdb-index"])
    monkeypatch.setattr("support.catalogue", lambda: without)
    with pytest.raises(msgstore.StoreMismatch, match=r"last opened with the index .lmdb..*pip install msgstore-lmdb-index"):
        open_with(tmp_path, index="ets")
    with open_with(tmp_path, index="ets", refcounts=[(bytes(16), 2)]) as store:
        assert store.references(bytes(16)) == 2
