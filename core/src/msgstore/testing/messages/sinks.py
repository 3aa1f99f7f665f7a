"""Tests of every sink of messages that writes files."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import warnings
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import attrs
import pytest

from msgstore.contract import Capability, MessageBatch, MsgStoreError, StoreError
from msgstore.testing.faults import copy_of, fail_syncs, file_size_limit
from msgstore.testing.messages.sink_queues import SinkQueueTests
from msgstore.testing.messages.writing import NEAR, accepted, check_same, complete, contents, sample_batch
from msgstore.testing.plugin import skip_without
from msgstore.testing.probes import tree
from msgstore.testing.subjects import Subject

Synced = dict[int, int | set[str]]


class SinkTests(SinkQueueTests):
    kinds = ("sink",)

    @pytest.fixture
    def synced(self, monkeypatch: pytest.MonkeyPatch) -> Synced:
        """Inode to the size, or the names in it, with which Python has last synced it."""
        sizes: Synced = {}

        def noted(call: Any, file: Any) -> None:
            call(file)
            status = os.fstat(file if isinstance(file, int) else file.fileno())
            sizes[status.st_ino] = {entry.name for entry in os.scandir(file)} if S_ISDIR(status.st_mode) else status.st_size

        for name in {"fsync", "fdatasync"} & {*dir(os)}:
            monkeypatch.setattr(os, name, partial(noted, getattr(os, name)))
        return sizes

    @pytest.mark.parametrize("limits", [(), (0, 64, 4096)], ids=["", "and by a finish that fails"])
    def test_an_interrupted_conversion_has_the_same_result(
        self, subject: Subject, place: Path, tmp_path: Path, limits: tuple[int, ...]
    ) -> None:
        """A failure means that messages are lost or written twice when a conversion continues after a crash, at a flush or at
        the end: what was written after the last flush is discarded, other messages, too, and ``finish`` can be called again,
        also if it has failed because no file could grow. Or that a later flush changes the token of an earlier one, or that a
        flush without a write gives a token that leads elsewhere than the one before."""
        parts = [sample_batch("a", 0, 20), sample_batch("a", 20, 20), sample_batch("b", 0, 20)]
        whole, tokens = self._sink(subject, place, None), []
        for part in parts:
            whole.write(accepted(whole, part))
            flushed = whole.flush()
            tokens.append((flushed, json.dumps(flushed)))
        whole.finish()
        whole.close()
        assert all(json.dumps(flushed) == was for flushed, was in tokens), "a flush changes the token of the one before"
        (tmp_path / "two").mkdir()
        other, token = tmp_path / "two" / "content", None
        for number, part in enumerate(parts):
            for interrupted in (True, False):
                sink = self._sink(subject, other, token)
                for batch in (part, sample_batch("a", 60, 20), sample_batch("c", 0, 20)) if interrupted else (part,):
                    sink.write(accepted(sink, batch))
                if interrupted:
                    sink.close()
                    sink = self._sink(subject, other, token)  # it goes on, has nothing to write, and is interrupted again
                    token = json.loads(json.dumps(sink.flush()))
                else:
                    token = json.loads(json.dumps(sink.flush()))
                    for limit in limits if part is parts[-1] else ():
                        with file_size_limit(limit), suppress(MsgStoreError, OSError):
                            sink.finish()
                        sink.close()
                        sink = self._sink(subject, other, token)
                    if part is parts[-1]:
                        sink.finish()
                sink.close()
            assert token is not None, number
        check_same(other, place)
        for _ in range(2):
            complete(self._sink(subject, other, token))
        check_same(other, place)

    def test_parts_are_joined_in_their_order(self, subject: Subject, place: Path, tmp_path: Path, synced: Synced) -> None:
        """A failure means that a conversion on several machines loses messages, or changes their order, which is that of the
        call; or that a flush does not sync what was joined. Or that a part that is not complete, or not there, raises
        something else than StoreError or OSError; or that a part without ``finish`` is joined otherwise than a finished one."""
        if Capability.JOINS not in subject.descriptor.capabilities:
            skip_without("joined parts")
        (tmp_path / "parts").mkdir()
        batches = [
            sample_batch("a", 0, 20), sample_batch("b", 0, 20), sample_batch("a", 20, 20),
            *(sample_batch("b", number, 1) for number in range(20, 26)),
        ]  # fmt: skip
        whole, parts = self._sink(subject, place, None), []
        for number, batch in enumerate(batches):
            parts.append(str(tmp_path / "parts" / str(12 - number)))
            part = self._sink(subject, Path(parts[-1]), None)
            for sink in (part, whole):
                sink.write(accepted(sink, batch))
                sink.flush()
            part.finish()
            part.close()
        joined = self._sink(subject, tmp_path / "joined", None)
        joined.join(parts[:1])
        joined.join([])
        joined.join(tuple(parts[1:]))
        joined.flush()
        check_synced(tmp_path / "joined", synced)
        complete(joined, whole)
        check_same(tmp_path / "joined", place)
        self._check_unfinished(subject, tmp_path)

    def _check_unfinished(self, subject: Subject, tmp_path: Path) -> None:
        """A part without ``finish`` is refused, or joined as if it were finished; one that is not there is refused."""
        for number, count in enumerate((0, 1, 20)):
            results = []
            for name in ("finished", "unfinished"):
                part = self._sink(subject, tmp_path / f"{name}{number}", None)
                if count:
                    part.write(accepted(part, sample_batch("a", 0, count)))
                part.flush()
                if name == "finished":
                    part.finish()
                part.close()
                results.append(joined := tmp_path / f"joined-{name}{number}")
                with closing(self._sink(subject, joined, None)) as sink:
                    try:
                        sink.join([str(tmp_path / f"{name}{number}")])
                    except (StoreError, OSError):
                        assert name == "unfinished", "a part that is complete is refused"
                        break
                    sink.flush()
                    sink.finish()
            else:
                check_same(*results[::-1])
        with closing(self._sink(subject, tmp_path / "joined-absent", None)) as sink, pytest.raises((StoreError, OSError)):
            sink.join([str(tmp_path / "absent")])

    def test_different_bodies_are_written_differently(self, subject: Subject, tmp_path: Path, place: Path) -> None:
        """A failure means that bytes of bodies are left out or changed, such as zeros, or spaces at the end."""
        found: list[tuple[bytes, object]] = []
        for number, body in enumerate(NEAR):
            (tmp_path / str(number)).mkdir()
            target = tmp_path / str(number) / "content"
            sink = self._sink(subject, target, None)
            batch = accepted(sink, sample_batch("a", 0, 1, body))
            sink.write(batch)
            complete(sink)
            made = contents(target, 2**20)
            same = [other for other, there in found if there == made]
            assert not (len(batch) and same), f"{body!r} is written as {same[0]!r} is"
            found += [(body, made)] * len(batch)

    def test_a_flush_waits_for_the_disk(self, subject: Subject, place: Path) -> None:
        """A failure means that a power loss can undo a ``flush``: it succeeds in a process in which every fsync, fdatasync,
        msync and syncfs fails."""
        if sys.platform != "linux":
            skip_without("a system that can fail syncs")

        def run() -> None:
            sink = self._sink(subject, place, None)
            sink.write(accepted(sink, sample_batch("a", 0, 20)))
            if not fail_syncs():
                sys.exit(10)
            with suppress(MsgStoreError, OSError):
                sink.flush()
                sys.exit(11)

        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # other threads do not matter here
            child = multiprocessing.get_context("fork").Process(target=run)
            child.start()
        child.join(60)
        child.kill()
        if child.exitcode == 10:
            skip_without("a system that can fail syncs")
        assert child.exitcode != 11, "flush returns although no sync succeeds"
        assert child.exitcode == 0, "it fails in a process of its own"

    def test_a_flush_syncs_each_file(self, subject: Subject, place: Path, synced: Synced) -> None:
        """A failure means that a power loss takes away what a token promises: a file with bytes that no sync has covered, or a
        name in a directory that was not synced since, also at a later flush. Only for a sink that syncs with ``os.fsync`` or
        ``os.fdatasync``."""
        with closing(self._sink(subject, place, None)) as sink:
            for queue in "ab":
                sink.write(accepted(sink, sample_batch(queue, 0, 20)))
                sink.flush()
                check_synced(place, synced)

    def test_what_is_refused_is_not_written(self, subject: Subject, place: Path) -> None:
        """A failure means that ``refused`` writes, that it does not say the same twice, or that it gives positions instead of
        rows: the counts of a conversion would be wrong."""
        batch = attrs.evolve(sample_batch("a", 0, 30), positions=range(900, 930))
        with closing(self._sink(subject, place, None)) as sink:
            before = tree(place.parent)
            first = list(sink.refused(batch))
            assert list(sink.refused(batch)) == first
            assert all(reason for _, reason in first)
            assert tree(place.parent) == before, "refused has written something"

    def test_what_is_lost_is_an_error(self, subject: Subject, place: Path, tmp_path: Path) -> None:
        """A failure means that a conversion that continues goes on without what was written before, or with zeros in its
        place: a directory is there, and a file in it is not, or has lost its end. Or that nothing is said if the disk is
        full."""
        parts = [sample_batch("a", 0, 20), sample_batch("b", 0, 20), sample_batch("a", 20, 20), sample_batch("a", 40, 20)]
        with closing(self._sink(subject, place, None)) as sink:
            for part in parts[:3]:
                sink.write(accepted(sink, part))
                token = json.loads(json.dumps(sink.flush()))
        kept = copy_of(place.parent, tmp_path / "kept")
        whole = self._continued(subject, place, kept, token, parts[3])
        assert whole is not None, "nothing is lost, and the sink does not continue"
        files = [path.relative_to(kept) for path in sorted(kept.rglob("*")) if path.is_file() and path.stat().st_size]
        for path in (Path(), *files[:: len(files) // 9 + 1]):
            for size in (None, 0, (kept / path).stat().st_size - 1) if path.name else (None,):
                is_same = self._continued(subject, place, kept, token, parts[3], path, size) in (None, whole)
                left = "is gone" if size is None else f"has {size} bytes left"
                assert is_same, f"{path.name or 'everything'} {left}, and the sink continues without it"
        shutil.rmtree(place.parent)
        place.parent.mkdir()
        sink = self._sink(subject, place, None)
        with file_size_limit(64), suppress(StoreError, OSError):
            sink.write(accepted(sink, sample_batch("a", 0, 1, bytes(range(11, 256)))))
            pytest.fail(f"no file can have more than 64 bytes, and flush returns {sink.flush()}")
        with suppress(StoreError, OSError):
            sink.close()

    def _continued(
        self,
        subject: Subject,
        place: Path,
        kept: Path,
        token: Any,
        part: MessageBatch,
        lost: Path | None = None,
        size: Any = None,
    ) -> object:
        """Continue where ``kept`` was, after a file has lost what is behind ``size``, or is gone. Return what there is then, or
        None if the sink is not made."""
        shutil.rmtree(place.parent)
        copy_of(kept, place.parent)
        if lost == Path():
            shutil.rmtree(place.parent)
            place.parent.mkdir()
        elif lost and size is None:
            (place.parent / lost).unlink()
        elif lost:
            os.truncate(place.parent / lost, size)
        try:
            sink = self._sink(subject, place, token)
        except (StoreError, OSError):
            return None
        with closing(sink):
            sink.write(accepted(sink, part))
            sink.flush()
            sink.finish()
        return contents(place, 2**21)

    def test_nothing_is_a_destination_too(self, subject: Subject, place: Path) -> None:
        """A failure means that a conversion of no messages has no result."""
        sink = self._sink(subject, place, None)
        token = sink.flush()
        json.dumps(token)
        sink.finish()
        sink.close()
        assert place.exists()


def check_synced(place: Path, synced: Synced) -> None:
    """Fail if a file with bytes, or a directory that the sink made, was not synced since it has its size, or its names."""
    for path in [place, *place.rglob("*")] if synced and place.exists() else ():
        status = path.stat()
        if path.is_dir():
            is_synced = synced.get(status.st_ino) == {entry.name for entry in path.iterdir()}
            assert is_synced, f"flush does not sync the directory {path.relative_to(place.parent)} as it is"
        elif status.st_size:
            size, what = synced.get(status.st_ino), path.relative_to(place.parent)
            assert size == status.st_size, f"flush returns, and of {what} {size or 0} bytes of {status.st_size} are synced"
