"""Rounds of the benchmark: each store runs once per round, in a newly shuffled order with a fixed seed.

Times are nanoseconds per message. Wall time is ``time.perf_counter``. Processor time is ``time.process_time``, user and
system, of all threads of the process, those of RocksDB included. Python's garbage is collected before each measurement; its
collector stays on.
"""

from __future__ import annotations

import contextlib
import gc
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ours import MsgStore
from peer import LAG, OPERATIONS, Pair, Peer
from profiling import MOST_MESSAGES, Line, TimedFiles, own_times

SEED = 20
WORKING_SET = 10_000
"""Messages in the smaller of the two stores on which random gets are measured."""
GET_PASSES = 3
"""Passes over the smaller store in one measurement, each in another random order."""
WARM_UP_BYTES = 256 * 2**20
"""Bytes written and deleted before the first measurement: new pages of the host cost many times as much as used ones."""
CHECKED = 50
"""Messages of each round that are compared with the bodies that were put."""


@dataclass(frozen=True)
class Plan:
    """Stores, operations and sizes of a run. Sizes are bytes of a body."""

    peers: Sequence[type[Peer]]
    operations: Sequence[str]
    messages: dict[int, int]
    """Body size to number of messages."""
    rounds: int
    directory: Path
    divisor: int = 1
    """Divisor of counts that do not depend on the size of a body."""
    most: int | None = None
    """Maximum number of messages in each measurement."""

    def count(self, usual: int) -> int:
        """Return ``usual``, reduced for a smaller run."""
        return min(usual // self.divisor, self.most or usual)

    def has(self, store: str) -> bool:
        """Return True if the store was selected."""
        return any(peer.name == store for peer in self.peers)


@dataclass
class Result:
    """Times of one store, operation, size and working set; one value per round."""

    store: str
    operation: str
    size: int
    messages: int
    """Messages in the working set."""
    working_set: str
    """``10k`` (at most WORKING_SET messages) or ``full`` for gets; ``full`` for all other operations."""
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def wall_ns(self) -> float:
        return statistics.median(self.wall)

    @property
    def cpu_ns(self) -> float:
        return statistics.median(self.cpu)


class Results:
    """Results by (store, operation, size, working set), in the order of first appearance."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, str, int, str], Result] = {}

    def add(self, store: str, operation: str, size: int, messages: int, working_set: str, cost: tuple[float, float]) -> None:
        key = store, operation, size, working_set
        result = self.by_key.setdefault(key, Result(store, operation, size, messages, working_set))
        result.wall.append(cost[0])
        result.cpu.append(cost[1])

    def get(self, store: str, operation: str, size: int, working_set: str = "full") -> Result | None:
        return self.by_key.get((store, operation, size, working_set))

    def __iter__(self) -> Iterator[Result]:
        return iter(self.by_key.values())


def timed(action: Callable[[], object], messages: int) -> tuple[float, float]:
    """Run ``action`` and return (wall, processor) nanoseconds per message."""
    gc.collect()
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    action()
    wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    return wall / messages, cpu / messages


def make_messages(size: int, count: int, rng: random.Random) -> list[Pair]:
    """Return messages with random bodies, which no store can compress. Each body is a distinct object."""
    return [(rng.randbytes(16), rng.randbytes(size)) for _ in range(count)]


def warm_up(directory: Path) -> None:
    """Write and delete WARM_UP_BYTES on the file system under test."""
    block = random.Random(SEED).randbytes(2**20)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as stream:
        for _ in range(WARM_UP_BYTES // len(block)):
            stream.write(block)


def run(plan: Plan, progress: Callable[[str], object]) -> Results:
    """Run all rounds of all sizes, after the warm-up."""
    progress("warming up")
    warm_up(plan.directory)
    order = random.Random(SEED)
    results = Results()
    if not set(plan.operations) & set(OPERATIONS):
        return results
    for size, count in plan.messages.items():
        pairs = make_messages(size, count, random.Random(SEED + size))
        for peer in plan.peers:  # the cost of imports and first calls is not counted
            run_peer(peer, plan, pairs[: 4 * LAG], Results(), order)
        for number in range(plan.rounds):
            peers = list(plan.peers)
            order.shuffle(peers)
            for peer in peers:
                progress(f"{size} B, round {number + 1} of {plan.rounds}: {peer.name}")
                run_peer(peer, plan, pairs, results, order)
    return results


def run_peer(kind: type[Peer], plan: Plan, pairs: Sequence[Pair], results: Results, rng: random.Random) -> None:
    """Run all selected operations of one store once, in new directories that are deleted afterwards."""
    wanted = [name for name in plan.operations if name in kind.operations]
    if set(wanted) & {"put", "get", "read_many", "remove"}:
        with new_directory(plan.directory) as directory:
            peer = kind(directory)
            try:
                _whole_set(peer, wanted, pairs, results, rng)
            finally:
                peer.close()
    if "get" in wanted:
        with new_directory(plan.directory) as directory:
            peer = kind(directory)
            try:
                _small_set(peer, pairs[:WORKING_SET], results, rng)
            finally:
                peer.close()
    if "lifecycle" in wanted:
        pairs = pairs[: max(len(pairs) // 4, 2 * LAG)]
        with new_directory(plan.directory) as directory:
            peer = kind(directory)
            try:
                cost = timed(lambda: peer.lifecycles(pairs), len(pairs))
                results.add(kind.name, "lifecycle", len(pairs[0][1]), len(pairs), "full", cost)
            finally:
                peer.close()


def _whole_set(peer: Peer, wanted: Sequence[str], pairs: Sequence[Pair], results: Results, rng: random.Random) -> None:
    size, count, ids = len(pairs[0][1]), len(pairs), [msg_id for msg_id, _ in pairs]

    def note(operation: str, cost: tuple[float, float], messages: int = count, working_set: str = "full") -> None:
        if operation in wanted:
            results.add(peer.name, operation, size, messages, working_set, cost)

    note("put", timed(partial(peer.put_all, peer.prepare_puts(pairs)), count))
    peer.wait_until_idle()
    check(peer, rng.sample(pairs, min(CHECKED, count)))

    if "get" in wanted and count > WORKING_SET:
        targets = list(peer.prepare_gets(rng.sample(ids, count)))
        note("get", timed(partial(peer.get_all, targets), count))
    if "read_many" in wanted:
        note("read_many", timed(partial(peer.get_many_all, ids), count))
    if "remove" in wanted:
        note("remove", timed(partial(peer.remove_all, ids), count))
        if any(peer.get_one(msg_id) is not None for msg_id in rng.sample(ids, min(CHECKED, count))):
            raise RuntimeError(f"{peer.name}: a removed message still exists")


def _small_set(peer: Peer, pairs: Sequence[Pair], results: Results, rng: random.Random) -> None:
    """Measure random gets from a store that has only the small set."""
    ids = [msg_id for msg_id, _ in pairs]
    peer.put_all(peer.prepare_puts(pairs))
    peer.wait_until_idle()
    targets = [target for _ in range(GET_PASSES) for target in peer.prepare_gets(rng.sample(ids, len(ids)))]
    cost = timed(partial(peer.get_all, targets), len(targets))
    results.add(peer.name, "get", len(pairs[0][1]), len(ids), "10k", cost)


def check(peer: Peer, pairs: Sequence[Pair]) -> None:
    """Raise RuntimeError unless the store returns these bodies."""
    for msg_id, body in pairs:
        if peer.get_one(msg_id) != body:
            raise RuntimeError(f"{peer.name}: get returned another body than the one that was put")


@contextlib.contextmanager
def new_directory(parent: Path) -> Iterator[Path]:
    """Create a directory under ``parent``, and delete it with its contents after the block."""
    path = Path(tempfile.mkdtemp(prefix="msgstore-bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def file_system(directory: Path) -> str:
    """Return the type of the file system of ``directory``, or ``unknown``."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    here = directory.resolve()
    kinds = {point: kind for _, point, kind, *_ in mounts}  # the last file system mounted at a point is visible
    return next((kinds[str(point)] for point in [here, *here.parents] if str(point) in kinds), "unknown")


def profile(plan: Plan, kind: type[MsgStore], operation: str, size: int) -> tuple[str, list[Line]]:
    """Repeat one operation of the first table: once under ``cProfile``, once with timed file operations on all threads."""
    pairs = make_messages(size, min(plan.messages[size], MOST_MESSAGES), random.Random(SEED + size))
    lines: list[Line] = []
    with new_directory(plan.directory) as directory, contextlib.closing(kind(directory)) as peer:
        lines += own_times(_prepared(peer, operation, pairs), len(pairs))
    files = TimedFiles()
    with new_directory(plan.directory) as directory, contextlib.closing(kind(directory, files)) as peer:
        action = _prepared(peer, operation, pairs)
        files.events.clear()
        wall, cpu = timed(action, len(pairs))
        lines += [Line(f"file operation {line.what}", line.value, line.unit) for line in files.lines(len(pairs))]
    lines += [Line("total, wall time", wall, "ns"), Line("total, processor time", cpu, "ns")]
    return f"{len(pairs):,} messages; own time of functions under cProfile, then file operations without it", lines


def _prepared(peer: Peer, operation: str, pairs: Sequence[Pair]) -> Callable[[], object]:
    """Prepare the store for an operation, and return the action to be timed."""
    ids = [msg_id for msg_id, _ in pairs]
    if operation in ("put", "lifecycle"):
        return partial(peer.put_all if operation == "put" else peer.lifecycles, pairs)
    peer.put_all(peer.prepare_puts(pairs))
    peer.wait_until_idle()
    targets = peer.prepare_gets(random.Random(SEED).sample(ids, len(ids)))
    if operation == "get":
        peer.get_all(targets)  # the first pass opens and maps files
        return partial(peer.get_all, targets)
    return partial(peer.get_many_all if operation == "read_many" else peer.remove_all, ids)
