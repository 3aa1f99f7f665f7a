"""The bytes that the pages of docs/spec show are real ones, and are as the pages decode them."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import zlib
from importlib.util import find_spec

import pytest

from docs.reading import DOCS, ROOT, blocks
from msgstore.contract import IndexContext
from msgstore.engine.segment import hints as hint_files
from msgstore.engine.state import checkpoint
from msgstore.files import Files
from msgstore.locations import pack_location

FIRST, SECOND = (bytes.fromhex(text) for text in ("23e5d4b019dc064761bc7f158d167079", "915fc214106f14391b488a84b9247ca5"))


def hex_blocks(page: str) -> list[list[str]]:
    """The lines of each ``hex`` block of a page."""
    return [text.splitlines() for language, text in blocks(DOCS / "spec" / page) if language == "hex"]


def dump(page: str) -> dict[int, bytes]:
    """The ``hex`` blocks of a page: offset to bytes."""
    rows = (line.strip().split("  ")[:2] for lines in hex_blocks(page) for line in lines)
    return {int(offset): bytes.fromhex(digits) for offset, digits in rows}


def whole(page: str) -> bytes:
    """The file that the blocks of a page are all of."""
    data = b""
    for offset, part in sorted(dump(page).items()):
        assert offset == len(data)
        data += part
    return data


SHOWN = {
    "v1.md": ("tests/data/msg-store/v1_clean/store/0.rdq", {
        11268: (48).to_bytes(8),
        11276: bytes.fromhex("1efad049c3795c8d889505e257ea0cc6"),
        11292: b"\x83m" + (26).to_bytes(4),
        11324: b"\xff",
    }),
    "v2.md": ("tests/data/msg-store/v2_compacted/store/0.sqs", {
        0: b"RSQS\2" + bytes(59),
        64: struct.pack(">BI16s", 3, 87, FIRST),
        85: b"\x83m" + (60).to_bytes(4),
        2126: b"\1" * 4,
        2644: struct.pack(">BI", 2, 5),
        2649: b"\3",
    }),
}  # fmt: skip
"""Page to a file, and what the page says of bytes in it, by their offset."""


@pytest.mark.parametrize("page", SHOWN)
def test_bytes_of_real_segment_are_as_the_page_decodes_them(page):
    file, said = SHOWN[page]
    data = (ROOT / file).read_bytes()
    assert dump(page)
    for offset, shown in (*dump(page).items(), *said.items()):
        assert data[offset : offset + len(shown)] == shown, f"{file} at {offset}"


def test_the_bytes_of_a_hint_are_as_the_page_decodes_them():
    data = whole("hints.md")
    assert zlib.crc32(b"5.sqs" + data[:-4]) == int.from_bytes(data[-4:])
    hint = hint_files.read_hint(data, "5.sqs", 177, 1_700_000_000_123_456_789)
    assert hint.id_list() == [FIRST, SECOND]
    assert (list(hint.offsets), list(hint.sizes)) == ([64, 151], [87, 26])
    assert (
        b"".join(hint_files.write_hint((hint.ids, hint.offsets, hint.sizes), "5.sqs", 177, 1_700_000_000_123_456_789)) == data
    )


def test_the_bytes_of_a_snapshot_are_as_the_page_decodes_them():
    data = whole("snapshot.md")
    snapshot = pytest.importorskip("msgstore_ets_index.snapshot")
    entries: dict[bytes, int] = {}
    counts: dict[bytes, int] = {}
    state = snapshot.read(data, entries, counts)
    assert entries == {FIRST: pack_location(5, 64, 87), SECOND: pack_location(5, 151, 26)}
    assert (counts, state) == ({SECOND: 3}, {b"layout": b"1"})
    assert b"".join(snapshot.write(entries, counts, state)) == data


def pairs(page: str) -> list[dict[bytes, bytes]]:
    """The ``hex`` blocks of a page with lines ``key`` and ``value``."""
    found = []
    for lines in hex_blocks(page):
        key, shown = b"", dict[bytes, bytes]()
        for line in lines:
            data = bytes.fromhex(line[7:].partition("   ")[0])
            if line.startswith("key"):
                key = data
            else:
                shown[key] = shown.get(key, b"") + data
        found.append(shown)
    return found


def test_the_bytes_in_lmdb_are_as_the_page_decodes_them(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    plugin = pytest.importorskip("msgstore_lmdb_index.plugin")
    index_module = pytest.importorskip("msgstore_lmdb_index.index")
    entries, state = pairs("lmdb.md")
    row = checkpoint.rows(state)["5.sqs"]
    assert (row.size, row.mtime_ns, row.live_count, row.live_bytes) == (177, 1_700_000_000_123_456_789, 2, 113)
    assert (row.appendable, row.quarantined, row.compacting) == (False, False, False)

    index = index_module.LmdbIndex(IndexContext(plugin.LmdbOptions(), tmp_path, Files()))
    assert index.load() is None
    index.enter([FIRST, SECOND], [pack_location(5, 64, 87), pack_location(5, 151, 26)], [1, 3])
    index.freeze(state)
    index.commit()
    index.close(None)
    with lmdb.open(str(tmp_path / "msgstore-lmdb"), max_dbs=2) as environment:
        main, *others = [environment.open_db(name) for name in (None, b"entries", b"state")]
        with environment.begin() as transaction:
            assert transaction.get(b"msgstore-lmdb", db=main) == b"1"
            assert [dict(transaction.cursor(database)) for database in others] == [entries, state]


def test_the_checksum_of_the_directory_page_is_right():
    text = (DOCS / "spec/store-directory.md").read_text(encoding="utf-8")
    (shown,) = (text for language, text in blocks(DOCS / "spec/store-directory.md") if language == "json")
    members = json.loads(shown)
    crc = members.pop("crc32")
    assert zlib.crc32(json.dumps(members, sort_keys=True).encode()) == crc
    assert "msgstore-lmdb" in text


# -- figures come from a command that prints the rows of the page ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("msgstore_ets_index") and find_spec("msgstore_format_v2")), reason="the store that is timed has ets and v2"
)
def test_what_a_hook_costs():
    (shown,) = (text for language, text in blocks(DOCS / "explanation/plugins-are-resolved-once.md") if language == "text")
    command = [sys.executable, ROOT / "bench/hooks.py", "--calls", "200"]
    printed = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    row = re.compile(r"^ *([\d,]+) ns  (.+)$", re.MULTILINE)
    assert [name for _, name in row.findall(printed)] == [name for _, name in row.findall(shown)]
    assert len(row.findall(printed)) == len(printed.splitlines()) == 6
