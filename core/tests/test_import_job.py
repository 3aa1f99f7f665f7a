"""Import: Parquet and JSON Lines become a fresh store, or an error that names file and row."""

from __future__ import annotations

import base64
import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import msgstore
from core_support import refused, rows_of, run
from msgstore.contract import ConfigError, MsgStoreError, StoreError
from msgstore.jobs import importing
from msgstore.jobs.importing import import_messages, plan_import
from msgstore.jobs.reading import splits
from msgstore.jobs.tasks import ProgressMeter

ID = "0f" * 16


def some(count, first=0):
    return [(n.to_bytes(16, "big"), str(n).encode() * 30) for n in range(first, first + count)]


def to_parquet(path, rows, *, ids="binary(16)", **more):
    path.parent.mkdir(exist_ok=True)
    kinds = {"binary(16)": pa.binary(16), "binary": pa.binary(), "text": pa.string()}
    names = [i.hex() if ids == "text" else i for i, _ in rows]
    columns = {"id": pa.array(names, kinds[ids]), "body": pa.array([b for _, b in rows], pa.binary()), **more}
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return path


def to_lines(path, rows, **more):
    path.parent.mkdir(exist_ok=True, parents=True)
    lines = [{"id": i.hex(), "body": base64.b64encode(b).decode(), **more} for i, b in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def content(path, index="ets"):
    with msgstore.open_store(path, mode="r", index=index) as store:
        assert store.stats().recovery.how in ("trust", "new")
        return {e.msg_id: (store.stored_body(e), e.references) for e in store.entries()}


def load(*sources, to, **keys) -> importing.ImportReport:
    return import_messages(plan_import(msgstore.load_catalogue(), sources, to, **keys), map, ProgressMeter(0))


def fails(message, *sources, to, error=StoreError, **keys):
    with pytest.raises(error, match=message):
        load(*sources, to=to, **keys)


@pytest.mark.parametrize("ids", ["binary(16)", "binary", "text", "lines"])
def test_rows_are_imported_in_their_order(ids, tmp_path, monkeypatch):
    """A task reads some row groups, or some lines."""
    monkeypatch.setattr(importing, "SPLIT_SIZE", 20_000)
    rows, file = some(2000), tmp_path / f"in.{'jsonl' if ids == 'lines' else 'parquet'}"
    to_lines(file, rows) if ids == "lines" else to_parquet(file, rows, ids=ids)
    job = plan_import(msgstore.load_catalogue(), [file], tmp_path / "store")
    assert len(job.splits) > 3
    done = []
    report = import_messages(job, map, ProgressMeter(job.size, lambda *so_far: done.append(so_far)))
    assert content(tmp_path / "store") == {i: (b, 1) for i, b in rows}
    assert done == sorted(set(done))
    assert done[-1] == (job.size, job.size)
    size = sum(path.stat().st_size for path in (tmp_path / "store").glob("*.sqs"))
    counts = {"files": 1, "rows": 2000, "messages": 2000, "bytes": size}
    assert report.as_json() == {"kind": "import", "destination": str(tmp_path / "store"), **counts}


def test_files_of_both_kinds_are_imported_together(tmp_path):
    """Texts, empty lines, an empty file; not the files that Spark creates next to its own. Each file counts once."""
    rows, source = some(20_000), tmp_path / "in"
    to_parquet(source / "b.parquet", rows[:5000])
    to_lines(source / "a.jsonl", rows[5000:])
    (source / "c").mkdir()
    (source / "c" / "t.ndjson").write_text('\n{"id": "' + "ab" * 16 + '", "text": "Grüße"}\n\n')
    (source / "c" / "z.jsonl").write_text("")
    for name in ("_SUCCESS", ".b.parquet.crc"):
        (source / name).write_bytes(b"")
    to_lines(source / "_temporary" / "x.jsonl", some(3, 10**6))
    report = load(source, to=tmp_path / "store", index="lmdb", record="checksum")
    wanted = {i: (b, 1) for i, b in rows} | {b"\xab" * 16: ("Grüße".encode(), 1)}
    assert content(tmp_path / "store", "lmdb") == wanted
    assert (report.files, report.rows, report.messages) == (4, 20_001, 20_001)
    (tmp_path / "link.parquet").symlink_to(source / "b.parquet")
    again = load(source / "*.parquet", source / ".." / "in" / "b.parquet", tmp_path / "link.parquet", to=tmp_path / "again")
    assert (again.files, again.messages) == (1, 5000)
    assert load(source / "c" / "z.jsonl", to=tmp_path / "empty").messages == 0
    assert content(tmp_path / "empty") == {}


def test_references_of_copies_add_up(tmp_path):
    rows = some(300)
    to_parquet(tmp_path / "in" / "a.parquet", rows, references=pa.array([1 + n % 5 for n in range(300)], pa.int32()))
    to_lines(tmp_path / "in" / "b.jsonl", rows[:10], references=7)
    report = load(tmp_path / "in", to=tmp_path / "store")
    assert (report.rows, report.messages) == (310, 300)
    assert content(tmp_path / "store") == {i: (b, 1 + n % 5 + 7 * (n < 10)) for n, (i, b) in enumerate(rows)}
    plain, other = to_lines(tmp_path / "plain.jsonl", rows), to_lines(tmp_path / "other.jsonl", [(rows[4][0], b"other")])
    message = r"a\.parquet has references, .*plain\.jsonl has none"
    fails(message, tmp_path / "in", plain, to=tmp_path / "not", error=ConfigError)
    fails(f"the id {rows[4][0].hex()} comes with two bodies", plain, other, to=tmp_path / "not")
    assert not (tmp_path / "not").exists()


def line_of(**members):
    return json.dumps({"id": ID, **members})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "it is a list"),
        ("{", "Expecting property name"),
        ("[" * 100_000, "recursion"),
        ('"\xff"', "can't decode|it is a str"),
        ('{"body": ""}', "its id is None"),
        (line_of(body="")[:-1] + ', "body": ""}', "it has one of id, body, text, references twice"),
        (line_of(id="0f", body=""), "its id is '0f'"),
        (line_of(id=" ".join(["0f"] * 16), body=""), "its id is '0f 0f"),
        (line_of(id=7, body=""), "its id is 7"),
        (line_of(id="xy" * 16, body=""), "its id is 'xyxy"),
        (line_of(), "it has both, or neither"),
        (line_of(body="", text=""), "it has both, or neither"),
        (line_of(body="!!!"), "base64 data"),
        (line_of(body=5), "not 'int'"),
        (line_of(text="\ud800"), "surrogates not allowed"),
        (line_of(text="", size=0), "it has 'size'"),
        (line_of(text="", references=1), "has 'references', and the first line of all has not"),
    ],
    ids=lambda text: text[:30],
)
def test_line_that_is_no_message_is_named(line, message, tmp_path, monkeypatch):
    """By its number in the file, whatever split it is in."""
    monkeypatch.setattr(importing, "SPLIT_SIZE", 200)
    file = to_lines(tmp_path / "in.jsonl", some(10))
    with file.open("a", encoding="latin-1") as more:
        more.write(line + "\n")
    fails(rf"in\.jsonl, line 11: is not a JSON object with .*({message})", file, to=tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("references", ["0", "-1", "null", "1.5", "true", '"1"', "1e30", str(10**30)])
def test_impossible_references_are_refused(references, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"id": "' + ID + '", "text": "", "references": ' + references + "}\n")
    fails(rf"in\.jsonl: {ID} has .* references; a message has from 1 to", tmp_path / "in.jsonl", to=tmp_path / "store")


def test_longest_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "LONGEST", 100)
    to_lines(tmp_path / "in.jsonl", [(bytes(16), bytes(200))])
    fails(
        r"in\.jsonl: the line at offset 0 is longer than 100 bytes",
        tmp_path / "in.jsonl",
        to=tmp_path / "to",
        error=ConfigError,
    )


def test_other_members_are_ignored_on_request(tmp_path):
    to_lines(tmp_path / "in" / "a.jsonl", some(5), exchange="amq.direct")
    to_parquet(tmp_path / "in" / "b.parquet", some(5, 10), size=pa.array(range(5)))
    for source, message in [("a.jsonl", "has 'exchange'"), ("b.parquet", "leave out size")]:
        said = rf"{message}.*are ignored \(ignore_others=, --ignore-others\)"
        fails(said, tmp_path / "in" / source, to=tmp_path / "store", error=MsgStoreError)
    (tmp_path / "in" / "c.jsonl").write_text(f'{{"id": "{ID}", "text": "x", "more": {{"a": 1, "a": 2}}, "more": 3}}\n')
    assert load(tmp_path / "in", to=tmp_path / "store", ignore_others=True).messages == 11


ONE = b"i" * 16
TABLES: dict[str, tuple[Any, str]] = {
    "no body": (pa.table({"id": [ONE]}), r"there must be one column 'body' \(binary\); the columns are: id"),
    "null id": (pa.table({"id": pa.array([ONE, None], pa.binary()), "body": [b"", b""]}), "row 1: id is null"),
    "null body": (pa.table({"id": [ONE], "body": pa.array([None], pa.binary())}), r"row 0: body is null"),
    "short": (pa.table({"id": [ONE, b"short"], "body": [b"", b""]}), "row 1: the id 73686f7274 has 5 bytes, not 16"),
    "number": (pa.table({"id": [7], "body": [b""]}), r"one column 'id' \(16 bytes, or text .*\); the columns are: id int64"),
    "twice": (pa.table([[ONE], [b""], [b""]], ["id", "body", "body"]), "the columns are: id binary, body binary, body binary"),
    "text": (pa.table({"id": [ONE], "body": ["text"]}), "the columns are: id binary, body string"),
    "torn": (lambda whole: whole[:-100], "cannot be read as Parquet"),
    "empty": (lambda whole: b"", "cannot be read as Parquet"),
    "damaged": (lambda whole: whole[: len(whole) // 3] + bytes(400) + whole[len(whole) // 3 + 400 :], ""),
}


@pytest.mark.parametrize("name", TABLES)
def test_parquet_that_is_no_messages_is_refused(name, tmp_path):
    table, message = TABLES[name]
    file = tmp_path / f"{name}.parquet"
    if callable(table):
        file.write_bytes(table(to_parquet(file, some(500)).read_bytes()))
    else:
        pq.write_table(table, file)
    fails(f"(?s){name}.parquet.*{message}", file, to=tmp_path / "store", error=MsgStoreError)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_bodies_that_codec_refuses_are_named(tmp_path):
    file = to_lines(tmp_path / "in.jsonl", some(3))
    fails(r"in\.jsonl: the body of 0{32} is not valid for the codec 'erlang'", file, to=tmp_path / "store", body="erlang")
    assert not (tmp_path / "store").exists()


def test_command_prints_counts(tmp_path):
    file = to_lines(tmp_path / "in.jsonl", some(30) + some(10))
    text = run("import", file, tmp_path / "store", "--record", "audit", "--bind", "audit=200", code=0).stdout
    assert text.startswith("30 messages imported from 1 file, 10 repeated rows; ")
    assert rows_of("import", file, tmp_path / "second")[0]["messages"] == 30
    assert "is there already" in refused("import", file, tmp_path / "store")


def test_parquet_without_pyarrow_is_refused(tmp_path, monkeypatch):
    """The error has the package to install. JSON Lines need none."""
    files = [to_lines(tmp_path / "in.jsonl", some(3)), to_parquet(tmp_path / "in.parquet", some(3))]
    monkeypatch.setattr("msgstore.jobs.workers.find_spec", lambda name: None)
    assert load(files[0], to=tmp_path / "store").messages == 3
    fails(r"pip install 'msgstore\[parquet\]'", files[1], to=tmp_path / "other", error=ConfigError)


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [
        *((pattern, 6) for pattern in ("store=*", "**", "**/*.jsonl")),
        ("_c/*.jsonl", 3),
        ("**/st*/**/_temporary/**", 3),
        ("store=a/../s*/../_c/*.jsonl", 3),
    ],
)
def test_glob_of_directories_passes_hidden_ones(pattern, rows, tmp_path):
    for number, name in enumerate(("store=a", "store=b", "store=b/_temporary", "_c")):
        to_lines(tmp_path / "top" / name / "0.jsonl", some(3, 3 * number))
    assert load(tmp_path / "top" / pattern, to=tmp_path / "to").rows == rows


def test_destination_inside_matched_directory_is_refused(tmp_path):
    to_lines(tmp_path / "in" / "0.jsonl", some(1))
    for pattern in ("in", "i*", "i*/**"):
        fails("lies inside", tmp_path / pattern, to=tmp_path / "in" / "to")
    assert load(tmp_path / "in" / "*.jsonl", to=tmp_path / "in" / "to").rows == 1


@pytest.mark.parametrize(
    ("name", "make", "sources", "said"),
    [
        ("bad.jsonl", os.mkfifo, ("in", "i*", "in/bad.jsonl"), "bad.jsonl: cannot be read: is not a regular file"),
        ("bad.jsonl", lambda path: path.symlink_to("nowhere"), ("in", "i*"), "bad.jsonl: cannot be read: No such file"),
        ("bad", lambda path: path.symlink_to(path.parent.parent), ("in", "i*"), "bad: is a link to a directory"),
        ("empty", Path.mkdir, ("in/empty",), r"empty: there is no file that ends in \.parquet, \.jsonl"),
        ("text.csv", Path.touch, ("in/text.csv",), "text.csv: there is no file that ends in"),
        ("a.ndjson", Path.touch, ("none", "*.parquet"), "there is no such file or directory"),
    ],
)
def test_source_without_messages_is_refused(name, make, sources, said, tmp_path):
    """Nothing that might be a file is passed over."""
    to_lines(tmp_path / "in" / "a.jsonl", some(1))
    make(tmp_path / "in" / name)
    for source in sources:
        fails(said, tmp_path / source, to=tmp_path / "to", error=ConfigError)


def test_unlistable_directory_is_refused(tmp_path, monkeypatch):
    to_lines(tmp_path / "in" / "a.jsonl", some(1))
    to_lines(tmp_path / "in" / "closed" / "b.jsonl", some(1, 1))
    plain = os.scandir

    def guarded(path="."):
        if not isinstance(path, int) and Path(path).name in ("closed", "_closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return plain(path)

    monkeypatch.setattr(os, "scandir", guarded)
    for source in ("in", "i*", "in/**/*.jsonl"):
        fails(r"closed: cannot be listed: Permission denied", tmp_path / source, to=tmp_path / "to")
    (tmp_path / "in" / "closed").rename(tmp_path / "in" / "_closed")
    to_lines(tmp_path / "in" / "open" / "c.jsonl", some(1, 2))
    assert load(tmp_path / "in" / "*" / "*.jsonl", to=tmp_path / "to").rows == 1
