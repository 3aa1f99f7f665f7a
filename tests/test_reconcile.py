"""Records against changes of reference counts: each id in its class, sums exact, whatever the changes come in."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgstore.contract import ConfigError, StoreError, StoreIOError
from msgstore.jobs.classes import ROWS
from msgstore.jobs.columns.sums import IdAggregator
from msgstore.jobs.counts import MAX_COUNT, find_splits, read_counts, read_split, sums_of
from msgstore.jobs.diff import plan_diff
from msgstore.jobs.reading.splits import FileSplit
from msgstore.jobs.reconcile import NAMED, WRITTEN, ReconcileReport, plan_reconcile
from msgstore.jobs.salvage import plan_salvage
from support import (
    DATA,
    DIRECTORIES,
    RealDirectory,
    catalogue,
    command,
    counts_file,
    failing,
    filled,
    json_of,
    open_with,
    run_job,
)

Rows = list[tuple[bytes, int]]
ID, ZEROS = b"i" * 16, "0" * 32


def run(sources: list[Path], deltas: list[Path], to: Path | None = None, processes: int = 1) -> ReconcileReport:
    return run_job(plan_reconcile(catalogue(), sources, deltas, to=to), processes)


def parquet_file(path: Path, rows: Rows, kind: pa.DataType | None = None, row_group_size: int = 7) -> Path:
    ids, counts = (
        pa.array([msg_id for msg_id, _ in rows], pa.binary()),
        pa.array([count for _, count in rows], kind or pa.int64()),
    )
    pq.write_table(pa.table({"count": counts, "id": ids}), path, row_group_size=row_group_size)
    return path


def read(splits: Iterable[FileSplit]) -> Rows:
    batches = [batch for split in splits for batch in read_split(split)]
    return [(row["id"], row["count"]) for batch in batches for row in batch.to_pylist()]


def scanned(source: Path) -> Counter[bytes]:
    """Id to the bytes of its records."""
    sizes: Counter[bytes] = Counter()
    for segment in json_of("scan", source, code=None):
        for row in segment["records"] + segment["duplicates"]:
            sizes[bytes.fromhex(row["id"])] += row["size"]
    return sizes


def classes_of(sums: Counter[bytes], records: Iterable[bytes]) -> dict[str, Rows]:
    """Return the truth, in the words of the specification."""
    there = set(records)
    everything = [(msg_id, sums[msg_id], msg_id in there) for msg_id in sorted(sums.keys() | there)]
    return {
        "live": [(i, count) for i, count, is_there in everything if count > 0 and is_there],
        "orphan": [(i, count) for i, count, is_there in everything if count == 0 and is_there],
        "dangling": [(i, count) for i, count, is_there in everything if count > 0 and not is_there],
        "negative": [(i, count) for i, count, _ in everything if count < 0],
        "settled": [(i, count) for i, count, is_there in everything if count == 0 and not is_there],
    }


# -- what real brokers wrote --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIRECTORIES)
def test_real_directory_with_history_has_its_classes(name, tmp_path):
    """Every write and remove of the broker, in any order and form."""
    real = RealDirectory.load(name)
    history = [
        (bytes.fromhex(message["id"]), change)
        for message in real.manifest["messages"]
        for change in [1] * message["writes"] + [-1] * message["removes"]
    ]
    random.Random(name).shuffle(history)
    half = len(history) // 2
    files = [counts_file(tmp_path / "a.csv", history[:half]), parquet_file(tmp_path / "b.parquet", history[half:], pa.int32())]
    source = DATA / "msg-store" / name / "store"
    report = run([source], files, tmp_path / "to", processes=2)
    sizes, sums = scanned(source), Counter[bytes]()
    for msg_id, change in history:
        sums[msg_id] += change
    truth = classes_of(sums, sizes)
    assert {i for i, _ in truth["live"]} >= real.live.keys()
    for which in WRITTEN:
        folder = tmp_path / "to" / f"class={which}"
        assert (sorted(read_counts(folder)) if folder.exists() else []) == truth[which]
    assert {which: found.ids for which, found in report.classes.items()} == {which: len(truth[which]) for which in truth}
    assert report.changes == len(history)
    assert report.classes["orphan"].size == sum(sizes[i] for i, _ in truth["orphan"])
    assert report.classes["live"].references == sum(count for _, count in truth["live"])
    assert (bool(report.damage), report.agrees) == ("torn" in real.manifest, not truth["dangling"])
    assert report.named["dangling"] == truth["dangling"][:NAMED]


# -- files of counts: what --deltas and --refcounts take, with any runner -----------------------------------------------------

IDS = st.integers(0, 9).map(lambda n: bytes([n, 171]) * 8)


@given(
    st.lists(st.tuples(IDS, st.integers(-3, 3)), max_size=60),
    st.integers(1, 400),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["{},{}", "{}, {}", "{},{},more", " {} ,+0{}"]),
    st.sampled_from([str.lower, str.upper]),
    st.booleans(),
    st.sampled_from(["", "id,count"]),
    st.sampled_from(["", "\ufeff"]),
)
def test_any_lines_are_read_in_any_splits(tmp_path_factory, rows, split, newline, form, case, ends, head, mark):
    rows = [(msg_id, abs(count) if "+" in form else count) for msg_id, count in rows]
    path = tmp_path_factory.mktemp("any") / "deltas.csv"
    text = newline.join([*filter(None, [head]), *(form.format(case(msg_id.hex()), count) for msg_id, count in rows), ""])
    path.write_bytes((mark + (text if ends else text.removesuffix(newline))).encode())
    assert read(find_splits([path], split)) == rows == list(read_counts(path))


def test_directory_of_parquet_is_read_as_spark_leaves_it(tmp_path):
    rows = [(bytes([n]) * 16, n) for n in range(8)]
    for name in ("day=1", "day=2.parquet", "_temporary"):
        (tmp_path / name).mkdir()
    for n, name in enumerate(["000000_0", "a.parquet", "day=1/part-1", "day=2.parquet/x.c000"]):
        parquet_file(tmp_path / name, rows[2 * n : 2 * n + 2], pa.int8() if n % 2 else pa.int64(), row_group_size=1)
    for name in ("_SUCCESS", ".part-1.crc", "_temporary/part-2", ".hidden.parquet", "README.txt"):
        (tmp_path / name).write_text("not a count")
    (tmp_path / "000001_0").touch()
    assert len(find_splits([tmp_path], 1)) == len(rows)
    assert find_splits([tmp_path, tmp_path / "a.parquet"]) == find_splits([tmp_path])
    assert read(find_splits([tmp_path], 1)) == list(read_counts(tmp_path)) == rows
    one = tmp_path / "day=1" / "part-1"
    assert read(find_splits([one])) == list(read_counts(one)) == read(find_splits([one.parent])) == rows[4:6]


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("deeper/part-1", lambda path: path.write_text(ZEROS + ",1\n"), "is not Parquet"),
        ("000000_0", lambda path: path.write_text("\ufeff\n id , count\n"), "is not Parquet"),
        ("b.csv.gz", lambda path: path.write_bytes(b"\x1f"), "is not Parquet"),
        ("b.parquet", Path.touch, "cannot be read as Parquet"),
        ("part-2", lambda path: path.symlink_to("nowhere"), "cannot be read: No such file"),
        ("c.parquet", os.mkfifo, "cannot be read: is not a regular file"),
        ("link", lambda path: path.symlink_to("deeper"), "is a link to a directory"),
    ],
)
def test_probable_counts_in_directory_are_refused(name, make, said, tmp_path):
    parquet_file(tmp_path / "a.parquet", [(ID, 1)])
    (tmp_path / "deeper").mkdir()
    make(tmp_path / name)
    with pytest.raises(ConfigError, match=f"{tmp_path / name}: {said}"):
        find_splits([tmp_path])


NOT_LINE = "line 500 is not 'id,count' with an id of 32 hexadecimal digits"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        *((line, NOT_LINE) for line in ("ab,1", "g" * 32 + ",1", ZEROS, ZEROS + ",one", ZEROS + ",1.5", "id,count")),
        ("\ufeff" + ZEROS + ",1", NOT_LINE),
        (f"{ZEROS},{2**48}", f"line 500 has the count {2**48}; a count is at most"),
        (f"{ZEROS},{-(2**63)}", "line 500 has the count -9223372036854775808; a count is at most"),
        ({"id": [b"short"], "count": [1]}, "an id is 16 bytes"),
        ({"id": pa.array([ID, None], pa.binary()), "count": [1, 1]}, "an id is 16 bytes"),
        ({"id": [ID, ID], "count": [1, None]}, "the count None"),
        ({"id": [ID], "count": [-(2**48)]}, "a count at most"),
        ({"id": [7], "count": [1]}, "the columns are: id int64, count int64"),
        ({"id": [ID], "count": [1.5]}, r"one column 'count' \(a whole number\)"),
        ({"id": [ID]}, "there must be one column 'count'"),
    ],
)
def test_bad_line_or_row_is_named(tmp_path, bad, said, monkeypatch):
    monkeypatch.setattr("msgstore.jobs.counts.find_splits.__defaults__", (100,))
    path = tmp_path / ("d.csv" if isinstance(bad, str) else "d.parquet")
    if isinstance(bad, str):
        good = [f"{n:032x},1\n" for n in range(499)]
        path.write_text("".join([*good, bad, "\n", *good]))
        assert len(find_splits([path])) > 100
    else:
        pq.write_table(pa.table(bad), path)
    (tmp_path / "0.rdq").touch()
    with pytest.raises(ConfigError, match=said) as caught:
        run([tmp_path], [path])
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError) as again:
        list(read_counts(path))
    assert str(again.value) == str(caught.value)


def test_sums_beyond_64_bits_are_refused(tmp_path):
    (tmp_path / "0.rdq").touch()
    path = counts_file(tmp_path / "d.csv", [(ID, -MAX_COUNT)] * (2**62 // MAX_COUNT + 1))
    with pytest.raises(ConfigError, match=f"{path}: up to here the counts add up to .*; sums have 64 bits"):
        run([tmp_path], [path])


def test_damaged_page_is_error_of_its_file(tmp_path):
    path = parquet_file(tmp_path / "d.parquet", [(bytes([n]) * 16, n) for n in range(100)])
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(8) + whole[12:])
    store = RealDirectory.load("v2_clean").copy(tmp_path)
    for verb in (("reconcile", store, "--deltas", path, "--to", tmp_path / "to"), ("inventory", store, "--refcounts", path)):
        result = command(*verb, "--processes", "1", code=2)
        assert result.stdout == ""
        assert f"msgstore: {path}: cannot be read as Parquet" in result.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["d.parquet", "store"]


def test_disk_error_is_no_fault_of_parquet(tmp_path, monkeypatch):
    path = parquet_file(tmp_path / "d.parquet", [(ID, 1)])
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.iter_batches", failing())
    for reading in (lambda: read(find_splits([path])), lambda: sums_of(path)):
        with pytest.raises(StoreIOError, match=f"^{path}: Input/output error"):
            reading()


@pytest.mark.parametrize("write", [counts_file, parquet_file])
def test_counts_of_each_id_are_added(tmp_path, write):
    ids = [bytes([n]) * 16 for n in range(3)]
    rows = [(ids[0], MAX_COUNT), (ids[1], 3), (ids[0], MAX_COUNT), (ids[0], -7), (ids[2], -MAX_COUNT), (ids[0], -MAX_COUNT)]
    path = tmp_path / ("d.csv" if write is counts_file else "d.parquet")
    write(path, rows)
    assert sums_of(path) == {ids[0]: MAX_COUNT - 7, ids[1]: 3, ids[2]: -MAX_COUNT}
    write(path, [*rows, (ids[0], 8)])
    with pytest.raises(ConfigError, match=f"{ids[0].hex()} has {MAX_COUNT + 1} references; at most"):
        sums_of(path)


def test_lines_need_no_pyarrow(tmp_path, monkeypatch):
    lines, parquet = counts_file(tmp_path / "d.csv", [(ID, 1)]), parquet_file(tmp_path / "part-0", [(ID, 1)])
    for name in ("pyarrow", "pyarrow.parquet", "msgstore.jobs.columns.sums"):
        monkeypatch.setitem(sys.modules, name, None)
    assert list(read_counts(lines)) == [(ID, 1)]
    for path in (parquet, tmp_path):
        with pytest.raises(ConfigError, match=r"pip install 'pyarrow>=18'"):
            list(read_counts(path))


def test_names_that_are_no_text_are_read_and_written(tmp_path):
    odd = tmp_path / os.fsdecode(b"odd\xff")
    try:
        odd.mkdir()
    except OSError:
        pytest.skip("this file system has only names that are text")
    source = RealDirectory.load("v2_clean").copy(tmp_path)
    rows = [(bytes([n]) * 16, 1) for n in range(9)]
    lines, counts = counts_file(tmp_path / "d.csv", rows), odd / "to" / "class=dangling"
    command("reconcile", source, "--deltas", lines, "--to", odd / "to", "--processes", "1", code=1)
    assert sorted(read(find_splits([counts]))) == sorted(read_counts(counts)) == rows
    command("inventory", source, "--refcounts", counts, "--processes", "1")
    command("convert", source, odd / "rows.parquet")
    assert len(list((odd / "rows.parquet").iterdir())) == 1


def test_mistakes_are_refused_before_reading(tmp_path, monkeypatch):
    source, deltas = RealDirectory.load("v2_clean").copy(tmp_path), counts_file(tmp_path / "d.csv", [])
    (tmp_path / "no.parquet").write_bytes(b"PAR1")
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "something").touch()
    for error, options, said in (
        (ConfigError, {"deltas": [tmp_path / "none.csv"]}, "no such file"),
        (ConfigError, {"deltas": [tmp_path / "no.parquet"]}, "cannot be read as Parquet"),
        (ConfigError, {"deltas": [tmp_path / "empty"]}, "no file of counts"),
        (StoreError, {"to": source / "to"}, "lies inside"),
        (StoreError, {"to": source}, "lies inside"),
        (StoreError, {"to": tmp_path / "x" / "y"}, "no such directory"),
        (StoreError, {"to": tmp_path / "full"}, "not an empty directory"),
    ):
        with pytest.raises(error, match=said):
            plan_reconcile(catalogue(), [source], **({"deltas": [deltas]} | options))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'pyarrow>=18'"):
        plan_reconcile(catalogue(), [source], [deltas])


# -- adding up ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [700, 100_000], ids=["on disk", "in memory"])
@pytest.mark.parametrize("sequential", [True, False])
def test_rows_are_added_up_in_buckets(sequential, in_memory, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("msgstore.jobs.columns.sums._SPLIT", 300)
    rnd = random.Random(5)
    names = [n.to_bytes(16) if sequential else rnd.randbytes(16) for n in range(500)]
    rows = [(rnd.choice(names), rnd.randint(-5, 5), rnd.randint(0, 1), rnd.randint(0, 100)) for _ in range(5000)]
    with IdAggregator(ROWS, in_memory) as sums:
        for begin in range(0, 5000, 100):
            columns = zip(*rows[begin : begin + 100], strict=True)
            sums.add(pa.record_batch(list(map(pa.array, columns, ROWS.types)), schema=ROWS))
        assert bool(list(tmp_path.iterdir())) == (in_memory < len(rows))
        tables = list(sums.totals())
    assert list(tmp_path.iterdir()) == []
    assert sum(table.num_rows > 0 for table in tables) > 20  # ids that are counted up go into every bucket, too
    truth = {name: [0, 0, 0] for name, *_ in rows}
    for name, *numbers in rows:
        truth[name] = [a + b for a, b in zip(truth[name], numbers, strict=True)]
    added = [row for table in tables for row in table.to_pylist()]
    assert len(added) == len(truth)
    assert {row["id"]: [row["count"], row["records"], row["size"]] for row in added} == truth


# -- the command --------------------------------------------------------------------------------------------------------------


def test_command_prints_and_writes_classes(tmp_path):
    real = RealDirectory.load("v2_dirty_torn")
    source = real.copy(tmp_path)
    deltas = counts_file(tmp_path / "d.csv", [(i, real.refcounts[i]) for i in [*real.live, real.torn_id]])
    to = tmp_path / "classes"
    arguments = ["reconcile", source, "--deltas", deltas, "--processes", "1"]
    lines = json_of(*arguments, "--to", to, code=1)
    assert [line["kind"] for line in lines] == ["damage", "dangling", "summary"]
    assert lines[1] == {"kind": "dangling", "id": real.torn_id.hex(), "count": real.refcounts[real.torn_id]}
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["classes", "d.csv", "store"]
    table = ds.dataset(to, partitioning="hive").to_table()
    assert Counter(table["class"].to_pylist())["live"] == len(real.live) == lines[2]["classes"]["live"]["ids"]
    assert f"dangling: {real.torn_id.hex()} ({real.refcounts[real.torn_id]:+})" in command(*arguments, code=1).stdout
    assert "choose a new name" in command(*arguments, "--to", to, code=2).stderr


@pytest.mark.parametrize("verb", ["salvage", "reconcile", "diff"])
def test_writer_after_the_plan_fails_the_job(verb, tmp_path):
    """Segments may be gone, and messages removed, since they were listed. A job of a single segment notices it, too."""
    store = filled(tmp_path / "in")
    deltas = counts_file(tmp_path / "deltas.csv", [(bytes(16), 1)])
    jobs = {
        "salvage": plan_salvage(catalogue(), [store / "0.sqs"], tmp_path / "new"),
        "reconcile": plan_reconcile(catalogue(), [store], [deltas], to=tmp_path / "new"),
        "diff": plan_diff(catalogue(), DATA / "msg-store" / "v2_clean" / "store", store),
    }
    with open_with(store, mode="r"):
        pass  # readers do not matter
    run_job(jobs["diff"])
    filled(store, [(b"x" * 16, b"later")])
    with pytest.raises(StoreError, match="another process has opened the store for writing since this job began"):
        run_job(jobs[verb])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deltas.csv", "in"]
