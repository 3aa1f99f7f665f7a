"""Two stores compared by id and body: what only one has, and what differs, whatever the formats, copies and damage."""

from __future__ import annotations

import functools
import hashlib
import shutil
from pathlib import Path

import pytest

from msgstore.contract import StoreError
from msgstore.jobs.diff import DiffReport, plan_diff
from msgstore.scan import FormatSet
from support import (
    ACME_CELLS,
    DATA,
    DIRECTORIES,
    RealDirectory,
    catalogue,
    command,
    filled,
    json_of,
    records_of,
    run_job,
)


def compare(a: Path, b: Path, processes: int = 1) -> DiffReport:
    return run_job(plan_diff(catalogue(), a, b), processes)


def store_of(name: str) -> Path:
    return DATA / "msg-store" / name / "store"


@functools.cache
def truth(directory: Path) -> dict[bytes, str]:
    """Id to the hash of its body, by a scan of each segment: the highest number's first record counts."""
    found: dict[bytes, str] = {}
    for row in records_of(directory):
        found.setdefault(row["id"], hashlib.sha256(row["body"]).hexdigest())
    return found


def write_segment(path: Path, messages: list[tuple[bytes, bytes]]) -> None:
    form = FormatSet(catalogue()).by_name("v2").format
    data, _ = form.encode([i for i, _ in messages], [body for _, body in messages])
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(form.header + data)


@pytest.mark.parametrize("a", DIRECTORIES)
def test_diff_of_real_directories_is_what_scans_say(a):
    assert RealDirectory.load(a).live.items() <= truth(store_of(a)).items()
    for b in DIRECTORIES:
        report = compare(store_of(a), store_of(b))
        left, right = truth(store_of(a)), truth(store_of(b))
        both = left.keys() & right.keys()
        assert report.ids == {
            "differing": sorted(i for i in both if left[i] != right[i]),
            "only_a": sorted(left.keys() - right.keys()),
            "only_b": sorted(right.keys() - left.keys()),
        }
        assert report.same == sum(left[i] == right[i] for i in both)
        assert (report.a.messages, report.b.messages) == (len(left), len(right))
        assert report.agrees == (left == right and "torn" not in a and "torn" not in b)


@pytest.mark.parametrize("processes", [1, 2])
def test_first_copy_of_highest_segment_counts(processes, tmp_path, monkeypatch):
    """On each side, whatever the other copies hold, whichever process reads them, and of whatever type the records are."""
    monkeypatch.setattr("msgstore.jobs.tasks.pack.__defaults__", (1,))
    one, two, three = (bytes([n]) * 16 for n in (1, 2, 3))
    write_segment(tmp_path / "a" / "0.sqs", [(one, b"old"), (two, b"x"), (three, b"only old")])
    write_segment(tmp_path / "a" / "1.sqs", [(one, b"new"), (one, b"never"), (two, b"other")])
    filled(tmp_path / "b", [(one, b"new"), (two, b"x")], **ACME_CELLS["ets-v2-audit"].keys)
    there, back = (compare(tmp_path / a, tmp_path / b, processes) for a, b in ("ab", "ba"))
    assert (there.same, there.ids) == (1, {"differing": [two], "only_a": [three], "only_b": []})
    assert (back.same, back.ids) == (1, {"differing": [two], "only_a": [], "only_b": [three]})


def test_damage_of_each_side_is_reported(tmp_path):
    copy = Path(shutil.copytree(DATA / "msg-store" / "v2_corrupt", tmp_path / "copy"))
    (copy / "type0_byte" / "0.sqs").unlink()
    report = compare(DATA / "msg-store" / "v2_corrupt", copy)
    assert len(report.a.damage) == len(report.b.damage) + 1 > 10
    assert not report.agrees
    job = plan_diff(catalogue(), copy, copy)
    first = Path(job.found_a.inputs[0].path)
    first.unlink()
    gone = run_job(job)
    assert [s.reason for s in gone.a.damage if s.path == str(first)] == ["unreadable: No such file or directory"]


def test_command_lists_ids_and_counts(tmp_path):
    path = RealDirectory.load("v2_clean").copy(tmp_path)
    arguments = ["diff", store_of("v2_clean"), path]
    assert f"{len(truth(path)):,} the same, 0 with another body, 0 only in A, 0 only in B" in command(*arguments).stdout
    truth.cache_clear()
    (path / "1.sqs").unlink()
    lost = sorted(truth(store_of("v2_clean")).keys() - truth(path).keys())
    *lines, summary = json_of(*arguments, code=1)
    assert lines == [{"kind": "only_a", "id": msg_id.hex()} for msg_id in lost]
    assert (summary["only_a"], summary["only_b"], summary["differing"]) == (len(lost), 0, 0)
    shown = command(*arguments, code=1).stdout
    assert shown.count("only in A: ") == 20
    assert f"... and {len(lost) - 20:,} more only in A" in shown
    with pytest.raises(StoreError):
        plan_diff(catalogue(), path, tmp_path / "none")
