"""Directories of stores that a job reads: those below a path, the virtual hosts that they belong to, and writers that come
while a job runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgstore.contract import StoreError
from msgstore.files import stat_regular_file
from msgstore.scan import FormatSet
from msgstore.writer_lock import read_lock

UNFINISHED = re.compile(r"\..+\.msgstore(-[0-9a-f]+)?")
"""Names of staging directories. They hold copies of messages, and may be left by a killed job."""
_NAMED = 10
"""Number of directories that a message names."""


def stores_beneath(directory: Path, formats: FormatSet) -> list[Path]:
    """Return the directories below one that have segments, by name. Staging directories do not count."""
    return [
        Path(path)
        for path, _, names in sorted(os.walk(directory))
        if Path(path) != directory
        and not is_unfinished(Path(path).relative_to(directory))
        and any(Path(name).suffix in formats.extensions for name in names)
    ]


def is_unfinished(path: Path) -> bool:
    return any(UNFINISHED.fullmatch(part) for part in path.parts)


def name_some(directories: list[str]) -> str:
    """Return a text with the first directories, and the number of the others."""
    more = f" and {len(directories) - _NAMED} more" if len(directories) > _NAMED else ""
    return ", ".join(directories[:_NAMED]) + more


def virtual_hosts(stores: Iterable[str]) -> list[str]:
    """Return the names of the virtual hosts of RabbitMQ that stores belong to: the content of ``.vhost`` above them."""
    names = set()
    for file in {Path(store).parent / ".vhost" for store in stores}:
        with suppress(OSError):
            stat_regular_file(file)
            with file.open("rb") as stream:
                names.add(json.dumps(stream.read(255).decode(errors="replace").strip(), ensure_ascii=False)[1:-1])
    return sorted(names)


def check_no_writer_since(lock_texts: Iterable[tuple[str, bytes]]) -> None:
    """Raise StoreError if a writer has opened a store since its lock file had the given text. Every opening changes it."""
    for store, text in lock_texts:
        if read_lock(Path(store)) != text:
            raise StoreError(
                f"{store}: another process has opened the store for writing since this job began, and may have moved or "
                "removed messages. Nothing was kept: stop the program that writes there, and run the job again."
            )
