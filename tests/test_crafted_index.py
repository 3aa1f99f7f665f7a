"""Crafted files of LMDB: an opening for reading and one for writing find the messages, or end with an error of msgstore.

LMDB has no checksums and trusts its pages, so a crafted file can end the process: SECURITY.md says how often, and this module
prints it. ``--fuzz 300000`` tries 300 files; ``--fuzz-from`` gives others.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import msgstore
from attempts import in_processes
from support import filled, id_of

pytestmark = pytest.mark.fuzz
PAGE = 4096
KEYS: dict[str, Any] = {"index": {"use": "lmdb", "map_size": "1MiB"}, "gc_interval": 0}
MESSAGES = 2000
MOST_ENDED = 0.1
"""Share of the openings that may end the process."""
MOST_INCOMPLETE = 0.02
"""Share of the openings that may find fewer messages without an error: a crafted page can be a valid, emptier one."""
MOST_KIB = 100 * 1024
"""Memory that an opening may take."""


def _flip(data: bytearray, page: int, random: Random) -> None:
    data[page + random.randrange(PAGE)] ^= 1 << random.randrange(8)


def _bytes(data: bytearray, page: int, random: Random) -> None:
    at = page + random.randrange(PAGE - 8)
    data[at : at + 8] = random.randbytes(8)


def _header(data: bytearray, page: int, random: Random) -> None:
    """Page number, kind, or where its nodes are."""
    at, size = random.choice([(0, 8), (10, 2), (12, 2), (14, 2)])
    data[page + at : page + at + size] = _number(random, size)


def _node(data: bytearray, page: int, random: Random) -> None:
    """Offset, size or kind of a node."""
    lower = struct.unpack_from("<H", data, page + 12)[0]
    slot = page + random.randrange(16, min(max(lower, 18), PAGE), 2)
    node = page + struct.unpack_from("<H", data, slot)[0] % (PAGE - 8)
    at = random.choice([slot, node, node + 2, node + 4, node + 6])
    data[at : at + 2] = _number(random, 2)


def _meta(data: bytearray, _: int, random: Random) -> None:
    """A member of both meta pages: sizes, flags, roots, numbers of transactions."""
    at, size = random.choice([(16, 4), (20, 4), *((at, 8) for at in range(24, 152, 8)), *((at, 2) for at in (44, 46, 92, 94))])
    value = _number(random, size)
    for page in (0, PAGE):
        data[page + at : page + at + size] = value


def _page(data: bytearray, page: int, random: Random) -> None:
    """Another page in its place, with the number that belongs there."""
    other = random.randrange(used_pages(data)) * PAGE
    data[page + 8 : page + PAGE] = data[other + 8 : other + PAGE]


def _cut(data: bytearray, page: int, random: Random) -> None:
    del data[page + random.choice([0, random.randrange(PAGE)]) :]


def _number(random: Random, size: int) -> bytes:
    largest = 2 ** (8 * size)
    usual = [*(0, 1, 2, 4, 8, 16, PAGE), largest // 2, largest - 1, random.randrange(40), random.getrandbits(8 * size)]
    return (random.choice(usual) % largest).to_bytes(size, "little")


DAMAGE: dict[str, Callable[[bytearray, int, Random], None]] = {
    "a flipped bit": _flip,
    "eight bytes": _bytes,
    "page header": _header,
    "node": _node,
    "meta pages": _meta,
    "another page": _page,
    "cut": _cut,
}


def open_it(original: Path, what: str, seed: int, mode: str, directory: Path, number: int) -> str:
    """Damage a copy of the store, open it, and read and change messages. Return how that ended."""
    random, place = Random(seed), directory / str(number)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(original, place)
    file = place / "msgstore-lmdb/data.mdb"
    data = bytearray(file.read_bytes())
    DAMAGE[what](data, random.randrange(used_pages(data)) * PAGE, random)
    file.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with msgstore.open_store(place, mode=mode, **KEYS) as store, store.client() as client:
            for msg_id in map(id_of, range(0, MESSAGES, 50)):
                with contextlib.suppress(msgstore.MessageNotFound):
                    client.read(msg_id)
            found = sum(1 for _ in store.entries())
            if mode == "rw":
                client.write(b"the last one....", b"new")
                store.flush()
                client.remove([entry.msg_id for entry in itertools.islice(store.entries(), 0, None, 7)])
        outcome = "all messages" if found == MESSAGES else "not all"
    except msgstore.MsgStoreError:
        outcome = "an error"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KIB
    return outcome


def used_pages(data: bytearray) -> int:
    return len(data.rstrip(b"\0")) // PAGE + 1


@pytest.mark.parametrize("what", DAMAGE)
def test_crafted_file_is_refused_or_read(what, request, tmp_path, report):
    """In bounded time and memory. A process that LMDB ends is counted; nothing else fails."""
    original = filled(tmp_path / "store", [(id_of(number), b"body") for number in range(MESSAGES)], **KEYS)
    first = request.config.getoption("--fuzz-from")
    seeds = range(first, first + max(2, request.config.getoption("--fuzz") // 1000 // len(DAMAGE)))
    calls = (
        (f"{what}, --fuzz-from {seed}, {mode}", partial(open_it, original, what, seed, mode, tmp_path))
        for seed in seeds
        for mode in ("r", "rw")
    )
    ended: Counter[str] = Counter()
    failures = []
    for label, outcome, error in in_processes(calls):
        ended[outcome or "ended"] += 1
        if error and "the process ended" not in error:
            failures.append(f"{label}: {error}")
    openings = 2 * len(seeds)
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(ended.items()))
    report("crafted files of LMDB", f"{what}: {openings:,} openings: {counts}")
    assert not failures, "\n".join(failures[:5])
    assert ended["ended"] <= max(1, MOST_ENDED * openings)
    assert ended["not all"] <= MOST_INCOMPLETE * openings
