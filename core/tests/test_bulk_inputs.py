"""From paths to ranked segments, and from segments to tasks."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import socket
from pathlib import Path
from typing import Any

import attrs
import pytest

import msgstore
from msgstore.contract import PluginError, StoreError
from msgstore.directory import Settings, write_settings
from msgstore.files import Files
from msgstore.jobs.inputs import Found, SegmentInput, find_inputs, open_input
from msgstore.jobs.reports import SETTINGS_DAMAGED
from msgstore.jobs.tasks import pack
from msgstore.plugins.catalogue import Catalogue

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
MIXED = DATA / "msg-store" / "mixed_upgrade" / "store"


def find(*paths: object, **options: Any) -> Found:
    return find_inputs(msgstore.load_catalogue(), [str(path) for path in paths], **options)


def names(found: Found) -> list[str]:
    assert [i.rank for i in found.inputs] == list(range(len(found.inputs)))
    return [Path(i.path).name for i in found.inputs]


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_a_directory_highest_number_first_then_files_without_a_number(tmp_path: Path) -> None:
    touch(*(tmp_path / name for name in ("0.rdq", "9.sqs", "10.rdq", "10.sqs", "old.rdq", "notes.txt", "1.sqs.tmp")))
    found = find(tmp_path)
    assert names(found) == ["10.sqs", "10.rdq", "9.sqs", "0.rdq", "old.rdq"]
    assert {(i.store, i.format) for i in found.inputs} == {(str(tmp_path), "v1"), (str(tmp_path), "v2")}
    assert [Path(name).name for name in found.ignored] == ["1.sqs.tmp", "notes.txt"]


def test_real_directories_and_their_sizes() -> None:
    found = find(MIXED)
    assert names(found) == ["3.sqs", "2.sqs", "1.rdq", "0.rdq"]
    assert [i.size for i in found.inputs] == [Path(i.path).stat().st_size for i in found.inputs]
    assert pickle.loads(pickle.dumps(found.inputs)) == found.inputs
    assert (found.damage, found.codecs) == ((), ())


def test_a_tree_has_hidden_directories_and_neither_links_nor_unfinished_stores(tmp_path: Path) -> None:
    top = tmp_path / "top"
    touch(top / "b" / "0.rdq", top / ".a" / "0.rdq", top / "b" / "deeper" / "1.rdq", top / "empty" / "x.txt")
    touch(top / ".b.msgstore-0a1b2c3d" / "0.rdq", tmp_path / "outside" / "0.rdq")
    (top / "link").symlink_to(tmp_path / "outside")
    found = find(top)
    assert [i.store for i in found.inputs] == [str(top / ".a"), str(top / "b"), str(top / "b" / "deeper")]
    assert found.ignored == ()


def test_every_store_of_a_broker_is_found() -> None:
    top = DATA / "rabbitmq-3.10"
    assert {i.path for i in find(top).inputs} == {str(path) for path in top.rglob("*.rdq")} != set()


def test_a_directory_with_segments_stands_for_these_only_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    top, beneath = tmp_path / "0.rdq", tmp_path / "backup" / "0.rdq"
    touch(top, beneath, tmp_path / ".x.msgstore-0a1b2c3d" / "0.rdq", tmp_path / "empty" / "notes.txt")
    assert [i.path for i in find(tmp_path).inputs] == [str(top)]
    (record,) = caplog.records
    assert record.getMessage() == (
        f"left out, beneath directories that have segments of their own: {beneath.parent}; name them as well to read them"
    )
    caplog.clear()
    assert [i.path for i in find(tmp_path, beneath.parent).inputs] == [str(top), str(beneath)]
    assert [i.path for i in find(tmp_path.parent).inputs if tmp_path in Path(i.path).parents] == [str(top), str(beneath)]
    assert not caplog.records


def test_a_segment_of_a_format_that_is_not_installed_is_damage(tmp_path: Path) -> None:
    store, top = tmp_path / "top" / "a", tmp_path / "top"
    touch(*(store / name for name in ("0.acme", "0.sqs", "00.sqs", "x.sqs")), top / "b" / "0.rdq", top / "c" / "0.idx")
    without = catalogue_without("v2")
    (refused,) = damage(find_inputs(without, [top]))
    assert refused == (str(store / "0.sqs"), 0, 0, "unreadable: no installed format reads *.sqs")
    touch(store / "1.rdq")
    found = find_inputs(without, [store])
    assert (names(found), damage(found)) == (["1.rdq"], [refused])
    assert [Path(name).name for name in found.ignored] == ["0.acme", "00.sqs", "x.sqs"]
    write_settings(Files(), store, Settings(format="acme"))
    for path in (store, store / "*"):
        assert [Path(path).name for path, *_ in damage(find_inputs(without, [path]))] == ["0.acme", "0.sqs"]


def test_a_glob_by_name_and_what_is_reached_twice_once(tmp_path: Path) -> None:
    touch(*(tmp_path / store / name for store in ("b", "a") for name in ("1.rdq", "0.rdq", "clean.dot")))
    (tmp_path / "c").mkdir()
    expected = [str(tmp_path / path) for path in ("a/1.rdq", "a/0.rdq", "b/1.rdq", "b/0.rdq")]
    for pattern in ("*", "*/*.rdq", "[ab]/*", "**"):
        assert [i.path for i in find(tmp_path / pattern).inputs] == expected
    assert [i.path for i in find(tmp_path / "b", tmp_path / "*" / "*", tmp_path / "b" / "0.rdq").inputs] == [
        *expected[2:],
        *expected[:2],
    ]


def test_a_name_with_the_signs_of_a_glob_is_a_name(tmp_path: Path) -> None:
    touch(tmp_path / "[a]" / "0.rdq")
    assert names(find(tmp_path / "[a]")) == ["0.rdq"]


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
def test_nothing_there(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path / "notes.txt")
    os.mkfifo(tmp_path / "pipe.rdq")
    with pytest.raises(StoreError, match=message):
        find(tmp_path / path)


def test_a_store_without_segments_is_one(tmp_path: Path) -> None:
    with msgstore.open_store(tmp_path / "store", body="erlang"):
        pass
    for path in (tmp_path / "store").glob("*.sqs"):
        path.unlink()
    assert (find(tmp_path / "store").inputs, find(tmp_path).codecs) == ((), ("erlang",))


def checksum_store(path: Path, count: int = 3) -> Path:
    with msgstore.open_store(path, record="checksum") as store, store.client("c") as client:
        for n in range(count):
            client.write(bytes([n]) * 16, b"body %d" % n)
    return path


def test_record_types_and_codec_of_each_directory(tmp_path: Path) -> None:
    shutil.copy(MIXED / "0.rdq", checksum_store(tmp_path / "one"))
    shutil.copytree(MIXED, tmp_path / "two")
    found = find(tmp_path, records={"checksum": 130})
    assert {(Path(i.store).name, i.format, i.records) for i in found.inputs} == {
        ("one", "v1", ()),
        ("one", "v2", (("checksum", 130),)),
        ("two", "v1", ()),
        ("two", "v2", (("checksum", 130),)),
    }
    assert found.codecs == ("raw",)
    [remembered] = [i for i in find(tmp_path / "one").inputs if i.format == "v2"]
    assert remembered.records == (("checksum", 4),)
    form = open_input(remembered)
    assert len(form.format.scan(Path(remembered.path).read_bytes()).records) == 3
    assert open_input(attrs.evolve(remembered, rank=7, path="elsewhere")) is form


def test_a_damaged_settings_file_is_damage_and_assigned_types_are_read(tmp_path: Path) -> None:
    settings = checksum_store(tmp_path / "store") / "msgstore.json"
    settings.write_text("{}")
    found = find(tmp_path / "store")
    spans = [(spot.path, spot.offset, spot.size, spot.reason) for spot in found.damage]
    assert spans == [(str(settings), 0, 2, SETTINGS_DAMAGED)]
    assert ("checksum", 4) in found.inputs[0].records
    assert found.codecs == ()


def catalogue_without(format_name: str) -> Catalogue:
    catalogue = msgstore.load_catalogue()
    kept = (found for found in catalogue.registrations if (found.kind, found.descriptor.name) != ("format", format_name))
    return attrs.evolve(catalogue, registrations=tuple(kept))


def damage(found: Found) -> list[tuple[str, int, int, str]]:
    return [(spot.path, spot.offset, spot.size, spot.reason) for spot in found.damage]


def make_unreadable(directory: Path) -> list[tuple[str, int, int, str]]:
    """Everything that may have a segment's name and is none, a loop without one, and the damage that they are."""
    (directory / "9.rdq").symlink_to("/nonexistent/9.rdq")
    (directory / "8.rdq").mkdir()
    os.mkfifo(directory / "7.sqs")
    (directory / "6.sqs").symlink_to("6.sqs")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(directory / "5.rdq"))  # a socket's name is short
    (directory / "zz").symlink_to("zz")
    (directory / "nowhere").symlink_to("nothing")
    (directory / "below").mkdir()
    reasons = {
        "9.rdq": "is a link to nothing",
        "8.rdq": "is a directory",
        "7.sqs": "is not a regular file",
        "6.sqs": os.strerror(errno.ELOOP),
        "5.rdq": "is not a regular file",
    }
    return [(str(directory / name), 0, 0, f"unreadable: {reason}") for name, reason in reasons.items()]


@pytest.mark.parametrize("pattern", ["store", "", "*", "store/*"])
def test_what_has_a_segments_name_and_cannot_be_read_is_damage_and_the_others_are_read(tmp_path: Path, pattern: str) -> None:
    store = tmp_path / "store"
    touch(store / "0.rdq", store / "1.rdq", store / "notes.txt")
    expected = make_unreadable(store)
    found = find(tmp_path / pattern)
    assert sorted(damage(found)) == sorted(expected)
    assert pattern == "store/*" or damage(found) == expected
    assert names(found) == ["1.rdq", "0.rdq"]
    assert [Path(name).name for name in found.ignored] == ["notes.txt", "nowhere", "zz"]
    assert damage(find(tmp_path / pattern, store, tmp_path / "*" / "*")) == damage(found)


def test_nothing_but_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "0.rdq").symlink_to("nowhere")
    for path in (tmp_path, tmp_path / "*", tmp_path / "*.rdq"):
        assert damage(find(path)) == [(str(tmp_path / "0.rdq"), 0, 0, "unreadable: is a link to nothing")]
        assert find(path).inputs == ()


def test_a_directory_with_a_segments_name_is_a_directory_if_it_has_some(tmp_path: Path) -> None:
    touch(tmp_path / "a.rdq" / "deeper" / "0.rdq")
    for path in (tmp_path, tmp_path / "*"):
        assert (names(find(path)), damage(find(path))) == (["0.rdq"], [])
    (tmp_path / "b.rdq").mkdir()
    for path in (tmp_path, tmp_path / "*"):
        assert damage(find(path)) == [(str(tmp_path / "b.rdq"), 0, 0, "unreadable: is a directory")]


@pytest.mark.parametrize("kind", ["a loop", "a directory", "a pipe"])
def test_settings_that_are_no_file_are_damaged(tmp_path: Path, kind: str) -> None:
    touch(tmp_path / "0.sqs")
    settings = tmp_path / "msgstore.json"
    settings.symlink_to(settings) if kind == "a loop" else settings.mkdir() if kind == "a directory" else os.mkfifo(settings)
    found = find(tmp_path)
    assert damage(found) == [(str(settings), 0, 0, SETTINGS_DAMAGED)]
    assert names(found) == ["0.sqs"]


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Paths that cannot be listed, or ("search") in which no name can be looked at: whoever runs this may be allowed all."""
    paths: dict[str, str] = {}

    def guard(name: str) -> None:
        plain = getattr(os, name)

        def guarded(path: Any, **options: Any) -> Any:
            text = "" if isinstance(path, int) else os.fspath(path)
            if paths.get(text) == "list" and name != "stat":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), text)
            if paths.get(os.path.dirname(text)) == "search" and name == "stat":  # noqa: PTH120 - a Path forgets a dot
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), text)
            return plain(path, **options)

        monkeypatch.setattr(os, name, guarded)

    for name in ("scandir", "listdir", "stat"):
        guard(name)
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("how", ["list", "search"])
@pytest.mark.parametrize("pattern", ["", "*", "*/*.rdq", "**/*", "?/0.*"])
def test_a_directory_that_cannot_be_looked_into_is_damage_and_the_others_are_read(
    tmp_path: Path, forbidden: dict[str, str], pattern: str, how: str
) -> None:
    touch(*(tmp_path / store / f"{n}.rdq" for store in "abc" for n in range(1000 if store == "b" else 1)))
    forbidden[str(tmp_path / "b")] = how
    found = find(tmp_path / pattern)
    assert damage(found) == [(str(tmp_path / "b"), 0, 0, "unreadable: Permission denied")]
    assert [i.path for i in found.inputs] == [str(tmp_path / "a" / "0.rdq"), str(tmp_path / "c" / "0.rdq")]
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "c")
    with pytest.raises(StoreError, match=f"{tmp_path / 'b'} is unreadable: Permission denied"):
        find(tmp_path / pattern)
    with pytest.raises(StoreError, match=f"^{tmp_path / 'b'}: cannot be listed: Permission denied"):
        find(tmp_path / "b")


def test_a_glob_lists_no_directory_whose_names_it_says(tmp_path: Path, forbidden: dict[str, str]) -> None:
    touch(*(tmp_path / store / "0.rdq" for store in "abc"))
    forbidden |= {str(tmp_path / "b"): "list", str(tmp_path / "c"): "search"}
    found = find(tmp_path / "*" / "0.rdq")
    assert [i.path for i in found.inputs] == [str(tmp_path / "a" / "0.rdq"), str(tmp_path / "b" / "0.rdq")]
    assert damage(found) == [(str(tmp_path / "c"), 0, 0, "unreadable: Permission denied")]


def test_one_name_that_the_disk_does_not_give_is_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(*(tmp_path / name for name in ("0.rdq", "1.rdq", "2.rdq", "notes.txt", "gone.rdq")))
    plain = os.stat

    def failing(path: Any, **options: Any) -> Any:
        name = Path(path).name
        if name == "gone.rdq":
            (tmp_path / name).unlink(missing_ok=True)
        if name in ("1.rdq", "notes.txt"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return plain(path, **options)

    monkeypatch.setattr(os, "stat", failing)
    found = find(tmp_path)
    assert names(found) == ["2.rdq", "0.rdq"]
    assert damage(found) == [(str(tmp_path / "1.rdq"), 0, 0, "unreadable: Input/output error")]
    assert found.ignored == (str(tmp_path / "notes.txt"),)


def test_a_record_type_that_nobody_provides_is_an_error_before_the_job(tmp_path: Path) -> None:
    touch(tmp_path / "0.sqs")
    with pytest.raises(PluginError, match=r"0\.sqs: no installed plugin provides the record type 'nobodys'"):
        find(tmp_path, records={"nobodys": 200})
    lacking = SegmentInput(0, "s", "s/0.sqs", "v2", 0, (("nobodys", 200),), (("record nobodys", "acme-nobodys"),))
    with pytest.raises(PluginError, match=r"s/0\.sqs: .* pip install acme-nobodys"):
        open_input(lacking)


def test_a_live_store_can_be_read(tmp_path: Path) -> None:
    with msgstore.open_store(tmp_path / "store") as store, store.client("c") as client:
        client.write(b"i" * 16, b"body")
        store.flush()
        assert names(find(tmp_path / "store"))


def sized(*sizes: int) -> list[SegmentInput]:
    return [SegmentInput(rank, "s", f"s/{rank}", "v2", size) for rank, size in enumerate(sizes)]


def test_tasks_are_contiguous_and_never_split_a_segment() -> None:
    tasks = pack(sized(40, 60, 1, 500, 99, 1, 0, 100), 100)
    assert [[found.size for found in task] for task in tasks] == [[40, 60], [1], [500], [99, 1, 0], [100]]
    assert [found.rank for task in tasks for found in task] == list(range(8))
    assert pack([]) == []
