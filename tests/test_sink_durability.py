"""Sinks and conversions after a power loss: which names the disk has, and what is refused if some are gone."""

from __future__ import annotations

import json
import os
import shutil
import stat
from functools import partialmethod
from pathlib import Path
from typing import cast
from unittest import mock

import pytest

from msgstore.config import Backend
from msgstore.contract import JoiningSink, StoreError
from msgstore.files import Files
from msgstore.jobs.messages.conversion import ConversionJournal
from msgstore.jobs.messages.conversion_plan import plan_convert
from msgstore.jobs.messages.convert import convert, open_sink
from msgstore.jobs.messages.parallel import convert_in_parts, plan_parts
from msgstore.jobs.messages.selection import select
from msgstore.jobs.tasks import ProgressMeter
from msgstore.testing.messages.writing import accepted, contents, sample_batch
from support import catalogue

SMALL = {"rocketmq": {"file_size": 20_000, "queue_entries": 100}}
SINKS = ["jsonl", "parquet", "store", "files", "kestrel", "rocketmq"]


def listed(directory: Path | int) -> set[str]:
    with os.scandir(directory) as entries:
        return {entry.name for entry in entries}


class Disk:
    """Names in each directory, and size and time of each file, at its last sync: no more than this outlasts a power loss."""

    def __init__(self, monkeypatch):
        self._synced, self._call = {}, os.fsync
        self.syncs = 0
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, fd):
        self._call(fd)
        status = os.fstat(fd)
        is_directory = stat.S_ISDIR(status.st_mode)
        self._synced[status.st_ino] = listed(fd) if is_directory else (status.st_size, status.st_mtime_ns)
        self.syncs += is_directory

    def names(self, directory: Path) -> set[str]:
        return self._synced.get(directory.stat().st_ino, set())

    def check(self, top: Path) -> None:
        """Each file below ``top`` is there, as it is now, and none that was deleted. Hints and locks need not be."""
        for path in top.rglob("*"):
            if path.is_dir():
                assert not self.names(path) - listed(path), path
            elif path.suffix not in (".hint", ".lock"):
                status = path.stat()
                assert not status.st_size or self._synced.get(status.st_ino) == (status.st_size, status.st_mtime_ns), path
                for place in (path, *path.parents[: len(path.relative_to(top).parts) - 1]):
                    assert place.name in self.names(place.parent), place


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def job_of(tmp_path, sink, **choices):
    origin = tmp_path / "origin.jsonl"
    origin.write_text("".join(f'{{"system":"a","queue":"q{number % 3}","body":"eA=="}}\n' for number in range(30)))
    (place := tmp_path / "place").mkdir(exist_ok=True)
    backend = Backend(sink, SMALL.get(sink, {}))
    return plan_convert(catalogue(), origin, str(place / "out"), select(everything=True), sink=backend, **choices)


def part_of(sink, name, first=0):
    sink.write(accepted(sink, sample_batch(name, first, 20)))
    return sink.flush()


@pytest.mark.parametrize("sink", SINKS)
def test_names_are_durable_after_a_flush(sink, disk, tmp_path):
    job, tokens = job_of(tmp_path, sink), []
    work = tmp_path / "work"
    work.mkdir()
    with open_sink(job, str(work / "content")) as opened:
        for name, first in (("a", 0), ("b", 0), ("a", 20)):
            tokens.append((token := part_of(opened, name, first), json.dumps(token)))
            disk.check(work)
        if sink in ("kestrel", "rocketmq"):
            disk.syncs = 0
            opened.flush()
            assert not disk.syncs
        for name in "bc":
            part_of(opened, name, 20)  # of which no token is kept
    assert all(json.dumps(token) == was for token, was in tokens)
    with open_sink(job, str(work / "content"), json.loads(tokens[-1][1])) as opened:
        opened.flush()
        disk.check(work)
        opened.finish()
        if sink == "store":
            shutil.rmtree(work / "content.parts")  # from which the segments were moved
        disk.check(work)


@pytest.mark.parametrize("sink", ["jsonl", "parquet", "files"])
def test_names_are_durable_after_a_join(sink, disk, tmp_path):
    job = job_of(tmp_path, sink)
    for name in ("part", "joined"):
        (tmp_path / name).mkdir()
    with open_sink(job, str(tmp_path / "part" / "content")) as opened:
        part_of(opened, "a")
    with open_sink(job, str(tmp_path / "joined" / "content")) as opened:
        cast("JoiningSink", opened).join([str(tmp_path / "part" / "content")])
        opened.flush()
        disk.check(tmp_path / "joined")


@pytest.mark.parametrize("sink", SINKS)
def test_lost_file_of_a_token_is_refused(sink, tmp_path):
    job, place, aside = job_of(tmp_path, sink), tmp_path / "work" / "content", tmp_path / "aside"
    place.parent.mkdir()
    with open_sink(job, str(place)) as opened:
        token = part_of(opened, "a")
        token = part_of(opened, "b")
    top = {"store": place.with_name("content.parts"), "rocketmq": place / "commitlog"}.get(sink, place)
    files = [path for path in top.iterdir() if path.is_file()] if top.is_dir() and sink != "files" else [place]
    assert files
    for path in files:
        path.rename(aside)
        for cut in (False, True)[: 1 + aside.is_file()]:
            if cut:
                path.touch()
            with pytest.raises(StoreError, match=r"out: an unfinished .* has lost .*\. Begin anew with --restart"):
                open_sink(job, str(place), token).__enter__()
        aside.rename(path)
    with open_sink(job, str(place), token) as opened:
        opened.flush()


def test_names_of_a_journal_are_durable(disk, tmp_path):
    for first in ({"sending": 1}, {"token": {}}):
        journal = ConversionJournal(tmp_path / "journal", {"source": "", "destination": ""}, "")
        (tmp_path / "content").touch()
        journal.confirm(first) if "token" in first else journal.note_sending(1)
        disk.check(tmp_path)
        journal.close()
        journal.end()
        assert "journal" not in disk.names(tmp_path)
        (tmp_path / "content").unlink()


@pytest.mark.parametrize("sink", SINKS)
def test_journal_is_never_without_its_content(sink, disk, tmp_path, monkeypatch):
    """From its first state on, until its deletion has reached the disk."""
    job, place = job_of(tmp_path, sink), tmp_path / "place"
    work, checked = place / ".out.msgstore" / "convert", []

    def confirm(self, state, call=ConversionJournal.confirm):
        call(self, state)
        disk.check(place)
        checked.append("state")

    def change(self, path, *to, call):
        if path in (work, work / "content") and path.exists():
            assert "journal.jsonl" not in disk.names(work) | listed(work)
            checked.append("change")
        return call(self, path, *to)

    monkeypatch.setattr(ConversionJournal, "confirm", confirm)
    for name, call in (("replace", Files.replace), ("remove_tree", Files.remove_tree)):
        monkeypatch.setattr(Files, name, partialmethod(change, call=call))
    with monkeypatch.context() as broken:
        broken.setattr(catalogue().sink(sink).load_factory(), "finish", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            convert(job, ProgressMeter(0))
    assert checked == ["state"]
    if sink in ("jsonl", "parquet", "files"):
        again = job_of(tmp_path, sink, restart=True)
        monkeypatch.setattr(ConversionJournal, "confirm", confirm)
        convert_in_parts(again, *plan_parts(again), map, ProgressMeter(0))
        assert checked == ["state", "change"]
    else:
        convert(job_of(tmp_path, sink, restart=True), ProgressMeter(0))
        assert checked[:3] == ["state", "change", "state"]
    assert disk.names(place) >= {"out"}


@pytest.mark.parametrize("sink", SINKS)
def test_short_writes_are_continued(sink, tmp_path, monkeypatch):
    """A disk that is nearly full takes some of the bytes, and says so in the result only."""
    pwrite = os.pwrite
    for name in ("whole", "short"):
        (tmp_path / name).mkdir()
        with open_sink(job_of(tmp_path, sink), str(tmp_path / name / "content")) as opened:
            for queue in "ab":
                part_of(opened, queue)
            opened.finish()
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:1000], at))
    assert contents(tmp_path / "short" / "content") == contents(tmp_path / "whole" / "content")
