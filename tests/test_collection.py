"""Collection beside writers, removers and readers: every action on every index and format, and what it does with damage."""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from pathlib import Path
from unittest import mock

import pytest

import msgstore
from msgstore.contract import Combine, Compact, Drop, RecordError, StoreIOError
from msgstore.engine.compact import garbage_collector
from msgstore.files import Files
from msgstore.testing.faults import Crash
from support import collect, contents, failing, flip, id_of, open_with

LIMIT = 20_000
KEYS = {"sync_interval": "1h", "gc_interval": 0, "file_size_limit": LIMIT}


def body_of(msg_id: bytes) -> bytes:
    return msg_id * (1 + msg_id[1] % 20)


def fill(store, numbers) -> dict[bytes, bytes]:
    """Messages in segments of their own, sealed."""
    bodies = {id_of(number): body_of(id_of(number)) for number in numbers}
    store.client().write_many(bodies.items())
    store.roll()
    return bodies


def halves(store) -> tuple[dict[bytes, bytes], list[int]]:
    """Two segments of which every third message is left. Returns these, and the numbers of the two."""
    left = {}
    for begin in (100, 200):
        bodies = fill(store, range(begin, begin + 60))
        gone = [msg_id for at, msg_id in enumerate(bodies) if at % 3]
        store.client().remove(gone)
        left |= {msg_id: body for msg_id, body in bodies.items() if msg_id not in gone}
    store.flush()
    return left, [s.number for s in store.segments()]


def check(store, expected: dict[bytes, bytes]) -> None:
    """What is there, one by one and together, and that the statistics are those of the index."""
    assert contents(store) == expected
    client = store.client()
    assert all(client.read(msg_id) == body for msg_id, body in expected.items())
    live: dict[int, list[int]] = {}
    for entry in store.entries():
        live.setdefault(entry.number, []).append(entry.size)
    for segment in store.segments():
        sizes = live.pop(segment.number, [])
        assert (segment.live_count, segment.live_bytes) == (len(sizes), sum(sizes)), segment
        assert (store.path / segment.file).stat().st_size == segment.size
    assert live == {}
    assert not list(store.path.glob("*.tmp"))


def check_killed(cell, store, opened, expected: dict[bytes, bytes]) -> None:
    """After a kill: what a persistent index knew, and from an index in memory at least every message."""
    store.abandon()
    store = opened()
    if cell.index == "lmdb":
        assert store.stats().recovery.how in (("trust", "tail") if expected else ("new",))
        check(store, expected)
    assert contents(store).items() >= expected.items()


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_combine_of_two_segments_leaves_one(cell, opened, store, killed):
    expected, numbers = halves(store)
    first, times = next(iter(expected)), [s.sealed_at for s in store.segments()]
    size = sum(segment.size for segment in store.segments())
    store.client().write(first, b"")  # two references
    done = collect(store, Combine(tuple(numbers)))
    assert [(one.outcome, one.size_after, one.moved_records) for one in done] == [("combined", 0, 20)] * 2
    assert store.stats().counters.collected_bytes == size, "the sizes of the two sources"
    (segment,) = [s for s in store.segments() if not s.current]
    assert segment.number > max(numbers)
    assert segment.garbage_bytes == 0
    assert segment.sealed_at == pytest.approx(max(times), abs=1e-5)  # it is as old as its youngest message
    assert sorted(path.name for path in store.path.iterdir() if path.suffix in (".rdq", ".sqs")) == [segment.file]
    check(store, expected)
    assert store.references(first) == 2
    store.abandon() if killed else store.close()
    store = opened()
    is_rebuilt = killed and cell.index == "ets"
    assert (store.stats().recovery.how == "rebuild") == is_rebuilt
    check(store, expected)
    assert store.references(first) == (1 if is_rebuilt else 2)


def test_copies_are_synced_before_sources_are_deleted(store, files):
    """First the bytes of the copy, then its name, then the deletion of the segments that it replaces."""
    expected, numbers = halves(store)
    sources = [store.path / segment.file for segment in store.segments()]
    files.operations.clear()
    collect(store, Combine(tuple(numbers)))
    happened = [(name, Path(path).name) for name, path, _ in files.operations]
    (copy,) = [name for kind, name in happened if kind == "replace" and Path(name).suffix == sources[0].suffix]
    renamed, deleted = happened.index(("replace", copy)), happened.index(("unlink", sources[0].name))
    assert ("sync", f"{copy}.tmp") in happened[:renamed]
    assert ("sync_directory", store.path.name) in happened[renamed:deleted]
    check(store, expected)


@pytest.mark.parametrize("combined", [False, True])
def test_action_without_use_changes_nothing(store, combined, caplog):
    """A policy that is asked while a flush writes the segment sees records that the index does not have yet."""
    expected = fill(store, range(100, 160)) | fill(store, range(200, 260))
    before = store.segments()
    first, second, *_ = (s.number for s in before)
    assert collect(store, Combine((first, second)) if combined else Compact(first)) == []
    assert ("a segment at most 20000" in caplog.text) == combined
    assert store.segments() == before
    check(store, expected)


def test_drop_reports_its_messages(opened, store, client, caplog):
    expected, (first, _) = halves(store)
    dropped = dict(list(expected.items())[:20])
    left = {msg_id: body for msg_id, body in expected.items() if msg_id not in dropped}
    msg_id, body = next(iter(dropped.items()))
    client.write(msg_id, b"")  # also what has two references goes
    store.flush()
    with caplog.at_level(logging.WARNING, "msgstore.collection"):
        (done,) = collect(store, Drop(first, "it is too old"))
    assert (done.outcome, done.size_after, done.dropped) == ("dropped", 0, 20)
    assert caplog.records[-1].getMessage().endswith("dropped with 20 live messages: it is too old")
    check(store, left)
    assert (store.stats().counters.dropped_messages, store.stats().counters.dropped_segments) == (20, 1)
    with pytest.raises(msgstore.MessageNotFound):
        client.remove([msg_id])
    assert first not in [s.number for s in store.segments()]
    client.write(msg_id, body)  # a dropped id may be written again
    store.flush()
    check(store, left | {msg_id: body})
    store.abandon()
    found = contents(opened())
    assert found.items() >= left.items()
    assert found.keys() & dropped.keys() == {msg_id}


@pytest.mark.parametrize(("option", "value"), [("max_bytes", 30_000), ("max_age", "1h")])
def test_retention_drops_oldest_segments(opened, option, value):
    store = opened(gc={"use": "retention", option: value})
    bodies = {}
    for begin in range(100, 500, 60):
        bodies |= fill(store, range(begin, begin + 60))
    if option == "max_age":
        assert store.compact() == []
        for segment in store.segments()[:4]:
            store._segments.by_number[segment.number].sealed_mtime_ns -= 3601 * 10**9
    done = store.compact()
    assert {one.outcome for one in done} == {"dropped"}
    stats = store.stats()
    assert stats.counters.dropped_messages == len(bodies) - stats.messages > 0
    assert option == "max_age" or 15_000 < stats.bytes_on_disk <= 30_000
    check(store, dict(list(bodies.items())[-stats.messages :]))  # the youngest are left
    assert store.compact() == []


def test_retention_ignores_a_clock_set_forward(opened, monkeypatch, caplog):
    """And one that was set back keeps messages longer."""
    store, now = opened(gc={"use": "retention", "max_age": "1h"}), time.time()
    for begin in range(100, 300, 60):
        fill(store, range(begin, begin + 60))
    for step in (10 * 86400, -10 * 86400):
        monkeypatch.setattr(time, "time", lambda step=step: now + step)
        assert store.compact() == store.compact() == []
    (warning,) = [one.getMessage() for one in caplog.records if "clock" in one.getMessage()]
    assert re.search(r"store: the clock was set forward by 8(63|64)\d\d\d s\.", warning)
    segments = store._segments.by_number
    segments[min(segments)].sealed_mtime_ns -= (10 * 86400 + 3601) * 10**9
    assert [one.outcome for one in store.compact()] == ["dropped"]


def test_compaction_keeps_the_age_of_segments(store):
    expected, _ = halves(store)
    for segment in store._segments.by_number.values():  # an hour old
        segment.sealed_mtime_ns -= 3600 * 10**9
        os.utime(segment.path, ns=(segment.sealed_mtime_ns, segment.sealed_mtime_ns))
    before = [s.sealed_at for s in store.segments()]
    store.compact(everything=True)
    check(store, expected)
    for segment, sealed_at in zip(store.segments(), before, strict=True):
        assert segment.sealed_at == pytest.approx(sealed_at, abs=1e-5)
        assert (store.path / segment.file).stat().st_mtime == pytest.approx(sealed_at, abs=1e-5)


def test_warning_that_repeats_is_logged_once(store, caplog, monkeypatch):
    """An hour later it is logged again, and another one at once."""
    fill(store, range(100, 160))
    calls = ((Compact(999), 0, 1), (Compact(999), 3500, 1), (Compact(998), 3500, 2), (Compact(999), 3700, 3))
    for action, seconds, warnings in calls:
        monkeypatch.setattr(garbage_collector.time, "monotonic", lambda at=seconds: 1e6 + at)
        assert collect(store, action) == []
        assert sum("is skipped" in record.getMessage() for record in caplog.records) == warnings


def test_compaction_in_place_syncs_every_step(tmp_path, files, monkeypatch):
    """Each step is on disk before the next one begins, and so is the index: before the first write and before the cut."""
    with open_with(tmp_path, files, index="lmdb", **KEYS) as store:
        _, (number, _) = halves(store)
        index = store._accounting.index
        commit = index.commit
        monkeypatch.setattr(index, "commit", lambda: (files.operations.append(("commit", "", 0)), commit()))

        class Planned:
            def plan(self, segments, now):
                files.operations.clear()
                return [Compact(number)]

        store._collector._policy = Planned()
        store.compact()
        kinds, file = ("pwrite", "sync", "truncate"), f"{number}.sqs"
        happened = [name for name, path, _ in files.operations if name == "commit" or (path == file and name in kinds)]
    steps = [name for name, before in zip(happened, ["", *happened], strict=False) if (name, before) != ("pwrite", "pwrite")]
    assert steps[:10] == ["commit", *["pwrite", "sync"] * 3, "commit", "truncate", "sync"]


def test_mapped_segment_is_never_truncated(store, files, monkeypatch):
    """Other processes map a segment above 64 MiB, and would end with SIGBUS. Not even a full disk changes that."""
    left, _ = halves(store)
    monkeypatch.setattr(garbage_collector, "READ_WHOLE", max(s.size for s in store.segments()) - 1)
    large = max(store.segments(), key=lambda segment: segment.size).number
    files.operations.clear()
    with (
        mock.patch.object(store._segments.files, "create", failing(errno.ENOSPC)),
        pytest.raises(StoreIOError, match="No space"),
    ):
        collect(store, Compact(large))
    (done,) = collect(store, Compact(large))
    assert (done.outcome, done.size_after, files.count("truncate")) == ("compacted", 0, 0)
    check(store, left)


def test_compaction_without_gain_is_not_repeated(cell, opened):
    """Or a collector in the background would read it again and again. Only a segment of v1 is copied."""
    store = opened(gc={"use": "half-empty", "garbage": 0.01})
    client = store.client()
    client.write_many([(bytes(16), b"x" * 300), (b"1" * 16, b"y" * 4000)])
    store.roll()
    (number,) = (s.number for s in store.segments())
    client.remove([bytes(16)])
    (done,) = store.compact()
    assert (done.outcome, done.written) == (("compacted", 4025) if cell.format == "v1" else ("none", 0))
    assert [s.number == number for s in store.segments()] == [cell.format == "v2"]
    assert store.compact() == []
    assert [one.outcome for one in store.compact(everything=True)] == ([] if cell.format == "v1" else ["none"])


def test_full_disk_frees_in_place_what_gaps_can_take(cell, opened, files):
    """Too much garbage stays between the large messages: the segment is copied, for which there is no room."""
    store = opened(files, file_size_limit="1MiB")
    large, small, gone = ([bytes([kind]) * 14 + bytes([0, n]) for n in range(50)] for kind in (1, 2, 3))
    client = store.client()
    for dead, live in zip(gone, large, strict=True):
        client.write(dead, bytes(2000))
        client.write(live, bytes(5000))
    client.write_many((msg_id, bytes(100)) for msg_id in small)
    store.roll()
    client.remove(gone)
    files.before("create", failing(errno.ENOSPC), ".tmp", times=None)
    if cell.format == "v1":
        with pytest.raises(StoreIOError, match="No space left"):
            store.compact(everything=True)
    else:
        (done,) = store.compact(everything=True)
        assert (done.outcome, done.moved_records) == ("compacted", 50)
        assert done.size_after < done.size_before
    sizes = {msg_id: len(body) for msg_id, body in contents(store).items()}
    assert sizes == dict.fromkeys(large, 5000) | dict.fromkeys(small, 100)


def test_segment_that_cannot_be_opened_is_compacted_later(kind, tmp_path, files):
    """Its time and size in the statistics stay. In place, so with v2: v1 is compacted by copy."""
    store = open_with(tmp_path, files, **KEYS, index=kind, format="v2")
    number = halves(store)[1][0]
    segment = store._segments.by_number[number]
    before = (segment.sealed_mtime_ns, segment.compacting, segment.size)
    files.before("open_write", failing(), segment.path.name)
    with pytest.raises(StoreIOError):
        store.compact(everything=True)
    assert (segment.sealed_mtime_ns, segment.compacting, segment.size) == before
    assert "compacted" in [done.outcome for done in store.compact(everything=True)]
    store.close()


def test_copy_of_segment_of_unknown_time_is_new(store):
    """Not of 1970: a policy by age would drop it."""
    _, numbers = halves(store)
    for number in numbers:
        store._segments.by_number[number].sealed_mtime_ns = None
    collect(store, Combine(tuple(numbers)))
    (segment,) = [s for s in store.segments() if not s.current]
    assert segment.sealed_at == pytest.approx(time.time(), abs=3600)


@pytest.mark.parametrize("sizes", [[21 + 50 * (n % 20 + 1) for n in range(400)], [10 * 2 ** (n * 7 % 11) for n in range(400)]])
def test_compaction_of_mixed_sizes_leaves_little_garbage(opened, sizes):
    """Each second record is removed: most of those that are left fit into no gap, so the segment is copied."""
    store = opened()
    client, ids = store.client(), [n.to_bytes(16, "big") for n in range(400)]
    client.write_many((msg_id, bytes(size)) for msg_id, size in zip(ids, sizes, strict=True))
    store.roll()
    client.remove(ids[::2])
    store.compact(everything=True)
    assert sum(s.size for s in store.segments()) <= 1.25 * sum(s.live_bytes for s in store.segments()) + 2 * 64
    assert client.read_many(ids[1::2]) == {ids[n]: bytes(sizes[n]) for n in range(1, 400, 2)}


# -- meanwhile ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["pwrite", pytest.param("sync", marks=pytest.mark.slow), "last"])
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("gone", [(0, 18, -1), range(40)], ids=["some", "all"])
@pytest.mark.parametrize("kind", ["combine", "compact"])
def test_removal_during_collection_stays_removed(cell, opened, store, client, files, kind, step, flushed, gone):
    expected, numbers = halves(store)
    ids, done = [list(expected)[at] for at in gone], []
    in_place = kind == "compact" and cell.format == "v2"
    operation = {"last": "truncate" if in_place else "replace"}.get(step, step)
    files.before(operation, lambda: (client.remove(ids), flushed and store.flush(), done.append(1)), "" if in_place else ".tmp")
    collect(store, Compact(numbers[0]) if kind == "compact" else Combine(tuple(numbers)))
    assert done
    for msg_id in ids:
        del expected[msg_id]
    check(store, expected)
    store.flush()
    assert expected or store.segments() == []
    check_killed(cell, store, opened, expected)


@pytest.mark.parametrize("removed_at", ["sync", "replace"])
def test_kill_after_copies_are_named_keeps_removals(cell, opened, store, client, files, removed_at):
    """Committed rows say that nothing in the copies is live; without these a start would take all of their records for new.
    The flush of a removal before the copies are registered does not commit their rows; a later one does."""
    expected, numbers = halves(store)
    gone = [list(expected)[at] for at in (0, 5, 39)]
    left = {msg_id: body for msg_id, body in expected.items() if msg_id not in gone}

    def remove():
        client.remove(gone)
        store.flush()
        files.before("sync_directory", mock.Mock(side_effect=Crash), times=None)

    files.before(removed_at, remove, ".tmp")
    with pytest.raises(Crash):
        collect(store, Combine(tuple(numbers)))
    files.hooks.clear()
    check_killed(cell, store, opened, left)


def test_write_during_collection_revives_no_record(store, client, files):
    """The second write comes when the place of the first may be gone: it is written once more."""
    expected, numbers = halves(store)
    msg_id, body = list(expected.items())[-1]
    files.before("pwrite", lambda: (client.remove([msg_id]), store.flush(), client.write(msg_id, body), store.flush()))
    collect(store, Compact(numbers[1]))
    check(store, expected)


# -- damage ---------------------------------------------------------------------------------------------------------------


def damage(cell, store, number: int) -> tuple[Path, bytes]:
    """Damage the first record of a segment: in v2 its size, in v1 its last byte: a scan does not find it where the index says.
    Return the file and the id."""
    victim = next(entry for entry in store.entries() if entry.number == number)
    path = store.path / f"{number}{'.rdq' if cell.format == 'v1' else '.sqs'}"
    flip(path, victim.offset + (victim.size - 1 if cell.format == "v1" else 1))
    return path, victim.msg_id


@pytest.mark.parametrize("kind", ["compact", "combine", "drop"])
def test_collection_of_damaged_segment_quarantines_only_it(cell, opened, store, client, kind, caplog):
    expected, (first, second) = halves(store)
    third = fill(store, range(300, 340))
    client.remove(list(third)[:30])
    store.flush()
    expected |= dict(list(third.items())[30:])
    last = [s.number for s in store.segments() if not s.current][-1]
    damaged, victim = damage(cell, store, first)
    before = damaged.read_bytes()
    actions = {"compact": Compact(first), "combine": Combine((first, second)), "drop": Drop(first, "old")}
    done = collect(store, actions[kind], Compact(last))
    assert done[0].skipped
    assert done[0].file == damaged.name
    assert "is kept as it is" in caplog.text
    assert done[1].size_after < done[1].size_before
    assert damaged.read_bytes() == before
    assert store.stats().quarantined == 1
    assert [s.number for s in store.segments() if s.quarantined] == [first]
    assert all(client.read(msg_id) == body for msg_id, body in expected.items() if msg_id != victim)
    assert collect(store, Compact(first)) == []  # from now on it is left alone
    store.close()
    store = opened()
    assert store.stats().quarantined == 1
    store.client().remove([entry.msg_id for entry in store.entries()])
    store.compact()
    # A salvage may find records in it that nobody else finds.
    assert [s.file for s in store.segments() if not s.current] == [damaged.name]


def test_copy_of_undecodable_record_is_refused(store, monkeypatch):
    """The scan has passed it, and then the disk gives other bytes."""
    expected, numbers = halves(store)
    victim = next(entry.msg_id for entry in store.entries() if entry.number == numbers[1])
    form = store._segments.by_number[numbers[1]].form.format
    decode = form.decode

    def failing(msg_id, record):
        if msg_id == victim:
            raise RecordError("checksum_mismatch")
        return decode(msg_id, record)

    with monkeypatch.context() as patch:
        patch.setattr(form, "decode", failing)
        (done,) = collect(store, Combine(tuple(numbers)))
    assert "checksum_mismatch" in done.skipped
    assert not list(store.path.glob("*.tmp"))
    assert [s.number for s in store.segments() if s.quarantined] == [numbers[1]]
    check(store, expected)


@pytest.mark.parametrize(
    ("finds", "text"),
    [
        (True, "its scan finds 40 live records where the index has 20"),
        (False, "20 of its 20 live records are not where the index says"),
    ],
)
def test_index_contradicting_counts_is_reported(store, client, monkeypatch, finds, text):
    """With the number of records that are too many or missing: the log said -20 of its 20."""
    ids = list(fill(store, range(40)))
    locations = {msg_id: store._index.get(msg_id) for msg_id in ids}
    client.remove(ids[:20])
    store.flush()
    with monkeypatch.context() as patch:
        patch.setattr(store._accounting, "index", mock.Mock(get=locations.get if finds else lambda msg_id: None))
        (done,) = collect(store, Compact(store.segments()[0].number))
    assert text in done.skipped


def test_collection_of_unreadable_segment_is_repeated(opened, monkeypatch):
    files = Files()
    store = opened(files)
    expected, numbers = halves(store)
    name, view = store.segments()[0].file, files.view
    with monkeypatch.context() as patch:
        patch.setattr(files, "view", lambda path: (failing() if path.name == name else view)(path))
        with pytest.raises(msgstore.StoreIOError, match=r"Input/output error"):
            collect(store, *map(Compact, numbers))
    sizes = [s.garbage_bytes for s in store.segments()]
    assert sizes[0] > 1000 > sizes[1]  # the other one was compacted all the same
    assert collect(store, *map(Compact, numbers))[0].outcome == "compacted"
    check(store, expected)
