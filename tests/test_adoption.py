"""Directories of brokers, and of formats that are not installed: nothing changes them before that is asked for."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import attrs
import pytest

import msgstore
from attempts import FORK, start_process
from msgstore.directory import SETTINGS, SETTINGS_COPY
from msgstore.jobs.inputs import find_inputs
from msgstore.jobs.salvage import plan_salvage
from msgstore.jobs.workers import worker_catalogue
from msgstore.plugins.catalogue import Catalogue, find_entry_points
from msgstore.testing import stores
from msgstore.testing.faults import Crash, RecordingFiles
from support import DATA, catalogue, command, filled, hashes, needs_erlang, open_with, run_job, stops, unchanged

ID = bytes(range(16))
OTHER = bytes(range(16, 32))
NODE = DATA / "rabbitmq-3.10" / "clean" / "msg_stores" / "vhosts"
VHOST = NODE / "14049IPWY5WMKYX4P32YLNPMV"
TERM = b"\x83m\0\0\0\4body"


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """A store that RabbitMQ 3.10 wrote."""
    return Path(shutil.copytree(VHOST / "msg_store_persistent", tmp_path / "broker"))


def made_by_hand(path: Path, *bodies: bytes) -> Path:
    """A directory with segments and without ``msgstore.json``."""
    filled(path, [(number.to_bytes(16), body) for number, body in enumerate(bodies)], body="raw")
    for name in (SETTINGS, SETTINGS_COPY, "msgstore.lock", "clean.dot"):
        (path / name).unlink()
    return path


def remembered(path: Path) -> str:
    """The body codec that the directory names."""
    return str(json.loads((path / SETTINGS).read_text())["body"])


def by_file(path: Path, **keys: object) -> msgstore.Store:
    file = path.parent / "msgstore.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"path": str(path), **keys}.items()]
    file.write_text("\n".join(["[stores.broker]", *lines]))
    return msgstore.load_config(file).open("broker")


def by_argument(path: Path, **keys: object) -> msgstore.Store:
    file = path.parent / "msgstore.toml"
    file.write_text(f"[stores.broker]\npath = {json.dumps(str(path))}\n")
    return msgstore.load_config(file).open("broker", **keys)


@pytest.mark.parametrize("opening", [msgstore.open_store, by_file], ids=lambda opening: opening.__name__)
@pytest.mark.parametrize("keys", [{}, {"format": "v1"}, {"on_legacy": "migrate"}], ids=["v2", "v1", "migrate"])
def test_opening_for_writing_refuses_broker_directory(opening, keys, broker):
    with unchanged(broker), pytest.raises(msgstore.NotAdopted) as refused:
        opening(broker, **keys)
    assert str(refused.value).startswith(f"{broker}: ")
    for part in ("*.rdq", "*.sqs", "salvage", "--adopt", "adopt=True", "adopt = true"):
        assert part in str(refused.value)


CHANGING = {
    "put": ["put", None, ID.hex()],
    "rm": ["rm", None, ID.hex()],
    "compact": ["compact", None, "--all"],
    "migrate": ["migrate", None, "--to", "v2"],
}
"""None stands for the directory."""
READING = {
    **{verb: [verb, None] for verb in ("info", "ls", "verify", "scan", "map", "scrub", "inventory")},
    "top": ["top", None, "--once", "--interval", "100ms"],
    "diff": ["diff", None, None],
    "salvage": ["salvage", None, "to"],
    "convert": ["convert", None, "to", "--sink", "jsonl"],
    "migrate": ["migrate", None, "to", "--to", "v2"],
}


def arguments_of(words: list[str | None], path: Path) -> list[object]:
    return [path if word is None else path.parent / "to" if word == "to" else word for word in words]


@needs_erlang
@pytest.mark.parametrize("verb", CHANGING)
def test_changing_verb_refuses_unless_adopted(verb, broker):
    with unchanged(broker):
        told = command(*arguments_of(CHANGING[verb], broker), stdin=b"body", code=2).stderr
    assert "--adopt" in told
    assert "salvage" in told
    if verb == "rm":
        return  # there is no such message
    command(*arguments_of(CHANGING[verb], broker), "--adopt", stdin=b"body")
    if verb == "put":
        newest = max(broker.glob("*.sqs"), key=lambda path: int(path.stem))
        assert TERM in newest.read_bytes(), "the broker cannot read it"
    command("put", broker, OTHER.hex(), stdin=b"other")


@pytest.mark.parametrize("verb", READING)
def test_reading_verb_neither_asks_nor_writes(verb, broker, monkeypatch):
    """Not even for a moment: the directory may not be written to at all."""
    monkeypatch.setattr("msgstore.cli.commands.verify.SAVE_INTERVAL_SECONDS", 0.0)
    with unchanged(broker, traceless=True):
        command(*arguments_of(READING[verb], broker))
    if verb == "salvage":  # the copy belongs to msgstore
        command("put", broker.parent / "to", ID.hex(), stdin=b"body")


def test_opening_for_reading_leaves_no_trace(index, broker):
    with unchanged(broker, traceless=True), msgstore.open_store(broker, mode="r", index=index) as store:
        assert store.stats().messages


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_settings_reach_disk_before_first_segment(durability, tmp_path):
    files = RecordingFiles()
    with open_with(tmp_path / "store", files, durability=durability) as store, store.client() as client:
        before = [(operation, Path(path).name) for operation, path, _ in files.operations]
        client.write(ID, b"body")
    names = [name for _, name in before]
    assert ("sync", f"{SETTINGS}.tmp") in before, "the settings of a new store are not synced"
    assert not [name for name in names if name.endswith((".sqs", ".rdq"))]


@pytest.mark.slow
@needs_erlang
def test_adoption_killed_anywhere_loses_nothing(index, broker, tmp_path):
    with open_with(broker, mode="r") as store:
        messages = hashes(store)
    for name, files in stops():
        path = Path(shutil.copytree(broker, tmp_path / name))
        with contextlib.suppress(Crash):
            open_with(path, files, adopt=True, index=index).abandon()
        with open_with(path, adopt=True, index=index) as store:
            assert hashes(store) == messages
        assert remembered(path) == "erlang"


def test_store_beneath_a_brokers_directory_is_refused(tmp_path):
    """It would hide the message stores and queues that the broker has there."""
    vhost = Path(shutil.copytree(next(path for path in NODE.iterdir() if path.is_dir()), tmp_path / "vhost"))
    emptied = vhost / "msg_store_persistent"
    for segment in emptied.glob("*.rdq"):
        segment.unlink()
    for directory in (vhost, emptied, next(vhost.rglob("journal.jif")).parent):
        with unchanged(vhost), pytest.raises(msgstore.NotAdopted, match="belongs to a broker: there is"):
            msgstore.open_store(directory)


@needs_erlang
@pytest.mark.parametrize("opening", [msgstore.open_store, by_file, by_argument], ids=lambda opening: opening.__name__)
def test_adoption_finds_codec_of_the_records(opening, broker, caplog):
    with opening(broker, adopt=True) as store, store.client() as client:
        client.write(ID, b"body")
    assert remembered(broker) == "erlang"
    with msgstore.open_store(broker, mode="r", body="raw") as store:
        assert store.read(ID) == TERM, "the broker would cut the segment at this record"
    assert f"{broker}: was last opened with the body codec 'erlang', and now with 'raw'" in caplog.text
    with unchanged(broker), pytest.raises(msgstore.StoreMismatch, match='body = "erlang"'):
        msgstore.open_store(broker, body="raw")
    with opening(broker) as store, store.client() as client:  # an unnamed codec is the remembered one
        client.write(OTHER, b"other")
        assert client.read_many([ID, OTHER]) == {ID: b"body", OTHER: b"other"}


@needs_erlang
def test_directory_without_records_has_the_brokers_codec(tmp_path: Path) -> None:
    """The transient store of a vhost after a clean stop: an empty segment."""
    path = Path(shutil.copytree(VHOST / "msg_store_transient", tmp_path / "transient"))
    filled(path, [(ID, b"body")], adopt=True, format="v1")
    assert remembered(path) == "erlang"
    assert TERM in b"".join(segment.read_bytes() for segment in path.glob("*.rdq"))
    msgstore.open_store(made_by_hand(tmp_path / "other"), adopt=True).close()
    assert remembered(tmp_path / "other") == "raw", "no broker reads its *.sqs"


@needs_erlang
@pytest.mark.parametrize("body", [b"one", b"\x83 no term", b"\x83m" + b"\xff" * 8], ids=["text", "version", "no term"])
def test_codec_against_the_records_is_refused(body, broker, tmp_path):
    """Bodies that are no terms are taken for raw ones."""
    path = made_by_hand(tmp_path / "store", body, b"two")
    for refused, codec in ((broker, "raw"), (path, "erlang")):
        with unchanged(refused), pytest.raises(msgstore.StoreMismatch, match=f"names the body codec '{codec}'"):
            msgstore.open_store(refused, adopt=True, body=codec)
    msgstore.open_store(path, adopt=True).close()
    assert remembered(path) == "raw"


# -- backends that are not installed any more -------------------------------------------------------------------------------


def without(name: str) -> Catalogue:
    """What is installed but for one backend."""
    kept = tuple(found for found in catalogue().registrations if found.descriptor.name != name)
    return attrs.evolve(catalogue(), registrations=kept)


def open_without(name: str, path: Path, **keys: object) -> msgstore.Store:
    return stores.open_with(path, without(name), **keys)


LOCK = ["msgstore.lock"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of the format ``ledger``, with one message; the process was killed."""
    with msgstore.open_store(tmp_path / "s", format="ledger") as store:
        store.client().write(ID, b"kept")
        store.flush()
        store.abandon()
    return store.path


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    """A store that another process has open for writing."""
    end = FORK.Event()

    def write(pipe: Connection) -> None:
        with msgstore.open_store(tmp_path / "s", format="ledger", index="lmdb") as store:
            store.client().write(ID, b"kept")
            store.flush()
            pipe.send("written")
            end.wait(60)

    process, pipe = start_process(write)
    assert pipe.recv() == "written"
    yield tmp_path / "s"
    end.set()
    process.join()


@pytest.mark.parametrize("keys", [{}, {"body": "raw"}], ids=["unnamed", "raw"])
def test_missing_codec_is_named_with_pip_line(keys, broker):
    with unchanged(broker), pytest.raises(msgstore.PluginError, match="pip install msgstore-erlang-body"):
        open_without("erlang", broker, adopt=True, **keys)


def test_third_party_segments_are_remembered_until_gone(path: Path) -> None:
    """What a directory says of formats is said for as long as there are segments of them."""
    told = r"0\.ledger: no installed format reads \*\.ledger: .* the distribution 'foreign-backends' provides it"
    for keys in ({}, {"format": "v1", "index": "lmdb"}):
        msgstore.open_store(path, index="ets", format="v2").close()
        with unchanged(path, but=LOCK), pytest.raises(msgstore.PluginError, match=told):
            open_without("ledger", path, **keys)
        found = find_inputs(without("ledger"), [path])
        assert "unreadable: no installed format reads *.ledger" in [span.reason for span in found.damage]
        with pytest.raises(msgstore.PluginError, match=r"No message could be read, so there is no new"):
            run_job(plan_salvage(without("ledger"), [path], path.parent / f"to{len(keys)}"))
    (path / "7.csv").write_text("of no format, and ignored")
    with msgstore.open_store(path, format="v2") as store, store.client() as client:
        assert client.read(ID) == b"kept"
        client.write(OTHER, b"of v2")
        store.flush()
        client.remove([ID])
        store.compact(everything=True)
        assert {segment.format for segment in store.segments()} == {"v2"}
    (path / "7.csv").unlink()
    open_without("ledger", path).close()
    assert '"format ledger"' not in (path / "msgstore.json").read_text()


def test_brokers_segments_without_format_are_refused(tmp_path: Path) -> None:
    """Those of the format before the one that the store was last opened with, and those that no store knows yet."""
    shutil.copytree(DATA / "msg-store" / "mixed_upgrade" / "store", tmp_path / "s")
    told = r"0\.rdq: no installed format reads \*\.rdq: .* pip install msgstore-format-v1"
    with pytest.raises(msgstore.PluginError, match=told):
        open_without("v1", tmp_path / "s")
    with pytest.raises(msgstore.PluginError, match=r"Disabled by the configuration: format-v1"):
        stores.open_with(tmp_path / "s", msgstore.load_catalogue(["format-v1"]))
    msgstore.open_store(tmp_path / "s", adopt=True).close()
    with unchanged(tmp_path / "s", but=LOCK), pytest.raises(msgstore.PluginError, match=told):
        open_without("v1", tmp_path / "s")


@pytest.mark.parametrize("verb", ["ls", "scan"])
def test_verb_without_format_names_the_file(verb: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that reads the other segments: a missing plugin is no damage. Both say what to install."""
    worker_catalogue()  # which is kept
    there = [item for item in find_entry_points() if item[0].distribution != "foreign-backends"]
    monkeypatch.setattr("msgstore.plugins.catalogue.find_entry_points", lambda: there)
    result = command(verb, path, code=2)
    assert verb == "ls" or re.search(r"without a plugin(.|\n)* unreadable: no installed format reads \*.ledger", result.stdout)
    assert "the distribution 'foreign-backends' provides it" in result.stderr


def test_reader_beside_writer_logs_and_refuses_the_same(written: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(msgstore.PluginError, match="the distribution 'foreign-backends' provides it"):
        open_without("ledger", written, mode="r", index="lmdb")
    caplog.set_level("WARNING")
    msgstore.open_store(written, mode="r", index="lmdb", body="zstd").close()
    told = f"{written}: was last opened with the body codec 'raw', and now with 'zstd'; stored bodies"
    assert [record.getMessage().startswith(told) for record in caplog.records] == [True]


def test_counts_replace_index_that_is_not_installed(tmp_path, monkeypatch):
    filled(tmp_path, [(ID, b"body")], index="lmdb")
    monkeypatch.setattr("msgstore.engine.opening.load_catalogue", lambda: without("lmdb"))
    with pytest.raises(msgstore.PluginError, match="lmdb"):
        msgstore.open_store(tmp_path)
    with msgstore.open_store(tmp_path, refcounts=[(ID, 1)]) as store:
        assert store.stats().messages == 1
