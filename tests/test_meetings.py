"""Meetings of things that are fine alone: callbacks in flushes, removals in flushes, flushes in collections, interrupts."""

from __future__ import annotations

import pytest

from support import open_with

A, B, C, D = (bytes([number]) * 16 for number in range(1, 5))
HOUR = {"sync_interval": "1h"}


@pytest.fixture
def opened(cell, tmp_path):
    stores = []

    def open_it(files=None, **keys):
        stores.append(open_with(tmp_path / "store", files, **cell.keys, **HOUR | keys))
        return stores[-1]

    yield open_it
    for store in stores:
        store.abandon()


def on_disk(store):
    return {entry.msg_id: entry.references for entry in store.entries()}


def test_a_client_that_flushes_while_it_is_told_confirms_nothing_that_is_not_on_disk(opened):
    store, told = opened(), []

    def first_confirmed(ids):
        told.append(("first", ids))
        if ids == [A]:
            store.flush()
            second.write(D, b"d")

    def second_confirmed(ids):
        told.append(("second", ids))
        assert set(ids) <= on_disk(store).keys()

    first = store.client("first", first_confirmed)
    second = store.client("second", second_confirmed)
    first.write(A, b"a")
    second.write(B, b"b")
    store.flush()
    assert told == [("first", [A]), ("second", [B])]
    assert store.stats().callback_failures == 0
    store.flush()
    assert told[2:] == [("second", [D])]


def test_confirms_are_in_order_when_a_client_flushes_while_it_is_told(opened):
    store, told = opened(), []

    def first_confirmed(ids):
        if ids == [A]:
            second.write(C, b"c")
            store.flush()
            assert told == [B, C]

    first = store.client("first", first_confirmed)
    second = store.client("second", told.extend)
    first.write(A, b"a")
    second.write(B, b"b")
    store.flush()
    assert told == [B, C]
    assert store.stats().callback_failures == 0
