"""``verify --rate`` and ``--resume``, also as ``scrub``: findings, resumption after a stop, and the rate."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

import msgstore
from msgstore.cli.checking import CHUNK, Checker, Throttle
from msgstore.cli.commands import verify as verb
from msgstore.cli.main import main
from msgstore.cli.scrub_state import STATE, DamagedSpan, Finding, ScrubState, read_state, write_state
from msgstore.contract import MessageNotFound
from msgstore.engine.store import StoredMessage
from msgstore.files import Files
from msgstore.locations import pack_location
from msgstore.scan import FormatSet

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "msg-store"
IDS = [n.to_bytes(2, "big") * 8 for n in range(100)]


RESUMING = ("verify", "--resume")
BOTH_NAMES = pytest.mark.parametrize("verb", [("scrub",), RESUMING], ids=" ".join)


def scrub(*arguments: object, verb: Sequence[str] = ("scrub",)) -> Result:
    result = CliRunner().invoke(main, [*verb, *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(*arguments: object, verb: Sequence[str] = ("scrub",)) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    """(damage, summary, exit code) with ``--json``."""
    result = scrub("--json", *arguments, verb=verb)
    *found, summary = [json.loads(line) for line in result.stdout.splitlines()]
    assert {one["kind"] for one in found} <= {"damage", "segment"}
    damage = [one for one in found if one["kind"] == "damage"]
    assert summary["kind"] == "summary"
    assert (result.exit_code, summary["ok"], summary["damaged_spans"]) == (bool(damage), not damage, len(damage))
    return damage, summary, result.exit_code


def flip(path: Path, at: int) -> None:
    """One bit, unseen by size and time."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Ten segments of ten checksummed messages of 425 bytes."""
    path = tmp_path / "store"
    keys = {"record": "checksum", "file_size_limit": 64 + 10 * 425, "gc_interval": 0}
    with msgstore.open_store(path, **keys) as opened, opened.client() as client:
        client.write_many((msg_id, msg_id * 25) for msg_id in IDS)
    assert len(list(path.glob("*.sqs"))) == 10
    return path


@pytest.mark.parametrize("name", sorted(path.parent.name for path in DATA.glob("*/store")))
def test_what_brokers_wrote(tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(DATA / name / "store", tmp_path / "store")
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    damage, summary, _ = told(copy)
    assert [spot["reason"] for spot in damage] == (["torn"] if name.endswith("torn") else [])
    assert summary["bytes"] == sum(len(data) for file, data in before.items() if file.endswith((".rdq", ".sqs")))
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_a_good_store(store: Path) -> None:
    damage, summary, _ = told(store)
    assert (damage, summary["segments"], summary["records"], summary["resumed_after"]) == ([], 10, 100, None)
    assert summary["bytes"] == 10 * (64 + 10 * 425)
    assert "100 of 100 live messages verified (trust); 10 segments, 42.1 KiB" in scrub(store).stdout
    assert not (store / STATE).exists()


def test_every_damaged_record_is_told(store: Path) -> None:
    flip(store / "2.sqs", 64 + 3 * 425 + 100)
    flip(store / "7.sqs", 64 + 424)
    damage, summary, _ = told(store)
    assert [(Path(spot["path"]).name, spot["offset"], spot["size"], spot["reason"], spot["id"]) for spot in damage] == [
        ("2.sqs", 64 + 3 * 425, 425, "checksum_mismatch", IDS[23].hex()),
        ("7.sqs", 64, 425, "checksum_mismatch", IDS[70].hex()),
    ]
    assert summary["segments"] == 10
    text = scrub(store)
    assert text.exit_code == 1
    assert f"checksum_mismatch: message {IDS[23].hex()}" in text.stdout


def test_the_index_has_to_agree(store: Path) -> None:
    with msgstore.open_store(store, record="checksum") as opened, opened.client() as client:
        client.write(bytes(16), b"a change: an unchanged store does not save its index")
        opened._index.enter([IDS[5]], [pack_location(0, 64 + 4 * 425, 425)])  # where another message is
        opened._index.enter([IDS[15]], [pack_location(1, 64 + 5 * 425, 400)])
        opened._index.enter([IDS[25]], [pack_location(77, 64, 425)])
    damage, _, _ = told(store)
    assert [(spot["id"], spot["reason"]) for spot in damage] == [
        (IDS[5].hex(), "id_mismatch"),
        (IDS[15].hex(), "size_mismatch"),
        (IDS[25].hex(), "segment_missing"),
    ]


def test_the_frame_of_dead_records_is_checked_too(store: Path) -> None:
    with msgstore.open_store(store, record="checksum") as opened, opened.client() as client:
        client.remove([IDS[33]])
    flip(store / "3.sqs", 64 + 3 * 425)  # its type byte
    damage, _, _ = told(store)
    assert [(Path(spot["path"]).name, spot["offset"], spot["id"]) for spot in damage] == [("3.sqs", 64 + 3 * 425, None)]


# -- going on -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stop_behind(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ctrl-C while the segment behind this number is checked."""

    def stop(number: int) -> None:
        check = Checker.check

        def interrupted(self: Checker, path: Path, form: Any, entries: Sequence[StoredMessage]) -> Any:
            if path.stem == str(number + 1):
                monkeypatch.setattr(Checker, "check", check)
                raise KeyboardInterrupt
            return check(self, path, form, entries)

        monkeypatch.setattr(Checker, "check", interrupted)

    return stop


@BOTH_NAMES
def test_it_goes_on_where_it_was_stopped(store: Path, stop_behind: Callable[[int], None], verb: Sequence[str]) -> None:
    flip(store / "1.sqs", 64 + 424)
    stop_behind(4)
    stopped = scrub(store, verb=verb)
    assert (stopped.exit_code, stopped.stderr) == (130, "msgstore: interrupted\n")
    state = read_state(Files(), store)
    assert state is not None
    assert (state.behind, state.segments, state.records) == (4, 5, 50)
    flip(store / "0.sqs", 64 + 424)  # is behind it: the next scrub finds it
    flip(store / "8.sqs", 64 + 424)
    damage, summary, _ = told(store, verb=verb)
    assert [Path(spot["path"]).name for spot in damage] == ["1.sqs", "8.sqs"]
    assert (summary["resumed_after"], summary["segments"], summary["records"]) == (4, 10, 100)
    assert not (store / STATE).exists()
    damage, summary, _ = told(store, verb=verb)
    assert [Path(spot["path"]).name for spot in damage] == ["0.sqs", "1.sqs", "8.sqs"]


def test_restart(store: Path, stop_behind: Callable[[int], None]) -> None:
    stop_behind(4)
    scrub(store)
    _, summary, _ = told(store, "--restart")
    assert (summary["resumed_after"], summary["segments"]) == (None, 10)


@pytest.mark.parametrize(("option", "is_kept"), [((), False), (("--rate", "1GiB"), True), (("--resume",), True)])
def test_verify_with_option_keeps_progress(
    store: Path, stop_behind: Callable[[int], None], option: Sequence[str], is_kept: bool
) -> None:
    """Only ``--resume`` reads it again."""
    for _ in range(2):
        stop_behind(4)
        assert scrub(store, verb=("verify", *option)).exit_code == 130
        assert (store / STATE).exists() == is_kept
    _, summary, _ = told(store, verb=("verify",))
    assert (summary["resumed_after"], summary["segments"]) == (None, 10)


def test_resumed_check_reports_earlier_contradictions(store: Path, stop_behind: Callable[[int], None]) -> None:
    with msgstore.open_store(store, record="checksum") as opened, opened.client() as client:
        client.write(bytes(16), b"a change: an unchanged store does not save its index")
        next(iter(opened._segments)).live_count += 1
    stop_behind(4)
    scrub(store, verb=RESUMING)
    result = scrub(store, verb=RESUMING)
    assert (result.exit_code, "resumed after segment 4" in result.stderr) == (1, True)
    assert "0.sqs: live_count: the segment's row counts 11 live records, the index has 10" in result.stdout


def test_scrub_of_lost_segment_fails(store: Path) -> None:
    (store / "3.sqs").unlink()
    result = scrub(store)
    assert result.exit_code == 1
    assert "3.sqs: is missing; the index has 10 live messages in it" in result.stdout


def test_verify_with_rate_works_next_to_writer(tmp_path: Path) -> None:
    """If the index can be read live. Without options, ``verify`` compares counts and refuses."""
    with msgstore.open_store(tmp_path, index="lmdb") as opened, opened.client() as client:
        client.write(bytes(16), b"body")
        opened.flush()
        assert scrub(tmp_path, verb=("verify",)).exit_code == 2
        command = [sys.executable, "-m", "msgstore", "verify", "--rate", "1GiB", "--json", tmp_path]
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, summary["recovery"], summary["messages"]) == (0, "live", 1)


def test_a_kill_costs_a_second_of_work(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is written while it runs, not only when it ends."""
    monkeypatch.setattr("msgstore.cli.scrub_state.SAVE_INTERVAL_SECONDS", 0)
    written = []
    write = Files.write_file

    def watch(self: Files, path: Path, chunks: Any, *, sync: bool) -> None:
        write(self, path, chunks, sync=sync)
        state = read_state(Files(), store)
        assert state is not None
        written.append(state.behind)

    monkeypatch.setattr(Files, "write_file", watch)
    told(store)
    assert written == list(range(10))


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", '{"layout": 1, "crc32": 1}', "[" * 100_000, '"x"', "\xff", "9" * 5000])
def test_a_damaged_state_is_told_and_left(store: Path, text: str) -> None:
    (store / STATE).write_bytes(text.encode("latin-1"))
    result = scrub(store)
    assert result.exit_code == 0
    assert f"{store / STATE}: cannot be used: " in result.stderr
    assert "100 of 100 live messages verified (trust); 10 segments" in result.stdout
    assert not (store / STATE).exists()


def test_each_flipped_bit_of_a_state_is_noticed(tmp_path: Path) -> None:
    state = ScrubState(
        3,
        4,
        40,
        4000,
        [DamagedSpan("1.sqs", 64, 100, "torn"), DamagedSpan("2.sqs", 64, 100, "id_mismatch", "00" * 16)],
        [Finding("1.sqs", "live_count", "2 and 3"), Finding("2.sqs", "overlap", "so", "00" * 16, 64, 100)],
    )
    write_state(Files(), tmp_path, state)
    assert read_state(Files(), tmp_path) == state
    whole = (tmp_path / STATE).read_bytes()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / STATE).write_bytes(changed)
        with contextlib.suppress(ValueError):
            assert read_state(Files(), tmp_path) == state  # a blank that became another one


@pytest.mark.parametrize(
    "wrong",
    [{"behind": "4"}, {"behind": -2}, {"bytes": 1.5}, {"records": True}, {"more": 1}, {"spots": 5}, {"spots": [{"file": "x"}]},
     {"spots": [{"file": "\x1b[2J", "offset": 0, "size": 1, "reason": "torn"}]}, {"findings": [{"file": "x"}]},
     {"findings": [{"file": "x", "what": "overlap", "detail": "\x1b[2J"}]}],
    ids=str,
)  # fmt: skip
def test_a_state_that_somebody_made(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """Its checksum is right, and no scrub has written it."""
    members = {"layout": 1, **attrs.asdict(ScrubState()), **wrong}
    crc32 = zlib.crc32(json.dumps(members, sort_keys=True).encode())
    (tmp_path / STATE).write_text(json.dumps({**members, "crc32": crc32}))
    with pytest.raises(ValueError, match=r"its|it is not|it has more|it contains"):
        read_state(Files(), tmp_path)


def test_a_directory_that_cannot_be_written(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Files, path: Path, chunks: Any, *, sync: bool) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("msgstore.cli.scrub_state.SAVE_INTERVAL_SECONDS", 0)
    monkeypatch.setattr(Files, "write_file", refuse)
    result = scrub(store)
    assert result.exit_code == 0
    assert result.stderr.count("cannot be written: Permission denied") == 1


# -- reading --------------------------------------------------------------------------------------------------------------


def test_state_that_cannot_be_removed_changes_no_verdict(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Files, path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Files, "unlink", refuse)
    damage, _, code = told(store)
    assert (damage, code) == ([], 0)


def test_the_rate() -> None:
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


def test_a_scrub_takes_its_time(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rested: list[float] = []
    monkeypatch.setattr(verb, "Throttle", lambda rate: Throttle(rate, now=lambda: 0.0, sleep=rested.append))
    told(store, "--rate", "1KiB")
    assert max(rested) == pytest.approx(10 * (64 + 10 * 425) / 1024)


@pytest.mark.parametrize(
    ("rate", "message"), [("0", "the size must not be 0"), ("quick", "is not a size"), ("-5", "is not a size")]
)
def test_a_wrong_rate(store: Path, rate: str, message: str) -> None:
    result = scrub(store, f"--rate={rate}")
    assert result.exit_code == 2
    assert message in result.stderr


def entry(number: int, offset: int, msg_id: bytes) -> StoredMessage:
    return StoredMessage(msg_id, number, offset, 425, 1, pack_location(number, offset, 425))


@pytest.fixture
def form(store: Path) -> Any:
    return FormatSet(msgstore.load_catalogue(), {"checksum": 4}).by_extension(".sqs")


class UnreadableFiles(Files):
    def pread(self, *_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


def lost(msg_id: bytes) -> bytes:
    raise msgstore.StoreIOError("cannot be read")


def test_what_the_disk_cannot_read(store: Path, form: Any) -> None:

    spots, size, *_ = Checker(UnreadableFiles(), Throttle(None), lost).check(store / "0.sqs", form, [entry(0, 64, IDS[0])])
    assert size == 64 + 10 * 425
    assert spots[0] == DamagedSpan("0.sqs", 0, size, "unreadable")
    assert (spots[1].offset, spots[1].msg_id) == (64, IDS[0].hex())
    assert size < CHUNK


def test_a_segment_that_is_mapped(store: Path, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above 64 MiB."""
    monkeypatch.setattr("msgstore.cli.checking.READ_WHOLE", 1000)
    monkeypatch.setattr("msgstore.files.READ_WHOLE", 1000)
    entries = [entry(0, 64 + 425 * n, IDS[n]) for n in range(10)]
    throttled: list[int] = []

    class Counting(Throttle):
        def spend(self, size: int) -> None:
            throttled.append(size)

    scrubber = Checker(Files(), Counting(None), lost)
    assert scrubber.check(store / "0.sqs", form, entries)[:2] == ([], 64 + 10 * 425)
    assert sum(throttled) == 64 + 10 * 425
    flip(store / "0.sqs", 64 + 424)
    ((spot,), *_) = scrubber.check(store / "0.sqs", form, entries)
    assert (spot.offset, spot.reason, spot.msg_id) == (64, "checksum_mismatch", IDS[0].hex())
    spots, size, *_ = Checker(UnreadableFiles(), Throttle(None), lost).check(store / "0.sqs", form, entries)
    assert spots == [DamagedSpan("0.sqs", 0, size, "unreadable")]


def test_what_was_moved_or_removed_meanwhile_is_not_damaged(store: Path, form: Any) -> None:
    wrong = [entry(0, 64 + 425, IDS[0]), entry(0, 64, IDS[1])]

    def read(msg_id: bytes) -> bytes:
        if msg_id == IDS[0]:
            return b"it is elsewhere by now"
        raise MessageNotFound([msg_id])

    scrubber = Checker(Files(), Throttle(None), read)
    assert scrubber.check(store / "0.sqs", form, wrong)[0] == []
    assert scrubber.check(store / "99.sqs", form, wrong)[:2] == ([], 0)


def test_a_segment_that_changes_meanwhile_is_read_again(store: Path, form: Any) -> None:
    path = store / "0.sqs"
    whole = path.read_bytes()
    path.write_bytes(whole[:500])
    os.utime(path, ns=(0, 0))

    class Growing(Files):
        def list(self, directory: Path) -> dict[str, tuple[int, int]]:
            path.write_bytes(whole)
            return super().list(directory)

    spots, size, *_ = Checker(Growing(), Throttle(None), lambda _: b"").check(path, form, [])
    assert (spots, size) == ([], 500 + len(whole))


def test_a_store_that_is_open_elsewhere(store: Path) -> None:
    with msgstore.open_store(store, record="checksum"):
        result = scrub(store)
    assert result.exit_code == 2
    assert "has the store open" in result.stderr
