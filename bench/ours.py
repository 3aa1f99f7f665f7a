"""msgstore as a peer of the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from peer import LAG, Pair, Peer, batches

import msgstore
from msgstore.config import store_config
from msgstore.engine.opening import open_configured
from msgstore.files import Files


class MsgStore(Peer):
    name = "msgstore"
    how = "index ets, format v2, durability os; one call per message; put, remove and lifecycle end with store.flush()"

    def __init__(self, directory: Path, files: Files | None = None, **options: Any) -> None:
        """Open a store. ``options`` are keys of the configuration; ``files`` is the file layer of a profile."""
        self.store = open_msgstore(directory, files, **({"index": "ets", "format": "v2", "durability": "os"} | options))
        self.client = self.store.client()

    def put_all(self, pairs: Sequence[Any]) -> None:
        write = self.client.write
        for msg_id, body in pairs:
            write(msg_id, body)
        self.store.flush()

    def wait_until_idle(self) -> None:
        self.store.flush()
        if self.store.stats().pending:
            raise RuntimeError("messages are pending after a flush: gets would not read the disk")

    def get_one(self, msg_id: bytes) -> bytes | None:
        try:
            return self.client.read(msg_id)
        except msgstore.MessageNotFound:
            return None

    def get_all(self, targets: Sequence[Any]) -> None:
        read = self.client.read
        for msg_id in targets:
            read(msg_id)

    def get_many_all(self, ids: Sequence[bytes]) -> None:
        for batch in batches(ids):
            self.client.read_many(batch)

    def remove_all(self, ids: Sequence[bytes]) -> None:
        remove = self.client.remove
        for msg_id in ids:
            remove([msg_id])
        self.store.flush()

    def lifecycles(self, pairs: Sequence[Pair]) -> None:
        write, read, remove = self.client.write, self.client.read, self.client.remove
        for msg_id, body in pairs[:LAG]:
            write(msg_id, body)
        for (msg_id, body), (old, _) in zip(pairs[LAG:], pairs, strict=False):
            write(msg_id, body)
            read(old)
            remove([old])
        for old, _ in pairs[-LAG:]:
            read(old)
            remove([old])
        self.store.flush()

    def close(self) -> None:
        self.client.close()
        self.store.close()


def open_msgstore(directory: Path, files: Files | None = None, **keys: Any) -> msgstore.Store:
    """Open a store, with another file layer if one is given."""
    if files is None:
        return msgstore.open_store(directory, **keys)
    config = store_config({"path": directory, **keys}, "bench", Path())
    return open_configured(config, msgstore.load_catalogue(), files=files)


class MappedMsgStore(MsgStore):
    name = "msgstore mmap"
    how = 'the same with reads = "mmap"'
    operations: ClassVar[Sequence[str]] = ("get",)

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        super().__init__(directory, files, reads="mmap")
