"""Tests of every source of messages."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

from msgstore import files
from msgstore.contract import (
    STATES,
    Candidate,
    Capability,
    MessageBatch,
    MsgStoreError,
    QueueName,
    SourceDamage,
)
from msgstore.contract.messages import CERTAINTIES
from msgstore.jobs.messages import sources
from msgstore.jobs.messages.rows import rows_of
from msgstore.jobs.messages.sources import open_source
from msgstore.testing.messages.damage import SourceDamageTests
from msgstore.testing.messages.reading import (
    NOW_MS,
    TIME_ZONES,
    Sample,
    check_places,
    check_rows,
    messages_of,
    rows,
)
from msgstore.testing.probes import CLOCKS, clocks_of, in_zone, open_files, peak_of, steps_of, tree
from msgstore.testing.subjects import Subject

TIMES_MS = range(631_152_000_000, 4_102_444_800_000)
"""Milliseconds of the years from 1990 to 2099. No seconds, microseconds or nanoseconds of our time are among them."""
_NAMES = """import pickle, sys; from msgstore.jobs.messages.sources import open_source
with open_source(*pickle.load(sys.stdin.buffer)) as source: print(ascii([str(info.name) for info in source.queues()]))"""
"""Program that prints the names of queues."""


def _messages(source: Any) -> list[tuple[Any, ...]]:
    """Return what tells messages apart."""
    return [(batch.name, *row) for batch in messages_of(source) for row in zip(batch.positions, batch.bodies, strict=True)]


class SourceTests(SourceDamageTests):
    """They read what the descriptor's ``sample`` makes."""

    kinds = ("source",)

    def test_sample_is_detected(self, sample: Sample, tmp_path: Path) -> None:
        """A failure means that users must name the source for what it reads, or that it claims what it cannot read: an empty
        directory, or a text. Or that it fails for a file where it expects a directory, or the other way round; or that a
        directory of large files takes minutes to look at."""
        detect = sample.subject.descriptor.load_detect()
        assert detect(sample.path) is not None, "detect does not recognise the sample"
        (tmp_path / "empty").mkdir()
        (tmp_path / "text").write_text("Dear Sir or Madam,\n")
        for other in ("empty", "text"):
            assert detect(tmp_path / other) is None, f"detect claims {other}"
        names = tmp_path / "names"
        names.mkdir()
        for path in [sample.path] if sample.path.is_file() else sample.path.iterdir():
            (names / path.name).touch() if path.is_dir() else (names / path.name).mkdir()
        for path in (names, *names.iterdir(), *sample.path.rglob("*")):
            assert isinstance(detect(path), Candidate | None), f"detect gives no candidate for {path}"
        for path in sample.files():
            os.truncate(path, max(2**28, path.stat().st_size))
        assert peak_of(lambda: detect(sample.path)) < 2**23, "detect reads whole files"

    def test_every_column_has_a_value_for_each_message(self, sample: Sample) -> None:
        """A failure means that a table of the messages cannot be made, that a state is none of the contract, that a member has
        no form in JSON, or that times are not in milliseconds."""
        found = list(sample.batches())
        assert found, "the sample has no messages"
        for batch in found:
            columns = {field.name: getattr(batch, field.name) for field in attrs.fields(MessageBatch) if field.name != "name"}
            lengths = {name: len(column) for name, column in columns.items() if column is not None}
            assert set(lengths.values()) == {len(batch)}, f"the columns have different lengths: {lengths}"
            assert all(type(body) is bytes for body in batch.bodies), "a body is not bytes"
            assert set(batch.states) <= set(STATES)
            assert set(batch.certainties or ()) <= set(CERTAINTIES)
            assert json.dumps(list(rows_of(batch)))
            for times in (batch.timestamps_ms, batch.expiries_ms):
                others = [time for time in times or () if time is not None and time not in TIMES_MS]
                assert not others, f"{others[0]} is no time from 1990 to 2099 in milliseconds"

    def test_each_record_has_a_place_in_its_file(self, sample: Sample) -> None:
        """A failure means that the record of a message cannot be found: it has no byte, goes beyond its file or into another
        record, or its file is not there."""
        check_places(sample.batches(), sample.path, "the sample")

    def test_a_position_has_the_same_message_at_each_call(self, sample: Sample) -> None:
        """A failure means that a conversion that was interrupted, or that runs in parallel, loses messages or has some
        twice; that the messages of a queue depend on which others were read before; or that a process cannot read a part,
        because it has not called ``queues`` before."""
        wholes = {}
        with sample.opened() as source:
            for info in source.queues():
                assert info.read or info.reason, f"{info.name} is not read, and there is no reason"
                json.dumps(dict(info.details))
            names = [info.name for info in source.queues() if info.read]
            assert len({*names}) == len(names), "a queue is there twice"
            assert [info.name for info in source.queues() if info.read] == names, "another call gives other queues"
            for name in names:
                whole = wholes[name] = rows(source.messages(name, 0, None))
                positions = [row["position"] for row in whole]
                assert positions == sorted(set(positions)), f"the positions of {name} do not grow"
                for first in (*range(0, len(whole), max(len(whole) // 7, 1)), len(whole), len(whole) + 9):
                    for stop in (first, first + 1, None):
                        end = float("inf") if stop is None else stop
                        expected = [row for row in whole if first <= row["position"] < end]
                        check_rows(rows(source.messages(name, first, stop)), expected, f"{name}, from {first} to {stop}")
                if sample.subject.has(Capability.RANDOM_ACCESS):
                    assert source.count(name) > max(positions, default=-1)
        with sample.opened() as source:
            readers = {name: source.messages(name, 0, None) for name in names}
            halves = {name: [*islice(reader, 1)] for name, reader in readers.items()}
            for name in reversed(names):
                found = rows([*halves[name], *readers[name]])
                check_rows(found, wholes[name], f"{name}, while other queues are read")
        for name, whole in wholes.items():
            with sample.opened() as another:
                check_rows(rows(another.messages(name, 0, None)), whole, f"{name}, by an object that has read nothing else")
                assert [info.name for info in another.queues() if info.read] == names, "another object gives other queues"

    def test_two_objects_at_once(self, sample: Sample, tmp_path: Path) -> None:
        """A failure means that two objects share what they have read, such as by the name of a file: of two paths, one is read
        twice."""
        other = Sample(sample.subject, tmp_path / "other" / sample.path.name)
        other.path.parent.mkdir()
        shutil.copytree(sample.path, other.path) if sample.path.is_dir() else shutil.copy(sample.path, other.path)
        for path in other.files():
            os.truncate(path, path.stat().st_size // 2)
        alone = [self._found(each) for each in (sample, other)]
        for samples, expected in (((sample, other), alone), ((other, sample), alone[::-1])):
            if not expected[0]:  # an error
                continue
            with samples[0].opened() as one:
                _messages(one)
                assert self._found(samples[1]) == expected[1], "it gives the messages of another object's path"
                assert [_messages(one)] == expected[0], "it gives the messages of an object that came later"

    def _found(self, sample: Sample) -> list[Any]:
        """Return the messages of a path, or nothing after an error."""
        with suppress(MsgStoreError), sample.opened() as source:
            return [_messages(source)]
        return []

    def test_any_position_is_read_in_the_same_time(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that each part of a queue that is read in parallel costs as much as the whole: once what is common
        has been read, the last position takes more memory, or more lines of Python, in a long queue than in a short one."""
        subject.needs(Capability.RANDOM_ACCESS)
        make, costs = subject.descriptor.load_sample(), []
        if len(inspect.signature(make).parameters) < 2:
            pytest.fail("with RANDOM_ACCESS, the sample takes a second argument: the number of messages to make")
        for count in (1000, 8000):
            (tmp_path / str(count)).mkdir()
            with Sample(subject, make(tmp_path / str(count), count)).opened() as source:
                name = next(info.name for info in source.queues() if info.read)
                call = partial(self._read_last, source, name, source.count(name) - 1)
                call()
                costs.append((peak_of(call), steps_of(call)))
        (peak, steps), (more_peak, more_steps) = costs
        assert more_peak < 2 * peak + 2**14, f"one of {count} messages takes {more_peak} bytes of memory"
        assert more_steps < 2 * steps + 100, f"one of {count} messages takes {more_steps} steps"

    def _read_last(self, source: Any, name: QueueName, last: int) -> None:
        assert len(rows(source.messages(name, last, last + 1))) == 1

    def test_bodies_that_queues_share(self, sample: Sample) -> None:
        """A failure means that a cluster, which reads queues and shared bodies apart and joins them, gets other messages than
        one process; or that a message whose body is not there is lost in silence. The sample needs some shared bodies."""
        sample.subject.needs(Capability.SHARED_BODIES)
        with sample.opened() as source:
            bodies = dict(pair for part in source.body_parts() for pairs in source.bodies(part) for pair in pairs)
            for name in (info.name for info in source.queues() if info.read):
                last = max((row["position"] for row in rows(source.messages(name, 0, None))), default=0)
                for first, stop in ((1, 1), (1, 2), *pairwise(range(0, last + 4, 3)), (0, None)):
                    entries = [entry for found in source.shared_entries(name, first, stop) for entry in found]
                    joined = source.complete(name, [(position, entry, bodies.get(key)) for key, position, entry in entries])
                    found = sorted(rows([*source.own_messages(name, first, stop), *joined]), key=lambda row: row["position"])
                    check_rows(found, rows(source.messages(name, first, stop)), f"{name}, joined from {first} to {stop}")
                gone = source.complete(name, [(position, entry, None) for _, position, entry in entries])
                lost = sum(item.messages for item in gone if isinstance(item, SourceDamage))
                assert lost == len(entries), f"{name}: {len(entries)} messages without a body are {lost} lost messages"
        assert bodies, "the sample has no message whose body is shared"

    def test_no_clock_is_asked(self, sample: Sample) -> None:
        """A failure means that messages expire by the clock of the machine, not by ``now_ms``: a conversion that continues
        gives them other states. Or that anything but the state depends on ``now_ms``, such as which messages there are; or
        that a message of the sample is expired before its expiry, or not after it."""
        with sample.opened() as source:
            clocks = clocks_of(source.backend, lambda: list(sample.batches())) & CLOCKS
        assert not clocks, f"the source asks the clock of the machine: {', '.join(clocks)}"
        early, now, late = (rows(sample.batches(now_ms=now_ms)) for now_ms in (0, NOW_MS, 2**62))
        for found, when in ((early, "in 1970"), (late, "when each expiry is past")):
            check_rows([{**row, "state": ""} for row in found], [{**row, "state": ""} for row in now], when)
        states = {(before["state"], after["state"]) for before, after in zip(early, late, strict=True) if after["expiry_ms"]}
        for before, after in states:
            assert before != "expired", "a message has expired in 1970: the state follows from now_ms and the expiry"
            assert before != "ready" or after == "expired", "a message has not expired after its expiry"

    def test_times_are_those_of_any_time_zone(self, sample: Sample) -> None:
        """A failure means that messages depend on the time zone of the machine: local times are taken for those of the epoch,
        or the other way round. A conversion on another machine gives other times."""
        usual = rows(sample.batches())
        for zone in TIME_ZONES:
            with in_zone(zone):
                check_rows(rows(sample.batches()), usual, f"with TZ={zone}")

    def test_large_files_are_maps(self, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
        """A failure means that no file of more than 64 MiB can be read: it is an ``mmap``, which has fewer methods than bytes.
        Here each file of the sample is one."""
        small = rows(sample.batches(raw=True))
        for module in (sources, files):
            monkeypatch.setattr(module, "READ_WHOLE", 0)
        check_rows(rows(sample.batches(raw=True)), small, "of a file that is mapped")

    def test_raw_records_are_given_if_asked_for(self, sample: Sample) -> None:
        """A failure means that what a message came from cannot be kept."""
        assert all(batch.raws is None for batch in sample.batches()), "raws without being asked for"
        given = list(sample.batches(raw=True))
        assert all(batch.raws is not None and all(batch.raws) for batch in given), "a raw record is missing"
        plain = [attrs.evolve(batch, raws=None, refusals=None) for batch in given]
        check_rows(rows(plain), rows(sample.batches()), "with raw records")

    def test_nothing_is_changed(self, sample: Sample, tmp_path: Path) -> None:
        """A failure means that looking at somebody's data changes them, leaves a file beside them, or leaves a file open."""
        before = tree(tmp_path)
        for _ in range(2):  # the first may load a library, which keeps what it likes
            were_open = open_files()
            with sample.opened() as source:
                for info in source.queues():
                    list(source.messages(info.name, 0, None) if info.read else ())
                list(source.damage())
            left_open = open_files() - were_open
            del source
        assert left_open <= 0, "close leaves a file open"
        assert tree(tmp_path) == before

    def test_queues_have_one_order_in_all_processes(self, sample: Sample, tmp_path: Path) -> None:
        """A failure means that queues are in the order of a set, which differs between processes: a conversion that another
        process continues loses messages or has some twice."""
        spec, catalogue = sample.spec(), attrs.evolve(sample.subject.catalogue, observers=())  # those cannot be pickled
        with open_source(spec, catalogue) as source:
            names = [str(info.name) for info in source.queues()]
        variables = [os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed} for seed in "123"]
        if sample.path.is_dir():  # the system lists the files of a directory as it likes
            files = [path.relative_to(sample.path) for path in sorted(sample.path.rglob("*"), reverse=True) if path.is_file()]
            for number, each in enumerate((files, files[::-1])):
                copy = tmp_path / str(number) / sample.path.name
                for directory in (sample.path, *(path for path in sample.path.rglob("*") if path.is_dir())):
                    (copy / directory.relative_to(sample.path)).mkdir(parents=True, exist_ok=True)
                for file in each:
                    shutil.copy2(sample.path / file, copy / file)
                with Sample(sample.subject, copy).opened() as source:
                    found = [str(info.name) for info in source.queues()]
                assert found == names, "a copy of the directory gives the queues in another order"
        for environment in variables if len(names) > 1 else ():
            command, given = [sys.executable, "-c", _NAMES], pickle.dumps((spec, catalogue))
            done = subprocess.run(command, input=given, env=environment, stdout=subprocess.PIPE, check=True)
            assert done.stdout.decode().strip() == ascii(names), "another process gives other queues"
