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

from crash.recording import FileState, Operation, Tree
from msgstore.directory import LOCK

SECTOR = 512
SEEDS = 5
"""Random choices of what survives, at each moment; more of them find rarer things, and take longer."""
PAGE = 4096
"""Of LMDB, whose first two pages are its meta pages, of which the newer valid one says what is committed."""
LMDB = "msgstore-lmdb"
Write = tuple[int, bytes | None]
"""(offset, bytes), or (size, None) for a truncation."""


@attrs.define
class Inode:
    """A file, whatever its name."""

    content: bytes = b""
    durable: bytes = b""
    mtime: int = 0
    durable_mtime: int = 0
    unsynced: list[Write] = attrs.field(factory=list)

    def change(self, offset: int, data: bytes | None, mtime: int) -> None:
        self.content = written(self.content, offset, data)
        self.mtime = mtime
        self.unsynced.append((offset, data))

    def sync(self) -> None:
        self.durable, self.durable_mtime = self.content, self.mtime
        self.unsynced.clear()


def written(content: bytes, offset: int, data: bytes | None) -> bytes:
    if data is None:
        return content[:offset].ljust(offset, b"\0")
    return content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]


NameEdit = dict[str, int | None]
"""What one operation does to names, in one step: name to inode, or None if it goes."""


class Disk:
    def __init__(self, initial: Tree) -> None:
        """``initial``: what was there before, durable. Inodes are numbered as the recorder numbers them."""
        self.names = {name: number for number, name in enumerate(sorted(initial))}
        self.inodes = {
            number: Inode(initial[name].whole, initial[name].whole, initial[name].mtime, initial[name].mtime)
            for name, number in self.names.items()
        }
        self.durable_names = dict(self.names)
        self.unsynced_names: list[NameEdit] = []
        self.lmdb: Tree = {}
        self.lmdb_synced: set[str] = set()
        """Of "." and LMDB's directory those that were synced since LMDB's files were made."""
        self.lock: bytes | None = None

    def apply(self, operation: Operation) -> None:
        name = operation.path
        match operation.kind:
            case "create":
                self.inodes[operation.inode] = Inode(mtime=operation.mtime)
                self._rename({name: operation.inode})
            case "pwrite":
                data, offset = operation.arguments
                self.inodes[operation.inode].change(offset, data, operation.mtime)
            case "truncate":
                self.inodes[operation.inode].change(operation.arguments[0], None, operation.mtime)
            case "set_mtime":
                self.inodes[operation.inode].mtime = operation.arguments[0]
            case "unlink":
                if name in self.names:
                    self._rename({name: None})
            case "replace":
                self._rename({name: None, operation.arguments[0]: self.names[name]})
            case "sync":
                self.inodes[operation.inode].sync()
            case "sync_directory":
                if self.lmdb:
                    self.lmdb_synced.add(name)
                if name == ".":
                    self.durable_names = dict(self.names)
                    self.unsynced_names.clear()
            case "index":
                self.lmdb = operation.trees[1]
        self.lock = operation.lock

    def _rename(self, edit: NameEdit) -> None:
        edited(self.names, edit)
        self.unsynced_names.append(edit)

    # -- as a killed process leaves it ------------------------------------------------------------------------------------

    def now(self) -> Tree:
        """Everything that was written stays."""
        return self._tree(self.names, kept)

    def inside(self, operation: Operation) -> Iterator[tuple[str, Tree]]:
        """What the process leaves that is killed inside the operation, which comes next."""
        if operation.kind == "pwrite":
            inode, (whole, offset) = self.inodes[operation.inode], operation.arguments
            for cut in torn_at(offset, len(whole)):
                torn = written(inode.content, offset, whole[:cut]), operation.mtime
                yield f"{cut} bytes of it", self._tree(self.names, lambda it: torn if it is inode else kept(it))  # noqa: B023
        elif operation.kind == "index":
            for label, tree in inside_a_commit(*operation.trees):
                yield label, {**self._without_lmdb(self.now()), **tree}

    # -- as a power loss leaves it ----------------------------------------------------------------------------------------

    def after_a_power_loss(self, seed: str) -> Iterator[tuple[str, Tree]]:
        """What is not synced may be there or not: file by file, sector by sector, name by name."""
        yield "all that was not synced dropped", self._lost(self.durable_names, dropped)
        yield "names kept, data dropped", self._lost(self.names, dropped)
        yield "data kept, names dropped", self._lost(self.durable_names, kept)
        yield "only the last write kept", self._lost(self.names, last_only)
        yield "sizes grown, bytes zero", self._lost(self.names, zeros)
        chance = random.Random(seed)
        for _ in range(SEEDS):
            names = dict(self.durable_names)
            for edit in self.unsynced_names:
                if chance.random() < 0.5:
                    edited(names, edit)
            yield "random sectors and names", self._lost(names, lambda inode: sectors(inode, chance))

    def power_loss_inside(self, operation: Operation, seed: str) -> Iterator[tuple[str, Tree]]:
        """A commit of LMDB, which syncs its pages before it writes a meta page: any of its pages, never the meta page."""
        if operation.kind == "index":
            before, after = operation.trees
            chance = random.Random(seed)
            for name in names_of_data(before, after):
                pages = changed_pages(before[name], after[name])
                for _ in range(SEEDS):
                    some = [page for page in pages if chance.random() < 0.5]
                    tree = {**before, name: with_pages(before[name], after[name], some)}
                    yield "random pages of the commit", {**self._without_lmdb(self._lost(self.names, dropped)), **tree}

    def _lost(self, names: dict[str, int], policy: Policy) -> Tree:
        tree = self._tree(names, policy)
        if names is self.durable_names and self.lmdb and not {".", LMDB} <= self.lmdb_synced:
            tree = self._without_lmdb(tree)
        return tree

    def _tree(self, names: dict[str, int], policy: Policy) -> Tree:
        tree = {}
        for name, number in names.items():
            content, mtime = policy(self.inodes[number])
            tree[name] = FileState(content, len(content), mtime)
        if self.lock is not None:
            tree[LOCK] = FileState(self.lock, len(self.lock), 0)
        return {**tree, **self.lmdb}

    @staticmethod
    def _without_lmdb(tree: Tree) -> Tree:
        return {name: state for name, state in tree.items() if not name.startswith(LMDB)}


Policy = Callable[[Inode], tuple[bytes, int]]
"""What a power loss leaves of a file: its bytes and its time."""


def dropped(inode: Inode) -> tuple[bytes, int]:
    return inode.durable, inode.durable_mtime


def kept(inode: Inode) -> tuple[bytes, int]:
    return inode.content, inode.mtime


def last_only(inode: Inode) -> tuple[bytes, int]:
    """The earlier ones of the unsynced writes are lost, the last one is not."""
    content = inode.durable
    for offset, data in inode.unsynced[-1:]:
        content = written(content, offset, data)
    return content, inode.mtime


def zeros(inode: Inode) -> tuple[bytes, int]:
    """The size is there, what was written is not."""
    size = len(inode.content)
    return inode.durable[:size].ljust(size, b"\0"), inode.mtime


def sectors(inode: Inode, chance: random.Random) -> tuple[bytes, int]:
    """Each unsynced sector is there or not, and so is the size: what a lost truncation cut off is as it was."""
    if not inode.unsynced:
        return dropped(inode)
    size = chance.choice([len(inode.content), len(inode.durable)])
    old = inode.durable.ljust(size, b"\0")
    new = (inode.content + old[len(inode.content) :]).ljust(size, b"\0")
    parts = [chance.choice([old, new])[at : at + SECTOR] for at in range(0, size, SECTOR)]
    return b"".join(parts)[:size], inode.mtime


def edited(names: dict[str, int], edit: NameEdit) -> None:
    for name, number in edit.items():
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number


def torn_at(offset: int, size: int) -> list[int]:
    """Where a write can be torn: every 512 bytes of it, and at every sector of the file."""
    of_write = set(range(SECTOR, size, SECTOR))
    of_file = set(range(-offset % SECTOR, size, SECTOR)) - {0}
    return sorted(of_write | of_file)


def inside_a_commit(before: Tree, after: Tree) -> Iterator[tuple[str, Tree]]:
    """LMDB writes the changed pages in order, then its meta page, which lies within a sector."""
    for name in after.keys() - before.keys():  # LMDB makes its files: a process may be killed at any step of that
        if name.endswith("data.mdb"):
            for size in (0, PAGE, 2 * PAGE):
                content = after[name].content[:size]
                yield f"{size} bytes of a new {name}", {**before, name: attrs.evolve(after[name], content=content, size=size)}
    for name in names_of_data(before, after):
        pages = changed_pages(before[name], after[name])
        for count in range(1, len(pages) + 1):
            tree = {**before, name: with_pages(before[name], after[name], pages[:count])}
            yield f"{count} of {len(pages)} pages of the commit", tree


def names_of_data(before: Tree, after: Tree) -> list[str]:
    return [name for name in after if name.endswith("data.mdb") and name in before and before[name] != after[name]]


def changed_pages(before: FileState, after: FileState) -> list[int]:
    old, new = before.content, after.content
    return [at for at in range(2 * PAGE, len(new), PAGE) if new[at : at + PAGE] != old[at : at + PAGE]]


def with_pages(before: FileState, after: FileState, pages: Iterable[int]) -> FileState:
    content = before.content
    for at in pages:
        content = written(content, at, after.content[at : at + PAGE].ljust(PAGE, b"\0"))
    content = content.rstrip(b"\0")
    return FileState(content, max(before.size, len(content)), after.mtime)


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
