"""Queues that run in the process of their user: msgstore's, and those with which it is compared."""

from __future__ import annotations

import asyncio
import contextlib
import queue as stdlib_queue
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from queue_peer import QueuePeer

CLEAR_EVERY = 1000
"""Acknowledged messages that some queues keep, until they are told to delete them: they grow slow otherwise."""


class MsgStoreQueue(QueuePeer):
    """Confirms 0.2 s after a change, its default, and at the end. Synced: a flush in each call, which syncs."""

    name = "msgstore"
    needs = ("msgstore_queues", "msgstore_queue_index_v2")

    def __init__(self, directory: Path, *, is_synced: bool) -> None:
        from msgstore_queues import open_vhost

        options: dict[str, Any] = {"durability": "fsync", "sync_interval": 0} if is_synced else {}
        self.vhost = open_vhost(directory, **options)
        self.queue = self.vhost.queue("bench")

    def publish(self, body: bytes) -> None:
        self.queue.publish(body)

    def take(self) -> bytes | None:
        try:
            received = self.queue.receive(block=False)
        except stdlib_queue.Empty:
            return None
        received.ack()
        return received.body

    def finish(self) -> None:
        self.vhost.flush()

    def close(self) -> None:
        self.vhost.close()


class QueueLib(QueuePeer):
    """``FifoDiskQueue``: one write for each message. Only ``close`` writes the positions, so a crash loses all messages, and it
    has no way to sync. ``take`` acknowledges."""

    name = "queuelib"
    needs = ("queuelib",)
    syncs = ()

    def __init__(self, directory: Path, *, is_synced: bool) -> None:
        import queuelib

        self.queue = queuelib.FifoDiskQueue(directory / "queue")

    def publish(self, body: bytes) -> None:
        self.queue.push(body)

    def take(self) -> bytes | None:
        return self.queue.pop()

    def close(self) -> None:
        self.queue.close()


class PersistFile(QueuePeer):
    """``persistqueue.Queue``: it writes its positions in each call. It syncs each full file; synced: one message a file, while
    its positions are never synced."""

    name = "persist-queue, file"
    needs = ("persistqueue",)
    syncs = ("publish",)

    def __init__(self, directory: Path, *, is_synced: bool) -> None:
        import persistqueue

        scratch = directory / "scratch"
        scratch.mkdir(exist_ok=True)
        size = 1 if is_synced else 100_000
        self.queue = persistqueue.Queue(str(directory / "queue"), chunksize=size, tempdir=str(scratch))

    def publish(self, body: bytes) -> None:
        self.queue.put(body)

    def take(self) -> bytes | None:
        if self.queue.empty():
            return None
        body: bytes = self.queue.get_nowait()
        self.queue.task_done()
        return body

    def close(self) -> None:
        del self.queue  # closes its files: there is no call


class PersistSQLite(QueuePeer):
    """``SQLiteAckQueue``: WAL, synchronous OFF; synced: FULL. Acknowledged messages are deleted by 1,000."""

    name = "persist-queue, SQLite"
    needs = ("persistqueue",)
    is_sqlite = True

    def __init__(self, directory: Path, *, is_synced: bool) -> None:
        import persistqueue

        self.queue = persistqueue.SQLiteAckQueue(str(directory / "queue"))
        self.queue._conn.execute(f"PRAGMA synchronous={'FULL' if is_synced else 'OFF'}")  # there is no option
        self.acked = 0

    def publish(self, body: bytes) -> None:
        self.queue.put(body)

    def take(self) -> bytes | None:
        if self.queue.empty():
            return None
        taken = self.queue.get(block=False, raw=True)
        self.queue.ack(id=taken["pqid"])
        self.acked += 1
        if self.acked % CLEAR_EVERY == 0:
            self.queue.clear_acked_data(max_delete=0, keep_latest=0)
        body: bytes = taken["data"]
        return body

    def close(self) -> None:
        self.queue.close()


class LiteQueue(QueuePeer):
    """WAL, synchronous OFF; synced: FULL. Acknowledged messages are deleted by 1,000. It takes text only."""

    name = "litequeue"
    needs = ("litequeue",)
    is_sqlite = True

    def __init__(self, directory: Path, *, is_synced: bool) -> None:
        import litequeue

        self.queue = litequeue.LiteQueue(directory / "queue")
        self.queue.conn.execute(f"PRAGMA synchronous={'FULL' if is_synced else 'OFF'}")
        self.acked = 0

    def publish(self, body: bytes) -> None:
        self.queue.put(body.decode("latin-1"))

    def take(self) -> bytes | None:
        message = self.queue.pop()
        if message is None:
            return None
        claim = {"claim_id": message.claim_id} if hasattr(message, "claim_id") else {}  # since 0.14, for Python 3.12
        self.queue.done(message.message_id, **claim)
        self.acked += 1
        if self.acked % CLEAR_EVERY == 0:
            self.queue.prune()
        body: bytes = message.data.encode("latin-1")
        return body

    def close(self) -> None:
        self.queue.close()


class DiskCacheDeque(QueuePeer):
    """WAL, synchronous OFF; synced: FULL. ``take`` acknowledges: it deletes the message."""

    name = "diskcache.Deque"
    needs = ("diskcache",)
    is_sqlite = True

    def __init__(self, directory: Path, *, is_synced: bool) -> None:
        import diskcache

        self.cache = diskcache.Cache(str(directory / "queue"), eviction_policy="none", sqlite_synchronous=2 if is_synced else 0)
        self.queue = diskcache.Deque.fromcache(self.cache)

    def publish(self, body: bytes) -> None:
        self.queue.append(body)

    def take(self) -> bytes | None:
        with contextlib.suppress(IndexError):
            body: bytes = self.queue.popleft()
            return body
        return None

    def close(self) -> None:
        self.cache.close()


class AioDiskQueue(QueuePeer):
    """Engine ``PickleSequence``, the only one that does not sync in each call: it appends, and rewrites the file for each
    message that is taken. Synced: its SQLite engine. ``take`` acknowledges."""

    name = "aiodiskqueue"
    needs = ("aiodiskqueue", "aiofiles", "aiosqlite")

    def __init__(self, directory: Path, *, is_synced: bool) -> None:
        import aiodiskqueue
        from aiodiskqueue.engines import PickleSequence, SqliteEngine

        self.runner = asyncio.Runner()
        engine = SqliteEngine if is_synced else PickleSequence
        self.queue = self.runner.run(aiodiskqueue.Queue.create(directory / "queue", cls_storage_engine=engine))

    def publish(self, body: bytes) -> None:
        self.runner.run(self.queue.put(body))

    def take(self) -> bytes | None:
        return self.runner.run(self._take())

    async def _take(self) -> bytes | None:
        if self.queue.empty():
            return None
        body: bytes = await self.queue.get()  # deletes it on disk: task_done is for join
        return body

    def publish_all(self, bodies: Iterable[bytes]) -> None:
        async def run() -> None:
            for body in bodies:
                await self.queue.put(body)

        self.runner.run(run())

    def pass_through(self, bodies: Iterable[bytes], lag: int) -> bytes | None:
        async def run() -> bytes | None:
            source = iter(bodies)
            for body in islice(source, lag):
                await self.queue.put(body)
            for body in source:
                await self.queue.put(body)
                await self._take()
            last = None
            for _ in range(lag):
                last = await self._take()
            return last

        return self.runner.run(run())

    def close(self) -> None:
        self.runner.close()
