"""What a power loss leaves of LMDB's file when commits are not synced: the next start checks it, and loses no message."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import random
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import msgstore
from lmdb_support import commit, ids, make, names, opened
from msgstore.contract import RESCUED_KEY
from msgstore.testing.faults import UnsyncedFiles
from msgstore_lmdb_index import rescue, unsynced
from msgstore_lmdb_index.index import DIRECTORY, RESCUED
from msgstore_lmdb_index.unsynced import MARK

PAGE = 4096
MESSAGES = 600
SHARED = 200
"""Messages with three references."""
KEYS: dict[str, Any] = {"index": {"use": "lmdb", "map_size": "1MiB"}, "gc_interval": 0, "sync_interval": "1h"}

pytestmark = pytest.mark.skipif(sys.byteorder != "little" or sys.maxsize < 2**32, reason="knows LMDB's usual layout only")


def body(msg_id: bytes) -> bytes:
    return b"body of " + msg_id


def after_other_boot(directory: Path) -> None:
    (directory / DIRECTORY / MARK).write_bytes(b"another boot")


def make_store(directory: Path) -> list[bytes]:
    """A store that was killed, with free pages in its index. Returns LMDB's file before and after each of the last commits."""
    store, files = msgstore.open_store(directory, **KEYS), []
    client = store.client()
    for begin in range(0, MESSAGES, 100):
        garbage = ids(MESSAGES + begin, MESSAGES + begin + 50)
        for msg_id in [*ids(begin, begin + 100) * (3 if begin < SHARED else 1), *garbage]:
            client.write(msg_id, body(msg_id))
        store.flush()
        client.remove(garbage)
        store.flush()
        files.append((directory / DIRECTORY / "data.mdb").read_bytes())
    store.abandon()
    return files


def used_pages(data: bytes) -> range:
    return range(len(data.rstrip(b"\0")) // PAGE + 1)


def with_pages(data: bytes, pages: Iterable[int], source: bytes) -> bytes:
    """``data`` with these pages of ``source``."""
    changed = bytearray(data)
    for page in pages:
        changed[page * PAGE : (page + 1) * PAGE] = source[page * PAGE : (page + 1) * PAGE]
    return bytes(changed)


def damaged_files(files: list[bytes], *, many: int) -> Iterator[tuple[str, bytes]]:
    """A power loss may leave pages of zeros; a file that was cut; some pages of the last commits, whose meta pages are
    there, not written; one flipped bit, where LMDB has something to say."""
    last, pages = files[-1], used_pages(files[-1])
    for page in pages:
        if page < 4 or not page * many % len(pages) >= many:
            yield f"page {page} is zeros", with_pages(last, [page], bytes(len(last)))
    for size in (0, 100, 4096, 8191, 8192, 20_000, len(pages) * 4000):
        yield f"cut to {size}", last[:size]
    for rng in map(random.Random, range(many)):
        before = rng.choice(files[:-1])
        new = [n for n in pages if n > 1 and before[n * PAGE : n * PAGE + PAGE] != last[n * PAGE : n * PAGE + PAGE]]
        lost = rng.sample(new, rng.randrange(1, len(new) + 1))
        yield f"pages {lost} were not written", with_pages(last, lost, before)
        at = rng.choice(pages) * PAGE + rng.choice([rng.randrange(40), rng.randrange(152), rng.randrange(PAGE)])
        yield f"flip at {at}", last[:at] + bytes([last[at] ^ 1 << rng.randrange(8)]) + last[at + 1 :]


def state_of(directory: Path) -> dict[str, Any]:
    """What a store has that is opened there, and whether it goes on."""
    state: dict[str, Any] = {"lost": []}
    try:
        with msgstore.open_store(directory, **KEYS) as store, store.client() as client:
            state["how"] = store.stats().recovery.how
            for msg_id in ids(0, MESSAGES):
                try:
                    is_there = client.read(msg_id) == body(msg_id)
                except msgstore.MsgStoreError:
                    is_there = False
                if not is_there:
                    state["lost"].append(msg_id.hex())
            client.write(bytes(16), b"new")
            store.flush()
            client.remove([bytes(16)])
    except msgstore.MsgStoreError as error:
        state["error"] = str(error)
    return state


def in_fork(directory: Path) -> dict[str, Any]:
    """Return the state that a fork finds. LMDB may end a process that opens a damaged file."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            logging.disable()
            os.write(writing, json.dumps(state_of(directory)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        answer = stream.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(answer) if answer else {"error": f"the process ended with {status}"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_damaged_file_of_other_boot_loses_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """More of them with ``--fuzz``. LMDB has no checksums: a flipped bit in a location is noticed by who reads the message."""
    origin, copy, wrong = tmp_path / "origin", tmp_path / "copy", []
    files = make_store(origin)
    after_other_boot(origin)
    for name, data in damaged_files(files, many=max(10, request.config.getoption("--fuzz", 0) // 5000)):
        shutil.copytree(origin, copy)
        (copy / DIRECTORY / "data.mdb").write_bytes(data)
        state = in_fork(copy)
        shutil.rmtree(copy)
        allowed = 1 if name.startswith("flip") and state.get("how") != "rebuild" else 0
        if "error" in state or len(state["lost"]) > allowed:
            wrong.append(f"{name}: {state.get('error') or state['lost'][:3]} ({state.get('how')})")
    assert wrong == []


def counts_in(data: bytes) -> dict[bytes, int]:
    return rescue._read_counts(io.BytesIO(data))


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, set[bytes]]:
    """A store that was killed before the machine stopped, and the messages whose counts are in a page that was lost."""
    directory = tmp_path / "store"
    sound = make_store(directory)[-1]
    counts = counts_in(sound)
    assert counts == dict.fromkeys(ids(0, SHARED), 3), "counts of a sound file are not read"
    for page in used_pages(sound):
        data = with_pages(sound, [page], bytes(len(sound)))
        lost = counts.keys() - counts_in(data).keys()
        if 0 < len(lost) < SHARED:
            break
    (directory / DIRECTORY / "data.mdb").write_bytes(data)
    after_other_boot(directory)
    return directory, lost


def counts_of(store: msgstore.Store) -> dict[bytes, int]:
    return {msg_id: store.references(msg_id) for msg_id in ids(0, MESSAGES)}


def expected_counts(lost: set[bytes]) -> dict[bytes, int]:
    return {msg_id: 3 if number < SHARED and msg_id not in lost else 1 for number, msg_id in enumerate(ids(0, MESSAGES))}


def test_counts_that_can_be_read_are_kept(damaged: tuple[Path, set[bytes]], caplog: pytest.LogCaptureFixture) -> None:
    """An opening for reading changes nothing."""
    directory, lost = damaged
    before = sorted(directory.rglob("*"))
    with msgstore.open_store(directory, mode="r", **KEYS) as store:
        assert counts_of(store) == expected_counts(lost), "counts that are in sound pages are lost"
    assert sorted(directory.rglob("*")) == before
    for how in ("rebuild", "trust"):
        with caplog.at_level(logging.WARNING), msgstore.open_store(directory, **KEYS) as store:
            assert store.stats().recovery.how == how
            assert counts_of(store) == expected_counts(lost), "counts that are in sound pages are lost"
        assert not (directory / RESCUED).exists()
    assert f"set aside as {directory / DIRECTORY}.damaged-1" in caplog.text
    assert f"{SHARED - len(lost)} messages with several references keep their counts" in caplog.text


def test_given_counts_win_over_rescued_ones(damaged: tuple[Path, set[bytes]]) -> None:
    directory, _ = damaged
    given = dict.fromkeys(ids(0, MESSAGES), 2)
    with msgstore.open_store(directory, refcounts=given.items(), **KEYS) as store:
        assert counts_of(store) == given
    assert not (directory / RESCUED).exists()


def test_rescued_counts_survive_a_stopped_rebuild(damaged: tuple[Path, set[bytes]]) -> None:
    directory, lost = damaged
    expected = sorted(msg_id for msg_id, count in expected_counts(lost).items() if count == 3)
    for _ in range(3):
        index = opened(directory, {RESCUED_KEY: b""})
        assert sorted(msg_id for msg_id, _, count in index.items() if count == 3) == expected, "counts are lost"
        index.clear()  # a rebuild begins, commits a segment, and is killed
        index.enter(ids(0, 10), range(10))
        commit(index)
        index.close(None)
    index = opened(directory, {RESCUED_KEY: b""})
    index.clear()
    commit(index, {b"layout": b"1"})
    index.close(None)
    index = opened(directory, {b"layout": b"1"})
    assert list(index.items()) == [], "counts are rescued although the rebuild was over"
    index.close(None)


# -- the mark -------------------------------------------------------------------------------------------------------------

STATE = {b"key": b"value"}


def killed(directory: Path, *, sync: bool = False) -> Path:
    """The mark of an index that was killed after a commit."""
    index = make(directory, sync=sync)
    index.load()
    index.enter(ids(0, 3), range(3), [2] * 3)
    commit(index, STATE)
    index.close(None)
    return directory / DIRECTORY / MARK


def test_mark_lasts_until_clean_stop(tmp_path: Path) -> None:
    mark = killed(tmp_path)
    assert mark.read_bytes() == unsynced.boot_id()
    index = opened(tmp_path, STATE)
    assert mark.exists()
    index.close(STATE)
    assert not mark.exists(), "after a clean stop nothing need be checked"
    assert not killed(tmp_path, sync=True).exists(), "a file that was synced would be checked"
    killed(tmp_path)
    assert not killed(tmp_path, sync=True).exists(), "a file that was synced would be checked"
    killed(tmp_path)
    after_other_boot(tmp_path)
    opened(tmp_path, STATE).close(None)
    assert not mark.exists(), "a sound file would be checked again and again"
    assert names(tmp_path) == [DIRECTORY]


def test_no_commit_goes_without_a_mark(tmp_path: Path) -> None:
    """It must be on the disk first, or a power loss would leave a damaged file that nothing speaks of."""

    class Failing(UnsyncedFiles):
        def write_file(self, path: Path, chunks: Any, *, sync: bool) -> None:
            assert sync
            raise OSError(errno.ENOSPC, "no room", str(path))

    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    with pytest.raises(OSError, match="no room"):
        make(new, Failing()).load()
    killed(old).unlink()
    index = make(old, Failing())
    index.load()
    index.enter(ids(3, 4), [3])
    with pytest.raises(OSError, match="no room"):
        commit(index, STATE)
    index.close(None)
    index = opened(old, STATE)
    assert len(index) == 3, "a commit went without a mark"
    index.close(None)


def test_index_is_checked_where_boots_have_no_id(tmp_path: Path) -> None:
    with mock.patch.object(unsynced, "_BOOT_ID", tmp_path / "missing"):
        mark = killed(tmp_path)
        assert mark.read_bytes() == unsynced.UNKNOWN
        data = tmp_path / DIRECTORY / "data.mdb"
        data.write_bytes(data.read_bytes()[: 2 * PAGE] + bytes(8 * PAGE))
        opened(tmp_path).close(None)
    assert names(tmp_path) == [DIRECTORY, f"{DIRECTORY}.damaged-1"]
