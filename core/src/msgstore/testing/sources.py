"""Tests of every source of messages."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise, product
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
    PluginError,
    QueueName,
    SourceDamage,
)
from msgstore.contract.messages import CERTAINTIES
from msgstore.jobs.messages import sources
from msgstore.jobs.messages.rows import rows_of
from msgstore.jobs.messages.sources import SourceSpec, open_source
from msgstore.option_values import Backend
from msgstore.testing.plugin import KitTests
from msgstore.testing.probes import CLOCKS, clocks_of, measured, open_files, peak_of, steps_of, within
from msgstore.testing.subjects import Subject

NOW_MS = 1_700_000_000_000
TIMES_MS = range(631_152_000_000, 4_102_444_800_000)
"""Milliseconds of the years from 1990 to 2099. No seconds, microseconds or nanoseconds of our time are among them."""
_NAMES = """import pickle, sys; from msgstore.jobs.messages.sources import open_source
with open_source(*pickle.load(sys.stdin.buffer)) as source: print(ascii([str(info.name) for info in source.queues()]))"""
"""Program that prints the names of queues."""
Place = tuple[str, int]
"""File and offset of a record."""
_CUTS = 24
"""Places in each file of the sample that are damaged, and records with a damaged head."""


class SourceTests(KitTests):
    """They read what the descriptor's ``sample`` makes."""

    kinds = ("source",)

    @pytest.fixture
    def sample(self, subject: Subject, tmp_path: Path) -> Path:
        if not subject.descriptor.sample:
            pytest.fail("the descriptor has no sample: write a function that makes one, and name it as 'package.module:name'")
        directory = tmp_path / "sample"
        directory.mkdir()
        made: Path = subject.descriptor.load_sample()(directory)
        return made

    def test_sample_is_detected(self, subject: Subject, sample: Path, tmp_path: Path) -> None:
        """A failure means that users must name the source for what it reads, or that it claims what it cannot read: an empty
        directory, or a text. Or that it fails for a file where it expects a directory, or the other way round; or that a
        directory of large files takes minutes to look at."""
        detect = subject.descriptor.load_detect()
        assert detect(sample) is not None, "detect does not recognise the sample"
        (tmp_path / "empty").mkdir()
        (tmp_path / "text").write_text("Dear Sir or Madam,\n")
        for other in ("empty", "text"):
            assert detect(tmp_path / other) is None, f"detect claims {other}"
        names = tmp_path / "names"
        names.mkdir()
        for path in [sample] if sample.is_file() else sample.iterdir():
            (names / path.name).touch() if path.is_dir() else (names / path.name).mkdir()
        for path in (names, *names.iterdir(), *sample.rglob("*")):
            assert isinstance(detect(path), Candidate | None), f"detect gives no candidate for {path}"
        for path in [sample] if sample.is_file() else sample.rglob("*"):
            if path.is_file():
                os.truncate(path, max(2**28, path.stat().st_size))
        assert peak_of(lambda: detect(sample)) < 2**23, "detect reads whole files"

    def test_every_column_has_a_value_for_each_message(self, subject: Subject, sample: Path) -> None:
        """A failure means that a table of the messages cannot be made, that a state is none of the contract, that a member has
        no form in JSON, or that times are not in milliseconds."""
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
            for times in (batch.timestamps_ms, batch.expiries_ms):
                others = [time for time in times or () if time is not None and time not in TIMES_MS]
                assert not others, f"{others[0]} is no time from 1990 to 2099 in milliseconds"

    def test_each_record_has_a_place_in_its_file(self, subject: Subject, sample: Path) -> None:
        """A failure means that the record of a message cannot be found: it has no byte, goes beyond its file or into another
        record, or its file is not there."""
        check_places(batches(subject, sample), sample, "the sample")

    def test_a_position_has_the_same_message_at_each_call(self, subject: Subject, sample: Path) -> None:
        """A failure means that a conversion that was interrupted, or that runs in parallel, loses messages or has some
        twice; that the messages of a queue depend on which others were read before; or that a process cannot read a part,
        because it has not called ``queues`` before."""
        wholes = {}
        with opened(subject, sample) as source:
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
                if subject.has(Capability.RANDOM_ACCESS):
                    assert source.count(name) > max(positions, default=-1)
        for name, whole in wholes.items():
            with opened(subject, sample) as another:
                check_rows(rows(another.messages(name, 0, None)), whole, f"{name}, by an object that has read nothing else")
                assert [info.name for info in another.queues() if info.read] == names, "another object gives other queues"

    def test_any_position_is_read_in_the_same_time(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that each part of a queue that is read in parallel costs as much as the whole: once what is common
        has been read, the last position takes more memory, or more lines of Python, in a long queue than in a short one."""
        subject.needs(Capability.RANDOM_ACCESS)
        make, costs = subject.descriptor.load_sample(), []
        if len(inspect.signature(make).parameters) < 2:
            pytest.fail("with RANDOM_ACCESS, the sample takes a second argument: the number of messages to make")
        for count in (1000, 8000):
            (tmp_path / str(count)).mkdir()
            with opened(subject, make(tmp_path / str(count), count)) as source:
                name = next(info.name for info in source.queues() if info.read)
                call = partial(self._read_last, source, name, source.count(name) - 1)
                call()
                costs.append((peak_of(call), steps_of(call)))
        (peak, steps), (more_peak, more_steps) = costs
        assert more_peak < 2 * peak + 2**14, f"one of {count} messages takes {more_peak} bytes of memory"
        assert more_steps < 2 * steps + 100, f"one of {count} messages takes {more_steps} steps"

    def _read_last(self, source: Any, name: QueueName, last: int) -> None:
        assert len(rows(source.messages(name, last, last + 1))) == 1

    def test_bodies_that_queues_share(self, subject: Subject, sample: Path) -> None:
        """A failure means that a cluster, which reads queues and shared bodies apart and joins them, gets other messages than
        one process; or that a message whose body is not there is lost in silence. The sample needs some shared bodies."""
        subject.needs(Capability.SHARED_BODIES)
        with opened(subject, sample) as source:
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

    def test_no_clock_is_asked(self, subject: Subject, sample: Path) -> None:
        """A failure means that messages expire by the clock of the machine, not by ``now_ms``: a conversion that continues
        gives them other states. Or that anything but the state depends on ``now_ms``, such as which messages there are; or
        that a message of the sample is expired before its expiry, or not after it."""
        with opened(subject, sample) as source:
            clocks = clocks_of(source.backend, lambda: list(batches(subject, sample))) & CLOCKS
        assert not clocks, f"the source asks the clock of the machine: {', '.join(clocks)}"
        early, now, late = (rows(batches(subject, sample, now_ms=now_ms)) for now_ms in (0, NOW_MS, 2**62))
        for found, when in ((early, "in 1970"), (late, "when each expiry is past")):
            check_rows([{**row, "state": ""} for row in found], [{**row, "state": ""} for row in now], when)
        states = {(before["state"], after["state"]) for before, after in zip(early, late, strict=True) if after["expiry_ms"]}
        for before, after in states:
            assert before != "expired", "a message has expired in 1970"
            assert before != "ready" or after == "expired", "a message has not expired after its expiry"

    def test_large_files_are_maps(self, subject: Subject, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A failure means that no file of more than 64 MiB can be read: it is an ``mmap``, which has fewer methods than bytes.
        Here each file of the sample is one."""
        small = rows(batches(subject, sample, raw=True))
        for module in (sources, files):
            monkeypatch.setattr(module, "READ_WHOLE", 0)
        check_rows(rows(batches(subject, sample, raw=True)), small, "of a file that is mapped")

    def test_raw_records_are_given_if_asked_for(self, subject: Subject, sample: Path) -> None:
        """A failure means that what a message came from cannot be kept."""
        assert all(batch.raws is None for batch in batches(subject, sample)), "raws without being asked for"
        given = list(batches(subject, sample, raw=True))
        assert all(batch.raws is not None and all(batch.raws) for batch in given), "a raw record is missing"

    def test_nothing_is_changed(self, subject: Subject, sample: Path, tmp_path: Path) -> None:
        """A failure means that looking at somebody's data changes them, leaves a file beside them, or leaves a file open."""
        before = tree(tmp_path)
        for _ in range(2):  # the first may load a library, which keeps what it likes
            were_open = open_files()
            with opened(subject, sample) as source:
                for info in source.queues():
                    list(source.messages(info.name, 0, None) if info.read else ())
                list(source.damage())
            left_open = open_files() - were_open
            del source
        assert left_open <= 0, "close leaves a file open"
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
        are not where the damage says; that the begin of a record, which a cut has left, becomes a message; that a range of
        positions has other messages than the same positions of all, or one that ``count`` does not count; that a checksum that
        differs makes a message unverified; that a size is believed, and takes memory; or that a wrong byte costs all messages
        of a queue, or a cut the record that it goes through, and there is no error, no damage, and nothing more that is not
        read."""
        whole = list(batches(subject, sample))
        there = {(row["origin"]["file"], row["origin"]["offset"]): row for batch in whole for row in rows_of(batch)}
        queues = {batch.name: places_of(each for each in whole if each.name == batch.name) for batch in whole}
        _, unread = self._read(subject, sample, there, "the sample") or (None, 0)
        paths = [sample] if sample.is_file() else sorted(path for path in sample.rglob("*") if path.is_file())
        for file in paths:
            content = file.read_bytes()
            records = sorted(
                {place for batch in whole for place in zip(batch.files, batch.offsets, batch.sizes, strict=True)
                 if sample / place[0] == file}
            )  # fmt: skip
            spots = {number * len(content) // _CUTS for number in range(_CUTS)}
            spots |= {offset + number for number, (_, offset, size) in enumerate(records[:_CUTS]) if number < size}
            spots |= {offset + size // 2 for _, offset, size in records[:_CUTS:6]}
            spots |= verified_bodies(whole, sample, file, content)
            for at, is_cut in product(sorted(spots) if content else (), (True, False)):
                file.write_bytes(content[:at] + (b"" if is_cut else bytes([content[at] ^ 0x55]) + content[at + 1 :]))
                where = f"{file.name}, {'cut at' if is_cut else 'wrong'} byte {at}"
                read = partial(self._read, subject, sample, there, where, is_cut=is_cut)
                with within():
                    found, peak = measured(read)
                assert peak < 2**25 + 100 * len(content), f"{where}: reading takes {peak} bytes of memory"
                left, more_unread = found or (None, 0)
                if left is None or more_unread > unread:
                    continue
                if is_cut:
                    cut = [(name, begin) for name, begin, size in records if 0 < at - begin < size <= 2 * (at - begin)]
                    gone = [begin for name, begin in cut if (name, begin) not in left]
                    assert not gone, f"{where}: the record at {gone[0]} is not there any more, and there is no damage"
                else:
                    lost = [str(name) for name, places in queues.items() if len(places) > 1 and not places & left]
                    assert not lost, f"{where}: {', '.join(lost)} has no message any more, and there is no damage"
            file.write_bytes(content)

    def _read(
        self, subject: Subject, sample: Path, there: dict[Place, Any], where: str, *, is_cut: bool = False
    ) -> tuple[set[Place], int] | None:
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
                    check_rows(halves, all_rows, f"{where}: {name}, read up to {middle} and from there on")
                    if subject.has(Capability.RANDOM_ACCESS):
                        count, last = source.count(name), max((row["position"] for row in all_rows), default=-1)
                        assert count > last, f"{where}: {name} has a message at position {last}, and count is {count}"
                    found += items
                apart = list(source.damage())
                list(source.queues())
                assert list(source.damage()) == apart, f"{where}: another call of queues changes the damage"
                damage = [item for item in found if isinstance(item, SourceDamage)] + apart
        except PluginError:
            raise
        except MsgStoreError:
            return None
        check_places([*found, *damage], sample, where)
        for batch in found:
            for row in rows_of(batch) if isinstance(batch, MessageBatch) else ():
                was = there.get((row["origin"]["file"], row["origin"]["offset"]))
                if was is not None and was["sha256"] != row["sha256"]:
                    is_begin = is_cut and row["origin"]["size"] < was["origin"]["size"]
                    called = (
                        "verified" if row["verified"] else "that of a cut record" if is_begin else "given for a verified one"
                    )
                    assert damage or not (is_begin or row["verified"] or was["verified"]), f"{where}: another body is {called}"
        left = places_of(item for item in found if isinstance(item, MessageBatch))
        return None if damage else (left, sum(not info.read for info in infos))


def spec_of(subject: Subject, path: Path, *, raw: bool = False, now_ms: int = NOW_MS) -> SourceSpec:
    return SourceSpec(str(path), Backend(subject.name, subject.options), now_ms, raw)


def opened(subject: Subject, path: Path, **how: Any) -> Any:
    """Return a context with a source for a path."""
    return open_source(spec_of(subject, path, **how), subject.catalogue)


def batches(subject: Subject, path: Path, **how: Any) -> Iterator[MessageBatch]:
    """Yield all messages of a path. Fails for damage."""
    with opened(subject, path, **how) as source:
        for info in source.queues():
            assert isinstance(info.name, QueueName)
            for item in source.messages(info.name, 0, None) if info.read else ():
                assert isinstance(item, MessageBatch), f"the sample is damaged: {item}"
                yield item
        assert not list(source.damage()), "the sample is damaged"


def places_of(batches: Iterable[MessageBatch]) -> set[Place]:
    return {place for batch in batches for place in zip(batch.files, batch.offsets, strict=True)}


def verified_bodies(batches: Iterable[MessageBatch], sample: Path, file: Path, content: bytes) -> set[int]:
    """Return the offsets in a file of some bodies that a checksum covers, if they are stored as they are."""
    found = [
        content.find(batch.bodies[row], batch.offsets[row], batch.offsets[row] + batch.sizes[row])
        for batch in batches
        for row, is_verified in enumerate(batch.verified or ())
        if is_verified and batch.bodies[row] and sample / batch.files[row] == file
    ]
    return {at for at in found[::9] if at >= 0}


def rows(items: Iterable[MessageBatch | SourceDamage]) -> list[dict[str, Any]]:
    return [row for item in items if isinstance(item, MessageBatch) for row in rows_of(item)]


def check_rows(found: list[dict[str, Any]], wanted: list[dict[str, Any]], where: str) -> None:
    for row, right in zip(found, wanted, strict=False):
        others = [key for key in right if row.get(key) != right[key]]
        assert not others, f"{where}: the message at {right['position']} has another value of {', '.join(others)}"
    assert len(found) == len(wanted), f"{where}: there are {len(found)} messages, not {len(wanted)}"


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
            assert not name.startswith("/"), f"{where}: the path of a file is {name!r}, not relative to the source's"
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
