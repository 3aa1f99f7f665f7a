"""A process that forks keeps its stores; the child is told that it has none."""

from __future__ import annotations

import contextlib
import os

import pytest

import msgstore
from attempts import FORK, in_child, start_process

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
ID = bytes(16)


@pytest.mark.parametrize("held", [False, True])
def test_forked_child_is_refused_parent_goes_on(tmp_path, cell, held):
    """``held``: the locks are held, and nothing in the child releases them."""
    with msgstore.open_store(tmp_path / "store", **cell.keys) as store, store.client() as client:
        client.write(ID, b"parent")
        calls = [
            lambda: client.write(bytes([1]) * 16, b"child"), lambda: client.remove([ID]), lambda: client.read(ID),
            store.flush, store.stats, store.roll, store.compact, store.client,
        ]  # fmt: skip

        def check():
            for call in calls:
                with pytest.raises(msgstore.StoreClosed, match=f"open in process {os.getppid()}"):
                    call()
            client.close()
            store.close()
            store.abandon()
            with msgstore.open_store(tmp_path / "childs", **cell.keys) as own:
                own.client().write(ID, b"child")
            with pytest.raises(msgstore.StoreLocked):
                msgstore.open_store(store.path, **cell.keys)
            return "refused"

        with contextlib.ExitStack() as stack:
            for lock in [store._accounting.flush_lock, store._accounting.state_lock] if held else []:
                stack.enter_context(lock)
            assert in_child(check) == "refused"
        client.write(bytes([2]) * 16, b"parent")
        store.flush()
    with msgstore.open_store(tmp_path / "store", **cell.keys) as store:
        assert store.read_many([ID, bytes([1]) * 16, bytes([2]) * 16]) == {ID: b"parent", bytes([2]) * 16: b"parent"}
    with msgstore.open_store(tmp_path / "childs", **cell.keys) as own:
        assert own.read(ID) == b"child"


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_forked_child_opening_lmdb_is_refused(tmp_path, mode):
    """LMDB opens its files once a process, and takes a forked one for the same. They are whole, and the disk is, too."""
    pytest.importorskip("msgstore_lmdb_index")
    msgstore.open_store(tmp_path, index="lmdb").close()
    with msgstore.open_store(tmp_path, index="lmdb", mode=mode):

        def check():
            with pytest.raises(msgstore.StoreError) as caught:
                msgstore.open_store(tmp_path, index="lmdb", mode="r")
            return str(caught.value)

        said = in_child(check)
        assert "is already open in this process, or in the one it was forked from" in said
        assert "spawn" in said
        assert "Fix" not in said
        if mode == "r":
            with pytest.raises(msgstore.StoreError, match="is already open in this process"):
                msgstore.open_store(tmp_path, index="lmdb", mode="r")


def test_living_child_does_not_keep_lock(tmp_path, cell):
    """It inherits the file that the lock is on, and the system keeps the lock for whoever has that open last."""
    store, end = msgstore.open_store(tmp_path / "store", **cell.keys), FORK.Event()
    child, _ = start_process(lambda _: end.wait(60))
    try:
        with pytest.raises(msgstore.StoreLocked):
            msgstore.open_store(store.path, **cell.keys)  # the child has let go, the parent has not
        store.close()
        for _ in range(2):
            msgstore.open_store(store.path, **cell.keys).close()
        assert child.is_alive()
    finally:
        end.set()
        child.join()
