"""What is done to a store, and what the store owes at each moment of it.

A workload is a list of operations. A *change* (write, remove) happens in memory and does no input or output here: batches stay
small and ``sync_interval`` is an hour. A *call* (open, flush, roll, compact, migrate, close) does all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

import msgstore
from msgstore.contract import Action, Capability, Drop
from msgstore.directory import Settings, write_settings
from msgstore.engine.compact.policy_actions import numbers_of
from msgstore.files import Files
from msgstore.testing.faults import UnsyncedFiles
from support import DATA, RealDirectory, catalogue, collect, combinable, needs_foreign, open_with


@attrs.frozen
class CrashCell:
    """An index, and what is in the segments: ``v1-mixed``, ``v2``, ``v2-checksum`` or ``ledger``."""

    index: str
    content: str

    @property
    def keys(self) -> dict[str, Any]:
        """Keywords of ``open_store``: small segments, and no thread that flushes or collects: a commit between two steps would
        be a flush boundary that the workload does not know."""
        index: Any = {"use": "lmdb", "map_size": "1MiB"} if self.index == "lmdb" else self.index
        record = "checksum" if self.content == "v2-checksum" else "message"
        format_, header = ("ledger", 4096) if self.content == "ledger" else ("v2", 64)
        return {
            "index": index, "format": format_, "record": record,
            "file_size_limit": 2136 + header, "large_message": 900, "sync_interval": "1h", "gc_interval": 0,
        }  # fmt: skip

    @property
    def persistent(self) -> bool:
        """Whether counts and removals survive a crash."""
        return Capability.PERSISTENT in catalogue().index(self.index).capabilities

    @property
    def checksummed(self) -> bool:
        return self.content in ("v2-checksum", "ledger")

    def __str__(self) -> str:
        return f"{self.index}-{self.content}"


CRASH_CELLS = [CrashCell(index, content) for index in ("ets", "lmdb") for content in ("v1-mixed", "v2", "v2-checksum")]
FOREIGN_CELLS = [pytest.param(CrashCell(index, "ledger"), marks=needs_foreign) for index in ("ets", "lmdb")]
"""A format with a header of 4096 bytes."""


@attrs.frozen
class Expected:
    """Obligations of a store at one moment. Each change and each confirmation makes another value."""

    settled: Mapping[bytes, int] = {}
    """References as of the last flush that has returned."""
    wanted: Mapping[bytes, int] = {}
    """References as of the next one."""
    confirmed: frozenset[bytes] = frozenset()
    closed: bool = False
    """True between a clean stop and the next opening: then every index has every count."""
    refcounts: tuple[tuple[bytes, int], ...] | None = None
    """What the caller passes when it opens: the broker's counts, until a first opening has finished."""

    @property
    def required(self) -> frozenset[bytes]:
        """Confirmed and not removed: these must be there, whatever happens now."""
        return frozenset((self.confirmed | self.settled.keys()) & self.wanted.keys())

    def change(self, msg_id: bytes, by: int) -> Expected:
        """A reference is added or removed."""
        wanted = {**self.wanted, msg_id: self.wanted.get(msg_id, 0) + by}
        if wanted[msg_id]:
            return attrs.evolve(self, wanted=wanted)
        del wanted[msg_id]
        return attrs.evolve(self, wanted=wanted, confirmed=self.confirmed - {msg_id})

    def confirm(self, ids: Iterable[bytes]) -> Expected:
        """``on_confirm``: an id that was written and removed meanwhile is confirmed as well, and owed no more."""
        return attrs.evolve(self, confirmed=self.confirmed | (set(ids) & self.wanted.keys()))

    def settle(self, *, closed: bool = False) -> Expected:
        """A call has returned that flushes: what was wanted is owed."""
        return attrs.evolve(self, settled=self.wanted, closed=closed)


@attrs.define
class Run:
    """One run of a workload on one directory. Each operation of the workload is a method."""

    path: Path
    cell: CrashCell
    durability: str
    files: Files
    bodies: dict[bytes, bytes] = attrs.field(factory=dict)
    """Of every id that was ever written; an id names one body for ever."""
    owed: Expected = Expected()
    store: msgstore.Store | None = None
    client: Any = None

    def do(self, step: Step) -> None:
        name, *numbers = step
        getattr(self, name)(*numbers)

    def open(self, *, erase: bool = False) -> None:
        self.owed = attrs.evolve(self.owed, closed=False)
        keys = {**self.cell.keys, "durability": self.durability, "erase": erase}
        self.store = open_with(self.path, self.files, refcounts=self.owed.refcounts, **keys)
        self.owed = attrs.evolve(self.owed, refcounts=None)
        self.client = self.store.client("queue", on_confirm=self._confirmed)

    def _confirmed(self, ids: list[bytes]) -> None:
        self.owed = self.owed.confirm(ids)

    def open_erasing(self) -> None:
        self.open(erase=True)

    def write(self, *numbers: int) -> None:
        for number in numbers:
            msg_id, body = id_of(number), body_of(number)
            self.bodies[msg_id] = body
            self.owed = self.owed.change(msg_id, 1)
            self.client.write(msg_id, body)

    def remove(self, *numbers: int) -> None:
        self._remove([id_of(number) for number in numbers])

    def remove_real(self) -> None:
        """Every other message that the broker wrote, with all of its references."""
        ours = {id_of(number) for number in range(200)}
        for msg_id, count in sorted(self.owed.wanted.items())[::2]:
            if msg_id not in ours:
                self._remove([msg_id] * count)

    def _remove(self, ids: list[bytes]) -> None:
        for msg_id in ids:
            self.owed = self.owed.change(msg_id, -1)
        self.client.remove(ids)

    def flush(self) -> None:
        self.store.flush()
        self.owed = self.owed.settle()

    def roll(self) -> None:
        self.store.roll()
        self.owed = self.owed.settle()

    def compact(self) -> None:
        self._collected(self.store.compact(everything=True))

    def migrate(self) -> None:
        self._collected(self.store.migrate())

    def combine(self) -> None:
        self._collect(*combinable(self.store))

    def drop(self) -> None:
        """What is in the oldest segment is owed no more."""
        oldest = min(s.number for s in self.store.segments() if s.live_count and not s.current)
        for entry in self.store.entries():
            if entry.number == oldest:
                for _ in range(entry.references):
                    self.owed = self.owed.change(entry.msg_id, -1)
        self._collect(Drop(oldest, "it is the oldest"))

    def _collect(self, *actions: Action) -> None:
        """Collect as a policy that plans these actions, and may drop messages."""
        self._collected(collect(self.store, *actions))
        left = {segment.number for segment in self.store.segments()}
        assert not [action for action in actions if left.issuperset(numbers_of(action))], f"{actions} were not carried out"

    def _collected(self, done: list[Any]) -> None:
        self.owed = self.owed.settle()
        skipped = [segment for segment in done if segment.skipped]
        assert not skipped, skipped

    def close(self) -> None:
        self.store.close()
        self.owed = self.owed.settle(closed=True)


def id_of(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(4), digest_size=16).digest()


def body_of(number: int) -> bytes:
    """Among them: nothing, zeros, 255s, and what looks like the records of both formats."""
    if number in LARGE:
        return id_of(number) * 62
    shapes = [
        id_of(number) * (1 + number * 7 % 11),
        b"",
        b"\0" * (20 + number % 90),
        b"\xff" * (20 + number % 50),
        (17).to_bytes(8, "big") + b"\x77" * 17 + b"\xff" + b"tail" * (number % 5),
        b"\x03" + (40).to_bytes(4, "big") + b"\x78" * 35,
        id_of(number + 1000) * (2 + number % 9),
    ]
    return shapes[number % len(shapes)]


LARGE = (50, 112)
"""Messages that get a segment of their own in these stores."""


Step = tuple[Any, ...]
"""A method of :class:`Run`, and the numbers of messages."""


def steps(cell: CrashCell) -> list[Step]:
    """The workload: writes, second writes, fan-out, removals of every kind, rolls, large messages, compaction, migration, a
    clean stop in the middle, combination, retention, erasure, and a clean stop at the end."""
    migration = [("remove_real",), ("flush",), ("write", 100, 101), ("migrate",)] if cell.content == "v1-mixed" else []
    return [
        ("open",),
        ("write", *range(1, 13)),
        ("write", 3, 3, 4, 5),  # fan-out: four references and two
        ("flush",),
        ("remove", 1, 2, 3),
        ("flush",),
        ("write", 1, 4),  # 1 is revived in the current segment
        ("write", 13),
        ("flush",),
        ("write", *range(20, 50)),  # rolls
        ("write", 50),
        ("write", 51, 52),
        ("flush",),
        ("write", 60, 61),
        ("remove", 60, 3),  # 60 never reaches the disk
        ("write", 60),
        ("flush",),
        ("remove", 50, *range(22, 36)),  # a large one: its segment goes; holes for the compaction
        ("flush",),
        ("write", 22, 50),  # late, of sealed segments: written once more
        ("compact",),
        ("write", 70, 71, 70),
        ("close",),
        ("open",),
        ("remove", 5, 70, 51),
        ("write", *range(80, 100)),
        ("roll",),
        *migration,
        ("remove", *range(81, 100, 2), 36, 38),
        ("compact",),
        ("write", 110, 111, 111),
        ("write", 112),
        ("remove", 4),
        ("close",),
        ("open_erasing",),
        ("remove", 112, 110),
        ("flush",),
        ("roll",),
        ("combine",),
        ("drop",),
        ("close",),
    ]


def prepare(run: Run) -> None:
    """The directory as the workload finds it: for ``v1-mixed`` what a broker wrote, with the broker's counts. It is adopted
    already, with bodies as they are stored."""
    run.path.mkdir()
    if run.cell.content == "v1-mixed":
        _real_v1(run)
        write_settings(UnsyncedFiles(), run.path, Settings(index=run.cell.index))


REAL_BYTES = 9000
"""Of each real segment its first records, up to about so many bytes: thousands of copies of it are made."""


def _real_v1(run: Run) -> None:
    """The beginnings of segments that RabbitMQ wrote and compacted, cut between two records."""
    real = RealDirectory.load("v1_compacted")
    bodies, counts = {}, real.refcounts
    for segment in real.manifest["segments"][:2]:
        data = (DATA / "msg-store" / real.name / "store" / segment["name"]).read_bytes()
        records = [r for r in segment["records"] if r["offset"] + r["total_size"] <= REAL_BYTES]
        end = records[-1]["offset"] + records[-1]["total_size"]
        (run.path / segment["name"]).write_bytes(data[:end])
        for record in records:
            at = record["offset"]
            bodies[bytes.fromhex(record["id"])] = data[at + 24 : at + record["total_size"] - 1]
    kept = {msg_id: counts[msg_id] for msg_id in bodies if msg_id in counts}
    assert len(kept) > 3
    run.bodies.update(bodies)
    run.owed = Expected(kept, kept, refcounts=tuple(kept.items()))
