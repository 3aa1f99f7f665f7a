"""Tests of every source of messages."""

from __future__ import annotations

import json
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
from msgstore.testing.probes import within
from msgstore.testing.subjects import Subject

NOW_MS = 1_700_000_000_000
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

    def test_damage(self, subject: Subject, sample: Path, tmp_path: Path) -> None:
        """A failure means that damaged files stop everything, hang, give a body that was never there for a record that was, or
        are not where the damage says."""
        there = {
            (row["origin"]["file"], row["origin"]["offset"]): row
            for batch in batches(subject, sample)
            for row in rows_of(batch)
        }
        files = [sample] if sample.is_file() else sorted(path for path in sample.rglob("*") if path.is_file())
        for file in files:
            content = file.read_bytes()
            for number in range(_CUTS if content else 0):
                at = number * len(content) // _CUTS
                for spoilt in (content[:at], content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]):
                    file.write_bytes(spoilt)
                    with within():
                        self._read(subject, sample, there, f"{file.name}, byte {at}")
            file.write_bytes(content)

    def _read(self, subject: Subject, sample: Path, there: dict[tuple[str, int], dict[str, Any]], where: str) -> None:
        try:
            with opened(subject, sample) as source:
                found = [item for info in source.queues() if info.read for item in source.messages(info.name, 0, None)]
                damage = [item for item in found if isinstance(item, SourceDamage)] + list(source.damage())
        except PluginError:
            raise
        except MsgStoreError:
            return
        check_places([*found, *damage], sample, where)
        for batch in found:
            for row in rows_of(batch) if isinstance(batch, MessageBatch) else ():
                was = there.get((row["origin"]["file"], row["origin"]["offset"]))
                if row["verified"] and was is not None and was["sha256"] != row["sha256"]:
                    assert damage, f"{where}: another body is called verified"


def opened(subject: Subject, path: Path, *, raw: bool = False) -> Any:
    """Return a context with a source for a path."""
    return open_source(SourceSpec(str(path), Backend(subject.name, subject.options), NOW_MS, raw), subject.catalogue)


def batches(subject: Subject, path: Path, *, raw: bool = False) -> Iterator[MessageBatch]:
    """Yield all messages of a path. Fails for damage."""
    with opened(subject, path, raw=raw) as source:
        for info in source.queues():
            assert isinstance(info.name, QueueName)
            for item in source.messages(info.name, 0, None) if info.read else ():
                assert isinstance(item, MessageBatch), f"the sample is damaged: {item}"
                yield item
        assert not list(source.damage()), "the sample is damaged"


def rows(items: Iterator[MessageBatch | SourceDamage]) -> list[dict[str, Any]]:
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
