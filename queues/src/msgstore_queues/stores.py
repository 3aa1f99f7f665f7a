"""Message stores of a vhost: the bodies of messages that are too large for a queue index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from msgstore import Client, Store, StoredBody
from msgstore.contract import BrokenPlugin, CorruptRecord, MessageNotFound, StoreClosed
from msgstore_queues.errors import StoreFailed

OpenStore = Callable[..., Store]
NEVER = "365d"
"""``sync_interval`` of a store whose flushes the vhost asks for."""


class Bodies:
    """Implements :class:`msgstore_queues.contract.Bodies`. The store is opened before, or when it is first used. Calls raise
    StoreFailed if the store does not work any more."""

    def __init__(self, path: Path, open_store: OpenStore, keys: Mapping[str, Any], *, skips_damaged: bool = False) -> None:
        """``skips_damaged``: a damaged message is left out, as one that is not there."""
        self._path = path
        self._skips_damaged = skips_damaged
        self._open_store = open_store
        self._keys = keys
        self._store: Store | None = None
        self._client: Client | None = None
        self._is_flushed = True
        """False if the store may have something to write."""
        self._opening = Lock()
        """Held by the first use: queues may need the store at the same time."""

    def open(self, refcounts: Mapping[bytes, int] | None = None) -> None:
        """Open the store. ``refcounts``: what the queues refer to, after a crash; surplus references are removed."""
        counts = None if refcounts is None else refcounts.items()
        self._store = self._open_store(self._path, sync_interval=NEVER, refcounts=counts, **self._keys)
        self._client = self._store.client("msgstore-queues")
        self._is_flushed = False
        if refcounts is not None:
            for entry in list(self._store.entries()):
                surplus = entry.references - refcounts.get(entry.msg_id, 0)
                for _ in range(surplus):
                    self._client.remove([entry.msg_id])

    @property
    def is_open(self) -> bool:
        return self._store is not None

    def write(self, msg_id: bytes, term: bytes) -> None:
        with self._failures():
            self._used().write(msg_id, StoredBody(term))
            self._is_flushed = False

    def read_many(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        with self._failures():
            client, ids = self._used(), list(ids)
            try:
                return client.read_many(ids)
            except CorruptRecord:
                if not self._skips_damaged:
                    raise
            found = {}
            for msg_id in ids:
                with suppress(CorruptRecord, MessageNotFound):
                    found[msg_id] = client.read(msg_id)
            return found

    def remove(self, ids: Iterable[bytes]) -> None:
        self._is_flushed = False
        with self._failures(), suppress(MessageNotFound):  # a message that was lost, and skipped
            self._used().remove(ids)

    def __len__(self) -> int:
        """Return the number of messages."""
        self._used()
        assert self._store is not None
        return self._store.stats().messages

    def flush(self) -> None:
        if self._store is not None and not self._is_flushed:
            self._is_flushed = True  # before: what is written meanwhile belongs to the next flush
            try:
                with self._failures():
                    self._store.flush()
            except BaseException:
                self._is_flushed = False
                raise

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def abandon(self) -> None:
        if self._store is not None:
            self._store.abandon()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (StoreClosed, BrokenPlugin) as error:
            raise StoreFailed(f"{self._path}: the message store has failed: {error}", self) from error

    def _used(self) -> Client:
        if self._client is None:
            with self._opening:
                if self._client is None:
                    self.open()
        assert self._client is not None
        return self._client
