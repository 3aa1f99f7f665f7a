"""``migrate STORE DEST``: a store's own counts go along, or nothing does."""

from __future__ import annotations

import errno
import os
import shutil
from collections import ChainMap
from pathlib import Path

import pytest
from click.testing import Result

import msgstore
from msgstore.cli.commands import compact
from msgstore.directory import known_settings
from msgstore.engine.state.clean_shutdown import CLEAN
from msgstore.files import Files
from msgstore.jobs.output.commit import StoreStaging
from support import DATA, command, counts, counts_file, filled, flip, id_of, json_of, needs_erlang, unchanged


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


@pytest.mark.parametrize("stray", [False, True], ids=["removed", "not read"])
def test_only_the_live_copy_is_copied(stray: bool, tmp_path: Path) -> None:
    """Another one may be damaged, and no check of the store finds that: it was removed, or the store never reads its file."""
    path, segment = tmp_path / "in", tmp_path / "in" / "0.sqs"
    filled(path, [(id_of(1), b"body"), (id_of(2), b"other")])
    if not stray:
        for steps in (lambda client: client.remove([id_of(1)]), lambda client: client.write(id_of(1), b"body")):
            with msgstore.open_store(path) as store, store.client() as client:
                steps(client)
    data = segment.read_bytes()
    assert data.count(b"body") == 2 - stray
    (path / "01.sqs" if stray else segment).write_bytes(data.replace(b"body", b"XXXX", 1))
    (*_, summary) = json_of("migrate", path, tmp_path / "out", "--to", "v2", "--processes", "1")
    with msgstore.open_store(tmp_path / "out", mode="r") as store:
        assert (store.client().read(id_of(1)), counts(store)) == (b"body", {id_of(1): 1, id_of(2): 1})
    assert (summary["counted"], summary["duplicates"] > 0, summary["dead"]) == (True, True, 0)


def test_dead_copy_does_not_replace_damaged_message(tmp_path: Path) -> None:
    with msgstore.open_store(tmp_path / "in", record="checksum") as store, store.client() as client:
        client.write(id_of(1), b"body")
        store.flush()
        client.remove([id_of(1)])
    with msgstore.open_store(tmp_path / "in") as store, store.client() as client:
        client.write(id_of(1), b"body")
    segment = tmp_path / "in" / "0.sqs"
    flip(segment, segment.read_bytes().rindex(b"body"))
    assert "messages that have references are not there, or damaged" in migrate(tmp_path / "in", tmp_path / "out").stderr


def test_counts_of_every_store_in_a_tree_go_along(tmp_path: Path) -> None:
    """Unless two have a message, as copies of one store have, or only some have counts. Then nothing is copied."""
    truth = make(tmp_path / "tree" / "a", "ets") | {b"x" * 16: 1}
    filled(tmp_path / "tree" / "b" / "c", [(b"x" * 16, b"body")], index="ets")
    assert migrate(tmp_path / "tree", tmp_path / "out").exit_code == 0
    assert counts_of(tmp_path / "out") == truth
    shutil.copytree(tmp_path / "tree" / "b", tmp_path / "tree" / "d")
    refused = migrate(tmp_path / "tree", tmp_path / "none")
    assert (refused.exit_code, "Migrate the stores one by one" in refused.stderr) == (2, True), refused.output
    shutil.rmtree(tmp_path / "tree" / "d")
    shutil.copytree(DATA / "msg-store" / "v2_dirty" / "store", tmp_path / "tree" / "d")
    refused = migrate(tmp_path / "tree", tmp_path / "none")
    assert (refused.exit_code, f"{tmp_path / 'tree' / 'd'} has none" in refused.stderr) == (2, True), refused.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "tree"]


def test_counts_of_a_vhost_go_along(tmp_path: Path) -> None:
    vhost = DATA / "rabbitmq-3.10" / "clean" / "msg_stores" / "vhosts" / "14049IPWY5WMKYX4P32YLNPMV"
    assert migrate(vhost, tmp_path / "out").exit_code == 3  # queue indexes are not read
    stores = (counts_of(vhost / name) for name in ("msg_store_persistent", "msg_store_transient"))
    assert counts_of(tmp_path / "out") == dict(ChainMap(*stores))


@pytest.mark.parametrize("damage", ["cut", "flipped", "no summary", "unreadable"])
@pytest.mark.parametrize("copied", [True, False], ids=["copy", "in place"])
def test_brokers_damaged_counts_are_refused(damage: str, copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else removed messages return, each with one reference. Counts that are given, or no file at all, say what is wanted."""
    path = shutil.copytree(DATA / "msg-store" / "v2_compacted" / "store", tmp_path / "in")
    truth, saved = counts_of(path), path / "msg_store_index.ets"
    if damage == "cut":
        saved.write_bytes(saved.read_bytes()[:-100])
    elif damage == "flipped":
        flip(saved, saved.read_bytes().index(b"msg_location", 3000))
    elif damage == "no summary":
        (path / "file_summary.ets").unlink()
    else:
        monkeypatch.setattr(Files, "open_read", lambda self, file: raising_for(saved, file))
    if damage == "no summary" and not copied:
        return  # an adoption without it keeps the counts that the records confirm
    where = [tmp_path / "out", "--processes", "1"] if copied else ["--adopt"]
    result = command("migrate", path, "--to", "v2", *where, code=2)
    assert not (path / "msgstore.json").exists(), "it is adopted"
    assert (result.exit_code, "msg_store_index.ets" in result.stderr) == (2, True), result.output
    assert "--refcounts" in result.stderr
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    assert (
        command("migrate", path, "--to", "v2", *where, "--refcounts", counts_file(tmp_path / "counts", truth.items())).exit_code
        == 0
    )
    assert counts_of(tmp_path / "out" if copied else path) == truth


def raising_for(refused: Path, file: Path) -> int:
    if file == refused:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))
    return os.open(file, os.O_RDONLY)


@pytest.mark.parametrize("when", [(compact, "_write_counts"), (compact, "run_salvage"), (StoreStaging, "_open_once")])
def test_writer_that_comes_later_is_noticed(when: tuple[object, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes while the new store is built: what it confirms would be missing, what it removes would return."""
    make(tmp_path / "in", "ets")
    go_on = getattr(*when)

    def write_first(*arguments: object) -> object:
        with msgstore.open_store(tmp_path / "in") as store:
            store.client().write(b"x" * 16, b"confirmed")
            store.client().remove([id_of(1)])
        return go_on(*arguments)

    monkeypatch.setattr(*when, write_first)
    result = migrate(tmp_path / "in", tmp_path / "out")
    assert (result.exit_code, "another process has opened the store for writing" in result.stderr) == (2, True), result.output
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


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


@needs_erlang
def test_codec_is_found_behind_empty_segment(tmp_path: Path) -> None:
    path = shutil.copytree(DATA / "msg-store" / "v1_clean" / "store", tmp_path / "in", ignore=shutil.ignore_patterns("*.ets"))
    (path / "9.rdq").touch()
    assert migrate(path, tmp_path / "out").exit_code == 0
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


# -- in place -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adopts", [True, False], ids=["adopted", "store"])
def test_killed_migration_keeps_counts_for_the_next(
    index: str, adopts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``lmdb`` has them itself. Otherwise the next attempt asks for the file, also if the store was closed cleanly since."""
    path, saved = shutil.copytree(DATA / "msg-store" / "v1_compacted" / "store", tmp_path / "in"), "msgstore-migrate-counts.csv"
    truth, config = counts_of(path), tmp_path / "msgstore.toml"
    assert set(truth.values()) > {1}
    config.write_text(f"[stores.a]\npath = 'in'\nindex = '{index}'\nformat = 'v1'\nadopt = true\n")
    if not adopts:
        msgstore.open_store(path, index=index, format="v1", adopt=True).close()

    def killed(store: msgstore.Store, progress: object) -> None:
        go_on(store)
        store.abandon()
        raise KeyboardInterrupt

    again = ["migrate", "a", "--config", config, "--to", "v2"]
    with monkeypatch.context() as patch:
        go_on = msgstore.Store.migrate
        patch.setattr(msgstore.Store, "migrate", killed)
        command(*again, code=None)
    assert (path / saved).exists() == (index == "ets")
    if index == "ets":
        assert saved in command("ls", path).stderr
        if not adopts:  # whoever opens the store meanwhile saves counts of one each
            msgstore.open_store(path).close()
            assert f"delete {path / CLEAN}, and give" in command(*again, code=2).stderr
            (path / CLEAN).unlink()
        assert f"--refcounts {path / saved}" in command(*again, code=2).stderr
        again += ["--refcounts", path / saved]
    command(*again)
    assert (counts_of(path), (path / saved).exists()) == (truth, False)
    assert {file.suffix for file in path.iterdir() if file.name[0].isdigit()} == {".sqs"}


def test_refused_migration_leaves_no_counts(tmp_path: Path) -> None:
    """Nor does one that has nothing to do, or that is done."""
    path = shutil.copytree(DATA / "msg-store" / "v1_compacted" / "store", tmp_path / "in")
    with unchanged(path, but=["msgstore.lock"]):
        command("migrate", path, "--to", "v2", code=2)
    for _ in range(2):
        command("migrate", path, "--to", "v2", "--adopt")
        assert not list(path.glob("*.csv"))


def test_counts_that_are_lost_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process was killed with the store open, and no migration: nothing is said of one."""
    path = shutil.copytree(DATA / "msg-store" / "v1_compacted" / "store", tmp_path / "in")
    store = msgstore.open_store(path, index="ets", format="v1", adopt=True)
    store.client().write(id_of(1), b"body")
    store.flush()
    store.abandon()
    seen: list[Path] = []
    go_on = msgstore.Store.migrate

    def look(store: msgstore.Store, **options: object) -> object:
        seen.extend(path.glob("*.csv"))
        return go_on(store, **options)

    monkeypatch.setattr(msgstore.Store, "migrate", look)
    assert "a migration was killed" not in command("migrate", path, "--to", "v2").stderr
    assert seen == []


def test_store_that_a_writer_has_is_locked(tmp_path: Path) -> None:
    """Also if a killed migration has left its counts: they are not to be moved away while another one runs."""
    make(tmp_path / "in", "ets")
    (tmp_path / "in" / "msgstore-migrate-counts.csv").touch()
    with msgstore.open_store(tmp_path / "in"):
        assert "has the store open for writing" in command("migrate", tmp_path / "in", "--to", "v2", code=2).stderr
