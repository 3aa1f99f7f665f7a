"""Reference counts that can still be read from a damaged LMDB file, without LMDB.

Follows the tree of the database ``entries`` from the newest meta page that leads to it, and passes over every page that is not
what it should be. Only the layout of LMDB 0.9 on a 64-bit little-endian machine is known here: of another nothing is found.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import attrs

from msgstore.contract import FileOperations
from msgstore_lmdb_index.contents import DATA

_PAGE_HEADER = struct.Struct("<Q2xHHH")
"""Number, flags, end of the table of nodes, begin of the nodes."""
_NODE_HEADER = struct.Struct("<HHHH")
"""Low and middle bits of the size of the value, or of a child's number; flags, or its highest bits; size of the key."""
_DATABASE = struct.Struct("<IHH5Q")
"""Its last member is the number of its root page."""
_META = struct.Struct("<IIQQ48s48sQQ")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF = 0x01, 0x02
_SUB_DATABASE = 0x02
_ENTRY = (16, 24)
"""Bytes of a key and of a value."""
_COUNT = (1 << 48) - 1

Node = tuple[int, bytes, bytes]
"""Child's number, or the flags of a leaf's node; key; value, empty in a branch."""


@attrs.frozen
class _Pages:
    file: BinaryIO
    size: int
    """Of a page."""
    end: int
    """Of the file."""

    def nodes(self, number: int) -> tuple[int, list[Node]]:
        """(flags, nodes) of a page; (0, []) if it is not a branch or a leaf of that number."""
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
        """Of every leaf below a page; each page once."""
        todo, seen = [root], {root}
        while todo:
            flags, nodes = self.nodes(todo.pop())
            if flags == _LEAF:
                yield from nodes
            for child, _, _ in nodes if flags == _BRANCH else ():
                if child not in seen:
                    seen.add(child)
                    todo.append(child)


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
    """Id to references of every entry with several that can be read from the environment ``path``."""
    data = path / DATA
    if path.is_symlink() or data.is_symlink() or not data.is_file():
        return {}
    try:
        with data.open("rb") as file:
            return _read_counts(file)
    except OSError:
        return {}


def _read_counts(file: BinaryIO) -> dict[bytes, int]:
    for pages, main in _roots(file):
        for flags, key, value in pages.leaf_nodes(main):
            if key == b"entries" and flags == _SUB_DATABASE and len(value) == _DATABASE.size:
                root = _DATABASE.unpack(value)[-1]
                return {
                    msg_id: count
                    for node_flags, msg_id, slot in pages.leaf_nodes(root)
                    if not node_flags and (len(msg_id), len(slot)) == _ENTRY and (count := int.from_bytes(slot) & _COUNT) > 1
                }
    return {}


def _roots(file: BinaryIO) -> list[tuple[_Pages, int]]:
    """Pages, and the root of the main database, as of each meta page; the newest first."""
    found = []
    head = file.read(2 * 65536)
    for size in (1 << bits for bits in range(9, 17)):
        for at in (0, size):
            meta = head[at + _PAGE_HEADER.size : at + _PAGE_HEADER.size + _META.size]
            if len(meta) == _META.size:
                magic, version, _, _, free, main, _, transaction = _META.unpack(meta)
                if (magic, version, _DATABASE.unpack(free)[0]) == (_MAGIC, _VERSION, size):  # the page size stands there
                    found.append((transaction, size, _DATABASE.unpack(main)[-1]))
    end = file.seek(0, os.SEEK_END)
    return [(_Pages(file, size, end), root) for _, size, root in sorted(set(found), reverse=True)]


def write_file(files: FileOperations, path: Path, counts: Mapping[bytes, int], *, sync: bool) -> None:
    """A file of counts: lines ``id,count``."""
    lines = (f"{msg_id.hex()},{count}\n".encode() for msg_id, count in counts.items())
    files.write_file(path, [b"id,count\n", b"".join(lines)], sync=sync)


def read_file(files: FileOperations, path: Path) -> dict[bytes, int]:
    """What was written; empty if nothing was, or if it is damaged."""
    try:
        rows = (line.split(",") for line in files.read_file(path).decode().splitlines()[1:])
        return {bytes.fromhex(msg_id): int(count) for msg_id, count in rows}
    except (FileNotFoundError, ValueError):
        return {}
