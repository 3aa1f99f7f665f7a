"""Tests of every sink of messages that writes files."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import attrs
import pytest

from msgstore.contract import Capability, MsgStoreError, StoreError
from msgstore.testing.faults import copy_of, fail_syncs, file_size_limit
from msgstore.testing.messages.sink_queues import Directories, SinkQueueTests
from msgstore.testing.messages.writing import (
    NEAR,
    Destination,
    check_same,
    complete,
    contents,
    flushed,
    sample_batch,
    write,
)
from msgstore.testing.plugin import skip_without
from msgstore.testing.probes import tree
from msgstore.testing.processes import in_a_process
from msgstore.testing.subjects import Subject

Synced = dict[int, int | set[str]]


class SinkTests(SinkQueueTests):
    kinds = ("sink",)

    @pytest.fixture
    def place(self, directory: Directories) -> Destination:
        return directory("one")

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
        self, place: Destination, directory: Directories, limits: tuple[int, ...]
    ) -> None:
        """A failure means that messages are lost or written twice when a conversion continues after a crash, at a flush or at
        the end: what was written after the last flush is discarded, other messages, too, and ``finish`` can be called again,
        also if it has failed because no file could grow. Or that a later flush changes the token of an earlier one, or that a
        flush without a write gives a token that leads elsewhere than the one before."""
        parts = [sample_batch("a", 0, 20), sample_batch("a", 20, 20), sample_batch("b", 0, 20)]
        whole, tokens = place.sink(), []
        for part in parts:
            write(whole, part)
            given = whole.flush()
            tokens.append((given, json.dumps(given)))
        whole.finish()
        whole.close()
        assert all(json.dumps(given) == was for given, was in tokens), "a flush changes the token of the one before"
        other, token = directory("two"), None
        for part in parts:
            sink = other.sink(token)
            for batch in (part, sample_batch("a", 60, 20), sample_batch("c", 0, 20)):
                write(sink, batch)
            sink.close()
            sink = other.sink(token)  # it goes on, has nothing to write, and is interrupted again
            token = flushed(sink)
            sink.close()
            sink = other.sink(token)
            write(sink, part)
            token = flushed(sink)
            if part is not parts[-1]:
                sink.close()
        for limit in limits:
            with file_size_limit(limit), suppress(MsgStoreError, OSError):
                sink.finish()
            sink.close()
            sink = other.sink(token)
        sink.finish()
        sink.close()
        assert token is not None
        check_same(other.path, place.path)
        for _ in range(2):
            complete(other.sink(token))
        check_same(other.path, place.path)

    def test_parts_are_joined_in_their_order(
        self, subject: Subject, place: Destination, directory: Directories, synced: Synced
    ) -> None:
        """A failure means that a conversion on several machines loses messages, or changes their order, which is that of the
        call; or that a flush does not sync what was joined. Or that a part that is not complete, or not there, raises
        something else than StoreError or OSError; or that a part without ``finish`` is joined otherwise than a finished one."""
        if Capability.JOINS not in subject.descriptor.capabilities:
            skip_without("joined parts")
        batches = [
            sample_batch("a", 0, 20), sample_batch("b", 0, 20), sample_batch("a", 20, 20),
            *(sample_batch("b", number, 1) for number in range(20, 26)),
        ]  # fmt: skip
        place.convert(batches)
        parts, joined = [], place.beside("joined")
        for number, batch in enumerate(batches):
            part = place.beside(str(12 - number))
            part.convert([batch])
            parts.append(str(part.path))
        sink = joined.sink()
        sink.join(parts[:1])
        sink.join([])
        sink.join(tuple(parts[1:]))
        sink.flush()
        check_synced(joined.path, synced)
        complete(sink)
        check_same(joined.path, place.path)
        self._check_unfinished(place)

    def _check_unfinished(self, place: Destination) -> None:
        """A part without ``finish`` is refused, or joined as if it were finished; one that is not there is refused."""
        for number, count in enumerate((0, 1, 20)):
            part, results = sample_batch("a", 0, count), []
            finished, unfinished = place.beside(f"finished{number}"), place.beside(f"unfinished{number}")
            finished.convert([part])
            with closing(unfinished.sink()) as sink:
                write(sink, part)
                sink.flush()
            for each in (finished, unfinished):
                results.append(joined := place.beside(f"joined-{each.path.name}"))
                with closing(joined.sink()) as sink:
                    try:
                        sink.join([str(each.path)])
                    except (StoreError, OSError):
                        assert each is unfinished, "a part that is complete is refused"
                        break
                    sink.flush()
                    sink.finish()
            else:
                check_same(results[1].path, results[0].path)
        with closing(place.beside("joined-absent").sink()) as sink, pytest.raises((StoreError, OSError)):
            sink.join([str(place.beside("absent").path)])

    def test_different_bodies_are_written_differently(self, directory: Directories) -> None:
        """A failure means that bytes of bodies are left out or changed, such as zeros, or spaces at the end."""
        found: list[tuple[bytes, object]] = []
        for number, body in enumerate(NEAR):
            place = directory(str(number))
            [batch] = place.convert([sample_batch("a", 0, 1, body)])
            made = contents(place.path, 2**20)
            same = [other for other, there in found if there == made]
            assert not (len(batch) and same), f"{body!r} is written as {same[0]!r} is"
            found += [(body, made)] * len(batch)

    def test_a_flush_waits_for_the_disk(self, place: Destination) -> None:
        """A failure means that a power loss can undo a ``flush``: it succeeds in a process in which every fsync, fdatasync,
        msync and syncfs fails."""
        if sys.platform != "linux":
            skip_without("a system that can fail syncs")

        def run() -> None:
            sink = place.sink()
            write(sink, sample_batch("a", 0, 20))
            if not fail_syncs():
                sys.exit(10)
            with suppress(MsgStoreError, OSError):
                sink.flush()
                sys.exit(11)

        code, raised = in_a_process(run)
        if code == 10:
            skip_without("a system that can fail syncs")
        assert code != 11, "flush returns although no sync succeeds"
        assert code == 0, f"it fails in a process of its own: {raised}"

    def test_a_flush_syncs_each_file(self, place: Destination, synced: Synced) -> None:
        """A failure means that a power loss takes away what a token promises: a file with bytes that no sync has covered, or a
        name in a directory that was not synced since, also at a later flush. Only for a sink that syncs with ``os.fsync`` or
        ``os.fdatasync``."""
        with closing(place.sink()) as sink:
            for queue in "ab":
                write(sink, sample_batch(queue, 0, 20))
                sink.flush()
                check_synced(place.path, synced)

    def test_what_is_refused_is_not_written(self, place: Destination) -> None:
        """A failure means that ``refused`` writes, that it does not say the same twice, or that it gives positions instead of
        rows: the counts of a conversion would be wrong."""
        batch = attrs.evolve(sample_batch("a", 0, 30), positions=range(900, 930))
        with closing(place.sink()) as sink:
            before = tree(place.path.parent)
            first = list(sink.refused(batch))
            assert list(sink.refused(batch)) == first
            assert all(reason for _, reason in first)
            assert tree(place.path.parent) == before, "refused has written something"

    def test_what_is_lost_is_an_error(self, place: Destination, tmp_path: Path) -> None:
        """A failure means that a conversion that continues goes on without what was written before, or with zeros in its
        place: a directory is there, and a file in it is not, or has lost its end. Or that nothing is said if the disk is
        full."""
        parts = [sample_batch("a", 0, 20), sample_batch("b", 0, 20), sample_batch("a", 20, 20), sample_batch("a", 40, 20)]
        top = place.path.parent
        with closing(place.sink()) as sink:
            for part in parts[:3]:
                write(sink, part)
                token = flushed(sink)
        kept = copy_of(top, tmp_path / "kept")

        def continued(lost: Path | None = None, size: int | None = None) -> object:
            """Continue where ``kept`` was, after a file has lost what is behind ``size``, or is gone. Return what there is
            then, or None if the sink is not made."""
            shutil.rmtree(top)
            copy_of(kept, top)
            if lost == Path():
                shutil.rmtree(top)
                top.mkdir()
            elif lost and size is None:
                (top / lost).unlink()
            elif lost and size is not None:
                os.truncate(top / lost, size)
            try:
                sink = place.sink(token)
            except (StoreError, OSError):
                return None
            with closing(sink):
                write(sink, parts[3])
                sink.flush()
                sink.finish()
            return contents(place.path, 2**21)

        whole = continued()
        assert whole is not None, "nothing is lost, and the sink does not continue"
        files = [path.relative_to(kept) for path in sorted(kept.rglob("*")) if path.is_file() and path.stat().st_size]
        for path in (Path(), *files[:: len(files) // 9 + 1]):
            for size in (None, 0, (kept / path).stat().st_size - 1) if path.name else (None,):
                left = "is gone" if size is None else f"has {size} bytes left"
                is_same = continued(path, size) in (None, whole)
                assert is_same, f"{path.name or 'everything'} {left}, and the sink continues without it"
        shutil.rmtree(top)
        top.mkdir()
        sink = place.sink()
        with file_size_limit(64), suppress(StoreError, OSError):
            write(sink, sample_batch("a", 0, 1, bytes(range(11, 256))))
            pytest.fail(f"no file can have more than 64 bytes, and flush returns {sink.flush()}")
        with suppress(StoreError, OSError):
            sink.close()

    def test_nothing_is_a_destination_too(self, place: Destination) -> None:
        """A failure means that a conversion of no messages has no result."""
        sink = place.sink()
        flushed(sink)
        complete(sink)
        assert place.path.exists()


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
