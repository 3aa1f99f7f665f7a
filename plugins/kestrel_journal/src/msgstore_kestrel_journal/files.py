"""Files of Kestrel's queues: which belong to a queue, and in which order they are replayed.

A directory has the live file ``name`` of each queue, rotated files ``name.<ms>``, packed files ``name.<ms>.pack`` that were not
renamed yet, and temporary files ``name~~<ms>``. A packed file stands for the rotated files up to its number.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from msgstore.contract import StoreError

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
LAST_NUMBER = 2**63 - 1
"""Largest number in the name of a rotated file: Kestrel reads it as a signed integer of 64 bits."""
_PACK = "pack"
TEMPORARY = "~~"
_END_OF_QUEUE = re.compile(rf"\.|{TEMPORARY}")


@attrs.frozen
class QueueFiles:
    """Files of one queue, after what Kestrel does when it starts. Nothing is changed on disk."""

    queue: str
    order: tuple[tuple[str, str], ...]
    """(name after the start, name now) of each file to replay, oldest first. The live file is the last, if it exists."""
    replaced: tuple[str, ...] = ()
    """Rotated files that a packed file replaces."""
    temporary: tuple[str, ...] = ()
    """Files of a rewrite that did not end. Kestrel deletes them."""
    foreign: tuple[str, ...] = ()
    """Files with another suffix, which keep Kestrel from loading the queue."""


FORBIDDEN = "./~"
"""Characters that a queue's name must not have. A ``+`` makes it the child of another queue."""


def check_name(queue: str) -> None:
    """Raise StoreError for a name that Kestrel refuses."""
    if not queue or any(char in queue for char in FORBIDDEN + "\0\n"):
        raise StoreError(f"{queue!r} is no name for a queue of Kestrel: it has none of the characters {' '.join(FORBIDDEN)}")


def list_names(directory: Path) -> tuple[list[str], dict[str, str]]:
    """Return the names in a directory that are files to Kestrel: all but directories. And the reason for each that cannot be
    read, such as a link to a disk that is not mounted, if it belongs to a queue. Raises OSError if the directory cannot be
    listed."""
    names, odd = list[str](), dict[str, str]()
    for path in sorted(directory.iterdir()):
        try:
            mode = path.stat().st_mode
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not path.is_symlink():  # deleted meanwhile
                continue
            if not queue_names([path.name]):  # such as the lock of an editor
                continue
            odd[path.name] = f"cannot be examined: {error.strerror}. Mount its disk, or remove the name: its queue is not read"
        else:
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                odd[path.name] = "is no regular file, and is not read"
        names.append(path.name)
    return names, odd


def queue_names(names: Iterable[str]) -> list[str]:
    """Return the queues that have a file among ``names``: the text before the first dot."""
    return sorted({name.split(".", 1)[0] for name in names if TEMPORARY not in name and not name.startswith(".")})


def names_by_queue(names: Iterable[str]) -> dict[str, list[str]]:
    """Return ``names`` by the queue that each belongs to: for :func:`queue_files`, whose time grows with all names."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_END_OF_QUEUE.split(name, maxsplit=1)[0], []).append(name)
    return found


def queue_files(names: Iterable[str], queue: str) -> QueueFiles:
    """Return the files of ``queue`` among ``names``, the files of a directory.

    Each packed file, from the lowest number up, replaces the rotated files up to its number, an earlier packed one too. It
    never replaces the live file.
    """
    rotated: dict[int, str] = {}
    packed: dict[int, str] = {}
    live, temporary, foreign = [], [], []
    for name in sorted(names):
        if name.startswith(queue + TEMPORARY):
            temporary.append(name)
        elif name == queue:
            live.append((name, name))
        elif name.startswith(queue + "."):
            number, *more = name[len(queue) + 1 :].split(".")
            if _NUMBER.fullmatch(number) and int(number) <= LAST_NUMBER and more in ([], [_PACK]):
                (packed if more else rotated)[int(number)] = name
            else:
                foreign.append(name)
    order, replaced = _without_replaced(rotated, packed)
    numbered = (order[number] for number in sorted(order))
    renamed = [(now.removesuffix("." + _PACK), now) for now in numbered]
    return QueueFiles(queue, (*renamed, *live), tuple(replaced), tuple(temporary), tuple(foreign))


def _without_replaced(rotated: Mapping[int, str], packed: Mapping[int, str]) -> tuple[dict[int, str], list[str]]:
    """Return the files that are left, by number, and those that packed files replace."""
    last = max(packed, default=-1)
    replaced = [name for number, name in sorted({**rotated}.items()) if number <= last]
    replaced += [name for number, name in sorted(packed.items()) if number < last]
    left = {number: name for number, name in rotated.items() if number > last}
    return left | ({last: packed[last]} if packed else {}), replaced
