"""Tests that are specific to SQLite. The conformance kit tests the requirements of every backing queue:

pytest --pyargs msgstore_queues.testing.suite -k sqlite
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from acme_sqlite_queue.plugin import msgstore_backing_queues
from acme_sqlite_queue.queue import FILE
from msgstore.contract import StoreIOError
from msgstore_queues import aio, open_vhost
from msgstore_queues.errors import QueueFailed
from msgstore_queues.testing import BackingQueueTests, Subject


class TestSqlite(BackingQueueTests):
    histories, crash_histories, crash_points = 3, 1, 6

    @pytest.fixture
    def subject(self):
        return Subject(*msgstore_backing_queues())


def test_transaction_that_sqlite_refuses_is_repeated(tmp_path):
    """Another process has the file: the flush fails, nothing is confirmed, and the next one writes all of it."""
    with open_vhost(tmp_path, sync_interval="365d") as vhost:
        jobs, confirmed = vhost.queue("jobs", backing="sqlite"), []
        jobs.publish(b"1")
        jobs.flush()
        (path,) = vhost.directory.glob(f"queues/*/{FILE}")
        backing: Any = jobs.backing
        backing._connection.execute("PRAGMA busy_timeout = 0")
        jobs.publish(b"2", on_confirm=lambda: confirmed.append(2))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreIOError, match="database is locked"):
                jobs.flush()
            with pytest.raises(StoreIOError, match="database is locked"):
                jobs.receive()
        assert confirmed == []
        jobs.flush()
        assert confirmed == [2]
        assert [jobs.receive().body for _ in range(2)] == [b"1", b"2"]


def test_transaction_of_the_asyncio_api_is_on_disk_when_it_returns(tmp_path):
    async def run():
        async with aio.open_vhost(tmp_path) as vhost:
            jobs = await vhost.queue("jobs", backing="sqlite")
            await jobs.publish(b"1")
            taken = await jobs.receive()
            await jobs.transact([jobs.make_message(b"2"), jobs.make_message(b"3")], [taken], confirm=True)
            await vhost.abandon()

    asyncio.run(run())
    with open_vhost(tmp_path) as vhost:
        assert [message.body for message in vhost.queue("jobs").browse()] == [b"2", b"3"]


def test_transaction_that_is_lost_is_an_error_of_who_waits_for_it(tmp_path, monkeypatch):
    async def run():
        async with aio.open_vhost(tmp_path, sync_interval="365d") as vhost:
            jobs = await vhost.queue("jobs", backing="sqlite")
            monkeypatch.setattr(jobs.blocking.backing, "write", lambda: {}["a bug"])
            transaction = asyncio.create_task(jobs.transact([jobs.make_message(b"1")], [], confirm=True))
            await asyncio.sleep(0)
            for lost in (asyncio.to_thread(vhost.blocking.flush), transaction):
                with pytest.raises(QueueFailed, match="a bug"):
                    await lost

    asyncio.run(run())


def test_file_that_is_not_sqlite_is_an_error_that_names_it(tmp_path):
    with open_vhost(tmp_path) as vhost:
        vhost.queue("jobs", backing="sqlite")
        (path,) = vhost.directory.glob(f"queues/*/{FILE}")
    path.write_bytes(b"this is no database, but has the length of a header")
    with pytest.raises(StoreIOError, match="file is not a database"):
        open_vhost(tmp_path)
