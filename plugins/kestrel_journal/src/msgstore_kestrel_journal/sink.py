"""Sink ``kestrel``: a directory with a journal for each queue."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from msgstore.contract import MessageBatch, QueueName, SinkContext
from msgstore_kestrel_journal import records as r
from msgstore_kestrel_journal.files import FORBIDDEN
from msgstore_kestrel_journal.plugin import KestrelSinkOptions
from msgstore_kestrel_journal.replay import QueueState, replay_file

_MAX_NAME = 200
"""Bytes of a name. A number and a suffix follow it, and file systems take 255."""
_MAX_TIME = 2**63


class KestrelSink:
    """Writer of live files. A message becomes an ADDX. A record that Kestrel wrote is copied if the source gives it, and it has
    the body, time and expiry of the message: ``max_age`` changes the expiry.

    Kept: body, order, time and expiry. A message without a time has been added now. Reserved messages are ordinary ones, as
    after a start of Kestrel. Vhost, queue and partition are joined by ``-``. Left out: ids, properties, headers.
    """

    def __init__(self, context: SinkContext) -> None:
        self._options: KestrelSinkOptions = context.options
        self._directory = Path(context.destination)
        self._directory.mkdir(exist_ok=True)
        self._now_ms = time.time_ns() // 1_000_000
        self._sizes: dict[str, int] = dict(context.token["sizes"]) if context.token else {}
        self._unsynced = {self._directory, self._directory.parent}
        """Files and directories that have changed since the last flush."""
        context.check_kept((self._directory / name, size) for name, size in self._sizes.items())
        for left in self._directory.iterdir():  # of an interrupted conversion
            if left.name not in self._sizes:
                left.unlink()
            elif left.stat().st_size > self._sizes[left.name]:
                os.truncate(left, self._sizes[left.name])
                self._unsynced.add(left)
        owners = context.token["owners"] if context.token else {}
        self._owners = {name: QueueName(*owner) for name, owner in owners.items()}
        """Name of a journal to the queue that it holds."""
        self._current: tuple[str, BinaryIO] | None = None

    def refused(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        name = self._name(batch.name)
        forbidden = FORBIDDEN if batch.name.system == "kestrel" else FORBIDDEN + "+"
        reason = ""
        if wrong := [char for char in forbidden if char in name]:
            reason = f"the name {name!r} has {' and '.join(wrong)}, which a queue of Kestrel cannot have: rename it"
        elif not name or not name.isprintable() or len(name.encode("utf-8", "surrogateescape")) > _MAX_NAME:
            reason = f"the name {name!r:.60} is no name of a file: rename it"
        elif self._owners.setdefault(name, batch.name) != batch.name:
            reason = f"the queues {self._owners[name]} and {batch.name} have one name here, {name!r}: rename one"
        if reason:
            return [(row, reason) for row in range(len(batch))]
        times = (batch.timestamps_ms or [None] * len(batch), batch.expiries_ms or [None] * len(batch))
        return [
            (row, "a time is no number of 64 bits" if len(body) <= r.MAX_DATA else f"a body of {len(body)} bytes is too large")
            for row, (body, *found) in enumerate(zip(batch.bodies, *times, strict=True))
            if len(body) > r.MAX_DATA or any(not -_MAX_TIME <= (value or 0) < _MAX_TIME for value in found)
        ]

    def write(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        count = len(batch)
        added, expiries = batch.timestamps_ms or [None] * count, batch.expiries_ms or [None] * count
        raws = batch.raws if batch.raws is not None and batch.name.system == "kestrel" else [None] * count
        records = []
        for body, add_ms, expiry_ms, raw in zip(batch.bodies, added, expiries, raws, strict=True):
            if raw is None or not _is_record_of(raw, body, add_ms, expiry_ms or 0):
                raw = r.encode_addx(body, self._now_ms if add_ms is None else add_ms, expiry_ms or 0)
            records.append(raw)
        name = self._name(batch.name)
        content = b"".join(records)
        self._file(name).write(content)
        self._sizes[name] = self._sizes.get(name, 0) + len(content)
        return ()

    def flush(self) -> Mapping[str, Any]:
        self._close_current()
        for path in sorted(self._unsynced):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self._unsynced.clear()
        owners = {name: attrs.astuple(owner) for name, owner in self._owners.items()}
        return {"sizes": dict(self._sizes), "owners": owners}

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self._close_current()

    def _name(self, name: QueueName) -> str:
        parts = [None if name.vhost == "/" else name.vhost, name.queue or self._options.queue, name.partition]
        return "-".join(str(part) for part in parts if part is not None)

    def _file(self, name: str) -> BinaryIO:
        if self._current is None or self._current[0] != name:
            self._close_current()
            path = self._directory / name
            self._current = (name, path.open("ab"))
            self._unsynced |= {path} if name in self._sizes else {path, self._directory}
        return self._current[1]

    def _close_current(self) -> None:
        if self._current is not None:
            self._current[1].close()
            self._current = None


def _is_record_of(raw: bytes, body: bytes, add_ms: int | None, expiry_ms: int) -> bool:
    """Return True if ``raw`` is one whole record that adds this item."""
    state = QueueState()
    if replay_file([raw], 0, state) is not None or list(state.queue) != [0]:
        return False
    item = r.read_item(raw, 0)
    return item.end == len(raw) and (raw[item.begin :], item.add_ms, item.expiry_ms) == (body, add_ms, expiry_ms)
