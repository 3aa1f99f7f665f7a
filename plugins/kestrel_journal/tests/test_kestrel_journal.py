"""Journal engine against a model: random histories with tiny thresholds, and a crash or a power loss at each file operation."""

from __future__ import annotations

import copy
import errno
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from unittest import mock

import attrs
import pytest

from crash.states import Inode, NameEdit, dropped, edited, kept, zeros
from msgstore.contract import StoreClosed, StoreError, StoreIOError
from msgstore_kestrel_journal import replay
from msgstore_kestrel_journal.disk import Disk
from msgstore_kestrel_journal.journal import Journal, JournalOptions
from support import failing

TINY = JournalOptions(
    default_journal_size=300, max_memory_size=200, max_journal_size=700, min_journal_compact_delay=0, sync_journal=None
)
NOW = 1_700_000_000_000


class MemoryDisk(Disk):
    """A directory in memory, with what of it is durable. ``at_change`` is called before each change, and inside each write."""

    def __init__(self, tree: dict[str, bytes], at_change: Callable[[], object]) -> None:
        self.entries = self.durable_entries = {name: Inode(content, durable=content) for name, content in tree.items()}
        self.edits: list[NameEdit] = []
        self.files: list[Inode] = []
        self.at_change = at_change
        self.after_sync: Callable[[], object] = lambda: None

    def names(self, directory: Path) -> list[str]:
        return sorted(self.entries)

    def read(self, path: Path) -> bytes:
        return self.entries[path.name].content

    def open_append(self, path: Path) -> int:
        if path.name not in self.entries:
            self._edit({path.name: Inode()})
        return self.open_read(path)

    def open_read(self, path: Path) -> int:
        self.files.append(self.entries[path.name])
        return len(self.files) - 1

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self.files[fd].content[offset : offset + size]

    def append(self, fd: int, data: bytes) -> None:
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            self.at_change()
            self.files[fd].change(len(self.files[fd].content), part, 0)

    def truncate(self, fd: int, size: int) -> None:
        self.at_change()
        self.files[fd].change(size, None, 0)

    def sync(self, fd: int) -> None:
        self.at_change()
        self.files[fd].sync()
        if self.files[fd] is self.entries.get("q"):
            self.after_sync()

    def rename(self, source: Path, target: Path) -> None:
        self._edit({source.name: None, target.name: self.entries[source.name]})

    def unlink(self, path: Path) -> None:
        self._edit({path.name: None})

    def _edit(self, edit: NameEdit) -> None:
        self.at_change()
        self.entries = edited(self.entries, edit)
        self.edits.append(edit)

    def sync_directory(self, directory: Path) -> None:
        self.at_change()
        self.durable_entries, self.edits = self.entries, []

    def close(self, fd: int) -> None:
        pass

    def after_power_loss(self, chance: random.Random) -> Iterator[dict[str, bytes]]:
        """Yield directories as a power loss can leave them: data that was not synced is lost, cut, zeros or kept."""

        def torn(inode: Inode) -> tuple[bytes, int]:
            return inode.content[: chance.randint(*sorted((len(inode.durable), len(inode.content))))], 0

        policies = (dropped, torn, zeros, kept)
        subsets = [self.durable_entries]
        for edit in self.edits:
            subsets += [edited(names, edit) for names in subsets]
        for names in subsets:
            for policy in (*policies, lambda inode: chance.choice(policies)(inode)):
                yield {name: policy(inode)[0] for name, inode in names.items()}


@attrs.define
class Model:
    """What the queue holds."""

    queue: deque[bytes] = attrs.field(factory=deque)
    opened: dict[int, bytes] = attrs.field(factory=dict)
    xid: int = 0

    def copy(self) -> Model:
        return Model(self.queue.copy(), dict(self.opened), self.xid)

    def started(self) -> list[bytes]:
        """Return the queue after a start: open items return to the head, the lowest xid first."""
        return [self.opened[xid] for xid in sorted(self.opened)] + list(self.queue)

    def apply(self, operation: str, argument: object) -> object:
        match operation:
            case "add":
                self.queue.append(argument)
                return True
            case "remove":
                return self.queue.popleft() if self.queue else None
            case "remove_tentative":
                if not self.queue:
                    return None
                self.xid += 1
                while self.xid in self.opened:
                    self.xid += 1
                self.opened[self.xid] = self.queue.popleft()
                return self.xid, self.opened[self.xid]
            case "confirm_remove":
                return self.opened.pop(argument, None) is not None
            case "unremove":
                if argument not in self.opened:
                    return False
                self.queue.appendleft(self.opened.pop(argument))
                return True
            case "continue_":
                xid, data = argument
                if self.opened.pop(xid, None) is None:
                    return False
                self.queue.append(data)
                return True
            case "peek":
                return self.queue[0] if self.queue else None
            case "flush":
                count = len(self.queue)
                self.queue.clear()
                return count
        raise AssertionError(operation)


def history(seed: int, length: int = 60) -> list[tuple[str, int]]:
    """Return (operation, number that selects its argument)."""
    rng = random.Random(seed)
    weights = {
        "add": 10, "remove": 4, "remove_tentative": 5, "confirm_remove": 3, "unremove": 2, "continue_": 2, "peek": 1,
        "flush": 0.3, "restart": 0.7,
    }  # fmt: skip
    names = rng.choices(list(weights), list(weights.values()), k=length)
    return [(name, rng.randrange(10**6)) for name in names]


def argument_of(operation: str, number: int, model: Model) -> object:
    data = b"%d" % number * (1 + number % 9)
    xids = sorted(model.opened)
    xid = xids[number % len(xids)] if xids and number % 7 else number % 5
    return {"add": data, "confirm_remove": xid, "unremove": xid, "continue_": (xid, data)}.get(operation)


def call(journal: Journal, operation: str, argument: object) -> object:
    if operation == "continue_":
        return journal.continue_(*argument)
    return getattr(journal, operation)(*([] if argument is None else [argument]))


def open_journal(directory: Path, disk: Disk, options: JournalOptions = TINY) -> Journal:
    return Journal(directory, "q", options, disk=disk, clock_ms=lambda: NOW)


def live(directory: Path, seed: int, disk: Disk, model: Model, before: list[Model], options: JournalOptions = TINY) -> None:
    """Run a history. ``before``: the models that the files may have, beside the one after the operation that runs: what was
    before it, and earlier ones that were not synced."""
    is_synced = options.sync_journal == 0 or not isinstance(disk, MemoryDisk)
    journal = open_journal(directory, disk, options)
    for operation, number in history(seed):
        before[:] = [*([] if is_synced else before), model.copy()]
        if operation == "restart":
            journal.close() if number % 2 else end_without_close(journal)
            model.queue, model.opened = deque(model.started()), {}
            journal = open_journal(directory, disk, options)
            continue
        argument = argument_of(operation, number, model)
        expected = model.apply(operation, argument)
        assert call(journal, operation, argument) == expected, (operation, argument)
        assert (len(journal), journal.size) == (len(model.queue), sum(map(len, model.queue)))
        assert journal.opened == model.opened
    before[:] = [*([] if is_synced else before), model.copy()]
    end_without_close(journal)


def allowed(states: list[Model]) -> list[list[bytes]]:
    """Return the queues of a start after a crash: of one of the states, or inside a flush, which removes one by one."""
    found = [state.started() for state in states]
    for before, after in pairwise(states):
        if not after.queue:
            head = before.started()[: len(before.opened)]
            found += [head + list(before.queue)[count:] for count in range(len(before.queue))]
    return found


def end_without_close(journal: Journal) -> None:
    """As a process that is killed."""
    journal._end()


def stored(directory: Path) -> tuple[list[bytes], dict[int, bytes]]:
    """Return what a pure reader finds."""
    found = replay(directory, "q", now_ms=NOW)
    return [found.data(place) for place in found.state.queue], {xid: found.data(it) for xid, it in found.state.opened.items()}


def drained(directory: Path) -> list[bytes]:
    journal = open_journal(directory, Disk())
    found = []
    while (data := journal.remove()) is not None:
        found.append(data)
    journal.close()
    return found


@pytest.mark.parametrize("options", [TINY, attrs.evolve(TINY, rewrite_in_memory=True)], ids=["packed", "rewritten"])
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.crash) for block in range(1, 6))])
def test_histories(block, options, tmp_path):
    """300 with each way to replace files: what the files say is what the model says, before and after a start."""
    packed = 0
    for seed in range(50 * block, 50 * block + 50):
        directory = tmp_path / str(seed)
        directory.mkdir()
        model = Model()
        live(directory, seed, Disk(), model, [], options)
        packed += len(list(directory.glob("q.*")))
        assert stored(directory) == (list(model.queue), model.opened), seed
        assert drained(directory) == model.started(), seed
    assert packed > 20


def sweep_crashes(seed: int, options: JournalOptions) -> int:
    """Run a history. Before each change, and inside each write, kill the process, or lose power, also in the start after a kill
    there."""
    model, before, chance = Model(), [Model()], random.Random(seed)
    checked: set[tuple[object, ...]] = set()

    def started(tree: dict[str, bytes]) -> list[bytes]:
        found = open_journal(Path("started"), MemoryDisk(tree, lambda: None), options).replay()
        return [found.data(place) for place in found.state.in_delivery_order()]

    def check(disk: MemoryDisk) -> None:
        states = [*before, model]
        expected = allowed(states)
        for tree in disk.after_power_loss(chance):
            key = (*sorted(tree.items()), *map(tuple, expected))
            if hash(key) not in checked:
                checked.add(hash(key))
                assert started(tree) in expected, (seed, tree)

    def kill_and_start() -> None:
        tree = {name: inode.content for name, inode in disk.entries.items()}
        assert started(tree) in allowed([before[-1], model]), (seed, tree)
        check(disk)
        killed = MemoryDisk({}, lambda: check(killed))
        killed.entries, killed.durable_entries, killed.edits = copy.deepcopy((disk.entries, disk.durable_entries, disk.edits))
        open_journal(Path("killed"), killed, options)

    disk = MemoryDisk({}, kill_and_start)
    disk.after_sync = lambda: before.__setitem__(slice(-1), [])
    live(Path("live"), seed, disk, model, before, options)
    return len(checked)


@pytest.mark.parametrize(
    ("sync", "block"),
    [(0, [0]), (None, [1])]
    + [pytest.param(sync, range(at, at + 37), marks=pytest.mark.crash) for sync in (0, None) for at in range(0, 296, 37)],
)
def test_kill_or_power_loss_at_each_file_operation(block, sync):
    for seed in block:
        options = attrs.evolve(TINY, sync_journal=sync, rewrite_in_memory=seed % 2 == 1)
        assert sweep_crashes(seed, options) > 100


def test_packing_keeps_items_that_were_reserved_since_the_checkpoint(tmp_path):
    """Where the original binds a reservation to the wrong item, or to an empty one."""
    options = attrs.evolve(TINY, max_memory_size=120, max_journal_size=200, default_journal_size=10**6)
    journal = open_journal(tmp_path, Disk(), options)
    items = [b"item %02d" % number * 4 for number in range(20)]
    for item in items:
        journal.add(item)
    first, _ = journal.remove_tentative()
    second, _ = journal.remove_tentative()
    journal.confirm_remove(first)
    for item in items[2:12]:
        assert journal.remove() == item
    journal.unremove(second)
    assert journal.peek() == items[1]
    end_without_close(journal)
    assert drained(tmp_path) == [items[1], *items[12:]]


def test_items_beyond_memory_are_read_when_their_turn_comes(tmp_path):
    journal = open_journal(tmp_path, Disk(), JournalOptions(max_memory_size=1024, sync_journal=None))
    items = [bytes([number]) * 128 for number in range(10)]
    for item in items:
        journal.add(item)
    assert (len(journal), len(journal._items.memory)) == (10, 8)
    end_without_close(journal)
    journal = open_journal(tmp_path, Disk(), JournalOptions(max_memory_size=1024, sync_journal=None))
    assert (len(journal), journal.size, len(journal._items.memory)) == (10, 1280, 8)
    assert [journal.remove() for _ in items] == items
    journal.close()


def test_limits(tmp_path):
    full = Journal(tmp_path, "q", JournalOptions(max_items=2, max_item_size=10))
    assert [full.add(data) for data in (b"a", b"b", b"c", b"x" * 11)] == [True, True, False, False]
    full.close()
    discarding = Journal(tmp_path, "d", JournalOptions(max_size=510, discard_old_when_full=True))
    assert all(discarding.add(bytes([number]) * 128) for number in range(6))
    assert discarding.size == 512  # the last one may exceed the limit
    assert discarding.remove() == b"\2" * 128
    discarding.close()
    none = Journal(tmp_path, "n", JournalOptions(max_items=0, discard_old_when_full=True))
    assert not none.add(b"")
    none.close()


def test_expiry(tmp_path):
    now, expired = [NOW], []
    keys = {"clock_ms": lambda: now[0], "on_expired": expired.append}
    journal = Journal(tmp_path, "q", JournalOptions(max_age=10), **keys)
    journal.add(b"soon", NOW + 5)
    journal.add(b"never", 0)
    journal.add(b"late", NOW + 10**9)
    now[0] = NOW + 5
    assert journal.peek() == b"soon"  # equal is alive
    now[0] = NOW + 6
    assert journal.peek() == b"never"
    now[0] = NOW + 10_001
    assert journal.remove() is None
    assert expired == [b"soon", b"never", b"late"]
    journal.close()
    assert stored(tmp_path) == ([], {})


def test_reservation_ends_in_time(tmp_path):
    now = [NOW]
    journal = Journal(tmp_path, "q", JournalOptions(open_transaction_timeout=1), clock_ms=lambda: now[0])
    journal.add(b"a")
    journal.add(b"b")
    assert journal.remove_tentative() == (1, b"a")
    now[0] += 1000
    assert journal.remove() == b"a"
    assert not journal.confirm_remove(1)
    journal.close()


def test_rotation_beside_a_number_of_18_digits(tmp_path):
    (tmp_path / "q.999999999999999999").write_bytes(b"")
    journal = open_journal(tmp_path, Disk())
    items = [b"item %d" % number * 9 for number in range(20)]
    assert all(journal.add(item) for item in items)
    assert (tmp_path / "q.1000000000000000000").exists()
    end_without_close(journal)
    assert drained(tmp_path) == items


@pytest.mark.parametrize("suffix", ["", ".pack"])
def test_last_number_is_refused_and_nothing_changes(suffix, tmp_path):
    name = f"q.{2**63 - 1}{suffix}"
    for file in (name, "q.1", "q~~1"):
        (tmp_path / file).write_bytes(b"")
    with pytest.raises(StoreError, match=f"{name}: no number is left"):
        Journal(tmp_path, "q")
    assert {path.name for path in tmp_path.iterdir()} == {name, "q.1", "q~~1"}


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "a~b"])
def test_name_that_kestrel_refuses(name, tmp_path):
    with pytest.raises(StoreError, match="no name for a queue"):
        Journal(tmp_path, name)


def test_damage_is_not_cut_unasked(tmp_path):
    (tmp_path / "q").write_bytes(b"\x02\x11\0\0\0" + bytes(16) + b"a" + b"\x7f" + b"\x01" * 3)
    before = (tmp_path / "q").read_bytes()
    with pytest.raises(StoreError, match=r"at offset 22: there is no opcode 127; 4 bytes from there on"):
        Journal(tmp_path, "q")
    assert (tmp_path / "q").read_bytes() == before
    journal = Journal(tmp_path, "q", JournalOptions(cut_damage=True))
    assert journal.remove() == b"a"
    journal.close()


@pytest.mark.parametrize("tail", [b"\x02\x11\0\0\0abc", b"\x09\1", bytes(100)], ids=["item", "xid", "zeros"])
def test_torn_end_is_cut(tail, tmp_path):
    (tmp_path / "q").write_bytes(b"\x02\x11\0\0\0" + bytes(16) + b"a" + tail)
    journal = Journal(tmp_path, "q")
    journal.add(b"b")
    assert [journal.remove(), journal.remove(), journal.remove()] == [b"a", b"b", None]
    journal.close()


def test_full_disk_changes_nothing(tmp_path):
    """A disk that takes a part of one record, and fails."""
    disk = Disk()
    journal = open_journal(tmp_path, disk, JournalOptions(sync_journal=None))
    journal.add(b"a")

    def append(fd: int, data: bytes) -> None:
        Disk.append(disk, fd, data[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with mock.patch.object(disk, "append", append):
        for call_it in (lambda: journal.add(b"b"), journal.remove, journal.remove_tentative):
            with pytest.raises(StoreIOError, match=r"No space left on device\. Nothing was changed"):
                call_it()
    journal.add(b"c")
    end_without_close(journal)
    assert drained(tmp_path) == [b"a", b"c"]


class UnreadableDisk(Disk):
    """Fails at the read of this number, once."""

    reads, stop = 0, 0

    def __getattribute__(self, name: str) -> object:
        if name in {"names", "read", "open_read", "pread"}:
            self.reads += 1
            if self.reads == self.stop:
                raise OSError(24, "Too many open files")
        return super().__getattribute__(name)


def retried(function: Callable[..., object]) -> Callable[..., object]:
    def call_it(first, *arguments):
        length = len(first) if isinstance(first, Journal) else None
        try:
            return function(first, *arguments)
        except StoreIOError:
            result = function(first, *arguments)
            return length if arguments[0] == "flush" else result  # a flush removes items one by one

    return call_it


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0, 30, 60])
def test_failed_read_changes_nothing(memory, tmp_path, monkeypatch):
    options = attrs.evolve(TINY, max_memory_size=memory)
    for name in ("call", "open_journal"):
        monkeypatch.setattr(sys.modules[__name__], name, retried(globals()[name]))
    for stop in range(1, 1000):
        disk, model, directory = UnreadableDisk(), Model(), tmp_path / str(stop)
        disk.stop = stop
        directory.mkdir()
        live(directory, 1, disk, model, [], options)
        assert stored(directory) == (list(model.queue), model.opened), stop
        assert drained(directory) == model.started(), stop
        if disk.reads < stop:
            break
    assert 20 < stop < 999


def test_replay_failed_read_raises_store_io_error(tmp_path):
    disk = UnreadableDisk()
    journal = open_journal(tmp_path, disk)
    for reads in (1, 2):
        disk.stop = disk.reads + reads
        with pytest.raises(StoreIOError, match="Too many open files"):
            journal.replay()
    end_without_close(journal)


def test_short_reads_are_continued(tmp_path, monkeypatch):
    """The system reads less than 2 GiB at once, and an item may be larger."""
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: read(fd, min(size, 9), offset))
    journal = open_journal(tmp_path, Disk())
    items = [bytes([number]) * 128 for number in range(5)]
    assert all(journal.add(item) for item in items)
    assert [journal.remove() for _ in items] == items
    end_without_close(journal)


def test_item_whose_removal_fills_the_disk_is_given_out(tmp_path):
    """The removal is in the journal; then the files that replace it find no room."""

    class Full(Disk):
        def open_append(self, path: Path) -> int:
            return failing(errno.ENOSPC)() if "~~" in path.name else super().open_append(path)

    options = JournalOptions(default_journal_size=10, min_journal_compact_delay=0, sync_journal=None)
    journal = open_journal(tmp_path, Full(), options)
    journal.add(b"precious")
    assert journal.remove() == b"precious"
    with pytest.raises(StoreClosed):
        journal.peek()
    with pytest.raises(StoreIOError, match="while files were replaced"):
        open_journal(tmp_path, Full(), options).close()
    assert drained(tmp_path) == []


def test_live_file_is_synced_before_a_packed_file_counts(tmp_path):
    """A packed file has no data of items that were removed since its checkpoint. A power loss must not lose the removals."""
    steps = []

    class Watching(Disk):
        def append(self, fd: int, data: bytes) -> None:
            steps.append(("append", fd))
            super().append(fd, data)

        def sync(self, fd: int) -> None:
            steps.append(("sync", fd))
            super().sync(fd)

        def rename(self, source: Path, target: Path) -> None:
            if target.suffix == ".pack":
                steps.append(("pack", journal._files._fd))
            super().rename(source, target)

    journal = open_journal(tmp_path, Watching())
    for number in range(60):
        journal.add(b"item %d" % number * 4)
        if number % 3:
            journal.remove()
    packs = [at for at, (step, _) in enumerate(steps) if step == "pack"]
    assert packs
    for at in packs:
        assert steps[at - 1] == ("sync", steps[at][1])


def test_failed_sync_closes(tmp_path):
    disk = Disk()
    journal = open_journal(tmp_path, disk, JournalOptions(sync_journal=0))
    disk.sync = failing(errno.EIO)
    with pytest.raises(StoreIOError, match="The journal is closed"):
        journal.add(b"a")
    with pytest.raises(StoreClosed):
        journal.add(b"b")


def test_late_sync(tmp_path):
    disk, synced = Disk(), []
    disk.sync = synced.append
    journal = open_journal(tmp_path, disk, JournalOptions(sync_journal=1000))
    journal.add(b"a")
    assert not synced
    journal._timer.function()
    assert len(synced) == 1
    journal.close()
