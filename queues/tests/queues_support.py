"""Helpers of the tests of queues: vhosts on parts of the test's own, and messages in bulk."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from msgstore.files import Files
from msgstore.option_values import structure
from msgstore_queues.catalogue import Catalogue, load_catalogue
from msgstore_queues.options import VHostOptions
from msgstore_queues.queue import Queue
from msgstore_queues.testing.backing_queues import take_all
from msgstore_queues.testing.subjects import Subject, installed_backing_queues
from msgstore_queues.vhost import VHost

installed = functools.cache(load_catalogue)


def open_on(
    path: Path, files: Files | None = None, *, catalogue: Catalogue | None = None, name: str = "/",
    parts: dict[str, Any] | None = None, **options: Any,
) -> VHost:  # fmt: skip
    """Open a vhost on this file layer, this catalogue and other ``parts``: arguments of ``VHost``. No clock flushes it."""
    values = structure(VHostOptions, {"sync_interval": "365d", **options}, "a test")
    return VHost(path, name, values, catalogue or installed(), where="a test", files=files, **parts or {})


def typical_backing_queues() -> list[Subject]:
    """Return the last example of each in this distribution: ``variable`` with little memory, and the proxies over it."""
    ours = (one for one in installed_backing_queues() if one.descriptor.factory.startswith("msgstore_queues."))
    return list({one.descriptor.name: one for one in ours}.values())


def publish(jobs: Queue, *bodies: bytes) -> None:
    for body in bodies:
        jobs.publish(body)


def bodies(jobs: Queue) -> list[bytes]:
    """Take all ready messages."""
    return [received.body for received in take_all(jobs)]
