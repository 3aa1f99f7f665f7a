"""Reference counts that a broker saved: exact if everything agrees with them, never a message too few if anything does not."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import msgstore
from erlang_terms import encode
from msgstore.engine.open import broker as broker_files
from msgstore.testing.faults import Crash, RecordingFiles, StoppingFiles
from support import DATA, RealDirectory, command, counts, failing, filled, flip, hashes, json_of, open_with

CLEAN_STOPS = ["mixed_upgrade", "v1_clean", "v1_compacted", "v2_clean", "v2_compacted"]
COUNTS, SUMMARY = "msg_store_index.ets", "file_summary.ets"
KEPT = "msgstore-broker-"
IDS = [bytes([n]) * 16 for n in range(6)]
Row = tuple[bytes, int, int, int, int]


def counts_of(path: Path, **keys: object) -> tuple[dict[bytes, int], str]:
    """The reference counts that a store on the directory has, without writing into it, and where they come from."""
    with open_with(path, **{"mode": "r", "index": "ets", "format": "v2", **keys}) as store:
        return counts(store), store.stats().recovery.counts


def item(term: bytes) -> bytes:
    return (len(term) + 1).to_bytes(4, "big") + b"bWLA\x83" + term


def table(rows: list[bytes], count: int | None = None) -> bytes:
    """A saved table as ``ets:tab2file`` writes it."""
    count = len(rows) if count is None else count
    end = b"l\0\0\0\x02d\0\x0d$end_of_tablel\0\0\0\x01h\x02d\0\x05count" + encode(count) + b"jj"
    info = b"h\x02h\x02d\0\x02idah\x02d\0\x04sizea\0"
    return b"\x01\x02\x03\x04cXM\x0b" + item(info) + b"".join(map(item, rows)) + item(end)


def location(row: Row) -> bytes:
    return b"h\x06d\0\x0cmsg_location" + b"".join(map(encode, row))


def summary(number: int, live_bytes: int, size: int) -> bytes:
    undefined = b"d\0\x09undefined"
    numbers = encode(number) + encode(live_bytes) + undefined * 2 + encode(size)
    return b"h\x08d\0\x0cfile_summary" + numbers + b"d\0\x05false" + undefined


def rows_of(path: Path, name: str = COUNTS) -> list[Any]:
    layout = broker_files.LOCATION if name == COUNTS else broker_files.SUMMARY
    return list(broker_files.read_rows((path / name).read_bytes(), layout, lambda _: None))


def write_rows(path: Path, rows: list[Row]) -> None:
    (path / COUNTS).write_bytes(table([location(row) for row in rows]))


def broker_stops(path: Path, references: dict[bytes, int]) -> None:
    """What a broker leaves that found these records, and that has these references."""
    with open_with(path, mode="r", index="ets", format="v2") as store:
        entries = list(store.entries())
        segments = store.segments()
    rows = [(e.msg_id, references[e.msg_id], e.number, e.offset, e.size) for e in entries if e.msg_id in references]
    write_rows(path, rows)
    live = {s.number: sum(size for _, count, number, _, size in rows if count and number == s.number) for s in segments}
    (path / SUMMARY).write_bytes(table([summary(s.number, live[s.number], s.size) for s in segments]))
    (path / "clean.dot").write_bytes(b"{client_refs,[]}.\n{index_module,rabbit_msg_store_ets_index}.\n")


@pytest.fixture
def ours(tmp_path, index) -> Path:
    """A store of ours with six messages, closed."""
    messages = [(msg_id, bytes([n]) * 100) for n, msg_id in enumerate(IDS)]
    return filled(tmp_path / "ours", messages, adopt=True, index=index, format="v2")


@pytest.fixture
def real(tmp_path) -> RealDirectory:
    """A broker with 297 live messages and 4 dead records."""
    return RealDirectory.load("v1_compacted")


@pytest.fixture
def path(real, tmp_path) -> Path:
    return real.copy(tmp_path)


# -- everything agrees --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLEAN_STOPS)
def test_clean_stop_gives_exact_counts(name, index, tmp_path):
    real = RealDirectory.load(name)
    path = real.copy(tmp_path)
    saved = {file: (path / file).read_bytes() for file in (COUNTS, SUMMARY)}
    assert counts_of(path, index=index) == (real.refcounts, "msg_store_index.ets")
    with open_with(path, adopt=True, index=index, format="v2") as store:
        assert store.stats().recovery.counts_are_kept
        assert hashes(store) == real.live
    assert counts_of(path, index=index) == (real.refcounts, "index")
    assert {file: (path / f"{KEPT}{file}").read_bytes() for file in saved} == saved
    assert not [file for file in saved if (path / file).exists()]


@pytest.mark.parametrize("saved", [{IDS[0]: 1, IDS[1]: 0, IDS[2]: 3}, {}], ids=["some", "none"])
def test_broker_after_us_gives_its_counts(saved, ours, index):
    """The dead do not come back when a broker has used one of our directories."""
    broker_stops(ours, saved)
    live = {msg_id: count for msg_id, count in saved.items() if count}
    for mode in ("r", "rw"):
        assert counts_of(ours, mode=mode, index=index) == (live, "msg_store_index.ets")


def test_given_counts_replace_saved_ones(path):
    msg_id = next(iter(RealDirectory.load("v1_compacted").refcounts))
    assert counts_of(path, refcounts=[(msg_id, 7)]) == ({msg_id: 7}, "given")


def test_renamed_counts_are_ignored_later(path):
    """After a kill the index ``ets`` has no counts, and those of the broker are out of date."""
    with open_with(path, adopt=True, index="ets", format="v2") as store:
        store.client().write(bytes(16), b"new")
        store.flush()
        store.abandon()
    found, source = counts_of(path)
    assert source == "one each"
    assert set(found.values()) == {1}


@pytest.mark.slow
def test_first_opening_killed_anywhere_keeps_counts(real, index, tmp_path):
    whole = RecordingFiles()
    open_with(real.copy(tmp_path / "whole"), whole, adopt=True, index=index, format="v2").abandon()
    changes = [change for change in whole.changes() if change[0] in ("replace", "unlink", "sync_directory")]
    assert {f"{KEPT}{COUNTS}", f"{KEPT}{SUMMARY}"} <= {Path(change[1]).name for change in changes}
    opened = max(at for at, change in enumerate(whole.changes()) if change[1].endswith(f"{KEPT}{SUMMARY}"))
    for stop in range(opened + 1):
        path = real.copy(tmp_path / str(stop))
        with pytest.raises(Crash):
            open_with(path, StoppingFiles(stop), adopt=True, index=index, format="v2")
        assert counts_of(path, index=index)[0] == real.refcounts, f"stopped before change {stop}: {whole.changes()[stop]}"
        shutil.rmtree(path)


# -- something contradicts ----------------------------------------------------------------------------------------------------


def changed(change: Callable[[Row], Row]) -> Callable[[Path], bytes]:
    """Change one row with references. Return its id."""

    def damage(path: Path) -> bytes:
        rows = rows_of(path)
        at = next(at for at, row in enumerate(rows) if row[1] > 1)
        rows[at] = change(rows[at])
        write_rows(path, rows)
        return rows[at][0]

    return damage


def summed(change: Callable[[list[tuple[int, int, int]]], list[tuple[int, int, int]]]) -> Callable[[Path], None]:
    """Change the rows (number, live bytes, size) of the file summary."""

    def damage(path: Path) -> None:
        (path / SUMMARY).write_bytes(table([summary(*row) for row in change(rows_of(path, SUMMARY))]))

    return damage


CONTRADICTIONS: dict[str, Callable[[Path], object]] = {
    "offset": changed(lambda row: (*row[:3], row[3] + 1, row[4])),
    "size": changed(lambda row: (*row[:4], row[4] - 1)),
    "huge file": changed(lambda row: (*row[:2], 2**64 - 1, *row[3:])),
    "huge offset": changed(lambda row: (*row[:3], 2**40, row[4])),
    "huge count": changed(lambda row: (row[0], 2**48, *row[2:])),
    "dead, against the live bytes of the summary": changed(lambda row: (row[0], 0, *row[2:])),
    "of an absent record": lambda path: write_rows(path, [*rows_of(path), (b"nobody has this.", 1, 0, 0, 100)]),
    "named twice": lambda path: write_rows(path, [*rows_of(path), rows_of(path)[0]]),
    "summary missing": lambda path: (path / SUMMARY).unlink(),
    "summary cut": lambda path: os.truncate(path / SUMMARY, (path / SUMMARY).stat().st_size - 1),
    "summary: live bytes": summed(lambda rows: [(rows[0][0], rows[0][1] - 1, rows[0][2]), *rows[1:]]),
    "summary: size": summed(lambda rows: [(rows[0][0], rows[0][1], rows[0][2] + 1), *rows[1:]]),
    "summary: one file less": summed(lambda rows: rows[1:]),
    "summary: one file more": summed(lambda rows: [*rows, (99, 0, 0)]),
}
"""Each returns the id whose count is wrong now, if there is one."""
IMPOSSIBLE = {"huge offset", "huge count"}
"""Their row is reported as an impossible entry, and is none of those that contradict a record."""


@pytest.mark.parametrize("damage", CONTRADICTIONS)
def test_contradicting_rows_count_one(damage, real, path, caplog):
    """All others keep their count, all other records count one, and the numbers are told."""
    kept = real.refcounts.keys() - {CONTRADICTIONS[damage](path)}
    found, source = counts_of(path)
    records = {bytes.fromhex(record["id"]) for segment in real.manifest["segments"] for record in segment["records"]}
    assert found == {msg_id: real.refcounts[msg_id] if msg_id in kept else 1 for msg_id in records}
    assert source == "msg_store_index.ets in part"
    [warning, *_] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert str(path) in warning
    agreed, contradicted = len(kept), len({row[0] for row in rows_of(path) if row[1]} - kept) - (damage in IMPOSSIBLE)
    assert f"{agreed} messages agree with their record and keep their count, {contradicted} contradict it" in warning
    assert f"{len(records) - agreed} records count as one message each" in warning


@pytest.mark.parametrize("every", [False, True], ids=["one", "every one"])
def test_missing_segment_of_a_broker_is_told(every, real, path, caplog):
    """Its counts name messages that no segment has."""
    numbers = sorted({row[2] for row in rows_of(path) if row[1]})
    lost = numbers if every else numbers[:1]
    for file in list(path.iterdir()):
        if file.suffix in (".rdq", ".sqs") and (every or file.stem == str(lost[0])):
            file.unlink()
    missing = {row[0] for row in rows_of(path) if row[1] and row[2] in lost}
    with msgstore.open_store(path, mode="r") as store:
        recovery = store.stats().recovery
    assert recovery.missing == len(missing)
    assert recovery.first_missing in missing
    assert f"segment {lost[0]} is missing" in caplog.text
    assert f"{len(missing)} ids with references without a record" in command("verify", path, code=1).stdout


def test_no_clean_stop_counts_one_each(real, path, caplog):
    """Saved tables of an earlier stop, copied back beside segments that went on."""
    (path / "clean.dot").unlink()
    found, source = counts_of(path)
    assert source == "one each"
    assert real.refcounts.keys() < found.keys()
    assert set(found.values()) == {1}
    assert f"{path / COUNTS}: not used: there is no clean.dot beside it" in caplog.text


def test_stale_counts_lose_no_newer_message(ours, index, caplog):
    broker_stops(ours, {IDS[0]: 2})
    stale = {name: (ours / name).read_bytes() for name in (COUNTS, SUMMARY)}
    filled(ours, [(b"a newer message.", b"body")], adopt=True, index=index, format="v2")
    for name, data in stale.items():
        (ours / name).write_bytes(data)
    found, source = counts_of(ours, index=index)
    assert source == "msg_store_index.ets in part"
    assert found == {**dict.fromkeys([*IDS, b"a newer message."], 1), IDS[0]: 2}
    assert "by file_summary.ets" in caplog.text


# -- damaged and hostile files ------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path) -> Path:
    """43 live messages of a 3.10 broker, and 16 whose entry has no reference."""
    vhosts = DATA / "rabbitmq-3.10" / "clean" / "msg_stores" / "vhosts"
    source = vhosts / "628WB79CIFDYO9LJI6DKMI09L" / "msg_store_persistent"
    return Path(shutil.copytree(source, tmp_path / "small"))


def check_nothing_lost(path: Path, rows: list[Row], what: str) -> None:
    """Of these rows every one that is still there keeps its count; every message is there."""
    left = {row[0]: row for row in rows_of(path)}
    found, source = counts_of(path)
    live = {row[0]: row for row in rows if row[1]}
    assert live.keys() <= found.keys(), f"{what}: messages are lost"
    assert all(found[i] in (1, row[1], left.get(i, row)[1]) for i, row in live.items()), f"{what}: a count is in no row"
    if source != "one each":
        assert all(found[i] == row[1] for i, row in live.items() if left.get(i) == row), f"{what}: counts are lost"


@pytest.mark.parametrize("tries", [8, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [COUNTS, SUMMARY])
def test_saved_table_with_any_damage_loses_nothing(name, tries, small):
    """Cut off anywhere, or with a flipped bit."""
    rows = rows_of(small)
    data = (small / name).read_bytes()
    for size in range(0, len(data), -(-len(data) // tries)):
        (small / name).write_bytes(data[:size])
        check_nothing_lost(small, rows, f"{name} cut to {size} bytes")
        assert counts_of(small)[1] != "msg_store_index.ets"
    chance = random.Random(1)
    for _ in range(tries):
        (small / name).write_bytes(data)
        at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        flip(small / name, at, bit)
        check_nothing_lost(small, rows, f"{name}: bit {bit} at offset {at}")


ROW = location((bytes(16), 1, 0, 0, 100))


def item_size(size: bytes, *, also_first: bool = False) -> bytes:
    """A table of three rows; another size of the first row, or of the item before it, too."""
    data = bytearray(table([ROW] * 3))
    for at in [data.index(item(ROW)), *[8] * also_first]:
        data[at : at + 4] = size
    return bytes(data)


CUT = f"it is damaged or cut off at offset {table([ROW]).index(item(ROW))}"
ANYTHING = ""
LOCATION = b"h\x06d\0\x0cmsg_locationm"
HOSTILE = {
    "atom": b"h\x06d\xff\xff" + b"x" * 65535,
    "compressed": b"P\xff\xff\xff\xffx\x9c" + bytes(100),
    "tuples": b"h\x01" * 100_000,
    "lists": b"l\0\0\0\x01" * 100_000,
    "integer": LOCATION + b"\0\0\0\x10" + bytes(16) + b"o\xff\xff\xff\xff\0",
    "negative": LOCATION + b"\0\0\0\x10" + bytes(16) + b"b\xff\xff\xff\xff" * 4,
    "magics": b"bWLA\x83h" * 10_000,
}
"""A row between two sound ones."""
TABLES: dict[str, tuple[bytes, int, str | None]] = {
    "huge size of an item": (item_size(b"\xff" * 4), 2, CUT),
    "zero size of an item": (item_size(bytes(4)), 2, CUT),
    "huge size of two items": (item_size(b"\xff" * 4, also_first=True), 2, ANYTHING),
    "zero size of two items": (item_size(bytes(4), also_first=True), 2, ANYTHING),
    "a thousand rows": (table([ROW] * 1000), 1000, None),
    "empty": (b"", 0, ANYTHING),
    "many zeros": (bytes(2**20), 0, ANYTHING),
    "a head alone": (b"\x01\x02\x03\x04cXM\x0b", 0, ANYTHING),
    "not closed": (table([ROW]).replace(b"cXM\x0b", b"\x06\x07\x08\x09"), 1, "it is not a table that was closed"),
    "one row less than it says": (table([ROW], 2), 1, "its end does not fit its 1 rows"),
    "bytes behind it": (table([ROW]) + b"x", 1, "its end does not fit its 1 rows"),
    **{f"hostile {name}": (table([ROW, row, ROW]), 2, ANYTHING) for name, row in HOSTILE.items()},
    **{f"atoms {atom!r}": (table([ROW.replace(b"d\0\x0c", atom)]), 1, None) for atom in (b"v\0\x0c", b"s\x0c", b"w\x0c")},
}
"""Data, how many rows are read, and what is said of the rest."""


@pytest.mark.parametrize(("data", "rows", "said"), TABLES.values(), ids=TABLES)
def test_saved_table_is_read_as_far_as_possible(data, rows, said):
    """In little memory."""
    problems = []
    tracemalloc.start()
    found = sum(1 for _ in broker_files.read_rows(data, broker_files.LOCATION, problems.append))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found, peak < 2**20) == (rows, True)
    assert problems if said is ANYTHING else problems[:1] == ([] if said is None else [said])


def test_saved_table_that_is_a_pipe_is_ignored(small):
    """Nothing waits for it."""
    (small / COUNTS).unlink()
    os.mkfifo(small / COUNTS)
    assert counts_of(small)[1] == "one each"


# -- the command line ---------------------------------------------------------------------------------------------------------


def test_verbs_say_where_counts_come_from(path):
    assert "counts        from msg_store_index.ets\n" in command("info", path).output
    assert "297 of 297 live messages verified (rebuild; counts: from msg_store_index.ets)" in command("verify", path).output
    assert json_of("verify", path)[-1]["counts"] == "msg_store_index.ets"
    (path / "clean.dot").unlink()
    output = command("verify", path).output
    assert "301 of 301 records verified (rebuild; counts: one for each record, live or dead)" in output
    assert "msg_store_index.ets: not used" in output


@pytest.mark.parametrize("name", [COUNTS, SUMMARY])
def test_unreadable_counts_stop_an_adoption(name, files, real, path):
    """It would put them away for ever, and the next attempt may read them."""
    files.before("open_read", failing(errno.EIO), name, times=None)
    with pytest.raises(msgstore.StoreError, match=r"cannot be read: Input/output error\. It has the reference counts"):
        open_with(path, files, adopt=True)
    with open_with(path, files, mode="r") as store:
        assert len(list(store.entries())) >= len(real.live)
    with open_with(path, adopt=True) as store:
        assert counts(store) == real.refcounts, "counts that can be read again are lost"


@pytest.mark.parametrize("name", ["v1_clean", "v2_clean"])
def test_counts_survive_opening_without_threads(tmp_path, monkeypatch, name):
    """The last step of an opening fails: the next one has the counts of the broker all the same."""
    path = RealDirectory.load(name).copy(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(msgstore.Store, "start", mock.Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            open_with(path, adopt=True)
    with open_with(path) as store:
        assert store.stats().messages == 450
