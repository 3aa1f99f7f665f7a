"""Directories that a broker wrote: nothing changes them before they are adopted, and each has one body codec."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

import msgstore
from msgstore.cli.main import main
from msgstore.config import store_config
from msgstore.directory import SETTINGS
from msgstore.engine.opening import open_configured
from msgstore.testing.faults import Crash, RecordingFiles, StoppingFiles
from support import DATA, catalogue, hashes, needs_erlang, open_with

ID = bytes(range(16))
OTHER = bytes(range(16, 32))
NODE = DATA / "rabbitmq-3.10" / "clean" / "msg_stores" / "vhosts"
VHOST = NODE / "14049IPWY5WMKYX4P32YLNPMV"


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """A store that RabbitMQ 3.10 wrote."""
    return Path(shutil.copytree(VHOST / "msg_store_persistent", tmp_path / "broker"))


def made_by_hand(path: Path, bodies: list[bytes], body: str = "raw") -> Path:
    """A directory with segments and without ``msgstore.json``."""
    with open_with(path, body=body) as store, store.client() as client:
        for number, content in enumerate(bodies):
            client.write(number.to_bytes(16), content)
    for name in (SETTINGS, "msgstore.lock", "clean.dot"):
        (path / name).unlink()
    return path


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in path.iterdir()}


def remembered(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((path / SETTINGS).read_text())
    return found


def run(*arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def by_configured(path: Path, **keys: object) -> msgstore.Store:
    return open_configured(store_config({"path": path, **keys}, "a test", Path()), catalogue())


def by_file(path: Path, **keys: object) -> msgstore.Store:
    file = path.parent / "msgstore.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"path": str(path), **keys}.items()]
    file.write_text("\n".join(["[stores.broker]", *lines]))
    return msgstore.load_config(file).open("broker")


OPENINGS: list[Callable[..., msgstore.Store]] = [msgstore.open_store, by_configured, by_file]


@pytest.mark.parametrize("opening", OPENINGS, ids=lambda opening: opening.__name__)
@pytest.mark.parametrize("keys", [{}, {"format": "v1"}, {"on_legacy": "migrate"}], ids=["v2", "v1", "migrate"])
def test_opening_for_writing_refuses_broker_directory(opening, keys, broker):
    before = contents(broker)
    with pytest.raises(msgstore.NotAdopted) as refused:
        opening(broker, **keys)
    assert contents(broker) == before, "a refused opening changed the directory"
    assert str(refused.value).startswith(f"{broker}: ")
    for part in ("*.rdq", "*.sqs", "salvage", "--adopt", "adopt=True", "adopt = true"):
        assert part in str(refused.value)


VERBS = {
    "put": lambda path: ("put", path, ID.hex()),
    "rm": lambda path: ("rm", path, ID.hex()),
    "compact": lambda path: ("compact", path, "--all"),
    "migrate": lambda path: ("migrate", path, "--to", "v2"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_verb_that_writes_refuses_broker_directory(verb, broker):
    before = contents(broker)
    code, _, told = run(*VERBS[verb](broker), stdin=b"body")
    assert (code, contents(broker)) == (2, before), "the directory was changed"
    assert "--adopt" in told
    assert "salvage" in told


@needs_erlang
@pytest.mark.parametrize("verb", ["put", "compact", "migrate"])
def test_verb_with_adopt_asks_no_more(verb, broker):
    code, _, told = run(*VERBS[verb](broker), "--adopt", stdin=b"body")
    assert code == 0, told
    code, _, told = run("put", broker, OTHER.hex(), stdin=b"other")
    assert code == 0, told


@needs_erlang
@pytest.mark.parametrize("opening", OPENINGS, ids=lambda opening: opening.__name__)
def test_adopted_directory_opens_without_adopt(opening, broker):
    opening(broker, adopt=True).close()
    opening(broker).close()


@needs_erlang
def test_stores_open_with_adopt_adopts(broker):
    file = broker.parent / "msgstore.toml"
    file.write_text(f"[stores.broker]\npath = {json.dumps(str(broker))}\n")
    msgstore.load_config(file).open("broker", adopt=True).close()
    assert remembered(broker)["body"] == "erlang"


@pytest.mark.parametrize("text", [b"", b'{"layout": 1,'], ids=["empty", "torn"])
def test_torn_settings_still_mark_own_store(text, tmp_path):
    path = made_by_hand(tmp_path / "store", [b"body"])
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
    for stop in range(100):
        path, files = tmp_path / str(stop), StoppingFiles(stop)
        store = None
        with contextlib.suppress(Crash):
            store = open_with(path, files)
            with store.client() as client:
                client.write(ID, b"body")
                store.flush()
        if store is not None:
            store.abandon()
        open_with(path).close()
        if not files.stopped:
            return
    pytest.fail("a new store makes more than 100 changes to its directory")


@needs_erlang
def test_adoption_killed_anywhere_loses_nothing(index, broker, tmp_path):
    with open_with(broker, mode="r") as store:
        messages = hashes(store)
    for stop in range(100):
        path, files = Path(shutil.copytree(broker, tmp_path / str(stop))), StoppingFiles(stop)
        with contextlib.suppress(Crash):
            open_with(path, files, adopt=True, index=index).abandon()
        with open_with(path, adopt=True, index=index) as store:
            assert hashes(store) == messages
        assert remembered(path)["body"] == "erlang"
        if not files.stopped:
            return
    pytest.fail("an adoption makes more than 100 changes to the directory")


def test_store_beneath_a_brokers_directory_is_refused(tmp_path):
    """It would hide the message stores and queues that the broker has there."""
    vhost = tmp_path / "vhost"
    shutil.copytree(next(path for path in NODE.iterdir() if path.is_dir()), vhost)
    emptied = vhost / "msg_store_persistent"
    for segment in emptied.glob("*.rdq"):
        segment.unlink()
    queue = next(vhost.rglob("journal.jif")).parent
    for directory in (vhost, emptied, queue):
        before = sorted(vhost.rglob("*"))
        with pytest.raises(msgstore.NotAdopted, match="belongs to a broker: there is"):
            msgstore.open_store(directory)
        result = CliRunner().invoke(main, ["put", str(directory), "ab" * 16], input="body")
        assert result.exit_code == 2, result.output
        assert sorted(vhost.rglob("*")) == before


def test_new_directory_needs_no_adoption(tmp_path):
    for number, adopt in enumerate((False, True)):
        path = tmp_path / str(number)
        open_with(path, adopt=adopt).close()
        with open_with(path, adopt=adopt) as store, store.client() as client:
            client.write(ID, b"body")
        open_with(path, adopt=adopt).close()
        assert remembered(path)["body"] == "raw"


READING = {
    "info": lambda path: ("info", path),
    "ls": lambda path: ("ls", path),
    "verify": lambda path: ("verify", path),
    "scan": lambda path: ("scan", path),
    "map": lambda path: ("map", path),
    "scrub": lambda path: ("scrub", path),
    "top": lambda path: ("top", path, "--once", "--interval", "100ms"),
    "inventory": lambda path: ("inventory", path),
    "diff": lambda path: ("diff", path, path),
    "salvage": lambda path: ("salvage", path, path.parent / "to"),
    "export": lambda path: ("export", path, path.parent / "to"),
    "migrate": lambda path: ("migrate", path, path.parent / "to", "--to", "v2"),
}


@pytest.mark.parametrize("verb", READING)
def test_reading_verb_neither_asks_nor_writes(verb, broker):
    """Not even for a moment: the directory may not be written to at all."""
    before, times = contents(broker), broker.stat().st_mtime_ns
    code, _, told = run(*READING[verb](broker))
    assert code == 0, told
    assert contents(broker) == before
    assert broker.stat().st_mtime_ns == times, "a file came and went"


def test_opening_for_reading_leaves_no_trace(index, broker):
    before, times = contents(broker), broker.stat().st_mtime_ns
    with msgstore.open_store(broker, mode="r", index=index) as store:
        assert store.stats().messages
        assert contents(broker) == before
    assert contents(broker) == before
    assert broker.stat().st_mtime_ns == times, "a file came and went"


@needs_erlang
def test_adoption_finds_codec_of_the_records(broker):
    with msgstore.open_store(broker, adopt=True) as store, store.client() as client:
        client.write(ID, b"body")
    assert remembered(broker)["body"] == "erlang"
    with msgstore.open_store(broker, mode="r", body="raw") as store, store.client() as client:
        assert client.read(ID) == b"\x83m\0\0\0\4body", "the broker would cut the segment at this record"


@needs_erlang
def test_put_adopting_writes_what_broker_reads(broker):
    assert run("put", broker, ID.hex(), "--adopt", stdin=b"body")[0] == 0
    newest = max(broker.glob("*.sqs"), key=lambda path: int(path.stem))
    assert b"\x83m\0\0\0\4body" in newest.read_bytes()


@needs_erlang
def test_unnamed_codec_is_the_remembered_one(broker):
    msgstore.open_store(broker, adopt=True).close()
    for mode in ("rw", "r"):
        with msgstore.open_store(broker, mode=mode) as store, store.client() as client:
            if mode == "rw":
                client.write(ID, b"body")
            assert client.read(ID) == b"body"


@needs_erlang
def test_codec_against_the_records_is_refused(broker, tmp_path):
    raw = made_by_hand(tmp_path / "raw", [b"one", b"two"])
    for path, body in ((broker, "raw"), (raw, "erlang")):
        before = contents(path)
        with pytest.raises(msgstore.StoreMismatch, match=f"names the body codec '{body}'"):
            msgstore.open_store(path, adopt=True, body=body)
        assert contents(path) == before


@needs_erlang
@pytest.mark.parametrize("bodies", [[b"one"], [b"\x83 no term"], [b"\x83m" + b"\xff" * 8]], ids=["text", "version", "no term"])
def test_bodies_that_are_no_terms_are_raw(bodies, tmp_path):
    path = made_by_hand(tmp_path / "store", bodies)
    msgstore.open_store(path, adopt=True).close()
    assert remembered(path)["body"] == "raw"


@needs_erlang
def test_second_codec_is_refused_for_writing_only(broker):
    msgstore.open_store(broker, adopt=True).close()
    before = contents(broker)
    with pytest.raises(msgstore.StoreMismatch, match='body = "erlang"'):
        msgstore.open_store(broker, body="raw")
    assert contents(broker) == before
    with msgstore.open_store(broker, body="raw", mode="r") as store:
        assert store.stats().messages


@pytest.mark.parametrize("keys", [{}, {"body": "raw"}], ids=["unnamed", "raw"])
def test_missing_codec_is_named_with_pip_line(keys, broker):
    installed = catalogue()
    without = attrs.evolve(installed, registrations=tuple(r for r in installed.registrations if r.descriptor.name != "erlang"))
    before = contents(broker)
    with pytest.raises(msgstore.PluginError, match="pip install msgstore-erlang-body"):
        open_configured(store_config({"path": broker, "adopt": True, **keys}, "a test", Path()), without)
    assert contents(broker) == before


def test_salvaged_copy_belongs_to_msgstore(broker, tmp_path):
    code, _, told = run("salvage", broker, tmp_path / "copy")
    assert code == 0, told
    code, _, told = run("put", tmp_path / "copy", ID.hex(), stdin=b"body")
    assert code == 0, told


def test_scrub_of_broker_directory_writes_no_state(broker, monkeypatch):
    monkeypatch.setattr("msgstore.cli.scrub_state.SAVE_INTERVAL_SECONDS", 0.0)
    before, times = contents(broker), broker.stat().st_mtime_ns
    assert run("scrub", broker)[0] == 0
    assert contents(broker) == before
    assert broker.stat().st_mtime_ns == times, "the scrub wrote where it was, and deleted that at the end"
