"""Recovery of reference counts from a damaged LMDB file, and a check of its trees, without LMDB.

Reads the tree of the database ``entries`` from the newest meta page that leads to it, and skips every invalid page. Supports
only the layout of LMDB 0.9 on a 64-bit little-endian machine; finds nothing in files of another layout.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import attrs

from msgstore.contract import FileOperations

DATA = "data.mdb"
_PAGE_HEADER = struct.Struct("<Q2xHHH")
"""Page number, flags, end of the node table, begin of the nodes."""
_NODE_HEADER = struct.Struct("<HHHH")
"""Leaf: low and middle bits of the value's size, flags, key size. Branch: low, middle and high bits of the child's page number,
key size."""
_DATABASE = struct.Struct("<IHH5Q")
"""Description of a database. Its last member is the number of the root page."""
_META = struct.Struct("<IIQQ48s48sQQ")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF = 0x01, 0x02
_SUB_DATABASE = 0x02
_ENTRY = (16, 24)
"""Sizes of a key and of a value in bytes."""
_COUNT = (1 << 48) - 1

Node = tuple[int, bytes, bytes]
"""(page number of the child or flags of a leaf node, key, value). A branch node has an empty value."""


@attrs.frozen
class _Pages:
    file: BinaryIO
    size: int
    """Size of a page in bytes."""
    end: int
    """Size of the file in bytes."""

    def nodes(self, number: int) -> tuple[int, list[Node]]:
        """Return (flags, nodes) of a page, or (0, []) if it is not a branch or leaf with this page number."""
        if (number + 1) * self.size > self.end:
            return 0, []
        self.file.seek(number * self.size)
        page = self.file.read(self.size)
        found, flags, lower, _ = _PAGE_HEADER.unpack_from(page)
        if found != number or flags not in (_BRANCH, _LEAF) or not _PAGE_HEADER.size <= lower <= self.size:
            return 0, []
        offsets = struct.unpack_from(f"<{(lower - _PAGE_HEADER.size) // 2}H", page, _PAGE_HEADER.size)
        return flags, [node for at in offsets if (node := _node(page, at, is_leaf=flags == _LEAF))]

    def leaf_nodes(self, root: int) -> Iterator[Node]:
        """Yield the nodes of every leaf below a page. Reads each page once, even if damage creates a cycle."""
        todo, seen = [root], {root}
        while todo:
            flags, nodes = self.nodes(todo.pop())
            if flags == _LEAF:
                yield from nodes
            for child, _, _ in nodes if flags == _BRANCH else ():
                if child not in seen:
                    seen.add(child)
                    todo.append(child)

    def is_sound(self, root: int, depth: int) -> bool:
        """Return True if the tree has branches above, leaves in its last level, and each page once."""
        level, seen = [root] if depth else [], set[int]()
        for above in range(depth - 1, -1, -1):
            if len(set(level)) < len(level) or not seen.isdisjoint(level):
                return False
            seen.update(level)
            if not above:
                return all(map(self.is_leaf, level))
            found = [self.nodes(page) for page in level]
            if any(flags != _BRANCH for flags, _ in found):
                return False
            level = [child for _, nodes in found for child, _, _ in nodes]
        return True

    def is_leaf(self, number: int) -> bool:
        """Return True if a page is a leaf with this page number."""
        if (number + 1) * self.size > self.end:
            return False
        header = os.pread(self.file.fileno(), _PAGE_HEADER.size, number * self.size)
        return _PAGE_HEADER.unpack(header)[:2] == (number, _LEAF)


def _node(page: bytes, at: int, *, is_leaf: bool) -> Node | None:
    begin = at + _NODE_HEADER.size
    if begin > len(page):
        return None
    low, middle, high, key_size = _NODE_HEADER.unpack_from(page, at)
    key = page[begin : begin + key_size]
    if not is_leaf:
        return low | middle << 16 | high << 32, key, b""
    end = begin + key_size + (low | middle << 16)
    return (high, key, page[begin + key_size : end]) if end <= len(page) else None


def read_counts(path: Path) -> dict[bytes, int]:
    """Return the reference counts above one that can be read from the environment ``path``, by id. Never raises OSError."""
    data = path / DATA
    if path.is_symlink() or data.is_symlink() or not data.is_file():
        return {}
    try:
        with data.open("rb") as file:
            return _read_counts(file)
    except OSError:
        return {}


def _read_counts(file: BinaryIO) -> dict[bytes, int]:
    for _, pages, main in _roots(file):
        for flags, key, value in pages.leaf_nodes(main):
            if key == b"entries" and flags == _SUB_DATABASE and len(value) == _DATABASE.size:
                root = _DATABASE.unpack(value)[-1]
                return {
                    msg_id: count
                    for node_flags, msg_id, slot in pages.leaf_nodes(root)
                    if not node_flags and (len(msg_id), len(slot)) == _ENTRY and (count := int.from_bytes(slot) & _COUNT) > 1
                }
    return {}


def _roots(file: BinaryIO) -> list[tuple[int, _Pages, int]]:
    """Return (transaction, pages, root page of the main database) for each valid meta page, the newest first."""
    found = []
    head = file.read(2 * 65536)
    for size in (1 << bits for bits in range(9, 17)):
        for at in (0, size):
            meta = head[at + _PAGE_HEADER.size : at + _PAGE_HEADER.size + _META.size]
            if len(meta) == _META.size:
                magic, version, _, _, free, main, _, transaction = _META.unpack(meta)
                # The first member of the free-page database of a meta page is the page size.
                if (magic, version, _DATABASE.unpack(free)[0]) == (_MAGIC, _VERSION, size):
                    found.append((transaction, size, _DATABASE.unpack(main)[-1]))
    end = file.seek(0, os.SEEK_END)
    return [(transaction, _Pages(file, size, end), root) for transaction, size, root in sorted(set(found), reverse=True)]


def has_sound_tree(path: Path, name: bytes, transaction: int) -> bool:
    """Return False if a page of the database ``name`` has the wrong kind for its depth: LMDB, when it goes from page to page,
    ends the process (SIGABRT). ``transaction``: number of an open read transaction, whose pages LMDB leaves alone.

    Returns True if no meta page has this number any more, and for files of another layout.
    """
    with (path / DATA).open("rb") as file:
        for number, pages, main in _roots(file):
            for flags, key, value in pages.leaf_nodes(main) if number == transaction else ():
                if key == name and flags == _SUB_DATABASE and len(value) == _DATABASE.size:
                    _, _, depth, *_, root = _DATABASE.unpack(value)
                    return pages.is_sound(root, depth)
    return True


def save_counts(files: FileOperations, path: Path, counts: Mapping[bytes, int], *, sync: bool) -> None:
    """Write a file with one line ``id,count`` per id, after a header line."""
    lines = (f"{msg_id.hex()},{count}\n".encode() for msg_id, count in counts.items())
    files.write_file(path, [b"id,count\n", b"".join(lines)], sync=sync)


def load_counts(files: FileOperations, path: Path) -> dict[bytes, int]:
    """Return the counts that :func:`save_counts` wrote; empty if the file is missing or damaged."""
    try:
        rows = (line.split(",") for line in files.read_file(path).decode().splitlines()[1:])
        return {bytes.fromhex(msg_id): int(count) for msg_id, count in rows}
    except (FileNotFoundError, ValueError):
        return {}
