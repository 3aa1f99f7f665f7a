"""New stores that jobs write in parallel: equal to those of ``open_store``, complete or absent, and nothing is left."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import msgstore
from msgstore.contract import ConfigError, PluginError, StoreClosed, StoreError, StoreIOError, StoreLocked
from msgstore.files import Files
from msgstore.jobs.output import staging_directory as claims
from msgstore.jobs.output.commit import StoreStaging
from msgstore.jobs.output.parts import PartWriter, StorePart, StoreSpec, backends_of
from msgstore.testing.faults import FailingFiles, RecordingFiles, UnsyncedFiles, stopped
from msgstore.writer_lock import WriterLock
from support import ACME_CELLS, CELLS, FOREIGN_CELLS, Cell, flip, needs_foreign, slow, stops

Messages = list[tuple[bytes, bytes]]
LIMIT = 2**20
V2 = CELLS["ets-v2"]


def some(count: int, *, first: int = 0, size: int = 3000, large: Iterable[int] = ()) -> Messages:
    """Messages of up to ``size`` bytes; those at ``large`` get a segment of their own."""
    chance = random.Random(first)
    large = set(large)
    return [
        (n.to_bytes(16, "big"), chance.randbytes(4_000_000 + n if n in large else chance.randrange(size)))
        for n in range(first, first + count)
    ]


def target_of(path: Path, cell: Cell, **more: Any) -> StoreSpec:
    records = (("audit", 200),) if cell.record == "audit" else ()
    return StoreSpec(str(path), cell.index, cell.format, cell.record, records=records, file_size_limit=LIMIT, **more)


@pytest.fixture
def target(tmp_path: Path) -> StoreSpec:
    return target_of(tmp_path / "store", V2)


def write(
    staging: StoreStaging, task: int, messages: Messages, step: int = 700, files: Files | None = None, counts: Any = None
) -> StorePart:
    """Write a part. Every third step gives whole records, which are copied unchanged between the others."""
    with PartWriter(staging.target, staging.path, task, files=files) as writer:
        encode = backends_of(staging.target, msgstore.load_catalogue()).write_format.format.encode
        for at in range(0, len(messages), step):
            ids, bodies = zip(*messages[at : at + step], strict=True)
            if counts is None and at // step % 3 == 2:
                writer.add_records(ids, [encode([i], [b])[0] for i, b in zip(ids, bodies, strict=True)])
            else:
                writer.add(ids, bodies, counts and counts[at : at + len(ids)])
        return pickle.loads(pickle.dumps(writer.finish()))


def make(target: StoreSpec, *parts: Messages, files: Files | None = None, counts: Any = None) -> None:
    with StoreStaging.begin(target, files=files) as staging:
        staging.commit([write(staging, task, messages, files=files) for task, messages in enumerate(parts)], counts)


def content(path: Path, index: str = "ets") -> dict[bytes, tuple[bytes, int]]:
    """Id to body and references. Nothing of it may have had to be read to open the store."""
    with msgstore.open_store(path, mode="r", index=index) as store:
        assert store.stats().recovery.how == ("trust" if store.segments() else "new")
        return {e.msg_id: (store.stored_body(e), e.references) for e in store.entries()}


def expected(*parts: Messages) -> dict[bytes, tuple[bytes, int]]:
    return {msg_id: (body, 1) for messages in parts for msg_id, body in messages}


def check(path: Path, *parts: Messages, index: str = "ets") -> None:
    """The store has these messages, and no staging directory is left."""
    assert content(path, index) == expected(*parts)
    assert not beside(path)


def segments(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.stem.isdigit()}


def beside(path: Path) -> list[str]:
    return [name for name in (path.name for path in path.parent.iterdir()) if name.startswith(".")]


ALL = {**CELLS, **ACME_CELLS, **FOREIGN_CELLS}


def each_cell(*fast: str) -> pytest.MarkDecorator:
    """Parametrize a test with the name of each cell. The fast suite has these only."""
    marks = {name: [needs_foreign] * (name in FOREIGN_CELLS) + [pytest.mark.slow] * (name not in fast) for name in ALL}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks[name]) for name in ALL])


@each_cell()
@pytest.mark.parametrize("end", ["open", "full", "large"])
def test_written_bytes_equal_those_of_store(name: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segment for segment, whatever the last one ends in, and in whatever steps the messages come."""
    cell = ALL[name]
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_000_000_000)  # audit records keep the time
    messages = some(1500, large=[0, 700, 701] + ([1499] if end == "large" else []))
    if end == "full":
        messages.append((b"f" * 16, b"f" * LIMIT))
    keys = {"file_size_limit": LIMIT, "gc_interval": 0, "index": cell.index, "record": cell.record, "format": cell.format}
    if cell.record == "audit":
        keys["format"] = {"use": cell.format, "records": {"audit": 200}}
    with msgstore.open_store(tmp_path / "own", **keys) as store:
        store.client().write_many(messages)
    with StoreStaging.begin(target_of(tmp_path / "bulk", cell)) as staging:
        staging.commit([write(staging, 7, messages, step=random.Random(name).choice([1, 97, 2000]))])
    theirs, ours = segments(tmp_path / "own"), segments(tmp_path / "bulk")
    assert len(theirs) > 4
    assert ours == theirs
    others = [{f.name for f in (tmp_path / d).iterdir() if not f.stem.isdigit()} for d in ("own", "bulk")]
    assert {n for n in others[1] if "hint" not in n} == {n for n in others[0] if "hint" not in n}
    check(tmp_path / "bulk", messages, index=cell.index)


@each_cell("ets-v1", "lmdb-v2", "ets-v2-checksum", "ets-v2-audit", "lmdb-ledger", "sqlite-v2")
def test_parts_are_numbered_by_task(name: str, tmp_path: Path) -> None:
    """Each part begins a segment; numbers have no gaps."""
    cell, target = ALL[name], target_of(tmp_path / "store", ALL[name])
    parts = [some(300, first=n * 1000, size=9000) for n in range(3)]
    with StoreStaging.begin(target) as staging:
        done = {task: write(staging, task, parts[task], step=75) for task in (2, 0, 1)}
        staging.commit([*done.values(), write(staging, 3, [])])
    found = {int(Path(name).stem): len(data) for name, data in segments(tmp_path / "store").items()}
    sizes = [size for _, part in sorted(done.items()) for _, size in part.files]
    assert found == dict(enumerate(sizes))
    assert content(tmp_path / "store", cell.index) == expected(*parts)
    with msgstore.open_store(tmp_path / "store", gc_interval=0, index=cell.index, format=cell.format) as store:  # goes on
        store.client().write(b"more" * 4, b"more")
    assert len(segments(tmp_path / "store")) == len(sizes)


# -- what is given ------------------------------------------------------------------------------------------------------------

A, B = some(400), some(300, first=1000)
LOST = b"nobody wrote me!"


def test_counts_of_commit_are_summed(tmp_path: Path) -> None:
    """What they do not name is garbage, as at every opening. Counts below one make no message; an absent id is an error."""
    for n, (parts, counts) in enumerate([([], None), ([[]], [(b"i" * 16, 0), (b"j" * 16, -1)])]):
        make(target_of(tmp_path / f"empty-{n}", V2), *parts, counts=counts)
        check(tmp_path / f"empty-{n}")
    counts = [(A[0][0], 2), (A[1][0], 1), (A[0][0], 1), (B[5][0], 7), (B[6][0], 1), (B[6][0], -1)]
    make(target_of(tmp_path / "store", V2), A, B, counts=iter(counts))
    assert content(tmp_path / "store") == {A[0][0]: (A[0][1], 3), A[1][0]: (A[1][1], 1), B[5][0]: (B[5][1], 7)}
    for parts, more in (([A, B], ", and 1 more"), ([[]], ""), ([], "")):
        counts = [(A[0][0], 1), (LOST, 1), (b"nor me".ljust(16), 2)] if A in parts else [(LOST, 1)]
        with pytest.raises(StoreError, match=f"no message was written of id {LOST.hex()}{more}, which has ref"):
            make(target_of(tmp_path / "not", V2), *parts, counts=counts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty-0", "empty-1", "store"]


def test_references_of_parts_are_summed(target: StoreSpec, tmp_path: Path) -> None:
    """Every part brings its own; they are added up, as if each row were so many writes."""
    counts = [1 + n % 3 for n in range(500)]
    with StoreStaging.begin(target) as staging:
        staging.commit([write(staging, task, part, 90, counts=counts) for task, part in enumerate([A, B + A[:2], []])])
    wanted = {i: (b, counts[n]) for messages in (A, B) for n, (i, b) in enumerate(messages)}
    for n, (msg_id, body) in enumerate(A[:2], len(B)):
        wanted[msg_id] = body, wanted[msg_id][1] + counts[n]
    assert content(tmp_path / "store") == wanted
    assert not beside(tmp_path / "store")


@pytest.mark.parametrize("name", ["lmdb-v2-checksum", slow("ets-v2"), slow("lmdb-v2-audit")])
@pytest.mark.parametrize("where", ["one part", "two parts"])
def test_copies_of_an_id_are_merged(name: str, where: str, tmp_path: Path) -> None:
    """With the same body one is kept; an id with two bodies is an error that names it."""
    cell = ALL[name]
    parts = [A + A[:3]] if where == "one part" else [A, B + A[:3]]
    make(target_of(tmp_path / "store", cell), *parts)
    assert content(tmp_path / "store", cell.index) == expected(*parts)
    make(target_of(tmp_path / "counted", cell), *parts, counts=[(i, 1) for part in parts for i, _ in part])
    assert {n for i, (_, n) in content(tmp_path / "counted", cell.index).items() if i in dict(A[:3])} == {2}
    parts[-1].append((A[7][0], A[7][1] + b"!"))
    with pytest.raises(StoreError, match=f"the id {A[7][0].hex()} comes with two bodies"):
        make(target_of(tmp_path / "not", cell), *parts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counted", "store"]


def test_commit_takes_only_the_given_attempts(target: StoreSpec, tmp_path: Path) -> None:
    with StoreStaging.begin(target) as staging:
        lost = write(staging, 0, B)
        killed = PartWriter(target, staging.path, 0)  # its worker never came to an end
        killed.add([i for i, _ in B], [b for _, b in B])
        part = write(staging, 0, A)
        with pytest.raises(ValueError, match="two attempts of task 0"):
            StoreStaging.join(target, staging.path).commit([part, lost])
    with StoreStaging.begin(target) as staging:
        write(staging, 0, B)
        staging.commit([write(staging, 0, A)])
    check(tmp_path / "store", A)


@pytest.mark.parametrize(
    ("ids", "bodies", "references", "message"),
    [
        ([b"short"], [b""], None, "an id has 16 bytes, not 5: 73686f7274"),
        ([b"i" * 16], [], None, "1 ids with 0 bodies"),
        ([b"i" * 16], [b""], [1, 1], "1 ids with 2 counts"),
        ([b"i" * 16, b"k" * 16], [b"", b"." * 10], None, f"the body of {b'k'.hex() * 16} has 10 bytes"),
    ],
)
def test_wrong_messages_are_refused(
    ids: Any, bodies: Any, references: Any, message: str, target: StoreSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of the attempt."""
    with StoreStaging.begin(target) as staging:
        writer = PartWriter(target, staging.path, 0)
        monkeypatch.setattr(writer._form.format, "max_body", 9)  # as if it were a format with small records
        with pytest.raises((StoreError, ValueError), match=message):
            writer.add(ids, bodies, references)
        with pytest.raises(StoreClosed):
            writer.finish()
        assert not list(Path(staging.path, "parts").iterdir())


NOT_THERE, CHANGED = "was written with .* bytes, and is not there", "1200 messages were written for it, but 0.sqs at"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path, hint: path.unlink(), NOT_THERE),
        (lambda path, hint: os.truncate(path, path.stat().st_size - 1), NOT_THERE),
        (lambda path, hint: flip(path, 1000), CHANGED),  # as it is changed, its hint speaks of another file
        (lambda path, hint: os.truncate(hint, hint.stat().st_size - 1), ""),
    ],
    ids=["gone", "short", "flipped", "no hint"],
)
def test_changed_part_is_refused_at_commit(spoil: Callable[[Path, Path], object], message: str, tmp_path: Path) -> None:
    target = target_of(tmp_path / "store", CELLS["ets-v2-checksum"])
    with StoreStaging.begin(target) as staging:
        part = write(staging, 0, some(1200))
        spoil(Path(part.directory, "0.sqs"), Path(part.directory, "msgstore-0.sqs.hint"))
        with pytest.raises(StoreError, match=message) if message else contextlib.nullcontext():
            staging.commit([part])
    assert target.destination.exists() == (not message)
    assert not beside(target.destination)


# -- where it goes ------------------------------------------------------------------------------------------------------------


def test_unusable_destination_is_refused_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory is taken, and passes on its permissions."""
    for name in ("source", "full", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "inside").symlink_to(tmp_path / "source")
    before = sorted(path.name for path in tmp_path.iterdir())
    for name, message in {
        "full": "is there already",
        "file": "is there already",
        "link": "is there already",
        "none/store": "none: there is no such directory",
        "file/store": "file: there is no such directory",
        "source/store": "lies inside .*source",
        "inside/store": "lies inside .*source",
        "source": "lies inside",
        "s" * 250: "File name too long",
        "/": "is there already",
    }.items():
        with pytest.raises(StoreError, match=message):
            StoreStaging.begin(target_of(tmp_path / name, V2), sources=[tmp_path / "source"])
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "empty")
        with pytest.raises(StoreError, match="a file system is mounted there"):
            StoreStaging.begin(target_of(tmp_path / "empty", V2))
    monkeypatch.chdir(tmp_path / "empty")
    for name in (".", str(tmp_path / "empty")):
        with pytest.raises(StoreError, match="is the working directory"):
            StoreStaging.begin(StoreSpec(name))
    for keys, kind in (
        ({"format": "v7"}, PluginError),
        ({"index": "lmbd"}, PluginError),
        ({"record": "audit"}, ConfigError),
        ({"body": "zip"}, PluginError),
        ({"format": "v1", "records": (("audit", 200),)}, ConfigError),
    ):
        with pytest.raises(kind):
            StoreStaging.begin(StoreSpec(str(tmp_path / "store"), **keys))
    monkeypatch.chdir(tmp_path / "source")
    (tmp_path / "empty").chmod(0o2700)
    make(StoreSpec("../empty"), A)
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o2700
    assert content(tmp_path / "empty") == expected(A)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_destination_taken_meanwhile_is_refused(target: StoreSpec, tmp_path: Path) -> None:
    with StoreStaging.begin(target) as staging:
        part = write(staging, 0, A)
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "mine").write_bytes(b"mine")
        with pytest.raises(StoreError, match="is there already"):
            staging.commit([part])
    assert [path.name for path in tmp_path.rglob("*")] == ["store", "mine"]


# -- crashes, errors, and other jobs ------------------------------------------------------------------------------------------


def test_every_file_is_synced_before_store_appears(target: StoreSpec) -> None:
    files = RecordingFiles()
    make(target, some(700), some(700, first=1000), files=files)
    happened = [(name, path) for name, path, _ in files.operations]
    appeared = happened.index(("replace", target.path))
    begun = max(at for at, (name, _) in enumerate(happened[:appeared]) if name in ("pwrite", "truncate", "unlink"))
    synced = {path for name, path in happened[begun:appeared] if name == "sync"}
    assert synced >= {path.name for path in target.destination.iterdir()} - {"msgstore.lock"}


@pytest.mark.crash
def test_job_killed_at_any_change_is_repeatable(tmp_path: Path) -> None:
    """Nothing is under the final name, or all of it; and the next job clears up."""
    parts, ends = [some(700), some(700, first=1000), []], []
    for name, files in stops(40):
        (tmp_path / name).mkdir()
        target = target_of(tmp_path / name / "store", V2)
        stopped(lambda target=target, files=files: make(target, *parts, files=files))
        ends.append(target.destination.exists())
        if ends[-1]:
            with pytest.raises(StoreError, match="is there already"):
                StoreStaging.begin(target)
        else:
            make(target, *parts, files=UnsyncedFiles())
        check(target.destination, *parts)
    assert (ends.count(False) > 40, ends.count(True) > 2) == (True, True)


@pytest.mark.crash
@pytest.mark.parametrize("name", ["ets-v2", "lmdb-v2"])
def test_job_failed_at_any_operation_leaves_nothing(name: str, tmp_path: Path) -> None:
    """Also a full disk: a clear error and nothing left, or, where it was only worth time or tidiness, a whole store."""
    parts = [some(700), some(700, first=1000)]
    outcomes = set()
    for fail in range(1000):
        path = tmp_path / str(fail)
        path.mkdir()
        target = target_of(path / "store", CELLS[name])
        files = FailingFiles(fail, error=errno.ENOSPC)
        try:
            make(target, *parts, files=files)
            assert content(path / "store", CELLS[name].index) == expected(*parts)
            outcomes.add("made")
        except StoreIOError as error:
            assert "No space left on device" in str(error)  # noqa: PT017
            if "is at" in str(error):
                assert files.failed == f"sync_directory {path}"
                assert content(path / "store", CELLS[name].index) == expected(*parts)
            else:
                assert "run the job again" in str(error)  # noqa: PT017
                assert not (path / "store").exists()
                make(target, *parts, files=UnsyncedFiles())
            outcomes.add("failed")
        assert "remove_tree" in files.failed or "msgstore.lock" in files.failed or not beside(path / "store")
        if files.fail is not None:
            break
    assert fail > 60
    assert outcomes == {"made", "failed"}


def test_second_job_of_destination_is_refused(target: StoreSpec, tmp_path: Path) -> None:
    """Jobs for other destinations are none of its business, whatever their names, and files of others stay."""
    (tmp_path / ".store.msgstore").mkdir()
    (tmp_path / ".store.msgstore" / "notes").write_text("mine")
    with (
        StoreStaging.begin(target) as first,
        StoreStaging.begin(target_of(tmp_path / "store.msgstore-0123456789abcdef", V2)) as other,
    ):
        with pytest.raises(StoreLocked, match=f"process {os.getpid()} is writing there") as caught:
            StoreStaging.begin(target)
        assert caught.value.pid == os.getpid()
        first.commit([write(first, 0, A)])
        other.commit([write(other, 0, B)])
    with pytest.raises(StoreError, match="is there already"):
        StoreStaging.begin(target)
    assert content(tmp_path / "store") == expected(A)
    assert [path.name for path in (tmp_path / ".store.msgstore").iterdir()] == ["notes"]


@pytest.mark.parametrize("is_locked", [False, True])
def test_job_beside_one_that_ends_is_refused(
    is_locked: bool, target: StoreSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one deletes the directory between its creation and its lock, or just after that."""

    def late(path: Path) -> WriterLock:
        lock = WriterLock(path) if is_locked else None
        shutil.rmtree(path)
        return lock or WriterLock(path)

    monkeypatch.setattr(claims, "WriterLock", late)
    with pytest.raises(StoreLocked, match=r"has just ended, and deletes \.store\.msgstore beside it\. Try again"):
        StoreStaging.begin(target)
    assert not list(tmp_path.iterdir())


def test_workers_of_ended_job_fail_clearly(target: StoreSpec, tmp_path: Path) -> None:
    """They fail at their next file, with an error that says so, and bring nothing back."""
    staging = StoreStaging.begin(target)
    writer = PartWriter(target, staging.path, 0)
    writer.add([i for i, _ in A], [b for _, b in A])
    staging.abandon()
    ids, bodies = zip(*some(1500, first=1000), strict=True)
    with pytest.raises(StoreError, match=r"No such file or directory\. Nothing was kept"):
        writer.add(ids, bodies)
    with pytest.raises(StoreError, match="the job was ended or given up"):
        PartWriter(target, staging.path, 1)
    with pytest.raises(StoreClosed):
        staging.commit([])
    assert not list(tmp_path.iterdir())


DRIVER = """
import multiprocessing, os, sys
from msgstore.jobs.output.commit import StoreStaging
from msgstore.jobs.output.parts import PartWriter, StoreSpec

target = StoreSpec(sys.argv[1], file_size_limit=2**20)

def work(path, task, queue):
    with PartWriter(target, path, task) as writer:
        for n in range(task * 1000, task * 1000 + 1000):
            writer.add([n.to_bytes(16, "big")], [bytes([n % 251]) * 3000])
        queue.put(writer.finish())

context = multiprocessing.get_context("fork")
with StoreStaging.begin(target) as staging:
    queue = context.SimpleQueue()
    workers = [context.Process(target=work, args=(staging.path, task, queue)) for task in range(4)]
    for worker in workers:
        worker.start()
    print(*[worker.pid for worker in workers], flush=True)
    if "wait" in sys.argv:
        workers[0].join(), sys.stdin.read()
    staging.commit([queue.get() for _ in workers])
"""


@pytest.mark.crash
def test_killed_driver_leaves_destination_free(tmp_path: Path) -> None:
    """Its workers live on, and have the lock's file open. Meanwhile nobody else writes there; then anybody may, at once."""
    whole = {n.to_bytes(16, "big"): (bytes([n % 251]) * 3000, 1) for n in range(4000)}
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "store")]
    for _ in range(3):
        driver = subprocess.Popen([*command, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with driver.stdin, driver.stdout:
            workers = list(map(int, driver.stdout.readline().split()))
            with pytest.raises(StoreLocked, match=f"process {driver.pid} is writing there"):
                StoreStaging.begin(StoreSpec(command[3]))
            driver.kill()
            driver.wait()
        assert beside(tmp_path / "store")
        subprocess.run(command, check=True, capture_output=True)
        assert content(tmp_path / "store") == whole
        for pid in workers:  # the queue's reader is gone: they end, or would wait for ever
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not beside(tmp_path / "store")
        with pytest.raises(StoreError, match="is there already"):
            StoreStaging.begin(StoreSpec(command[3]))
        shutil.rmtree(tmp_path / "store")


@pytest.mark.slow
def test_job_handed_over_lives_with_owner(tmp_path: Path) -> None:
    """As Spark has it: planned by one process, committed by another, and alive as long as a third one is."""
    target = StoreSpec(str(tmp_path / "store"))
    plan = (
        "import sys; from msgstore.jobs.output.commit import StoreStaging; from msgstore.jobs.output.parts import StoreSpec\n"
        "staging = StoreStaging.begin(StoreSpec(sys.argv[1])); staging.hand_over(int(sys.argv[2])); print(staging.path)"
    )
    for end in ("killed", "abandoned", "committed"):
        with subprocess.Popen(["sleep", "60"]) as owner:
            command = [sys.executable, "-c", plan, target.path, str(owner.pid)]
            for _ in range(60):  # the process that keeps the lock of the last one needs a moment to see that its owner is gone
                done = subprocess.run(command, check=False, capture_output=True, text=True)
                if "Try again" not in done.stderr and "is writing there" not in done.stderr:
                    break
                time.sleep(0.5)
            assert done.returncode == 0, done.stderr
            path = done.stdout.strip()
            with pytest.raises(StoreLocked, match=f"process {owner.pid} is writing there"):
                StoreStaging.begin(target)
            assert beside(Path(target.path)) == [Path(path).parent.name]
            joined = StoreStaging.join(target, path)
            if end == "committed":
                joined.commit([write(joined, 0, A)])
            elif end == "abandoned":
                joined.abandon()
            owner.kill()
    check(tmp_path / "store", A)
