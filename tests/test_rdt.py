"""What a broker before 3.13 leaves that is killed while it combines two segments: ``N.rdt`` beside ``N.rdq``.

As the essay on RabbitMQ's message store has it: the live messages of the left segment that do not stand together at its start
are copied into ``N.rdt``; the left segment is cut behind those that do; the others are copied back from ``N.rdt``; the live
messages of the right segment are copied behind them; the right one is deleted. Real segments, killed after each step.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import msgstore
from msgstore.testing.faults import Crash, StoppingFiles
from support import RealDirectory, counts_file, filled, hashes, json_of, open_with, unchanged
from support import counts as references_of


class Combining:
    """The two segments with most records of a real directory, and the steps."""

    def __init__(self, path: Path) -> None:
        self.real = RealDirectory.load("v1_clean")
        self.path = self.real.copy(path)
        for name in ("clean.dot", "msg_store_index.ets", "file_summary.ets"):
            (self.path / name).unlink()  # it was killed
        left, right = self.real.manifest["segments"][:2]
        self.left, self.right = self.path / left["name"], self.path / right["name"]
        self.leftover = self.left.with_suffix(".rdt")
        self._source = self.left.read_bytes()
        live = [r for r in left["records"] if bytes.fromhex(r["id"]) in self.real.refcounts]
        self.base = 0
        while live and live[0]["offset"] == self.base:
            self.base += live.pop(0)["total_size"]
        self.moved = b"".join(self._source[r["offset"] : r["offset"] + r["total_size"]] for r in live)
        source = self.right.read_bytes()
        self.from_right = b"".join(
            source[r["offset"] : r["offset"] + r["total_size"]]
            for r in right["records"]
            if bytes.fromhex(r["id"]) in self.real.refcounts
        )
        assert len(self.moved) > 10_000
        assert len(self.from_right) > 10_000

    def killed(self, step: str) -> None:
        for path, data in STEPS[step](self).items():
            (self.path / path).write_bytes(data) if data is not None else (self.path / path).unlink()

    @property
    def start(self) -> bytes:
        """What is never moved of the left segment."""
        return self._source[: self.base]


STEPS: dict[str, Callable[[Combining], dict[str, bytes | None]]] = {
    "while the leftover is written": lambda c: {c.leftover.name: c.moved[: len(c.moved) * 2 // 3 + 5]},
    "when the leftover is written": lambda c: {c.leftover.name: c.moved},
    "when the left one is cut": lambda c: {c.leftover.name: c.moved, c.left.name: c.start},
    "while the leftover is copied back": lambda c: {
        c.leftover.name: c.moved,
        c.left.name: c.start + c.moved[: len(c.moved) // 2 + 7],
    },
    "while the right one is copied": lambda c: {
        c.leftover.name: c.moved,
        c.left.name: c.start + c.moved + c.from_right[: len(c.from_right) // 2 + 3],
    },
    "when the right one is deleted": lambda c: {
        c.leftover.name: c.moved,
        c.left.name: c.start + c.moved + c.from_right,
        c.right.name: None,
    },
}
"""What is written in the directory until the kill; None: deleted."""


@pytest.fixture(params=STEPS)
def killed(request, tmp_path) -> Combining:
    combining = Combining(tmp_path)
    combining.killed(request.param)
    return combining


@pytest.mark.slow
@pytest.mark.parametrize("form", ["v1", "v2"])
def test_leftover_adopted_becomes_a_segment(killed, index, form, caplog):
    counts = killed.real.refcounts
    with msgstore.open_store(killed.path, adopt=True, index=index, format=form, refcounts=counts.items()) as store:
        assert hashes(store) == killed.real.live
        assert references_of(store) == counts
        assert not list(killed.path.glob("*.rdt"))
        highest = max(int(segment["name"].split(".")[0]) for segment in killed.real.manifest["segments"])
        assert (killed.path / f"{highest + 1}.rdq").exists()
        assert f"Renamed to {highest + 1}.rdq" in caplog.text
        store.compact(everything=True)
        assert hashes(store) == killed.real.live
        if form == "v2":
            assert not any(done.skipped for done in store.migrate())
            assert not list(killed.path.glob("*.rd?"))
            assert hashes(store) == killed.real.live
    with msgstore.open_store(killed.path, index=index, format=form) as store:
        assert store.stats().recovery.how == "trust"
        assert hashes(store) == killed.real.live


def test_leftover_read_only_changes_nothing(killed, index, tmp_path):
    keys = {"index": index, "mode": "r", "refcounts": killed.real.refcounts.items()}
    with unchanged(killed.path), msgstore.open_store(killed.path, **keys) as store, store.client() as client:
        assert hashes(store) == killed.real.live
        assert client.read_many(killed.real.live).keys() == killed.real.live.keys()


def test_tools_read_leftover_as_segment(tmp_path):
    combining = Combining(tmp_path)
    combining.killed("when the left one is cut")
    live = {msg_id.hex() for msg_id in combining.real.live}
    scanned = json_of("scan", combining.path)
    assert [Path(segment["path"]).name for segment in scanned] == ["0.rdq", "0.rdt", "1.rdq", "2.rdq"]
    assert {record["id"] for segment in scanned for record in segment["records"]} >= live
    assert [Path(segment["path"]).name for segment in json_of("scan", combining.leftover)] == ["0.rdt"]
    assert {line["id"] for line in json_of("ls", combining.path)} >= live
    assert json_of("info", combining.path)[0]["segments"] == 4
    assert [segment["format"] for segment in json_of("map", combining.path)] == ["v1"] * 4
    counts = counts_file(tmp_path / "counts.csv", combining.real.refcounts.items())
    drawn = {Path(one["path"]).name: one for one in json_of("map", combining.path, "--refcounts", counts)}
    assert drawn["0.rdt"]["live_bytes"] == drawn["0.rdt"]["size"]
    report = json_of("salvage", combining.path, tmp_path / "new", code=None)
    assert report[-1]["messages"] >= len(live)
    with msgstore.open_store(tmp_path / "new") as store:
        assert hashes(store).items() >= combining.real.live.items()
    assert combining.leftover.exists()


def test_adoption_of_leftovers_killed_is_repeatable(index, tmp_path):
    """Two leftovers: some are segments already, the others still are what they were."""
    combining = Combining(tmp_path)
    combining.killed("when the left one is cut")
    (combining.path / "1.rdt").write_bytes(combining.from_right)
    start = combining.path.rename(tmp_path / "start")
    counts = combining.real.refcounts
    seen = set()
    for stop in range(4):
        shutil.rmtree(combining.path, ignore_errors=True)
        shutil.copytree(start, combining.path)
        with pytest.raises(Crash):
            open_with(combining.path, StoppingFiles(stop), adopt=True, index=index, format="v2", refcounts=counts.items())
        seen.add(len(list(combining.path.glob("*.rdt"))))
        with open_with(combining.path, adopt=True, index=index, format="v2", refcounts=counts.items()) as store:
            assert hashes(store) == combining.real.live
            assert not list(combining.path.glob("*.rdt"))
    assert seen == {0, 1, 2}


def test_leftover_with_on_legacy_refuse_is_refused(tmp_path):
    (tmp_path / "0.rdt").write_bytes(b"")
    with pytest.raises(msgstore.StoreMismatch, match=r"0\.rdt is of the older format 'v1'"):
        msgstore.open_store(tmp_path, format="v2", on_legacy="refuse")
    assert (tmp_path / "0.rdt").exists()


def test_unfinished_copies_are_deleted(index, tmp_path):
    filled(tmp_path, [(bytes(16), b"body")], index=index)
    (tmp_path / "7.sqs.tmp").write_bytes(b"half a copy")
    (tmp_path / "notes.tmp").write_bytes(b"not ours")
    with msgstore.open_store(tmp_path, index=index, mode="r"):
        pass
    assert (tmp_path / "7.sqs.tmp").exists()
    with msgstore.open_store(tmp_path, index=index) as store, store.client() as client:
        assert client.read(bytes(16)) == b"body"
    assert not (tmp_path / "7.sqs.tmp").exists()
    assert (tmp_path / "notes.tmp").exists()
