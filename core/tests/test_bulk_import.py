"""Import: Parquet and JSON Lines become a fresh store, or an error that names file and row."""

from __future__ import annotations

import base64
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet as pq

import msgstore
from msgstore.cli.main import main
from msgstore.contract import ConfigError, MsgStoreError, StoreError
from msgstore.jobs import importing
from msgstore.jobs.importing import import_messages, plan_import
from msgstore.jobs.tasks import Meter

Rows = list[tuple[bytes, bytes]]


def some(count: int, first: int = 0) -> Rows:
    return [(n.to_bytes(16, "big"), str(n).encode() * 30) for n in range(first, first + count)]


def to_parquet(path: Path, rows: Rows, *, group: int = 100, ids: str = "binary(16)", **more: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    kinds = {"binary(16)": pa.binary(16), "binary": pa.binary(), "text": pa.string()}
    names = [i.hex() if ids == "text" else i for i, _ in rows]
    columns = {"id": pa.array(names, kinds[ids]), "body": pa.array([b for _, b in rows], pa.binary()), **more}
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


def to_lines(path: Path, rows: Rows, **more: Any) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    lines = [{"id": i.hex(), "body": base64.b64encode(b).decode(), **more} for i, b in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def content(path: Path, index: str = "ets") -> dict[bytes, tuple[bytes, int]]:
    with msgstore.open_store(path, mode="r", index=index) as store:
        assert store.stats().recovery.how in ("trust", "new")
        return {e.msg_id: (store.stored_body(e), e.references) for e in store.entries()}


def run(*sources: Path, to: Path, **keys: Any) -> importing.ImportReport:
    return import_messages(plan_import(msgstore.load_catalogue(), sources, to, **keys), map, Meter(0))


@pytest.mark.parametrize("ids", ["binary(16)", "binary", "text"])
def test_parquet(ids: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups are shared out; the store has the rows in their order."""
    monkeypatch.setattr(importing, "SHARE", 20_000)
    rows = some(2000)
    file = to_parquet(tmp_path / "in.parquet", rows, ids=ids)
    job = plan_import(msgstore.load_catalogue(), [file], tmp_path / "store")
    assert len(job.shares) > 3
    assert [share.first for share in job.shares[:2]] == [0, 100 * len(job.shares[0].groups)]
    done: list[tuple[int, int]] = []
    report = import_messages(job, map, Meter(job.size, lambda *so_far: done.append(so_far)))
    assert content(tmp_path / "store") == {i: (b, 1) for i, b in rows}
    assert [n for n, _ in done] == sorted({n for n, _ in done})
    assert done[-1][0] == done[-1][1] == sum(share.size for share in job.shares)
    size = sum(path.stat().st_size for path in (tmp_path / "store").glob("*.sqs"))
    wanted = {
        "kind": "import",
        "destination": str(tmp_path / "store"),
        "files": 1,
        "rows": 2000,
        "messages": 2000,
        "bytes": size,
    }
    assert report.as_json() == wanted


def test_lines(tmp_path: Path) -> None:
    """Texts, empty lines, and files of both kinds together; what Spark puts beside its files is none."""
    rows = some(20_000)
    source = tmp_path / "in"
    to_parquet(source / "b.parquet", rows[:5000])
    to_lines(source / "a.jsonl", rows[5000:])
    (source / "c").mkdir()
    (source / "c" / "t.ndjson").write_text('\n{"id": "' + "ab" * 16 + '", "text": "Grüße"}\n\n')
    (source / "_SUCCESS").write_bytes(b"")
    (source / ".b.parquet.crc").write_bytes(b"")
    (source / "_temporary").mkdir()
    to_lines(source / "_temporary" / "x.jsonl", some(3, 10**6))
    report = run(source, to=tmp_path / "store", index="lmdb", record="checksum")
    wanted = {i: (b, 1) for i, b in rows} | {b"\xab" * 16: ("Grüße".encode(), 1)}
    assert content(tmp_path / "store", "lmdb") == wanted
    assert (report.files, report.rows, report.messages) == (3, 20_001, 20_001)
    again = run(source / "*.parquet", source / "b.parquet", to=tmp_path / "again")
    assert (again.files, again.messages) == (1, 5000)


def test_references_and_copies(tmp_path: Path) -> None:
    rows = some(300)
    to_parquet(tmp_path / "in" / "a.parquet", rows, references=pa.array([1 + n % 5 for n in range(300)], pa.int32()))
    to_lines(tmp_path / "in" / "b.jsonl", rows[:10], references=7)
    report = run(tmp_path / "in", to=tmp_path / "store")
    assert (report.rows, report.messages) == (310, 300)
    wanted = {i: (b, 1 + n % 5 + 7 * (n < 10)) for n, (i, b) in enumerate(rows)}
    assert content(tmp_path / "store") == wanted
    to_lines(tmp_path / "plain.jsonl", rows)
    with pytest.raises(ConfigError, match=r"a\.parquet has references, .*plain\.jsonl has none"):
        run(tmp_path / "in", tmp_path / "plain.jsonl", to=tmp_path / "not")
    to_lines(tmp_path / "other.jsonl", [(rows[4][0], b"other")])
    with pytest.raises(StoreError, match=f"the id {rows[4][0].hex()} comes with two bodies"):
        run(tmp_path / "plain.jsonl", tmp_path / "other.jsonl", to=tmp_path / "not")
    assert not (tmp_path / "not").exists()


ID = "0f" * 16


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "is no JSON object"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('"\xff"', "is not JSON|no JSON object"),
        ('{"body": ""}', "has no 'id'"),
        ('{"id": "0f", "body": ""}', "the id '0f' is not 32 hexadecimal digits"),
        ('{"id": 7, "body": ""}', "the id 7 is not 32"),
        ('{"id": "' + "xy" * 16 + '", "body": ""}', "is not 32 hexadecimal digits"),
        ('{"id": "' + ID + '"}', "needs a 'body' .* or a 'text'"),
        ('{"id": "' + ID + '", "body": "", "text": ""}', "one of them"),
        ('{"id": "' + ID + '", "body": "!!!"}', f"the body of {ID} is not base64"),
        ('{"id": "' + ID + '", "body": 5}', f"the body of {ID} is not a string"),
        ('{"id": "' + ID + '", "text": "\\ud800"}', "cannot be written as UTF-8"),
        ('{"id": "' + ID + '", "text": "", "size": 0}', "has 'size': a store keeps id, body and references"),
        ('{"id": "' + ID + '", "text": "", "references": 1}', "has 'references', and the first line of all has not"),
    ],
)
def test_lines_that_are_no_messages(line: str, message: str, tmp_path: Path) -> None:
    file = to_lines(tmp_path / "in.jsonl", some(10))
    with file.open("a", encoding="latin-1") as more:
        more.write(line + "\n")
    with pytest.raises(StoreError, match=rf"in\.jsonl, line 11: .*({message})"):
        run(file, to=tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("references", ["0", "-1", "null", "1.5", "true", '"1"', "1e30", str(10**30)])
def test_references_that_are_none(references: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "' + ID + '", "text": "", "references": ' + references + "}\n")
    with pytest.raises(StoreError, match=rf"in\.jsonl: {ID} has .* references; a message has from 1 to"):
        run(tmp_path / "in.jsonl", to=tmp_path / "store")


def test_other_members_are_ignored_on_request(tmp_path: Path) -> None:
    to_lines(tmp_path / "in" / "a.jsonl", some(5), exchange="amq.direct")
    to_parquet(tmp_path / "in" / "b.parquet", some(5, 10), size=pa.array(range(5)))
    for source, message in [("a.jsonl", "has 'exchange'"), ("b.parquet", "leave out size")]:
        with pytest.raises(MsgStoreError, match=rf"{message}.*are ignored \(ignore_others=, --ignore-others\)"):
            run(tmp_path / "in" / source, to=tmp_path / "store")
    assert run(tmp_path / "in", to=tmp_path / "store", ignore_others=True).messages == 10


def test_parquet_that_is_none(tmp_path: Path) -> None:
    rows = some(500)
    whole = to_parquet(tmp_path / "whole.parquet", rows).read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 3 : len(whole) // 3 + 400] = bytes(400)
    tables: dict[str, tuple[Any, str]] = {
        "torn": (whole[:-100], "cannot be read as Parquet"),
        "empty": (b"", "cannot be read as Parquet"),
        "damaged": (bytes(damaged), "damaged.parquet"),
        "no body": (pa.table({"id": [b"i" * 16]}), r"there is no column 'body' \(binary\); columns: id"),
        "null id": (pa.table({"id": pa.array([b"i" * 16, None], pa.binary()), "body": [b"", b""]}), "row 1: there is no id"),
        "null body": (pa.table({"id": [b"i" * 16], "body": pa.array([None], pa.binary())}), f"{b'i'.hex() * 16} has no body"),
        "short": (pa.table({"id": [b"i" * 16, b"short"], "body": [b"", b""]}), "row 1: the id 73686f7274 has 5 bytes, not 16"),
        "number": (pa.table({"id": [7], "body": [b""]}), "the column 'id' is int64; it must be 16 bytes, or text"),
        "twice": (pa.table([[b"i" * 16], [b""], [b""]], ["id", "body", "body"]), "there are two columns 'body'"),
        "text": (pa.table({"id": [b"i" * 16], "body": ["text"]}), "the column 'body' is string; it must be binary"),
    }
    for name, (table, message) in tables.items():
        file = tmp_path / f"{name}.parquet"
        file.write_bytes(table) if isinstance(table, bytes) else pq.write_table(table, file)
        with pytest.raises(MsgStoreError, match=f"(?s){name}.*{message}" if name != "damaged" else message):
            run(file, to=tmp_path / "store")
        file.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["whole.parquet"]


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.csv").write_text("id,body\n")
    for source, message in [
        ("none", "there is no such file"),
        ("*.parquet", "there is no such file"),
        ("empty", "holds no files that end in .parquet, .jsonl"),
        ("text.csv", "which must be one of"),
    ]:
        with pytest.raises(StoreError, match=message):
            run(tmp_path / source, to=tmp_path / "store")
    to_lines(tmp_path / "in" / "a.jsonl", [])
    assert run(tmp_path / "in", to=tmp_path / "store").messages == 0
    assert content(tmp_path / "store") == {}
    with pytest.raises(StoreError, match="is there already"):
        run(tmp_path / "in", to=tmp_path / "store")
    with pytest.raises(StoreError, match="lies inside"):
        run(tmp_path / "in", to=tmp_path / "in" / "store")


def test_bodies_that_are_not_of_the_codec(tmp_path: Path) -> None:
    file = to_lines(tmp_path / "in.jsonl", some(3))
    with pytest.raises(StoreError, match=r"in\.jsonl: the body of 0{32} is not valid for the codec 'erlang'"):
        run(file, to=tmp_path / "store", body="erlang")
    assert not (tmp_path / "store").exists()


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_command(tmp_path: Path) -> None:
    file = to_lines(tmp_path / "in.jsonl", some(30) + some(10))
    result = invoke("import", file, tmp_path / "store", "--record", "audit", "--bind", "audit=200")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("30 messages imported from 1 file, 10 repeated rows; ")
    result = invoke("import", file, tmp_path / "second", "--json")
    assert json.loads(result.stdout)["messages"] == 30
    result = invoke("import", file, tmp_path / "store")
    assert result.exit_code == 2
    assert "is there already" in result.output
    assert len(result.output.splitlines()) == 1


def test_without_pyarrow(tmp_path: Path) -> None:
    """JSON Lines need none; for Parquet the message says what to install."""
    to_lines(tmp_path / "in.jsonl", some(3))
    to_parquet(tmp_path / "in.parquet", some(3))
    program = "import sys; sys.modules['pyarrow'] = None; from msgstore.cli.main import main; main()"
    for name, code, text in [("in.jsonl", 0, "3 messages imported"), ("in.parquet", 2, "pip install 'msgstore[parquet]'")]:
        command = [sys.executable, "-c", program, "import", str(tmp_path / name), str(tmp_path / f"{code}")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert text in done.stdout + done.stderr


def test_what_is_reached_by_two_names_counts_once(tmp_path: Path) -> None:
    path = to_lines(tmp_path / "in" / "a.jsonl", some(1), references=2)
    (tmp_path / "link.jsonl").symlink_to(path)
    report = run(path, tmp_path / "in" / ".." / "in", tmp_path / "link.jsonl", to=tmp_path / "to")
    assert (report.files, report.rows) == (1, 1)
    assert [references for _, references in content(tmp_path / "to").values()] == [2]


def test_a_glob_of_directories(tmp_path: Path) -> None:
    top = tmp_path / "top"
    to_lines(top / "store=a" / "0.jsonl", some(3))
    to_lines(top / "store=b" / "0.jsonl", some(3, 3))
    to_lines(top / "store=b" / "_temporary" / "0.jsonl", some(3, 6))
    to_lines(top / "_c" / "0.jsonl", some(3, 9))
    for number, pattern in enumerate(("store=*", "*", "**", "**/*.jsonl")):
        assert run(top / pattern, to=tmp_path / f".{number}").rows == 6
    assert run(top / "_c" / "*.jsonl", to=tmp_path / ".c").rows == 3
    assert run(top / "store=*" / "_temporary" / "*.jsonl", to=tmp_path / ".d").rows == 3
    assert run(top / "**" / "_temporary" / "*.jsonl", to=tmp_path / ".f").rows == 3
    assert run(top / "**" / "st*" / "**" / "_temporary" / "**", to=tmp_path / ".g").rows == 3
    assert run(top / "store=a" / ".." / "s*" / ".." / "_c" / "*.jsonl", to=tmp_path / ".e").rows == 3


def test_nothing_is_written_into_a_directory_that_a_glob_matches(tmp_path: Path) -> None:
    to_lines(tmp_path / "in" / "0.jsonl", some(1))
    for pattern in ("in", "i*", "i*/**"):
        with pytest.raises(StoreError, match="lies inside"):
            run(tmp_path / pattern, to=tmp_path / "in" / "to")
    assert run(tmp_path / "in" / "*.jsonl", to=tmp_path / "in" / "to").rows == 1


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (make_fifo, "bad.jsonl: cannot be imported: is not a regular file"),
        (lambda path: path.symlink_to("nowhere"), "bad.jsonl: cannot be imported: No such file"),
        (lambda path: path.symlink_to(path.parent.parent), "bad.jsonl: is a link to a directory"),
    ],
)
def test_nothing_that_might_be_a_file_is_passed_over(make: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    to_lines(tmp_path / "in" / "a.jsonl", some(1))
    make(tmp_path / "in" / "bad.jsonl")
    for source in (tmp_path / "in", tmp_path / "i*"):
        with pytest.raises(StoreError, match=said):
            run(source, to=tmp_path / "to")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.jsonl")
    with pytest.raises(StoreError, match=r"p\.jsonl: cannot be imported: is not a regular file"):
        run(tmp_path / "p.jsonl", to=tmp_path / "to")


def test_a_directory_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_lines(tmp_path / "in" / "a.jsonl", some(1))
    to_lines(tmp_path / "in" / "closed" / "b.jsonl", some(1, 1))
    plain = os.scandir

    def guarded(path: Any = ".") -> Any:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return plain(path)

    monkeypatch.setattr(os, "scandir", guarded)
    for source in (tmp_path / "in", tmp_path / "i*", tmp_path / "in" / "**" / "*.jsonl"):
        with pytest.raises(StoreError, match=r"closed: cannot be listed: Permission denied"):
            run(source, to=tmp_path / "to")
    (tmp_path / "in" / "closed").rename(tmp_path / "in" / "_closed")
    to_lines(tmp_path / "in" / "open" / "c.jsonl", some(1, 2))
    monkeypatch.setattr(os, "scandir", lambda path=".": guarded(str(path).replace("_closed", "closed")))
    assert run(tmp_path / "in" / "*" / "*.jsonl", to=tmp_path / "to").rows == 1


def test_a_member_that_comes_twice(tmp_path: Path) -> None:
    first, second = ("0" * 31 + "1", "0" * 31 + "2")
    (tmp_path / "a.jsonl").write_text(f'{{"id": "{first}", "id": "{second}", "text": "x"}}\n')
    with pytest.raises(StoreError, match=r"a\.jsonl, line 1: has 'id' twice"):
        run(tmp_path / "a.jsonl", to=tmp_path / "to")
    (tmp_path / "b.jsonl").write_text(f'{{"id": "{first}", "text": "x", "more": {{"a": 1, "a": 2}}, "more": 3}}\n')
    assert run(tmp_path / "b.jsonl", to=tmp_path / "to", ignore_others=True).rows == 1


def test_the_size_is_that_of_the_files_if_the_last_source_is_empty(tmp_path: Path) -> None:
    to_lines(tmp_path / "a.jsonl", some(100))
    (tmp_path / "b.jsonl").write_text("")
    report = run(tmp_path / "a.jsonl", tmp_path / "b.jsonl", to=tmp_path / "to", format="ledger")
    assert report.bytes == sum(path.stat().st_size for path in (tmp_path / "to").glob("*.ledger"))
