"""From a log of operations to directories: as a killed process leaves them, and as a power loss may leave them.

A :class:`Disk` is a directory as an operating system sees it: names, files, and for both what is already durable and what is
not. It is fed the log, one operation after the other, and asked between them what a crash at this moment would leave.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from os import utime
from pathlib import Path

import attrs

from crash.files import SECTOR
from crash.model import Model
from crash.recording import FileState, Operation, Recording, Tree
from msgstore.directory import LOCK

SEEDS = 5
"""Random choices of what survives, at each moment; more of them find rarer things, and take longer."""
PAGE = 4096
"""Of LMDB, whose first two pages are its meta pages, of which the newer valid one says what is committed."""
LMDB = "msgstore-lmdb"
DATA = f"{LMDB}/data.mdb"
ENDED = b"4242 0123456789abcdef\n"
"""Text of the lock file: of a process that is gone."""


@attrs.define
class Inode:
    """A file, whatever its name."""

    content: bytes = b""
    mtime: int = 0
    durable: bytes = b""
    durable_mtime: int = 0
    last: tuple[int, bytes | None] | None = None
    """The last change that is not synced: (offset, bytes), or (size, None) for a truncation."""

    def change(self, offset: int, data: bytes | None, mtime: int) -> None:
        self.content, self.mtime, self.last = written(self.content, offset, data), mtime, (offset, data)

    def sync(self) -> None:
        self.durable, self.durable_mtime, self.last = self.content, self.mtime, None


def written(content: bytes, offset: int, data: bytes | None) -> bytes:
    head = content[:offset].ljust(offset, b"\0")
    return head if data is None else head + data + content[offset + len(data) :]


Names = dict[str, Inode]
NameEdit = dict[str, Inode | None]
"""What one operation does to names, in one step: name to inode, or None if it goes."""


def edited(names: Names, edit: NameEdit) -> Names:
    return {name: inode for name, inode in {**names, **edit}.items() if inode is not None}


class Disk:
    def __init__(self, initial: Tree) -> None:
        """``initial``: what was there before, durable."""
        self.names = {name: Inode(state.whole, state.mtime, state.whole, state.mtime) for name, state in initial.items()}
        self.durable_names = self.names
        self.unsynced_names: list[NameEdit] = []
        self.deleted: Names = {}
        """Files without a name, which may be open."""
        self.lmdb: Tree = {}
        self.lmdb_synced: set[str] = set()
        """Of "." and LMDB's directory those that were synced since LMDB's files were made."""

    def apply(self, operation: Operation) -> None:
        name, arguments, mtime = operation.path, operation.arguments, operation.mtime
        inode = self.names.get(name) or self.deleted.get(name) or Inode()
        match operation.kind:
            case "create":
                self._rename({name: Inode(mtime=mtime)})
            case "pwrite":
                inode.change(arguments[1], arguments[0], mtime)
            case "truncate":
                inode.change(arguments[0], None, mtime)
            case "set_mtime":
                inode.mtime = arguments[0]
            case "unlink":
                self.deleted[name] = inode
                self._rename({name: None})
            case "replace":
                self._rename({name: None, arguments[0]: inode})
            case "sync":
                inode.sync()
            case "sync_directory":
                if self.lmdb:
                    self.lmdb_synced.add(name)
                if name == ".":
                    self.durable_names, self.unsynced_names = self.names, []
            case "index":
                self.lmdb = arguments[1]

    def _rename(self, edit: NameEdit) -> None:
        self.names = edited(self.names, edit)
        self.unsynced_names.append(edit)

    # -- as a killed process leaves it ------------------------------------------------------------------------------------

    def now(self) -> Tree:
        """Everything that was written stays."""
        return self._tree(self.names, kept)

    def inside(self, operation: Operation) -> Iterator[tuple[str, Tree]]:
        """What the process leaves that is killed inside the operation, which comes next."""
        inode = self.names.get(operation.path)
        if operation.kind == "pwrite" and inode:
            whole, offset = operation.arguments
            # Every 512 bytes of the write, and at every sector of the file.
            cuts = {*range(SECTOR, len(whole), SECTOR), *range(-offset % SECTOR, len(whole), SECTOR)} - {0}
            for cut in sorted(cuts):
                torn = written(inode.content, offset, whole[:cut]), operation.mtime
                yield f"{cut} bytes of it", self._tree(self.names, lambda it: torn if it is inode else kept(it))  # noqa: B023
        elif operation.kind == "index":
            for label, tree in inside_a_commit(*operation.arguments):
                yield label, self._tree(self.names, kept, tree)

    # -- as a power loss leaves it ----------------------------------------------------------------------------------------

    def after_a_power_loss(self, seed: str) -> Iterator[tuple[str, Tree]]:
        """What is not synced may be there or not: file by file, sector by sector, name by name."""
        durable_lmdb = self.lmdb if {".", LMDB} <= self.lmdb_synced else {}
        yield "all that was not synced dropped", self._tree(self.durable_names, dropped, durable_lmdb)
        yield "names kept, data dropped", self._tree(self.names, dropped)
        yield "data kept, names dropped", self._tree(self.durable_names, kept, durable_lmdb)
        yield "only the last write kept", self._tree(self.names, last_only)
        yield "sizes grown, bytes zero", self._tree(self.names, zeros)
        chance = random.Random(seed)
        for _ in range(SEEDS):
            names = self.durable_names
            for edit in self.unsynced_names:
                if chance.random() < 0.5:
                    names = edited(names, edit)
            yield "random sectors and names", self._tree(names, lambda inode: sectors(inode, chance))

    def power_loss_inside(self, operation: Operation, seed: str) -> Iterator[tuple[str, Tree]]:
        """A commit of LMDB, which syncs its pages before it writes a meta page: any of its pages, never the meta page."""
        if operation.kind == "index":
            before, after = operation.arguments
            chance, pages = random.Random(seed), changed_pages(before, after)
            for _ in range(SEEDS if pages else 0):
                tree = with_pages(before, after, [page for page in pages if chance.random() < 0.5])
                yield "random pages of the commit", self._tree(self.names, dropped, tree)

    def _tree(self, names: Names, policy: Policy, lmdb: Tree | None = None) -> Tree:
        """``lmdb``: of its files, if they are not as they were written."""
        tree = {LOCK: FileState(ENDED, len(ENDED), 0)}
        for name, inode in names.items():
            content, mtime = policy(inode)
            tree[name] = FileState(content, len(content), mtime)
        return {**tree, **(self.lmdb if lmdb is None else lmdb)}


Policy = Callable[[Inode], tuple[bytes, int]]
"""What a crash leaves of a file: its bytes and its time."""


def dropped(inode: Inode) -> tuple[bytes, int]:
    return inode.durable, inode.durable_mtime


def kept(inode: Inode) -> tuple[bytes, int]:
    return inode.content, inode.mtime


def last_only(inode: Inode) -> tuple[bytes, int]:
    """The earlier ones of the unsynced writes are lost, the last one is not."""
    return inode.durable if inode.last is None else written(inode.durable, *inode.last), inode.mtime


def zeros(inode: Inode) -> tuple[bytes, int]:
    """The size is there, what was written is not."""
    size = len(inode.content)
    return inode.durable[:size].ljust(size, b"\0"), inode.mtime


def sectors(inode: Inode, chance: random.Random) -> tuple[bytes, int]:
    """Each unsynced sector is there or not, and so is the size: what a lost truncation cut off is as it was."""
    if inode.last is None:
        return dropped(inode)
    size = chance.choice([len(inode.content), len(inode.durable)])
    old = inode.durable.ljust(size, b"\0")
    new = (inode.content + old[len(inode.content) :]).ljust(size, b"\0")
    parts = [chance.choice([old, new])[at : at + SECTOR] for at in range(0, size, SECTOR)]
    return b"".join(parts)[:size], inode.mtime


def inside_a_commit(before: Tree, after: Tree) -> Iterator[tuple[str, Tree]]:
    """LMDB writes the changed pages in order, then its meta page, which lies within a sector."""
    if DATA in after and DATA not in before:  # LMDB makes its files: a process may be killed at any step of that
        for size in (0, PAGE, 2 * PAGE):
            new = attrs.evolve(after[DATA], content=after[DATA].content[:size], size=size)
            yield f"{size} bytes of a new {DATA}", {**before, DATA: new}
    pages = changed_pages(before, after)
    for count in range(1, len(pages) + 1):
        yield f"{count} of {len(pages)} pages of the commit", with_pages(before, after, pages[:count])


def changed_pages(before: Tree, after: Tree) -> list[int]:
    """Return the offsets of the pages that a commit changes, without the meta pages."""
    if not (DATA in before and DATA in after):
        return []
    old, new = before[DATA].content, after[DATA].content
    return [at for at in range(2 * PAGE, len(new), PAGE) if new[at : at + PAGE] != old[at : at + PAGE]]


def with_pages(before: Tree, after: Tree, pages: Iterable[int]) -> Tree:
    content = before[DATA].content
    for at in pages:
        content = written(content, at, after[DATA].content[at : at + PAGE].ljust(PAGE, b"\0"))
    content = content.rstrip(b"\0")
    return {**before, DATA: FileState(content, max(before[DATA].size, len(content)), after[DATA].mtime)}


def materialise(tree: Tree, path: Path) -> None:
    """Make the directory, in the place of what is there."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name, state in tree.items():
        file = path / name
        file.parent.mkdir(exist_ok=True)
        with file.open("wb") as stream:
            stream.write(state.content)
            stream.truncate(state.size)
        utime(file, ns=(state.mtime, state.mtime))


Point = tuple[str, Tree, Model, str]
"""(what happens, the directory then, what is owed, ``kill`` or ``power loss``)."""


def points(recording: Recording) -> Iterator[Point]:
    """Before, inside and after each operation: as a killed process leaves the directory; with ``fsync`` after a power loss,
    too, with what is not synced there or not."""
    disk = Disk(recording.initial)

    def around(where: str, seed: str, owed: Model, operation: Operation | None = None) -> Iterator[Point]:
        yield f"killed before {where}", disk.now(), owed, "kill"
        if operation:
            yield from ((f"killed inside {where}: {label}", tree, owed, "kill") for label, tree in disk.inside(operation))
        if recording.run.keys["durability"] == "fsync":
            lost = [*disk.after_a_power_loss(f"before {seed}"), *(disk.power_loss_inside(operation, seed) if operation else [])]
            yield from ((f"power lost at {where}: {label}", tree, owed, "power loss") for label, tree in lost)

    for at, operation in enumerate(recording.log):
        where = f"operation {at}, {operation}"
        yield from around(where, str(at), operation.owed, operation)
        disk.apply(operation)
        yield f"killed after {where}", disk.now(), operation.owed, "kill"
    yield from around("the end", "end", recording.run.model)
