"""A format that is not installed any more: a store with segments of it is refused, and nothing in it is forgotten."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import msgstore
from msgstore.config import store_config
from msgstore.contract import PluginError, SegmentFormatDescriptor
from msgstore.engine.opening import open_configured
from msgstore.engine.store import Store
from msgstore.jobs.inputs import find_inputs
from msgstore.jobs.salvage import plan_salvage
from msgstore.jobs.workers import installed
from msgstore.plugins.catalogue import Catalogue, find_entry_points
from support import DATA, catalogue, command, run_job, unchanged

A, B = b"a" * 16, b"b" * 16
WRITER = """
import sys, msgstore
with msgstore.open_store(sys.argv[1], format="ledger", index="lmdb") as store, store.client() as client:
    client.write(b"a" * 16, b"kept")
    store.flush()
    print("ready", flush=True)
    sys.stdin.readline()
"""


def without(name: str) -> Catalogue:
    """What is installed but for a format, and all that claims its extensions."""
    kept = [
        found
        for found in catalogue().registrations
        if not isinstance(found.descriptor, SegmentFormatDescriptor) or found.descriptor.name != name
    ]
    return attrs.evolve(catalogue(), registrations=tuple(kept))


def open_without(name: str, path: Path, **keys: object) -> Store:
    return open_configured(store_config({"path": path, **keys}, "a test", Path()), without(name))


LOCK = ["msgstore.lock"]


@pytest.fixture(params=["stopped", "killed"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store of the format ``ledger``, with one message, and another that has been removed."""
    store = msgstore.open_store(tmp_path / "s", format="ledger")
    with store.client() as client:
        client.write_many([(A, b"kept"), (B, b"removed")])
        store.flush()
        client.remove([B])
        store.flush()
    store.abandon() if request.param == "killed" else store.close()
    return tmp_path / "s"


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    """A store that another process has open for writing."""
    program = [sys.executable, "-c", WRITER, tmp_path / "s"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline()
        yield tmp_path / "s"
        writer.communicate(b"\n")


@pytest.mark.parametrize("keys", [{}, {"format": "v1", "index": "lmdb"}, {"format": "ledger"}], ids=str)
def test_opening_without_format_names_pip_line(path: Path, keys: dict[str, str]) -> None:
    with unchanged(path, but=LOCK), pytest.raises(PluginError, match="pip install foreign-backends"):
        open_without("ledger", path, **keys)
    with msgstore.open_store(path, format="ledger", mode="r") as store, store.client() as client:
        assert client.read(A) == b"kept"


def test_older_segments_without_format_are_refused(tmp_path: Path) -> None:
    """Those of the format before the one that the store was last opened with."""
    shutil.copytree(DATA / "msg-store" / "mixed_upgrade" / "store", tmp_path / "s")
    msgstore.open_store(tmp_path / "s", adopt=True).close()
    said = r"0\.rdq: no installed format reads \*\.rdq: .* pip install msgstore-format-v1"
    with unchanged(tmp_path / "s", but=LOCK), pytest.raises(PluginError, match=said):
        open_without("v1", tmp_path / "s")


@pytest.mark.parametrize("times", [1, 2])
def test_third_party_segments_are_remembered_until_gone(times: int, path: Path) -> None:
    """What a directory says of formats is said for as long as there are segments of them."""
    for _ in range(times):
        msgstore.open_store(path).close()
    with unchanged(path, but=LOCK):
        with pytest.raises(
            PluginError, match=r"0\.ledger: no installed format reads \*\.ledger: .* pip install foreign-backends"
        ):
            open_without("ledger", path)
        assert "unreadable: no installed format reads *.ledger" in [
            span.reason for span in find_inputs(without("ledger"), [path]).damage
        ]
    with msgstore.open_store(path) as store, store.client() as client:
        assert client.read(A) == b"kept"
        old = [entry.msg_id for entry in store.entries()]
        client.write(b"c" * 16, b"of v2")
        store.flush()
        client.remove(old)
        store.compact(everything=True)
        assert {segment.format for segment in store.segments()} == {"v2"}
    open_without("ledger", path).close()
    assert '"format ledger"' not in (path / "msgstore.json").read_text()


def test_broker_directory_without_format_is_refused(tmp_path: Path) -> None:
    shutil.copytree(DATA / "msg-store" / "v1_clean" / "store", tmp_path / "s")
    with pytest.raises(PluginError, match="pip install msgstore-format-v1"):
        open_without("v1", tmp_path / "s")
    config = store_config({"path": tmp_path / "s"}, "a test", Path())
    with pytest.raises(PluginError, match=r"Disabled by the configuration: format-v1"):
        open_configured(config, msgstore.load_catalogue(["format-v1"]))


def test_files_of_no_format_are_ignored(path: Path) -> None:
    for name in ("0.bak", "7.csv", "1.idx"):
        (path / name).write_text("")
    with msgstore.open_store(path, format="ledger") as store:
        assert store.stats().messages == 1 + (store.stats().recovery.how == "rebuild")
    assert Path(find_inputs(catalogue(), [path]).inputs[-1].path).name == "0.ledger"


def test_reader_beside_writer_without_format_is_refused(written: Path) -> None:
    config = store_config({"path": written, "index": "lmdb"}, "a test", Path())
    with pytest.raises(PluginError, match="pip install foreign-backends"):
        open_configured(config, without("ledger"), mode="r")


def test_job_without_format_reports_damage(path: Path) -> None:
    job = plan_salvage(without("ledger"), [path], path.parent / "to")
    assert [(spot.path, spot.reason) for spot in run_job(job).damage] == [
        (str(path / "0.ledger"), "unreadable: no installed format reads *.ledger")
    ]


@pytest.mark.parametrize("verb", ["ls", "verify", "scrub"])
def test_verb_without_format_exits_2(verb: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed()  # which is kept
    there = [item for item in find_entry_points() if item[0].distribution != "foreign-backends"]
    monkeypatch.setattr("msgstore.plugins.catalogue.find_entry_points", lambda: there)
    assert "pip install foreign-backends" in command(verb, path, code=2).stderr


@pytest.mark.parametrize("verb", ["scan", "map"])
def test_scan_without_format_reports_damage(verb: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed()  # which is kept
    there = [item for item in find_entry_points() if item[0].distribution != "foreign-backends"]
    monkeypatch.setattr("msgstore.plugins.catalogue.find_entry_points", lambda: there)
    assert "unreadable: no installed format reads *.ledger" in command(verb, path, code=1).stdout


def test_reading_with_another_codec_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    msgstore.open_store(path, format="ledger").close()
    assert not caplog.records
    with pytest.raises(msgstore.StoreMismatch, match='body = "raw"'):
        msgstore.open_store(path, format="ledger", body="zstd")
    msgstore.open_store(path, format="ledger", body="zstd", mode="r").close()
    (told,) = caplog.records
    text = f"{path}: was last opened with the body codec 'raw', and now with 'zstd'; stored bodies"
    assert told.getMessage().startswith(text)


def test_reader_beside_writer_logs_another_codec(written: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    msgstore.open_store(written, mode="r", index="lmdb", body="zstd").close()
    assert ["with the body codec 'raw', and now with 'zstd'" in record.getMessage() for record in caplog.records] == [True]
