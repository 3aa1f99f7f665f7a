"""Directories that a broker wrote: nothing changes them before they are adopted, and each has one body codec."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

import msgstore
from msgstore.config import store_config
from msgstore.directory import SETTINGS
from msgstore.engine.opening import open_configured
from msgstore.testing.faults import Crash, RecordingFiles
from support import DATA, catalogue, command, filled, hashes, needs_erlang, open_with, stops, unchanged

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
    for name in (SETTINGS, "msgstore.lock", "clean.dot"):
        (path / name).unlink()
    return path


def remembered(path: Path) -> str:
    """The body codec that the directory names."""
    return str(json.loads((path / SETTINGS).read_text())["body"])


def by_configured(path: Path, **keys: object) -> msgstore.Store:
    return open_configured(store_config({"path": path, **keys}, "a test", Path()), catalogue())


def by_file(path: Path, **keys: object) -> msgstore.Store:
    file = path.parent / "msgstore.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"path": str(path), **keys}.items()]
    file.write_text("\n".join(["[stores.broker]", *lines]))
    return msgstore.load_config(file).open("broker")


def by_argument(path: Path, **keys: object) -> msgstore.Store:
    file = path.parent / "msgstore.toml"
    file.write_text(f"[stores.broker]\npath = {json.dumps(str(path))}\n")
    return msgstore.load_config(file).open("broker", **keys)


OPENINGS: list[Callable[..., msgstore.Store]] = [msgstore.open_store, by_configured, by_file, by_argument]


@pytest.mark.parametrize("opening", OPENINGS[:3], ids=lambda opening: opening.__name__)
@pytest.mark.parametrize("keys", [{}, {"format": "v1"}, {"on_legacy": "migrate"}], ids=["v2", "v1", "migrate"])
def test_opening_for_writing_refuses_broker_directory(opening, keys, broker):
    with unchanged(broker), pytest.raises(msgstore.NotAdopted) as refused:
        opening(broker, **keys)
    assert str(refused.value).startswith(f"{broker}: ")
    for part in ("*.rdq", "*.sqs", "salvage", "--adopt", "adopt=True", "adopt = true"):
        assert part in str(refused.value)


VERBS = {
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
    "export": ["export", None, "to"],
    "migrate": ["migrate", None, "to", "--to", "v2"],
}


def arguments_of(words: list[str | None], path: Path) -> list[object]:
    return [path if word is None else path.parent / "to" if word == "to" else word for word in words]


@pytest.mark.parametrize("verb", VERBS)
def test_verb_that_writes_refuses_broker_directory(verb, broker):
    with unchanged(broker):
        told = command(*arguments_of(VERBS[verb], broker), stdin=b"body", code=2).stderr
    assert "--adopt" in told
    assert "salvage" in told


@needs_erlang
@pytest.mark.parametrize("verb", ["put", "compact", "migrate"])
def test_verb_with_adopt_asks_no_more(verb, broker):
    command(*arguments_of(VERBS[verb], broker), "--adopt", stdin=b"body")
    if verb == "put":
        newest = max(broker.glob("*.sqs"), key=lambda path: int(path.stem))
        assert TERM in newest.read_bytes(), "the broker cannot read it"
    command("put", broker, OTHER.hex(), stdin=b"other")


@needs_erlang
@pytest.mark.parametrize("opening", OPENINGS, ids=lambda opening: opening.__name__)
def test_adopted_directory_opens_without_adopt(opening, broker):
    opening(broker, adopt=True).close()
    assert remembered(broker) == "erlang"
    opening(broker).close()


@pytest.mark.parametrize("text", [b"", b'{"layout": 1,'], ids=["empty", "torn"])
def test_torn_settings_still_mark_own_store(text, tmp_path):
    path = made_by_hand(tmp_path / "store", b"body")
    (path / SETTINGS).write_bytes(text)
    with open_with(path) as store:
        assert store.stats().messages == 1, "a store whose msgstore.json is damaged does not open without --adopt"


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_settings_reach_disk_before_first_segment(durability, tmp_path):
    files = RecordingFiles()
    with open_with(tmp_path / "store", files, durability=durability) as store, store.client() as client:
        before = [(operation, Path(path).name) for operation, path, _ in files.operations]
        client.write(ID, b"body")
    names = [name for _, name in before]
    assert ("sync", f"{SETTINGS}.tmp") in before, "the settings of a new store are not synced"
    assert not [name for name in names if name.endswith((".sqs", ".rdq"))]


def test_birth_killed_anywhere_locks_nobody_out(tmp_path):
    for name, files in stops():
        path, store = tmp_path / name, None
        with contextlib.suppress(Crash):
            store = open_with(path, files)
            with store.client() as client:
                client.write(ID, b"body")
                store.flush()
        if store is not None:
            store.abandon()
        open_with(path).close()


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
        with unchanged(vhost):
            with pytest.raises(msgstore.NotAdopted, match="belongs to a broker: there is"):
                msgstore.open_store(directory)
            command("put", directory, "ab" * 16, stdin="body", code=2)


@pytest.mark.parametrize("adopt", [False, True])
def test_new_directory_needs_no_adoption(adopt, tmp_path):
    for messages in ([], [(ID, b"body")], []):
        filled(tmp_path / "new", messages, adopt=adopt)
    assert remembered(tmp_path / "new") == "raw"


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


@needs_erlang
def test_adoption_finds_codec_of_the_records(broker):
    with msgstore.open_store(broker, adopt=True) as store, store.client() as client:
        client.write(ID, b"body")
    with msgstore.open_store(broker, mode="r", body="raw") as store, store.client() as client:
        assert client.read(ID) == TERM, "the broker would cut the segment at this record"
    for mode in ("rw", "r"):  # an unnamed codec is the remembered one
        with msgstore.open_store(broker, mode=mode) as store, store.client() as client:
            if mode == "rw":
                client.write(OTHER, b"other")
            assert client.read_many([ID, OTHER]) == {ID: b"body", OTHER: b"other"}


@needs_erlang
def test_codec_against_the_records_is_refused(broker, tmp_path):
    for path, body in ((broker, "raw"), (made_by_hand(tmp_path / "raw", b"one", b"two"), "erlang")):
        with unchanged(path), pytest.raises(msgstore.StoreMismatch, match=f"names the body codec '{body}'"):
            msgstore.open_store(path, adopt=True, body=body)


@needs_erlang
@pytest.mark.parametrize("body", [b"one", b"\x83 no term", b"\x83m" + b"\xff" * 8], ids=["text", "version", "no term"])
def test_bodies_that_are_no_terms_are_raw(body, tmp_path):
    path = made_by_hand(tmp_path / "store", body)
    msgstore.open_store(path, adopt=True).close()
    assert remembered(path) == "raw"


@needs_erlang
def test_second_codec_is_refused_for_writing_only(broker):
    msgstore.open_store(broker, adopt=True).close()
    with unchanged(broker), pytest.raises(msgstore.StoreMismatch, match='body = "erlang"'):
        msgstore.open_store(broker, body="raw")
    with msgstore.open_store(broker, body="raw", mode="r") as store:
        assert store.stats().messages


@pytest.mark.parametrize("keys", [{}, {"body": "raw"}], ids=["unnamed", "raw"])
def test_missing_codec_is_named_with_pip_line(keys, broker):
    installed = catalogue()
    without = attrs.evolve(installed, registrations=tuple(r for r in installed.registrations if r.descriptor.name != "erlang"))
    with unchanged(broker), pytest.raises(msgstore.PluginError, match="pip install msgstore-erlang-body"):
        open_configured(store_config({"path": broker, "adopt": True, **keys}, "a test", Path()), without)
