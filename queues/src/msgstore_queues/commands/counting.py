"""Numbers of messages of each queue, without opening a vhost: nothing is locked or written.

After a clean stop they are in a file of the vhost. Otherwise, while a process has the vhost open or after a crash, the source
``rabbitmq`` counts what is in the files: that is what a crash at this moment would leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from msgstore.contract import MsgStoreError, StoreIOError
from msgstore.files import Files
from msgstore.jobs.messages.listing import count_queues
from msgstore.jobs.messages.selection import select
from msgstore.jobs.messages.sources import source_spec
from msgstore.jobs.tasks import ProgressMeter
from msgstore.jobs.workers import worker_catalogue
from msgstore.option_values import Backend
from msgstore_queues.directories import Remembered, queue_path, read_counts
from msgstore_queues.options import SUFFIX
from msgstore_queues.vhosts import FoundVHost, remembered_queues

_ATTEMPTS = 5
"""Attempts to count. Meanwhile the process that has the vhost open may delete a file."""

Counts = dict[str, tuple[int, int]]
"""Name of a queue to its messages, and the bytes of their bodies."""


@attrs.frozen
class CountedQueue:
    """A queue in numbers. None: not known."""

    vhost: FoundVHost
    queue: Remembered
    messages: int | None
    bytes: int | None
    unacked: int | None
    """Unacked messages, which ``messages`` contains. Files do not tell them, but after a stop there are none."""
    delayed: int | None
    """Messages that wait until they are due, beside ``messages``."""

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "queue", "vhost": self.vhost.name, "queue": self.queue.name, "messages": self.messages,
            "bytes": self.bytes, "unacked": self.unacked, "delayed": self.delayed, "durable": self.queue.durable,
            "backing": self.queue.backing, "index": self.queue.index, "state": self.vhost.state, "pid": self.vhost.pid,
        }  # fmt: skip


def count_all(vhosts: Iterable[FoundVHost]) -> tuple[list[CountedQueue], list[str]]:
    """Return the queues of vhosts by name, and why the messages of some are not counted. Raises StoreError, OSError."""
    found, reasons = [], []
    for vhost in vhosts:
        try:
            counts = _counts(vhost)
        except MsgStoreError as error:
            counts = {}
            reasons.append(str(error))
        found += _count_queues(vhost, counts)
    return found, reasons


def _count_queues(vhost: FoundVHost, counts: Counts) -> list[CountedQueue]:
    remembered = remembered_queues(vhost)
    names = {queue.name for queue in remembered}
    found = []
    for queue in remembered:
        if queue.name.removesuffix(SUFFIX) in names - {queue.name}:
            continue  # it has the delayed messages of another
        messages, size = counts.get(queue.name, (None, None))
        is_known = not vhost.is_open and messages is not None
        holder = queue.name + SUFFIX
        delayed = counts.get(holder, (None, None))[0] if holder in names else 0
        found.append(CountedQueue(vhost, queue, messages, size, 0 if is_known else None, delayed))
    return found


def _counts(vhost: FoundVHost) -> Counts:
    """Raises StoreError if the files cannot be counted, PluginError without the source."""
    queues = remembered_queues(vhost)
    if not queues:
        return {}
    if not vhost.is_open and (saved := read_counts(Files(), vhost.directory)) is not None:
        paths = {queue_path(vhost.directory, vhost.name, queue.name).name: queue.name for queue in queues}
        return {name: saved[path] for path, name in paths.items() if path in saved}
    spec = source_spec(worker_catalogue(), vhost.directory, Backend("rabbitmq"))
    for left in reversed(range(_ATTEMPTS)):
        try:
            counted, _ = count_queues(spec, select(), ProgressMeter(0))
            break
        except StoreIOError:
            if not left:
                raise
    sums: Counts = {}
    indexed = {queue.name for queue in queues if _is_indexed(queue)}
    for one in counted:
        if one.info.read and (name := one.info.name.queue) in indexed:  # one for each priority
            messages, size = sums.get(name, (0, 0))
            sums[name] = messages + one.messages, size + one.bytes
    return sums


def _is_indexed(queue: Remembered) -> bool:
    """Return True if the messages are in a queue index, which the source counts, or nowhere."""
    over = queue.options.get("over", "variable")
    below = over.get("use") if isinstance(over, Mapping) else over
    backing = below if queue.backing in ("mirror", "priority") else queue.backing
    return backing in ("memory", "variable")
