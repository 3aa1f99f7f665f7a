"""``migrate STORE DEST``: a store's own counts go along, or nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import msgstore
from msgstore.cli.main import main


def id_of(n: int) -> bytes:
    return n.to_bytes(16, "big")


def make(path: Path, index: str, *, killed: bool = False) -> dict[bytes, int]:
    """Ten messages a segment, of which every third is dead and every other one has two references."""
    store = msgstore.open_store(path, index=index, file_size_limit="4KiB", gc="never")
    with store.client("a") as a, store.client("b") as b:
        for n in range(100):
            a.write(id_of(n), b"message %d" % n * 30)
            if n % 2:
                b.write(id_of(n), b"message %d" % n * 30)
        store.flush()
        for n in range(0, 100, 3):
            a.remove([id_of(n)])
            if n % 2:
                b.remove([id_of(n)])
        store.flush()
    store.abandon() if killed else store.close()
    return {id_of(n): 1 + n % 2 for n in range(100) if n % 3}


def migrate(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["migrate", *map(str, arguments), "--to", "v2", "--processes", "1"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def counts_of(path: Path) -> dict[bytes, int]:
    with msgstore.open_store(path, mode="r") as store:
        return {entry.msg_id: entry.references for entry in store.entries()}


@pytest.mark.parametrize("name", ["ets", "lmdb"])
def test_counts_go_along(name: str, tmp_path: Path) -> None:
    truth = make(tmp_path / "in", name)
    assert migrate(tmp_path / "in", tmp_path / "out").exit_code == 0
    assert counts_of(tmp_path / "out") == truth
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_counts_of_a_killed_store_that_keeps_them(tmp_path: Path) -> None:
    truth = make(tmp_path / "in", "lmdb", killed=True)
    assert migrate(tmp_path / "in", tmp_path / "out").exit_code == 0
    assert counts_of(tmp_path / "out") == truth


@pytest.mark.parametrize(
    ("name", "lost"), [("ets", "1.sqs"), ("ets", "*.sqs"), ("ets", ""), ("lmdb", "1.sqs"), ("lmdb", "*.sqs")]
)
def test_lost_counts_are_told(name: str, lost: str, tmp_path: Path) -> None:
    """Else every message would come with one reference, the dead ones too, and those that are missing would not be missed."""
    truth = make(tmp_path / "in", name, killed=not lost)
    for path in list((tmp_path / "in").glob(lost)) if lost else []:
        path.unlink()
    result = migrate(tmp_path / "in", tmp_path / "out")
    assert (result.exit_code, "its counts are lost" in result.stderr) == (2, True), result.output
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    (tmp_path / "counts").write_text("".join(f"{msg_id.hex()},{count}\n" for msg_id, count in truth.items()))
    result = migrate(tmp_path / "in", tmp_path / "out", "--refcounts", tmp_path / "counts")
    if lost:
        assert "messages that have references are not there" in result.stderr
    else:
        assert counts_of(tmp_path / "out") == truth


def test_what_a_killed_migration_left_is_cleared_away(tmp_path: Path) -> None:
    make(tmp_path / "in", "ets")
    left = tmp_path / f".out.counts.msgstore-{'0123456789abcdef'}"
    left.mkdir()
    (left / "counts.csv").write_text(f"{id_of(1).hex()},1\n")
    assert migrate(tmp_path / "in", tmp_path / "out").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_configuration_knows_the_record_types_of_a_directory_that_forgot_them(tmp_path: Path) -> None:
    bound = {"format": {"use": "v2", "records": {"audit": 200}}, "record": "audit"}
    with msgstore.open_store(tmp_path / "in", **bound) as store, store.client() as client:
        client.write(id_of(1), b"one")
    (tmp_path / "in" / "msgstore.json").unlink()
    config = tmp_path / "c.toml"
    config.write_text('[stores.a]\npath = "in"\nrecord = "audit"\nformat = { use = "v2", records = { audit = 200 } }\n')
    result = migrate("a", tmp_path / "out", "--config", config)
    assert (result.exit_code, counts_of(tmp_path / "out")) == (0, {id_of(1): 1}), result.output


@pytest.mark.parametrize("record", ["audit", "checksum"])
def test_the_record_types_that_a_directory_remembers(record: str, tmp_path: Path) -> None:
    bound = {"format": {"use": "v2", "records": {record: 200}}, "record": record}
    with msgstore.open_store(tmp_path / "in", **bound) as store, store.client() as client:
        client.write(id_of(1), b"one")
    config = tmp_path / "c.toml"
    options = f'record = "{record}"\nformat = {{ use = "v2", records = {{ {record} = {{}} }} }}\n'
    config.write_text(f'[stores.a]\npath = "in"\n{options}')
    for number, source in enumerate(([tmp_path / "in"], ["a"])):
        more = ["--config", config] if number else []
        result = migrate(*source, tmp_path / f"{number}", *more)
        assert (result.exit_code, counts_of(tmp_path / f"{number}")) == (0, {id_of(1): 1}), result.output
