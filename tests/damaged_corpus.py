"""Every directory that a broker left us, and forty damaged copies of their segments: what a salvage is measured by."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

DATA = Path(__file__).with_name("data")
DAMAGED = 40


def build_corpus(top: Path) -> list[Path]:
    """Build a tree at ``top``, always the same, and return its segments."""
    chance = random.Random(7)
    segments = sorted(path for suffix in ("rdq", "sqs") for path in DATA.rglob(f"*.{suffix}"))
    for directory in sorted({path.parent for path in segments}):
        shutil.copytree(directory, top / "whole" / "-".join(directory.relative_to(DATA).parts))
    large = [path for path in segments if path.stat().st_size > 2000]
    for number in range(DAMAGED):
        name, damage = list(DAMAGES.items())[number % len(DAMAGES)]
        source = chance.choice(large)
        target = top / "damaged" / f"{number:02}-{name}" / source.name
        target.parent.mkdir(parents=True)
        target.write_bytes(damage(source.read_bytes(), chance))
    return sorted(path for suffix in ("rdq", "sqs") for path in top.rglob(f"*.{suffix}"))


def _flipped(data: bytes, chance: random.Random) -> bytes:
    """Most hit a body, which nothing checks in these formats; so many that some hit what is checked."""
    changed = bytearray(data)
    for _ in range(chance.randrange(20, 80)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _zero_filled(data: bytes, chance: random.Random) -> bytes:
    """A span reads as zeros, as of a file that was preallocated, or of a bad disk."""
    begin, size = chance.randrange(len(data) - 1000), chance.randrange(1, 1000)
    return data[:begin] + bytes(size) + data[begin + size :]


def _shuffled(data: bytes, chance: random.Random) -> bytes:
    """Blocks of a file system are in another order."""
    blocks = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    chance.shuffle(blocks)
    return b"".join(blocks)


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "torn": lambda data, chance: data[: -chance.randrange(1, 100)],
    "flipped": _flipped,
    "truncated": lambda data, chance: data[: chance.randrange(1, len(data))],
    "zero-filled": _zero_filled,
    "shuffled": _shuffled,
    "duplicated": lambda data, chance: (
        data[: chance.randrange(len(data) // 2, len(data))] + data[chance.randrange(len(data) // 2) :]
    ),
}
