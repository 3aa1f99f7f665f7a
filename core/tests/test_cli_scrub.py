"""``verify --rate`` and ``--resume``, also as ``scrub``: findings, resumption after a stop, and the rate."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import attrs
import pytest

import msgstore
from core_support import columns, flip, objects, raising, run
from msgstore.cli.checking import CHUNK, Checker, Throttle
from msgstore.cli.commands import verify as verify_verb
from msgstore.cli.scrub_state import STATE, DamagedSpan, Finding, ScrubState, read_state, write_state
from msgstore.contract import MessageNotFound
from msgstore.engine.store import StoredMessage
from msgstore.files import Files
from msgstore.locations import pack_location
from msgstore.scan import FormatSet

IDS = [n.to_bytes(2, "big") * 8 for n in range(100)]
SCRUB, RESUMING = ("scrub",), ("verify", "--resume")
SIZE, SEGMENT = 425, 64 + 10 * 425
"""Bytes of a message and of a segment."""


def told(*arguments, verb=SCRUB):
    """(damage, summary) with ``--json``, which agree with the exit code."""
    result = run(*verb, "--json", *arguments)
    *found, summary = objects(result)
    assert {one["kind"] for one in found} <= {"damage", "segment"}
    damage = [one for one in found if one["kind"] == "damage"]
    assert summary["kind"] == "summary"
    assert (result.exit_code, summary["ok"], summary["damaged_spans"]) == (bool(damage), not damage, len(damage))
    return damage, summary


def flip_in(store, number, message, byte=SIZE - 1):
    """Flip a bit of a message, unseen by size and time."""
    flip(store / f"{number}.sqs", 64 + message * SIZE + byte, unseen=True)


def files_of(damage):
    return [Path(spot["path"]).name for spot in damage]


@pytest.fixture
def store(tmp_path):
    """Ten segments of ten checksummed messages."""
    path = tmp_path / "store"
    keys = {"record": "checksum", "file_size_limit": SEGMENT, "gc_interval": 0}
    with msgstore.open_store(path, **keys) as opened, opened.client() as client:
        client.write_many((msg_id, msg_id * 25) for msg_id in IDS)
    assert len(list(path.glob("*.sqs"))) == 10
    return path


@contextlib.contextmanager
def changing(store):
    """The store, open; a message more, because an unchanged store does not save its index."""
    with msgstore.open_store(store, record="checksum") as opened, opened.client() as client:
        client.write(bytes(16), b"a change")
        yield opened


def test_scrub_of_good_store_finds_nothing(store):
    damage, summary = told(store)
    assert (damage, summary["segments"], summary["records"], summary["resumed_after"]) == ([], 10, 100, None)
    assert summary["bytes"] == 10 * SEGMENT
    assert "100 of 100 live messages verified (trust); 10 segments, 42.1 KiB" in run("scrub", store).stdout
    assert not (store / STATE).exists()


def test_scrub_tells_every_damaged_record(store):
    flip_in(store, 2, 3, 100)
    flip_in(store, 7, 0)
    damage, summary = told(store)
    assert files_of(damage) == ["2.sqs", "7.sqs"]
    assert columns(damage, "offset", "size", "reason", "id") == [
        (64 + 3 * SIZE, SIZE, "checksum_mismatch", IDS[23].hex()),
        (64, SIZE, "checksum_mismatch", IDS[70].hex()),
    ]
    assert summary["segments"] == 10
    assert f"checksum_mismatch: message {IDS[23].hex()}" in run("scrub", store, code=1).stdout


def test_scrub_compares_index_with_records(store):
    wrong = {
        5: ((0, 64 + 4 * SIZE, SIZE), "id_mismatch"),  # where another message is
        15: ((1, 64 + 5 * SIZE, 400), "size_mismatch"),
        25: ((77, 64, SIZE), "segment_missing"),
    }
    with changing(store) as opened:
        for n, (location, _) in wrong.items():
            opened._index.enter([IDS[n]], [pack_location(*location)])
    assert columns(told(store)[0], "id", "reason") == [(IDS[n].hex(), reason) for n, (_, reason) in wrong.items()]


def test_scrub_checks_frame_of_dead_records(store):
    with msgstore.open_store(store, record="checksum") as opened, opened.client() as client:
        client.remove([IDS[33]])
    flip_in(store, 3, 3, 0)  # its type byte
    damage, _ = told(store)
    assert (files_of(damage), columns(damage, "offset", "id")) == (["3.sqs"], [(64 + 3 * SIZE, None)])


def test_verify_with_rate_works_next_to_writer(tmp_path):
    """If the index can be read live. Without options, ``verify`` compares counts and refuses."""
    with msgstore.open_store(tmp_path, index="lmdb") as opened, opened.client() as client:
        client.write(bytes(16), b"body")
        opened.flush()
        run("verify", tmp_path, code=2)
        command = [sys.executable, "-m", "msgstore", "verify", "--rate", "1GiB", "--json", tmp_path]
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, summary["recovery"], summary["messages"]) == (0, "live", 1)


# -- going on -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stop(monkeypatch, store):
    """``stop(verb)``: Ctrl-C while the segment behind number 4 is checked."""
    check = Checker.check

    def interrupted(self, path, form, entries):
        if path.stem == "5":
            raise KeyboardInterrupt
        return check(self, path, form, entries)

    def run_until_stopped(verb=SCRUB):
        with monkeypatch.context() as patch:
            patch.setattr(Checker, "check", interrupted)
            assert run(*verb, store, code=130).stderr.endswith("msgstore: interrupted\n")

    return run_until_stopped


@pytest.mark.parametrize("verb", [SCRUB, RESUMING], ids=" ".join)
def test_stopped_check_goes_on_where_it_was(store, stop, verb):
    flip_in(store, 1, 0)
    stop(verb)
    state = read_state(Files(), store)
    assert (state.behind, state.segments, state.records) == (4, 5, 50)
    flip_in(store, 0, 0)  # is behind it: the next check finds it
    flip_in(store, 8, 0)
    damage, summary = told(store, verb=verb)
    assert files_of(damage) == ["1.sqs", "8.sqs"]
    assert (summary["resumed_after"], summary["segments"], summary["records"]) == (4, 10, 100)
    assert not (store / STATE).exists()
    assert files_of(told(store, verb=verb)[0]) == ["0.sqs", "1.sqs", "8.sqs"]


def test_scrub_with_restart_begins_anew(store, stop):
    stop()
    _, summary = told(store, "--restart")
    assert (summary["resumed_after"], summary["segments"]) == (None, 10)


@pytest.mark.parametrize(("option", "is_kept"), [((), False), (("--rate", "1GiB"), True), (("--resume",), True)])
def test_verify_with_option_keeps_progress(store, stop, option, is_kept):
    """Only ``--resume`` reads it again."""
    for _ in range(2):
        stop(("verify", *option))
        assert (store / STATE).exists() == is_kept
    _, summary = told(store, verb=("verify",))
    assert (summary["resumed_after"], summary["segments"]) == (None, 10)


def test_resumed_check_reports_earlier_contradictions(store, stop):
    with changing(store) as opened:
        next(iter(opened._segments)).live_count += 1
    stop(RESUMING)
    result = run(*RESUMING, store, code=1)
    assert "resumed after segment 4" in result.stderr
    assert "0.sqs: live_count: the segment's row counts 11 live records, the index has 10" in result.stdout


def test_progress_is_saved_after_each_segment(store, monkeypatch):
    """The state is written while it runs, not only when it ends: a kill costs a second of work."""
    monkeypatch.setattr("msgstore.cli.scrub_state.SAVE_INTERVAL_SECONDS", 0)
    written, write = [], Files.write_file

    def watch(self, path, chunks, *, sync):
        write(self, path, chunks, sync=sync)
        written.append(read_state(Files(), store).behind)

    monkeypatch.setattr(Files, "write_file", watch)
    told(store)
    assert written == list(range(10))


def test_state_that_cannot_be_written_is_told_once(store, monkeypatch):
    monkeypatch.setattr("msgstore.cli.scrub_state.SAVE_INTERVAL_SECONDS", 0)
    monkeypatch.setattr(Files, "write_file", raising(PermissionError(errno.EACCES, "Permission denied", "somewhere")))
    assert run("scrub", store, code=0).stderr.count("cannot be written: Permission denied") == 1


def test_state_that_cannot_be_removed_changes_no_verdict(store, monkeypatch):
    monkeypatch.setattr(Files, "unlink", raising(OSError(errno.EROFS, os.strerror(errno.EROFS), "somewhere")))
    assert told(store)[0] == []


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", '{"layout": 1, "crc32": 1}', "[" * 100_000, '"x"', "\xff", "9" * 5000])
def test_damaged_state_is_told_and_left(store, text):
    (store / STATE).write_bytes(text.encode("latin-1"))
    result = run("scrub", store, code=0)
    assert f"{store / STATE}: cannot be used: " in result.stderr
    assert "100 of 100 live messages verified (trust); 10 segments" in result.stdout
    assert not (store / STATE).exists()


def test_flipped_bit_of_state_is_noticed(tmp_path):
    spots = [DamagedSpan("1.sqs", 64, 100, "torn"), DamagedSpan("2.sqs", 64, 100, "id_mismatch", "00" * 16)]
    findings = [Finding("1.sqs", "live_count", "2 and 3"), Finding("2.sqs", "overlap", "so", "00" * 16, 64, 100)]
    state = ScrubState(3, 4, 40, 4000, spots, findings)
    write_state(Files(), tmp_path, state)
    assert read_state(Files(), tmp_path) == state
    whole = (tmp_path / STATE).read_bytes()
    for bit in range(8 * len(whole)):
        flip(tmp_path / STATE, bit // 8, 1 << bit % 8)
        with contextlib.suppress(ValueError):
            assert read_state(Files(), tmp_path) == state  # a blank that became another one
        (tmp_path / STATE).write_bytes(whole)


@pytest.mark.parametrize(
    "wrong",
    [{"behind": "4"}, {"behind": -2}, {"bytes": 1.5}, {"records": True}, {"more": 1}, {"spots": 5}, {"spots": [{"file": "x"}]},
     {"spots": [{"file": "1.sqs", "offset": -5, "size": 1, "reason": "torn"}]}, {"spots": None},
     {"spots": [{"file": "\x1b[2J", "offset": 0, "size": 1, "reason": "torn"}]}, {"findings": [{"file": "x"}]},
     {"findings": [{"file": "x", "what": "overlap", "detail": "\x1b[2J"}]}],
    ids=str,
)  # fmt: skip
def test_forged_state_is_refused(tmp_path, wrong):
    """Its checksum is right, and no scrub has written it."""
    members = {"layout": 1, **attrs.asdict(ScrubState()), **wrong}
    members = {key: value for key, value in members.items() if value is not None}
    crc32 = zlib.crc32(json.dumps(members, sort_keys=True).encode())
    (tmp_path / STATE).write_text(json.dumps({**members, "crc32": crc32}))
    with pytest.raises(ValueError, match=r"its|it is not|it has|it contains"):
        read_state(Files(), tmp_path)


# -- reading --------------------------------------------------------------------------------------------------------------


def test_throttle_keeps_the_rate():
    clock = [100.0]
    throttle = Throttle(1000, now=lambda: clock[0], sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    for _ in range(8):
        throttle.spend(500)
        clock[0] += 0.1  # what is done with it
    assert clock[0] == pytest.approx(100 + 8 * 0.5 + 0.1)
    clock[0] += 60
    throttle.spend(500)
    assert clock[0] == pytest.approx(164.35)  # a minute's rest is no reason to hurry
    Throttle(None, sleep=lambda _: pytest.fail("no rate, no rest")).spend(2**40)


def test_scrub_with_rate_takes_its_time(store, monkeypatch):
    rested = []
    monkeypatch.setattr(verify_verb, "Throttle", lambda rate: Throttle(rate, now=lambda: 0.0, sleep=rested.append))
    told(store, "--rate", "1KiB")
    assert max(rested) == pytest.approx(10 * SEGMENT / 1024)


def entry(offset, msg_id):
    return StoredMessage(msg_id, 0, offset, SIZE, 1, pack_location(0, offset, SIZE))


class UnreadableFiles(Files):
    pread = raising(OSError(errno.EIO, "Input/output error"))


def lost(msg_id):
    raise msgstore.StoreIOError("cannot be read")


@pytest.fixture
def check(store):
    """``check(entries, file=, files=, read=)``: damage in a segment, and its size."""
    form = FormatSet(msgstore.load_catalogue(), {"checksum": 4}).by_extension(".sqs")

    def checked(entries=(), file="0.sqs", files=None, read=lost, throttle=None):
        spots, size, *_ = Checker(files or Files(), throttle or Throttle(None), read).check(store / file, form, list(entries))
        return spots, size

    return checked


def test_segment_that_disk_cannot_read_is_damage(check):
    (whole, first), size = check([entry(64, IDS[0])], files=UnreadableFiles())
    assert (whole, size) == (DamagedSpan("0.sqs", 0, SEGMENT, "unreadable"), SEGMENT)
    assert (first.offset, first.msg_id) == (64, IDS[0].hex())
    assert size < CHUNK


def test_mapped_segment_is_checked_and_throttled(store, check, monkeypatch):
    """As above 64 MiB."""
    monkeypatch.setattr("msgstore.cli.checking.READ_WHOLE", 1000)
    monkeypatch.setattr("msgstore.files.READ_WHOLE", 1000)
    entries = [entry(64 + SIZE * n, IDS[n]) for n in range(10)]
    throttled = []

    class Counting(Throttle):
        def spend(self, size):
            throttled.append(size)

    assert check(entries, throttle=Counting(None)) == ([], SEGMENT)
    assert sum(throttled) == SEGMENT
    flip_in(store, 0, 0)
    [spot], _ = check(entries)
    assert (spot.offset, spot.reason, spot.msg_id) == (64, "checksum_mismatch", IDS[0].hex())
    assert check(entries, files=UnreadableFiles()) == ([DamagedSpan("0.sqs", 0, SEGMENT, "unreadable")], SEGMENT)


def test_message_moved_or_removed_meanwhile_is_not_damaged(check):
    wrong = [entry(64 + SIZE, IDS[0]), entry(64, IDS[1])]

    def read(msg_id):
        if msg_id == IDS[0]:
            return b"it is elsewhere by now"
        raise MessageNotFound([msg_id])

    assert check(wrong, read=read)[0] == []
    assert check(wrong, file="99.sqs", read=read) == ([], 0)


def test_a_segment_that_changes_meanwhile_is_read_again(store, check):
    path = store / "0.sqs"
    whole = path.read_bytes()
    path.write_bytes(whole[:500])
    os.utime(path, ns=(0, 0))

    class Growing(Files):
        def list(self, directory):
            path.write_bytes(whole)
            return super().list(directory)

    assert check(files=Growing(), read=lambda _: b"") == ([], 500 + len(whole))
