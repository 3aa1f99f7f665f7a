"""Inputs of jobs: paths become ranked segments, and segments become tasks."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import stat
from pathlib import Path
from typing import Any

import attrs
import pytest

import msgstore
from core_support import DATA, copy_of, store_of
from msgstore.contract import PluginError, StoreError
from msgstore.directory import Settings, write_settings
from msgstore.files import Files
from msgstore.jobs.inputs import JobInputs, SegmentInput, find_inputs, open_input
from msgstore.jobs.reports import SETTINGS_DAMAGED
from msgstore.jobs.runner import choose_runner
from msgstore.jobs.tasks import group_into_tasks

MIXED = store_of("mixed_upgrade")


def find(*paths, catalogue=None, **options) -> JobInputs:
    found = find_inputs(catalogue or msgstore.load_catalogue(), [str(path) for path in paths], **options)
    assert [i.rank for i in found.inputs] == list(range(len(found.inputs)))
    return found


def paths_of(found, beneath):
    return [str(Path(i.path).relative_to(beneath)) for i in found.inputs]


def ignored(found):
    return [Path(name).name for name in found.ignored]


def damage(found):
    return [(spot.path, spot.offset, spot.size, spot.reason) for spot in found.damage]


def lost(path, reason="is a link to nothing"):
    return str(path), 0, 0, f"unreadable: {reason}"


def touch(top, *files):
    for file in files:
        (top / file).parent.mkdir(parents=True, exist_ok=True)
        (top / file).write_bytes(b"")


def test_directory_is_listed_highest_number_first(tmp_path):
    """A store without segments is accepted too."""
    touch(tmp_path, "0.rdq", "9.sqs", "10.rdq", "10.sqs", "old.rdq", "notes.txt", "1.sqs.tmp")
    found = find(tmp_path)
    assert paths_of(found, tmp_path) == ["10.sqs", "10.rdq", "9.sqs", "0.rdq", "old.rdq"]
    assert {(i.store, i.format) for i in found.inputs} == {(str(tmp_path), "v1"), (str(tmp_path), "v2")}
    assert ignored(found) == ["1.sqs.tmp", "notes.txt"]
    msgstore.open_store(tmp_path / "store", body="erlang").close()
    assert (find(tmp_path / "store").inputs, find(tmp_path / "store").codecs) == ((), ("erlang",))
    assert (tmp_path / "store" / "clean.dot").exists()
    assert ignored(find(tmp_path / "store")) == []


def test_real_directories_have_their_sizes():
    found = find(MIXED)
    assert paths_of(found, MIXED) == ["3.sqs", "2.sqs", "1.rdq", "0.rdq"]
    assert [i.size for i in found.inputs] == [Path(i.path).stat().st_size for i in found.inputs]
    assert pickle.loads(pickle.dumps(found.inputs)) == found.inputs
    assert (found.damage, found.codecs) == ((), ())
    top = DATA / "rabbitmq-3.10"
    assert {i.path for i in find(top).inputs} == {str(path) for path in top.rglob("*.rdq")} != set()


TREE = (
    "b/0.rdq",
    ".a/0.rdq",
    "b/deeper/1.rdq",
    "empty/x.txt",
    ".b.msgstore/0a1b/0.rdq",
    ".b.msgstore-0a1b/0.rdq",  # of an earlier version
    "c.rdq/d/0.rdq",
    "[a]/2.rdq",
    "[a]/1.rdq",
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([""], [".a/0.rdq", "[a]/2.rdq", "[a]/1.rdq", "b/0.rdq", "b/deeper/1.rdq", "c.rdq/d/0.rdq"]),
        (["*"], [".a/0.rdq", "[a]/2.rdq", "[a]/1.rdq", "b/0.rdq", "c.rdq/d/0.rdq", "link/0.rdq"]),
        (["*/*.rdq"], [".a/0.rdq", "[a]/2.rdq", "[a]/1.rdq", "b/0.rdq", "link/0.rdq"]),
        (["b*", "b/deeper"], ["b/0.rdq", "b/deeper/1.rdq"]),
        (["[a]"], ["[a]/2.rdq", "[a]/1.rdq"]),
        (["[b]/*", "?/0.rdq", "b/0.rdq"], ["b/0.rdq", "b/deeper/1.rdq"]),
        (["c.rdq", "b", "c.rdq/../b"], ["c.rdq/d/0.rdq", "b/0.rdq"]),
    ],
)
def test_tree_and_glob_are_searched_by_name(tmp_path, given, expected):
    """Hidden directories too, staging directories not. A name goes before a glob; each segment counts once."""
    touch(tmp_path, *(f"top/{name}" for name in TREE), "outside/0.rdq")
    (tmp_path / "top" / "link").symlink_to(tmp_path / "outside")
    found = find(*(tmp_path / "top" / path for path in given))
    assert paths_of(found, tmp_path / "top") == expected
    assert damage(found) == []


def test_directories_beneath_store_are_left_out_aloud(tmp_path, caplog):
    touch(tmp_path, "0.rdq", "backup/0.rdq", ".x.msgstore/0a1b/0.rdq", "empty/notes.txt")
    assert paths_of(find(tmp_path), tmp_path) == ["0.rdq"]
    said = "left out, beneath directories that have segments of their own: {}; name them as well to read them"
    assert [record.getMessage() for record in caplog.records] == [said.format(tmp_path / "backup")]
    caplog.clear()
    assert paths_of(find(tmp_path, tmp_path / "backup"), tmp_path) == ["0.rdq", "backup/0.rdq"]
    both = [i.path for i in find(tmp_path.parent).inputs if tmp_path in Path(i.path).parents]
    assert both == [str(tmp_path / "0.rdq"), str(tmp_path / "backup/0.rdq")]
    assert not caplog.records


def test_segment_of_missing_format_is_damage(tmp_path):
    top = tmp_path / "top"
    touch(top, "a/0.acme", "a/0.sqs", "a/00.sqs", "a/x.sqs", "b/0.rdq", "c/0.idx")
    catalogue = msgstore.load_catalogue()
    kept = (found for found in catalogue.registrations if (found.kind, found.descriptor.name) != ("format", "v2"))
    catalogue = attrs.evolve(catalogue, registrations=tuple(kept))
    refused = lost(top / "a/0.sqs", "no installed format reads *.sqs")
    assert damage(find(top, catalogue=catalogue)) == [refused]
    touch(top, "a/1.rdq")
    found = find(top / "a", catalogue=catalogue)
    assert (paths_of(found, top), damage(found), ignored(found)) == (["a/1.rdq"], [refused], ["0.acme", "00.sqs", "x.sqs"])
    write_settings(Files(), top / "a", Settings(format="acme"))
    for path in (top / "a", top / "a" / "*"):
        assert {Path(row[0]).name for row in damage(find(path, catalogue=catalogue))} == {"0.acme", "0.sqs"}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "missing: there is no such file or directory"),
        ("empty", "there are no segments in this directory"),
        ("notes.txt", "no installed format reads such files"),
        ("*.txt", "nothing that matches is a segment"),
        ("pipe.rdq", "is neither a regular file nor a directory"),
    ],
)
def test_path_without_segments_is_refused(path, message, tmp_path):
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "notes.txt")
    os.mkfifo(tmp_path / "pipe.rdq")
    with pytest.raises(StoreError, match=message):
        find(tmp_path / path)


def checksum_store(path):
    with msgstore.open_store(path, record="checksum") as store, store.client("c") as client:
        client.write_many((bytes([n]) * 16, b"body %d" % n) for n in range(3))
        store.flush()
        assert find(path).inputs  # also while it is open
    return path


def test_each_directory_has_its_record_types_and_codec(tmp_path):
    shutil.copy(MIXED / "0.rdq", checksum_store(tmp_path / "one"))
    copy_of("mixed_upgrade", tmp_path / "two")
    found = find(tmp_path, records={"checksum": 130})
    assert {(i.format, i.records) for i in found.inputs} == {("v1", ()), ("v2", (("checksum", 130),))}
    assert found.codecs == ("raw",)
    [remembered] = [i for i in find(tmp_path / "one").inputs if i.format == "v2"]
    assert remembered.records == (("checksum", 4),)
    form = open_input(remembered)
    assert len(form.format.scan(Path(remembered.path).read_bytes()).records) == 3
    assert open_input(attrs.evolve(remembered, rank=7, path="elsewhere")) is form


@pytest.mark.parametrize(
    "replace",
    [lambda path: path.write_text("{}"), lambda path: path.symlink_to(path), Path.mkdir, os.mkfifo],
    ids=["damaged", "a loop", "a directory", "a pipe"],
)
def test_unusable_settings_are_damage(tmp_path, replace):
    """The types that have assigned bytes are read."""
    settings = checksum_store(tmp_path) / "msgstore.json"
    settings.unlink()
    replace(settings)
    found = find(tmp_path)
    assert damage(found) == [(str(settings), 0, 2 if settings.is_file() else 0, SETTINGS_DAMAGED)]
    assert (paths_of(found, tmp_path), found.codecs) == (["0.sqs"], ())
    assert ("checksum", 4) in found.inputs[0].records


UNREADABLE = {
    "9.rdq": ("is a link to nothing", lambda path: path.symlink_to("/nonexistent/9.rdq")),
    "8.rdq": ("is a directory", Path.mkdir),
    "7.sqs": ("is not a regular file", os.mkfifo),
    "6.sqs": (os.strerror(errno.ELOOP), lambda path: path.symlink_to("6.sqs")),
    "5.rdq": ("is not a regular file", lambda path: os.mknod(path, stat.S_IFSOCK)),
    "zz": ("", lambda path: path.symlink_to("zz")),
    "nowhere": ("", lambda path: path.symlink_to("nothing")),
    "below": ("", Path.mkdir),
}
"""Names that are no files, and the reasons of those that are names of segments."""


@pytest.mark.parametrize("pattern", ["store", "", "*", "store/*"])
def test_unreadable_names_are_damage(tmp_path, pattern):
    """The others are read. A directory that a glob matches is searched instead. A link to nothing alone is damage too."""
    store = tmp_path / "store"
    touch(store, "0.rdq", "1.rdq", "notes.txt")
    for name, (_, make) in UNREADABLE.items():
        make(store / name)
    expected = [lost(store / name, reason) for name, (reason, _) in UNREADABLE.items() if reason]
    found = find(tmp_path / pattern)
    assert sorted(damage(found)) == sorted(expected if pattern != "store/*" else [expected[0], *expected[2:]])
    assert paths_of(found, store) == ["1.rdq", "0.rdq"]
    assert sorted(ignored(found)) == ["notes.txt", "nowhere", "zz"]
    assert sorted(damage(find(tmp_path / pattern, store, tmp_path / "*" / "*"))) == sorted(expected), "each once"
    for name in ("0.rdq", "1.rdq", *list(UNREADABLE)[1:]):
        path = store / name
        path.rmdir() if path.is_dir() else path.unlink()
    found = find(tmp_path / pattern)
    assert (found.inputs, damage(found)) == ((), expected[:1])


@pytest.fixture
def failing(monkeypatch):
    """Paths with the errors of listing them ("list"), of examining their names ("search"), or of themselves ("stat"). The tests
    may run with all permissions."""
    paths = {}

    def guard(name):
        plain = getattr(os, name)

        def guarded(path, **options):
            text = "" if isinstance(path, int) else os.fspath(path)
            what = {"search": os.path.dirname(text), "stat": text} if name == "stat" else {"list": text}  # noqa: PTH120 - a Path forgets a dot
            for how, where in what.items():
                if paths.get(where) == how:
                    code = errno.EIO if how == "stat" else errno.EACCES
                    raise OSError(code, os.strerror(code), text)
            return plain(path, **options)

        monkeypatch.setattr(os, name, guarded)

    for name in ("scandir", "listdir", "stat"):
        guard(name)
    return paths


@pytest.mark.parametrize("how", ["list", "search"])
@pytest.mark.parametrize("pattern", ["", "*", "*/*.rdq", "**/*", "?/0.*"])
def test_forbidden_directory_is_damage(tmp_path, failing, pattern, how):
    """The others are read, or the error names it."""
    touch(tmp_path, "a/0.rdq", "b/0.rdq", "b/1.rdq", "c/0.rdq")
    failing[str(tmp_path / "b")] = how
    found = find(tmp_path / pattern)
    assert damage(found) == [lost(tmp_path / "b", "Permission denied")]
    assert paths_of(found, tmp_path) == ["a/0.rdq", "c/0.rdq"]
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "c")
    for path in (pattern, "b"):
        with pytest.raises(StoreError, match=f"{tmp_path / 'b'} is unreadable: Permission denied"):
            find(tmp_path / path)


def test_unreadable_name_is_damage_where_it_matters(tmp_path, failing):
    """A glob lists no directory whose names it has. A file that is no segment may be unreadable."""
    touch(tmp_path, "a/0.rdq", "a/notes.txt", "b/0.rdq", "c/0.rdq", "d/0.rdq")
    failing |= {str(tmp_path / "b"): "list", str(tmp_path / "c"): "search", str(tmp_path / "d/0.rdq"): "stat"}
    failing[str(tmp_path / "a/notes.txt")] = "stat"
    expected = [lost(tmp_path / "c", "Permission denied"), lost(tmp_path / "d/0.rdq", "Input/output error")]
    found = find(tmp_path / "*" / "0.rdq")
    assert (paths_of(found, tmp_path), damage(found)) == (["a/0.rdq", "b/0.rdq"], expected)
    found = find(tmp_path)
    assert (paths_of(found, tmp_path), ignored(found)) == (["a/0.rdq"], ["notes.txt"])
    assert damage(found) == [lost(tmp_path / "b", "Permission denied"), *expected]


def test_unknown_record_type_is_refused_before_job(tmp_path):
    touch(tmp_path, "0.sqs")
    with pytest.raises(PluginError, match=r"0\.sqs: no installed plugin provides the record type 'nobodys'"):
        find(tmp_path, records={"nobodys": 200})
    lacking = SegmentInput(0, "s", "s/0.sqs", "v2", 0, (("nobodys", 200),), (("record nobodys", "acme-nobodys"),))
    with pytest.raises(
        PluginError, match=r"s/0\.sqs: .* the distribution 'acme-nobodys' provides it: install that only if you trust it"
    ):
        open_input(lacking)


def test_tasks_are_contiguous_and_split_no_segment():
    sizes = (40, 60, 1, 500, 99, 1, 0, 100)
    tasks = group_into_tasks([SegmentInput(rank, "s", f"s/{rank}", "v2", size) for rank, size in enumerate(sizes)], 100)
    assert [[found.size for found in task] for task in tasks] == [[40, 60], [1], [500], [99, 1, 0], [100]]
    assert [found.rank for task in tasks for found in task] == list(range(8))
    assert group_into_tasks([]) == []


@pytest.mark.parametrize(
    ("minimums", "size", "chosen"),
    [
        ({"small": 0, "middle": 100, "large": 1000}, 5, "small"),
        ({"small": 0, "middle": 100, "large": 1000}, 999, "middle"),
        ({"small": 0, "middle": 100, "large": 1000}, 1000, "large"),
        ({"a": 1000, "b": 100}, 5, "b"),
    ],
)
def test_auto_runner_has_largest_minimum(minimums, size, chosen):
    """Among the runners whose smallest input ``size`` reaches; if there is none, the one with the smallest."""
    catalogue = msgstore.load_catalogue()
    local: Any
    (local,) = (found for found in catalogue.registrations if found.descriptor.name == "local")
    engines = [
        attrs.evolve(local, descriptor=attrs.evolve(local.descriptor, name=name, min_input_bytes=least))
        for name, least in minimums.items()
    ]
    assert choose_runner(attrs.evolve(catalogue, registrations=tuple(engines)), "auto", size)[0] == chosen
