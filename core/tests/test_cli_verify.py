"""``verify`` and ``scrub``: damage, contradictions of index, counts and segments, resumption after a stop, the rate."""

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
from core_support import columns, flip, objects, raising, rows_of, run
from msgstore.cli.checking import CHUNK, Checker, DamagedSpan, SegmentCheck
from msgstore.cli.commands.verify import STATE, ScrubState, parse_state
from msgstore.contract import MessageNotFound
from msgstore.engine.stats import StoredMessage
from msgstore.files import Files
from msgstore.locations import pack_location
from msgstore.scan import FormatSet
from support import filled

IDS = [n.to_bytes(2, "big") * 8 for n in range(100)]
SCRUB, RESUMING = ("scrub",), ("verify", "--resume")
SIZE, SEGMENT = 425, 64 + 10 * 425
"""Bytes of a message and of a segment."""


def verify(store, *verb):
    """Return (objects before the summary, summary, text), which agree with the exit code."""
    result = run(*(verb or ["verify"]), "--json", store)
    *found, summary = objects(result)
    assert {one["kind"] for one in found} <= {"damage", "segment"}
    assert summary["findings"] == len(findings_of(found))
    assert summary["damaged_spans"] == len(damage_of(found))
    assert result.exit_code == (0 if summary["ok"] else 1)
    return found, summary, run(*(verb or ["verify"]), store, code=result.exit_code).stdout


def damage_of(found):
    return [one for one in found if one["kind"] == "damage"]


def findings_of(found):
    return [finding for one in found if one["kind"] == "segment" for finding in one["findings"]]


def flip_in(store, number, message, byte=SIZE - 1):
    """Flip a bit of a message, unseen by size and time."""
    flip(store / f"{number}.sqs", 64 + message * SIZE + byte, unseen=True)


@pytest.fixture
def store(tmp_path):
    """Ten segments of ten checksummed messages."""
    path = tmp_path / "store"
    keys = {"record": "checksum", "file_size_limit": SEGMENT, "gc_interval": 0}
    filled(path, ((msg_id, msg_id * 25) for msg_id in IDS), **keys)
    assert len(list(path.glob("*.sqs"))) == 10
    return path


@contextlib.contextmanager
def changing(store):
    """The store, open; a message more, because an unchanged store does not save its index."""
    with msgstore.open_store(store, record="checksum") as opened, opened.client() as client:
        client.write(bytes(16), b"a change")
        yield opened


# -- damage -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [("verify",), SCRUB])
def test_verify_of_sound_store_finds_nothing(store, verb):
    found, summary, text = verify(store, *verb)
    assert columns(found, "kind", "ok", "counts_agree") == [("segment", True, True)] * 10
    expected = {"segments": 10, "records": 100, "verified": 100, "counted": 100, "bytes": 10 * SEGMENT, "resumed_after": None}
    assert expected.items() <= summary.items()
    assert "100 of 100 live messages verified (trust); 10 segments, 42.1 KiB" in text
    assert not (store / STATE).exists()


def test_verify_reports_damage_and_wrong_locations(store):
    wrong = {
        5: ((0, 64 + 4 * SIZE, SIZE), "id_mismatch"),  # where another message is
        15: ((1, 64 + 5 * SIZE, 400), "size_mismatch"),
        25: ((77, 64, SIZE), "segment_missing"),
    }
    with changing(store) as opened:
        opened.client().remove([IDS[33]])
        opened.flush()
        for n, (location, _) in wrong.items():
            opened._index.enter([IDS[n]], [pack_location(*location)])
    for place in ((4, 3, 100), (7, 0), (3, 3, 0)):  # the last: type byte of the dead record
        flip_in(store, *place)
    found, summary, text = verify(store)
    dead = next(one for one in damage_of(found) if one["id"] is None)
    assert (dead["path"], dead["offset"]) == (str(store / "3.sqs"), 64 + 3 * SIZE)
    expected = {IDS[n].hex(): reason for n, (_, reason) in wrong.items()}
    expected |= dict.fromkeys([IDS[43].hex(), IDS[70].hex()], "checksum_mismatch")
    assert {one["id"]: one["reason"] for one in damage_of(found) if one["id"]} == expected
    assert (summary["verified"], summary["unreachable"]) == (94, 5)
    assert f"checksum_mismatch: message {IDS[43].hex()}" in text


def test_verify_counts_what_scan_passes_over_as_verified(tmp_path):
    """The size of the third message is one too large, so that the scan takes the next one for a part of it."""
    filled(tmp_path, ((msg_id, bytes(200)) for msg_id in IDS[:6]), gc_interval=0)
    flip(tmp_path / "0.sqs", 64 + 2 * 221 + 4, 221 ^ 222, unseen=True)
    found, summary, _ = verify(tmp_path)
    assert (summary["verified"], summary["unreachable"], summary["ok"]) == (5, 1, False)
    assert [one["id"] for one in damage_of(found) if one["id"]] == [IDS[2].hex()]
    assert run("get", tmp_path, IDS[3].hex(), code=0).stdout_bytes == bytes(200)


def test_verify_decodes_bodies_as_reads_do(tmp_path):
    """And the advice of the error of a read works."""
    path, wrong, right = tmp_path / "store", IDS[1], IDS[2]
    filled(path, [(wrong, b"hello"), (right, b"world")], body="zstd", gc_interval=0)
    flip(path / "0.sqs", 64 + 21, unseen=True)  # the magic number of the frame
    assert run("scan", path, code=0).stdout.endswith("no damage\n")
    found, summary, _ = verify(path)
    (damage,) = damage_of(found)
    assert (damage["id"], summary["verified"], summary["unreachable"]) == (wrong.hex(), 1, 1)
    result = run("get", path, wrong.hex(), code=1)
    assert damage["reason"] in result.stderr
    assert "'msgstore salvage --body zstd' copies" in result.stderr
    assert "invalid_message_body" in run("salvage", "--body", "zstd", path, tmp_path / "out", code=1).stdout
    assert run("get", tmp_path / "out", right.hex(), code=0).stdout == "world"


@pytest.mark.slow
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


# -- contradictions -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["ets", "lmdb"])
def ten(request, tmp_path):
    """An open store with ten messages of 25 bytes each in ``0.sqs``, on disk. The test that damages the index closes it."""
    opened = msgstore.open_store(tmp_path, index=request.param, gc_interval=0)
    with opened.client() as client:
        client.write_many((bytes([n]) * 16, b"body") for n in range(10))
    return opened


def hexadecimal(n):
    return (bytes([n]) * 16).hex()


OUTSIDE = {"outside_the_segment": (3, "the segment's records are between 64 and 314")}


@pytest.mark.parametrize(
    ("entry", "offset", "size", "expected"),
    [
        (3, 64 + 250, 25, OUTSIDE),
        (3, 64 + 230, 50, OUTSIDE | {"overlap": (3, f"the record before it, {hexadecimal(9)}, ends at 314")}),
        (3, 10, 25, OUTSIDE),
        (3, 2**39, 25, OUTSIDE),
        (3, 64 + 4 * 25, 25, {"same_place": (4, f"so is {hexadecimal(3)}")}),  # the record has one id
        (3, 64 + 3 * 25, 26, {"overlap": (4, f"the record before it, {hexadecimal(3)}, ends at 165")}),
        (9, 64 + 9 * 25, 24, {}),
    ],
)
def test_verify_of_wrong_location_names_contradiction(ten, entry, offset, size, expected):
    ten._index.enter([bytes([entry]) * 16], [pack_location(0, offset, size)])
    ten.close()
    found, summary, text = verify(ten.path)
    assert (summary["ok"], summary["unreachable"], summary["verified"]) == (False, 1, 9)
    by_kind = {finding["what"]: finding for finding in findings_of(found)}
    assert by_kind.keys() == expected.keys() | ({"live_bytes"} if size != 25 else set())
    for what, (owner, detail) in expected.items():
        assert (by_kind[what]["id"], by_kind[what]["detail"]) == (hexadecimal(owner), detail)
        assert f"0.sqs at offset {by_kind[what]['offset']}: {hexadecimal(owner)}: {what}: {detail}" in text


def test_verify_of_entry_without_reference_fails(tmp_path):
    """With ``lmdb``; ``ets`` has no way to keep such an entry."""
    with msgstore.open_store(tmp_path, index="lmdb") as store:
        with store.client() as client:
            client.write(bytes(16), b"body")
        store._index.enter([bytes(16)], [pack_location(0, 64, 25)], [0])
    found, summary, _ = verify(tmp_path)
    assert (summary["ok"], columns(findings_of(found), "what", "id")) == (False, [("no_reference", "00" * 16)])


@pytest.mark.parametrize(("count", "size", "lost"), [(1, 0, 0), (0, 5, 0), (-1, -25, 0), (0, 0, 1)])
def test_verify_of_wrong_counts_names_them(ten, count, size, lost):
    """The segment's row is wrong, or the index has lost a message."""
    (segment,) = ten._segments
    segment.live_count += count
    segment.live_bytes += size
    ten._index.release([bytes([7]) * 16] * lost)
    ten.close()
    found, summary, text = verify(ten.path)
    expected = [(name, None) for name, delta in (("live_count", count or lost), ("live_bytes", size or lost)) if delta]
    assert (summary["ok"], columns(findings_of(found), "what", "id")) == (False, expected)
    assert (summary["verified"], summary["messages"]) == (10 - lost, 10 - lost)
    assert ("counts 10 live records, the index has 9" in text) == bool(lost)


@pytest.mark.parametrize(("size", "message"), [(None, "is missing"), (300, "has 300 of 314 bytes")])
def test_verify_of_lost_segment_fails(ten, size, message):
    """The other segments agree with the index. The messages of the lost one are reported, and nothing is written."""
    ten.roll()
    with ten.client() as client:
        client.write(b"other" + bytes(11), b"body")
    ten.close()
    path = ten.path / "0.sqs"
    path.unlink() if size is None else os.truncate(path, size)
    for _ in range(2):
        found, summary, text = verify(ten.path)
        assert (findings_of(found), summary["ok"], summary["missing"]) == ([], False, 10 if size is None else 1)
        assert summary["lost"] == [f"0.sqs: {message}; the index has 10 live messages in it"]
        assert "no damage" not in text
        for output in (text, *(run(verb, ten.path, code=1).stdout for verb in ("info", "scrub"))):
            assert summary["lost"][0] in output
        run("ls", ten.path, code=1)
    spot = {"kind": "damage", "path": str(path), "offset": size or 0, "size": 314 - (size or 0)}
    assert {**spot, "reason": "missing" if size is None else "shortened"} in rows_of("compact", ten.path, code=1)
    if size is None:
        assert verify(ten.path)[1]["ok"]


# -- resumption ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stop(monkeypatch, store):
    """``stop(verb)``: Ctrl-C while segment 5 is checked, or another one."""
    check = Checker.check

    def run_until_stopped(verb=SCRUB, number=5):
        def interrupted(self, segment, form):
            if segment.number == number:
                raise KeyboardInterrupt
            check(self, segment, form)

        with monkeypatch.context() as patch:
            patch.setattr(Checker, "check", interrupted)
            assert run(*verb, store, code=130).stderr.endswith("msgstore: interrupted\n")

    return run_until_stopped


@pytest.mark.parametrize("verb", [SCRUB, RESUMING], ids=" ".join)
def test_stopped_check_resumes_where_it_was(store, stop, verb):
    """It reports earlier damage and contradictions again."""
    with changing(store) as opened:
        next(iter(opened._segments)).live_count += 1
    flip_in(store, 1, 0)
    stop(verb)
    state = parse_state((store / STATE).read_bytes())
    assert (state.behind, state.segments, state.records) == (4, 5, 50)
    flip_in(store, 2, 0)  # is behind it: the next check finds it
    flip_in(store, 8, 0)
    result = run(*verb, store, code=1)
    assert "resumed after segment 4" in result.stderr
    assert "0.sqs: live_count: the segment's row counts 11 live records, the index has 10" in result.stdout
    assert ("1.sqs" in result.stdout, "2.sqs  " in result.stdout, (store / STATE).exists()) == (True, False, False)
    stop(verb)
    *found, summary = objects(run(*verb, "--json", store, code=1))
    assert [Path(one["path"]).name for one in damage_of(found)] == ["1.sqs", "2.sqs", "8.sqs"]
    assert (summary["resumed_after"], summary["segments"], summary["records"]) == (4, 10, 100)
    stop(verb)
    assert verify(store, "scrub", "--restart")[1]["resumed_after"] is None
    stop(verb, 0)
    assert "resumed" not in run(*verb, store, code=1).stderr


@pytest.mark.parametrize(("option", "is_kept"), [((), False), (("--rate", "1GiB"), True), (("--resume",), True)])
def test_verify_with_option_keeps_progress(store, stop, option, is_kept):
    """Only ``--resume`` reads it again."""
    stop(("verify", *option))
    assert (store / STATE).exists() == is_kept
    _, summary, _ = verify(store)
    assert (summary["resumed_after"], summary["segments"]) == (None, 10)


def test_progress_is_saved_while_check_runs(store, monkeypatch):
    monkeypatch.setattr("msgstore.cli.commands.verify.SAVE_INTERVAL_SECONDS", 0)
    written, write = [], Files.write_file

    def watch(self, path, chunks, *, sync):
        write(self, path, chunks, sync=sync)
        written.append(parse_state(path.read_bytes()).behind)

    monkeypatch.setattr(Files, "write_file", watch)
    run("scrub", store, code=0)
    assert written == list(range(10))
    monkeypatch.setattr(Files, "write_file", raising(PermissionError(errno.EACCES, "Permission denied", "somewhere")))
    assert run("scrub", store, code=0).stderr.count("cannot be written: Permission denied") == 1
    monkeypatch.setattr(Files, "unlink", raising(OSError(errno.EROFS, os.strerror(errno.EROFS), "somewhere")))
    run("scrub", store, code=0)


def forged(**wrong):
    """A state with a right checksum that no check has written."""
    members = {"layout": 1, **attrs.asdict(ScrubState()), **wrong}
    return json.dumps({**members, "crc32": zlib.crc32(json.dumps(members, sort_keys=True).encode())}).encode()


SPOT = {"file": "1.sqs", "offset": 0, "size": 1, "reason": "torn"}
BAD_STATES = [
    *(b"", b"{", b"[1]", b"{}", b'{"layout": 1, "crc32": 1}', b"[" * 100_000, b'"x"', b"\xff", b"9" * 5000),
    *(forged(behind="4"), forged(behind=-2), forged(bytes=1.5), forged(records=True), forged(more=1), forged(layout=2)),
    *(forged(spots=5), forged(spots=[{"file": "x"}]), forged(spots=[SPOT | {"offset": -5}]), forged(findings=[{"file": "x"}])),
    *(forged(spots=[SPOT | {"file": "\x1b[2J"}]), forged(findings=[{"file": "x", "what": "overlap", "detail": "\x1b[2J"}])),
]


@pytest.mark.parametrize("data", BAD_STATES, ids=lambda data: str(data[:60]))
def test_damaged_or_forged_state_is_refused(data):
    with pytest.raises(ValueError, match=r"^(it |its |Expecting|'utf-8'|Exceeds)"):
        parse_state(data)


def test_damaged_state_is_reported_and_replaced(store):
    (store / STATE).write_bytes(b"{")
    result = run("scrub", store, code=0)
    assert f"{store / STATE}: cannot be used: " in result.stderr
    assert "100 of 100 live messages verified (trust); 10 segments" in result.stdout
    assert not (store / STATE).exists()


# -- reading ------------------------------------------------------------------------------------------------------------------


def test_verify_with_rate_pauses_after_reads(store, monkeypatch):
    rested = []
    monkeypatch.setattr("msgstore.cli.checking.time.sleep", rested.append)
    run("verify", "--rate", "1KiB", store, code=0)
    assert sum(rested) == pytest.approx(10 * SEGMENT / 1024)


LOST = raising(msgstore.StoreIOError("cannot be read"))


def entry(offset, msg_id):
    return StoredMessage(msg_id, 0, offset, SIZE, 1, pack_location(0, offset, SIZE))


@pytest.fixture
def check(store):
    """``check(entries, file=, files=, read=)``: damage in a segment, and the bytes read."""
    form = FormatSet(msgstore.load_catalogue(), {"checksum": 4}).by_extension(".sqs")

    def checked(entries=(), file="0.sqs", files=None, read=LOST):
        found = SegmentCheck(0, store / file, list(entries))
        Checker(files or Files(), read, lambda _, body: body).check(found, form)
        return found.spans, found.read

    return checked


def test_segment_that_disk_cannot_read_is_damage(check):
    class UnreadableFiles(Files):
        pread = raising(OSError(errno.EIO, "Input/output error"))

    whole = DamagedSpan("0.sqs", 0, SEGMENT, "unreadable")
    message = DamagedSpan("0.sqs", 64, SIZE, "unreadable", IDS[0].hex())
    assert SEGMENT < CHUNK
    assert check([entry(64, IDS[0])], files=UnreadableFiles()) == ([whole, message], SEGMENT)
    assert check([entry(64, IDS[0])], files=UnreadableFiles(), read=lambda _: b"")[0] == [whole]


def test_mapped_segment_is_checked(store, check, monkeypatch):
    """As above 64 MiB."""
    monkeypatch.setattr("msgstore.files.READ_WHOLE", 1000)
    entries = [entry(64 + SIZE * n, IDS[n]) for n in range(10)]
    assert check(entries) == ([], SEGMENT)
    flip_in(store, 0, 0)
    assert check(entries)[0] == [DamagedSpan("0.sqs", 64, SIZE, "checksum_mismatch", IDS[0].hex())]


def test_message_moved_or_removed_meanwhile_is_not_damaged(check):
    wrong = [entry(64 + SIZE, IDS[0]), entry(64, IDS[1])]

    def read(msg_id):
        if msg_id == IDS[0]:
            return b"it is elsewhere by now"
        raise MessageNotFound([msg_id])

    assert check(wrong, read=read)[0] == []
    assert check(wrong, file="99.sqs", read=read) == ([], 0)


def test_segment_changed_meanwhile_is_read_again(store, check):
    path = store / "0.sqs"
    whole = path.read_bytes()
    path.write_bytes(whole[:500])
    os.utime(path, ns=(0, 0))

    class Growing(Files):
        opened = 0

        def open_read(self, file):
            self.opened += 1
            if self.opened == 3:  # after it was read and scanned
                path.write_bytes(whole)
            return super().open_read(file)

    assert check(files=Growing(), read=lambda _: b"") == ([], 500 + len(whole))


def test_damaged_segments_are_checked_without_a_listing(store, check):
    """For each the whole directory was listed: the time was quadratic."""

    class Unlisted(Files):
        list = entries = raising(AssertionError("the directory is listed"))

    flip_in(store, 0, 0)
    assert check([entry(64, IDS[0])], files=Unlisted())[0] == [
        DamagedSpan("0.sqs", 64, SIZE, "checksum_mismatch", IDS[0].hex())
    ]
