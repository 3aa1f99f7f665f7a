"""Tests of every source of messages."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

from msgstore.config import Backend
from msgstore.contract import STATES, Capability, MessageBatch, MsgStoreError, PluginError, QueueName, SourceDamage
from msgstore.contract.messages import CERTAINTIES
from msgstore.jobs.messages.rows import rows_of
from msgstore.jobs.messages.sources import SourceSpec, open_source
from msgstore.testing.plugin import KitTests
from msgstore.testing.probes import CLOCKS, clocks_of, within
from msgstore.testing.subjects import Subject

NOW_MS = 1_700_000_000_000
_NAMES = """import pickle, sys; from msgstore.jobs.messages.sources import open_source
with open_source(*pickle.load(sys.stdin.buffer)) as source: print(ascii([str(info.name) for info in source.queues()]))"""
"""Program that prints the names of queues."""
Place = tuple[str, int]
"""File and offset of a record."""
_CUTS = 24
"""Damaged versions of each file of the sample."""


class SourceTests(KitTests):
    """They read what the descriptor's ``sample`` makes."""

    kinds = ("source",)

    @pytest.fixture
    def sample(self, subject: Subject, tmp_path: Path) -> Path:
        directory = tmp_path / "sample"
        directory.mkdir()
        made: Path = subject.descriptor.load_sample()(directory)
        return made

    def test_sample_is_detected(self, subject: Subject, sample: Path, tmp_path: Path) -> None:
        """A failure means that users must name the source for what it reads, or that it claims what it cannot read: an empty
        directory, or a text."""
        detect = subject.descriptor.load_detect()
        assert detect(sample) is not None, "detect does not recognise the sample"
        (tmp_path / "empty").mkdir()
        (tmp_path / "text").write_text("Dear Sir or Madam,\n")
        for other in ("empty", "text"):
            assert detect(tmp_path / other) is None, f"detect claims {other}"

    def test_every_column_has_a_value_for_each_message(self, subject: Subject, sample: Path) -> None:
        """A failure means that a table of the messages cannot be made, that a state is none of the contract, or that a member
        has no form in JSON."""
        found = list(batches(subject, sample))
        assert found, "the sample has no messages"
        for batch in found:
            columns = {field.name: getattr(batch, field.name) for field in attrs.fields(MessageBatch) if field.name != "name"}
            lengths = {name: len(column) for name, column in columns.items() if column is not None}
            assert set(lengths.values()) == {len(batch)}, f"the columns have different lengths: {lengths}"
            assert all(type(body) is bytes for body in batch.bodies), "a body is not bytes"
            assert set(batch.states) <= set(STATES)
            assert set(batch.certainties or ()) <= set(CERTAINTIES)
            assert json.dumps(list(rows_of(batch)))

    def test_each_record_has_a_place_in_its_file(self, subject: Subject, sample: Path) -> None:
        """A failure means that the record of a message cannot be found: it has no byte, goes beyond its file or into another
        record, or its file is not there."""
        check_places(batches(subject, sample), sample, "the sample")

    def test_a_position_has_the_same_message_at_each_call(self, subject: Subject, sample: Path) -> None:
        """A failure means that a conversion that was interrupted, or that runs in parallel, loses messages or has some
        twice."""
        with opened(subject, sample) as source:
            names = [info.name for info in source.queues() if info.read]
            assert [info.name for info in source.queues() if info.read] == names, "another call gives other queues"
            for name in names:
                whole = rows(source.messages(name, 0, None))
                positions = [row["position"] for row in whole]
                assert positions == sorted(set(positions)), f"the positions of {name} do not grow"
                for first in range(0, len(whole), max(len(whole) // 7, 1)):
                    for stop in (first, first + 1, None):
                        end = float("inf") if stop is None else stop
                        expected = [row for row in whole if first <= row["position"] < end]
                        assert rows(source.messages(name, first, stop)) == expected, f"{name}, from {first} to {stop}"
                if subject.has(Capability.RANDOM_ACCESS):
                    assert source.count(name) > max(positions, default=-1)
        with opened(subject, sample) as another:
            assert [info.name for info in another.queues() if info.read] == names, "another object gives other queues"

    def test_no_clock_is_asked(self, subject: Subject, sample: Path) -> None:
        """A failure means that messages expire by the clock of the machine, not by ``now_ms``: a conversion that continues
        gives them other states."""
        with opened(subject, sample) as source:
            clocks = clocks_of(source, lambda: list(batches(subject, sample))) & CLOCKS
        assert not clocks, f"the source asks the clock of the machine: {', '.join(clocks)}"

    def test_raw_records_are_given_if_asked_for(self, subject: Subject, sample: Path) -> None:
        """A failure means that what a message came from cannot be kept."""
        assert all(batch.raws is None for batch in batches(subject, sample)), "raws without being asked for"
        given = list(batches(subject, sample, raw=True))
        assert all(batch.raws is not None and all(batch.raws) for batch in given), "a raw record is missing"

    def test_nothing_is_changed(self, subject: Subject, sample: Path, tmp_path: Path) -> None:
        """A failure means that looking at somebody's data changes them, or leaves a file beside them."""
        before = tree(tmp_path)
        list(batches(subject, sample))
        assert tree(tmp_path) == before

    def test_queues_have_one_order_in_all_processes(self, subject: Subject, sample: Path) -> None:
        """A failure means that queues are in the order of a set, which differs between processes: a conversion that another
        process continues loses messages or has some twice."""
        spec, catalogue = spec_of(subject, sample), attrs.evolve(subject.catalogue, observers=())  # those cannot be pickled
        with open_source(spec, catalogue) as source:
            names = [str(info.name) for info in source.queues()]
        variables = [os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed} for seed in "123"]
        for environment in variables if len(names) > 1 else ():
            command, given = [sys.executable, "-c", _NAMES], pickle.dumps((spec, catalogue))
            done = subprocess.run(command, input=given, env=environment, stdout=subprocess.PIPE, check=True)
            assert done.stdout.decode().strip() == ascii(names), "another process gives other queues"

    def test_damage(self, subject: Subject, sample: Path, tmp_path: Path) -> None:
        """A failure means that damaged files stop everything, hang, give a body that was never there for a record that was, or
        are not where the damage says; that a range of positions has other messages than the same positions of all; or that a
        wrong byte costs all messages of a queue, and there is no error, no damage, and nothing more that is not read."""
        whole = list(batches(subject, sample))
        there = {(row["origin"]["file"], row["origin"]["offset"]): row for batch in whole for row in rows_of(batch)}
        queues = {batch.name: places_of(each for each in whole if each.name == batch.name) for batch in whole}
        _, unread = self._read(subject, sample, there, "the sample") or (None, 0)
        files = [sample] if sample.is_file() else sorted(path for path in sample.rglob("*") if path.is_file())
        for file in files:
            content = file.read_bytes()
            for number in range(_CUTS if content else 0):
                at = number * len(content) // _CUTS
                for spoilt in (content[:at], content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]):
                    file.write_bytes(spoilt)
                    with within():
                        left, more_unread = self._read(subject, sample, there, f"{file.name}, byte {at}") or (None, 0)
                    if left is not None and len(spoilt) == len(content) and more_unread <= unread:
                        gone = [str(name) for name, places in queues.items() if len(places) > 1 and not places & left]
                        assert not gone, f"{file.name}, byte {at}: {', '.join(gone)} has no message any more, and no damage"
            file.write_bytes(content)

    def _read(self, subject: Subject, sample: Path, there: dict[Place, Any], where: str) -> tuple[set[Place], int] | None:
        """Return the places of all messages, and how many parts are not read; None after an error, or if there is damage."""
        try:
            with opened(subject, sample) as source:
                infos = list(source.queues())
                found = list[MessageBatch | SourceDamage]()
                for name in (info.name for info in infos if info.read):
                    items = list(source.messages(name, 0, None))
                    all_rows = rows(items)
                    middle = all_rows[len(all_rows) // 2]["position"] if all_rows else 1
                    halves = rows([*source.messages(name, 0, middle), *source.messages(name, middle, None)])
                    assert halves == all_rows, f"{where}: read from {middle} on, {name} has other messages"
                    found += items
                damage = [item for item in found if isinstance(item, SourceDamage)] + list(source.damage())
        except PluginError:
            raise
        except MsgStoreError:
            return None
        check_places([*found, *damage], sample, where)
        for batch in found:
            for row in rows_of(batch) if isinstance(batch, MessageBatch) else ():
                was = there.get((row["origin"]["file"], row["origin"]["offset"]))
                if row["verified"] and was is not None and was["sha256"] != row["sha256"]:
                    assert damage, f"{where}: another body is called verified"
        left = places_of(item for item in found if isinstance(item, MessageBatch))
        return None if damage else (left, sum(not info.read for info in infos))


def spec_of(subject: Subject, path: Path, *, raw: bool = False) -> SourceSpec:
    return SourceSpec(str(path), Backend(subject.name, subject.options), NOW_MS, raw)


def opened(subject: Subject, path: Path, *, raw: bool = False) -> Any:
    """Return a context with a source for a path."""
    return open_source(spec_of(subject, path, raw=raw), subject.catalogue)


def batches(subject: Subject, path: Path, *, raw: bool = False) -> Iterator[MessageBatch]:
    """Yield all messages of a path. Fails for damage."""
    with opened(subject, path, raw=raw) as source:
        for info in source.queues():
            assert isinstance(info.name, QueueName)
            for item in source.messages(info.name, 0, None) if info.read else ():
                assert isinstance(item, MessageBatch), f"the sample is damaged: {item}"
                yield item
        assert not list(source.damage()), "the sample is damaged"


def places_of(batches: Iterable[MessageBatch]) -> set[Place]:
    return {place for batch in batches for place in zip(batch.files, batch.offsets, strict=True)}


def rows(items: Iterable[MessageBatch | SourceDamage]) -> list[dict[str, Any]]:
    return [row for item in items if isinstance(item, MessageBatch) for row in rows_of(item)]


def check_places(items: Iterable[MessageBatch | SourceDamage], sample: Path, where: str) -> None:
    """Fail if a record or damage is not inside a file, or if two records share only some bytes."""
    places = set[tuple[str, int, int]]()
    for item in items:
        if isinstance(item, MessageBatch):
            found = list(zip(item.files, item.offsets, item.sizes, strict=True))
            assert min(item.sizes, default=1) > 0, f"{where}: a record has the size {min(item.sizes)}"
            places.update(found)
        else:
            found = [(item.file, item.offset, item.size)]
        for name, offset, size in found:
            file = sample / name if name else sample
            assert file.exists(), f"{where}: there is no file {name!r}"
            length = file.stat().st_size if file.is_file() else 0
            inside = min(offset, size) >= 0 and offset + size <= length
            assert inside, f"{where}: {name!r} has {length} bytes, none from {offset} to {offset + size}"
    for (name, offset, size), (other, begin, _) in pairwise(sorted(places)):
        assert name != other or offset + size <= begin, f"{where}: records overlap in {name!r} at {begin}"


def tree(top: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return every file with its size, times, and content."""
    files = [top, *sorted(top.rglob("*"))]
    return {
        str(path): (*path.stat()[6:7], path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in files
    }
