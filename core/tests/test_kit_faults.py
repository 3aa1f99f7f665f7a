"""The kit's file layers and copies do what they say."""

from __future__ import annotations

import os

import pytest

from msgstore.testing.concurrency import BetweenLines
from msgstore.testing.faults import (
    Crash,
    FailingFiles,
    RecordingFiles,
    StoppingFiles,
    copy_of,
    crash_points,
    listing,
    stopped,
)


def write(files, directory):
    files.write_file(directory / "a", [b"x" * 700, b"y"], sync=True)


def test_each_point_leaves_what_it_says(tmp_path):
    whole = RecordingFiles()
    write(whole, tmp_path)
    names = [name for name, _, _ in whole.changes()]
    assert names == ["unlink", "create", "pwrite", "pwrite", "sync", "replace", "sync_directory"]
    points = crash_points(whole)
    assert points == [(0, 0), (1, 0), (2, 0), (2, 512), (3, 0), (4, 0), (5, 0), (6, 0)]
    assert crash_points(RecordingFiles()) == []
    for number, (stop, torn) in enumerate(points):
        directory = tmp_path / str(number)
        directory.mkdir()
        files = StoppingFiles(stop, torn)
        assert stopped(lambda: write(files, directory))  # noqa: B023 - called at once
        assert files.stopped
        with pytest.raises(Crash):
            files.unlink(directory / "a")
        there = {path.name: path.stat().st_size for path in directory.iterdir()}
        expected = {2: 0, 3: 512, 4: 700, 5: 701, 6: 701}
        assert there == ({"a": 701} if number == 7 else {"a.tmp": expected[number]} if number > 1 else {})


def test_what_fails_fails_once(tmp_path):
    files = FailingFiles(2)
    with pytest.raises(OSError, match="error"):
        write(files, tmp_path)
    assert files.failed.startswith("pwrite")
    write(files, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_copy_is_the_same_and_keeps_its_holes(tmp_path):
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "empty").touch()
    with (source / "inner" / "sparse").open("wb") as stream:
        stream.write(b"begin")
        stream.truncate(2**24)
        stream.seek(2**23)
        stream.write(b"middle")
    copy = copy_of(source, tmp_path / "copy")
    files = [name for name in listing(source) if not (source / name).is_dir()]
    assert files == [name for name in listing(copy) if not (copy / name).is_dir()]
    for name in files:
        assert (copy / name).read_bytes() == (source / name).read_bytes()
    used, size = os.stat(copy / "inner" / "sparse").st_blocks * 512, 2**24  # noqa: PTH116
    assert used <= max(os.stat(source / "inner" / "sparse").st_blocks * 512, size // 2)  # noqa: PTH116


def test_a_look_between_two_lines_meets_what_is_half_done():
    entries = {"a": 1}
    seen = set()

    def move():
        del entries["a"]
        entries["a"] = 2

    BetweenLines(lambda: seen.add(entries.get("a"))).run(move)
    assert seen == {1, None, 2}
