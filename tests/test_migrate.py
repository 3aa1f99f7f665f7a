"""``migrate STORE DEST``: a store's own counts go along, or nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result

import msgstore
from msgstore.directory import known_settings
from msgstore.files import Files
from support import DATA, command, counts, counts_file, filled, id_of, needs_erlang


def make(path: Path, index: str, *, killed: bool = False) -> dict[bytes, int]:
    """Ten messages a segment, of which every third is dead and every other one has two references."""
    everything = {id_of(n): 1 + n % 2 for n in range(100)}
    store = msgstore.open_store(path, index=index, file_size_limit="4KiB", gc="never")
    with store.client() as client:
        for number, references in enumerate(everything.values()):
            client.write_many([(id_of(number), b"message %d" % number * 30)] * references)
        store.flush()
        client.remove([id_of(number) for number in range(0, 100, 3) for _ in range(1 + number % 2)])
        store.flush()
    store.abandon() if killed else store.close()
    return {id_of(n): 1 + n % 2 for n in range(100) if n % 3}


def migrate(*arguments: object) -> Result:
    return command("migrate", *arguments, "--to", "v2", "--processes", "1", code=None)


def counts_of(path: Path) -> dict[bytes, int]:
    with msgstore.open_store(path, mode="r") as store:
        return counts(store)


@pytest.mark.parametrize(("name", "killed"), [("ets", False), ("lmdb", False), ("lmdb", True)])
def test_counts_go_along(name: str, killed: bool, tmp_path: Path) -> None:
    """And what a killed migration has left is cleared away. A file ``out.counts`` is somebody else's."""
    (tmp_path / "out.counts").write_text("mine")
    truth = make(tmp_path / "in", name, killed=killed)
    left = tmp_path / ".out.counts.msgstore" / "0123456789abcdef"
    left.mkdir(parents=True)
    (left / "counts.csv").write_text(f"{id_of(1).hex()},1\n")
    assert migrate(tmp_path / "in", tmp_path / "out").exit_code == 0
    assert counts_of(tmp_path / "out") == truth
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "out.counts"]


@pytest.mark.parametrize("name", ["ets", "lmdb"])
def test_counts_of_store_without_settings_go_along(name: str, tmp_path: Path) -> None:
    """The copy of the settings is there. The missing file is reported, so the exit status is 1."""
    truth = make(tmp_path / "in", name, killed=False)
    (tmp_path / "in" / "msgstore.json").unlink()
    result = migrate(tmp_path / "in", tmp_path / "out")
    assert (result.exit_code, "msgstore.json" in result.output) == (1, True), result.output
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
    result = migrate(tmp_path / "in", tmp_path / "out", "--refcounts", counts_file(tmp_path / "counts", truth.items()))
    if lost:
        assert "messages that have references are not there" in result.stderr
    else:
        assert counts_of(tmp_path / "out") == truth


@pytest.mark.parametrize(("record", "forgets"), [("audit", False), ("checksum", False), ("audit", True)])
def test_the_record_types_of_a_directory_or_a_configuration(record: str, forgets: bool, tmp_path: Path) -> None:
    """The directory remembers them, or has forgotten them, and the configuration knows."""
    bound = {"format": {"use": "v2", "records": {record: 200}}, "record": record}
    filled(tmp_path / "in", [(id_of(1), b"one")], **bound)
    if forgets:
        (tmp_path / "in" / "msgstore.json").unlink()
        (tmp_path / "in" / "msgstore.json.copy").unlink()
    config = tmp_path / "c.toml"
    form = f"{{ use = 'v2', records = {{ {record} = {200 if forgets else '{}'} }} }}"
    config.write_text(f"[stores.a]\npath = 'in'\nrecord = '{record}'\nformat = {form}\n")
    for number, source in enumerate([["a", "--config", config], *([] if forgets else [[tmp_path / "in"]])]):
        result = migrate(source[0], tmp_path / f"{number}", *source[1:])
        assert (result.exit_code, counts_of(tmp_path / f"{number}")) == (0, {id_of(1): 1}), result.output


@needs_erlang
@pytest.mark.parametrize("source", ["v1_clean", "mixed_upgrade"])
def test_copy_of_brokers_directory_has_its_codec(source: str, tmp_path: Path) -> None:
    """As an adoption would: clients read bodies, not terms."""
    result = migrate(DATA / "msg-store" / source / "store", tmp_path / "out")
    assert result.exit_code == 0, result.output
    settings = known_settings(Files(), tmp_path / "out")
    assert settings is not None
    assert settings.body == "erlang"


@pytest.mark.parametrize("copied", [False, True])
def test_fields_of_records_that_are_lost_are_named(copied: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that the new format has by the same name: its value is another."""
    keys = {"format": {"use": "v2", "records": {"audit": 200}}, "record": "audit"}
    with msgstore.open_store(tmp_path / "old", **keys) as store, store.client() as client:
        client.write(id_of(1), b"message")
    if copied:
        done = command("migrate", tmp_path / "old", tmp_path / "new", "--to", "stamped", "--processes", "1")
    else:
        with msgstore.open_store(tmp_path / "old", format="stamped", record="message") as store:
            store.migrate()
    assert ("time, actor" if copied else "actor, time") in (done.stderr if copied else caplog.text)


def test_torn_segment_with_missing_messages_is_finished_by_the_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Missing messages may stand behind the torn end, so an opening leaves the segment, and says how to go on."""
    old = tmp_path / "old"
    old.mkdir()
    one, two = (b"".join(((16 + 150).to_bytes(8), id_of(n), bytes([n]) * 150, b"\xff")) for n in (1, 2))
    (old / "0.rdq").write_bytes(one + two + one[:100])
    references = [(id_of(n), 1) for n in (1, 2, 3)]
    with msgstore.open_store(old, format="v2", body="raw", on_legacy="migrate", adopt=True, refcounts=references) as store:
        store.compact()
        assert [segment.file for segment in store.segments()] == ["0.rdq"]
    assert "the segment is kept as it is" in caplog.text
    assert "'msgstore salvage' copies all intact records" in caplog.text
    assert migrate(old, tmp_path / "new").exit_code == 1  # the torn end is damage
    assert counts_of(tmp_path / "new") == {id_of(1): 1, id_of(2): 1}
    assert {file.suffix for file in (tmp_path / "new").iterdir() if file.name[0].isdigit()} == {".sqs"}
