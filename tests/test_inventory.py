"""Jobs that only read: inventory and diff of real directories, and what every verb names that no verb reads.

A broker's directory holds more than message stores. Every verb that reads names it, and ends with 3.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import msgstore
from msgstore.contract import ConfigError, StoreError
from msgstore.jobs.diff import DiffReport, plan_diff
from msgstore.jobs.inventory import InventoryReport, plan_inventory
from msgstore.scan import FormatSet
from support import (
    ACME_CELLS,
    DATA,
    DIRECTORIES,
    RealDirectory,
    catalogue,
    command,
    counts_file,
    filled,
    flip,
    json_of,
    records_of,
    run_job,
)

# -- inventory ----------------------------------------------------------------------------------------------------------------


STORES = sorted({path.parent for path in DATA.rglob("*.rdq")} | {path.parent for path in DATA.rglob("*.sqs")})


def take(*sources: Path, counts: Path | None = None, processes: int = 1) -> InventoryReport:
    return run_job(plan_inventory(catalogue(), list(sources), time.time(), counts=counts), processes)


def live_in(segments) -> dict[str, tuple[int, int]]:
    """File name to the number and bytes of its live records, as an open store has them."""
    return {segment.file: (segment.live_count, segment.live_bytes) for segment in segments}


def live_of(report) -> dict[str, tuple[int, int]]:
    return {Path(segment.path).name: (segment.live, segment.live_bytes) for segment in report.segments()}


def test_inventory_of_every_directory_is_its_scan():
    report = take(DATA, processes=2)
    assert [Path(store.path) for store in report.stores] == STORES
    scans = {line["path"]: line for line in json_of("scan", *STORES, code=None)}
    assert len(scans) == len(list(report.segments())) > 50
    damaged = Counter(spot.path for spot in report.damage)
    for found in report.segments():
        scan = scans[found.path]
        assert (found.format, found.size, found.state) == (scan["format"], scan["size"], scan["end"]["state"])
        assert found.types == scan["records_by_name"]
        counted = {
            "records": (found.records, found.record_bytes),
            "holes": (found.holes, found.hole_bytes),
            "duplicates": (found.duplicates, found.duplicate_bytes),
        }
        assert counted == {what: (len(scan[what]), sum(row["size"] for row in scan[what])) for what in counted}
        parts = found.header + found.record_bytes + found.hole_bytes + found.duplicate_bytes + found.damaged
        assert parts == found.size
        bad_header = scan["header"] not in (None, "ok")
        assert bool(damaged[found.path]) == (scan["end"]["state"] != "clean" or bool(scan["damage"]) or bad_header)
    summary = report.as_json()
    assert summary["size"] == sum(scan["size"] for scan in scans.values())
    assert summary["records"] == sum(len(scan["records"]) for scan in scans.values())


@pytest.mark.parametrize("name", DIRECTORIES)
def test_counts_show_what_an_opening_finds_alive(name, tmp_path):
    real = RealDirectory.load(name)
    path = real.copy(tmp_path)
    report = take(path, counts=counts_file(tmp_path / "counts.csv", real.refcounts.items()))
    unknown = take(path)
    assert (unknown.stores[0].counts, unknown.as_json()["live"]) == ("", None)
    msgstore.open_store(real.copy(tmp_path / "dirty"), adopt=True, index="ets", format="v2").abandon()
    assert {segment.live for segment in take(tmp_path / "dirty").segments()} == {None}
    with msgstore.open_store(path, mode="r", refcounts=real.refcounts.items()) as store:
        truth, entries = live_in(store.segments()), list(store.entries())
    assert live_of(report) == truth
    assert not any(segment.quarantined for segment in report.segments())  # a write that was cut off is no damage
    assert report.stores[0].counts == "given"
    assert sum(segment.live for segment in report.segments()) == len(entries) == len(real.live)


def test_own_counts_of_store_are_used_and_forecast_holds(index, tmp_path):
    real = RealDirectory.load("v2_clean")
    path = real.copy(tmp_path)
    keys = {"index": index, "format": "v2", "gc_interval": 0, "adopt": True}
    with msgstore.open_store(path, **keys, refcounts=real.refcounts.items()) as store:
        entries = list(store.entries())
        first = [entry for entry in entries if entry.number == entries[0].number]
        with store.client() as client:
            for entry in first[: len(first) * 3 // 4]:
                client.remove([entry.msg_id] * entry.references)
        store.flush()
        truth = live_in(store.segments())
        if index == "ets":
            assert take(path).as_json()["live"] is None
        else:  # LMDB opens its files once in a process
            program = [sys.executable, "-m", "msgstore", "inventory", "--json", path]
            beside = subprocess.run(program, capture_output=True, text=True, check=True)
            assert json.loads(beside.stdout.splitlines()[-1])["live"] == sum(live for live, _ in truth.values())
    report = take(path)
    assert report.stores[0].counts == "own"
    assert live_of(report) == truth
    half = next(policy for policy in report.policies() if policy["name"] == "half-empty")
    assert half["steps"] == {"compact": 1}
    before = sum(file.stat().st_size for file in path.glob("*.sqs"))
    with msgstore.open_store(path, gc="half-empty") as store:
        store.compact()
    gained = before - sum(file.stat().st_size for file in path.glob("*.sqs"))
    assert abs(gained - half["gives_back"]) <= 64


def test_damaged_store_has_no_more_live_than_scanned(index, tmp_path):
    with msgstore.open_store(tmp_path / "s", index=index) as store, store.client() as client:
        client.write_many((bytes([n]) * 16, bytes(3000)) for n in range(4))
        store.flush()
        second = sorted(entry.offset for entry in store.entries())[1]
    with (tmp_path / "s" / "0.sqs").open("r+b") as file:
        file.seek(second)
        file.write(b"\xff" * 8)
    (found,) = take(tmp_path / "s").segments()
    assert (found.records, found.live, found.live_bytes, found.garbage) == (1, 1, found.record_bytes, 0)


def test_copies_are_garbage_and_stores_are_apart(tmp_path):
    real = RealDirectory.load("v2_clean")
    one, other = real.copy(tmp_path / "one"), real.copy(tmp_path / "other")
    newest = max(one.glob("*.sqs"), key=lambda path: int(path.stem))
    shutil.copy(newest, one / f"{int(newest.stem) + 1}.sqs")
    mine, theirs = take(one, other, counts=counts_file(tmp_path / "counts.csv", real.refcounts.items())).stores
    assert sum(s.live for s in mine.segments) == sum(s.live for s in theirs.segments) == len(real.live)
    copied = next(s for s in mine.segments if s.path == str(newest))
    assert (copied.live, copied.garbage) == (0, copied.record_bytes + copied.hole_bytes)


def test_unreadable_segment_is_damage_and_deleted_is_gone(tmp_path):
    path = RealDirectory.load("v2_clean").copy(tmp_path)
    job = plan_inventory(catalogue(), [path], time.time())
    (path / "0.sqs").unlink()
    (path / "1.sqs").unlink()
    (path / "1.sqs").mkdir()
    report = run_job(job)
    assert report.gone == 1
    assert [(spot.path, spot.reason) for spot in report.damage] == [(str(path / "1.sqs"), "unreadable: is a directory")]
    assert {segment.state for segment in report.segments()} == {"clean", "unreadable"}
    assert "no store would read it: it was deleted" in report.stores[0].unasked
    (path / "1.sqs").rmdir()
    (path / "2.sqs").unlink()
    report = run_job(job)
    assert (report.gone, list(report.segments())) == (3, [])


def test_policies_of_a_configuration_are_asked(tmp_path):
    """With the options that a store has there, beside those of the examples, each once."""
    policy = '{ use = "half-empty", garbage = 0.125 }'
    tables = [f'[stores.{name}]\npath = "{name}"\ngc = {gc}\n' for name, gc in (("a", policy), ("b", policy), ("c", '"never"'))]
    (tmp_path / "msgstore.toml").write_text("".join(tables), encoding="utf-8")
    store = filled(tmp_path / "a")
    options = {
        key: [(one["name"], one["options"]) for one in json_of("inventory", store, *more)[-1]["policies"]]
        for key, more in {"": [], "file": ["--config", tmp_path / "msgstore.toml"]}.items()
    }
    assert sorted(options["file"]) == sorted([*options[""], ("half-empty", "garbage = 0.125")])
    shown = command("inventory", store, "--config", tmp_path / "msgstore.toml").stdout
    assert shown.count("garbage = 0.125") == 1
    (tmp_path / "msgstore.toml").write_text('[stores.a]\npath = "a"\ngc = "nope"\n[stores.b]\ngc = "never"\n', encoding="utf-8")
    done = command("inventory", store, "--config", tmp_path / "msgstore.toml")
    assert "no installed plugin provides the GC policy 'nope'" in done.stdout
    assert re.search(r"\[stores\.b\]: the .*path.* The policy of this store is not asked", done.stderr)


def test_command_shows_segments_store_and_policies(tmp_path):
    arguments = ["inventory", "--processes", "1"]
    lines = json_of(*arguments, DATA / "msg-store" / "v2_dirty_torn", code=1)
    assert [line["kind"] for line in lines] == ["segment", "segment", "store", "damage", "summary"]
    assert lines[-1]["states"] == {"clean": 1, "torn": 1}
    assert {policy["name"] for policy in lines[-1]["policies"]} == set(catalogue().names("gc"))
    assert "total" in command(*arguments, DATA / "msg-store", code=1).stdout
    assert "no damage" in command(*arguments, DATA / "msg-store" / "v2_clean").stdout
    broken = filled(tmp_path / "broken")
    flip(broken / "0.sqs", 64)
    assert "'msgstore salvage' also finds the intact records after it." in command(*arguments, broken, code=1).stdout
    own = json_of(*arguments, filled(tmp_path / "own", **ACME_CELLS["ets-v2-audit"].keys))[-1]
    assert (own["types"], own["live"]) == ({"audit": 20}, 20)
    with pytest.raises(ConfigError, match="nowhere: there is no such file of counts"):
        plan_inventory(catalogue(), [DATA], time.time(), counts=tmp_path / "nowhere")


# -- diff ---------------------------------------------------------------------------------------------------------------------


SOURCE = {name: DATA / "msg-store" / name / "store" for name in DIRECTORIES}


def compare(a: Path, b: Path, processes: int = 1) -> DiffReport:
    return run_job(plan_diff(catalogue(), a, b), processes)


def truth(directory: Path) -> dict[bytes, str]:
    """Id to the hash of its body, by a scan of each segment: the highest number's first record counts."""
    found: dict[bytes, str] = {}
    for row in records_of(directory):
        found.setdefault(row["id"], hashlib.sha256(row["body"]).hexdigest())
    return found


@pytest.fixture(scope="module")
def truths() -> dict[str, dict[bytes, str]]:
    return {name: truth(path) for name, path in SOURCE.items()}


def write_segment(path: Path, messages: list[tuple[bytes, bytes]]) -> None:
    form = FormatSet(catalogue()).by_name("v2").format
    data, _ = form.encode([i for i, _ in messages], [body for _, body in messages])
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(form.header + data)


@pytest.mark.parametrize("a", DIRECTORIES)
def test_diff_of_real_directories_is_what_scans_say(a, truths):
    left = truths[a]
    assert RealDirectory.load(a).live.items() <= left.items()
    for b, right in truths.items():
        report = compare(SOURCE[a], SOURCE[b])
        both = left.keys() & right.keys()
        assert report.ids == {
            "differing": sorted(i for i in both if left[i] != right[i]),
            "only_a": sorted(left.keys() - right.keys()),
            "only_b": sorted(right.keys() - left.keys()),
        }
        assert report.same == sum(left[i] == right[i] for i in both)
        assert (report.a.messages, report.b.messages) == (len(left), len(right))
        assert report.agrees == (left == right and "torn" not in a and "torn" not in b)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_first_copy_of_highest_segment_counts(processes, tmp_path, monkeypatch):
    """On each side, whatever the other copies hold, whichever process reads them, and of whatever type the records are."""
    monkeypatch.setattr("msgstore.jobs.tasks.group_into_tasks.__defaults__", (1,))
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
    arguments, all_ids = ["diff", SOURCE["v2_clean"], path], truth(path).keys()
    assert f"{len(all_ids):,} the same, 0 with another body, 0 only in A, 0 only in B" in command(*arguments).stdout
    (path / "1.sqs").unlink()
    lost = sorted(all_ids - truth(path).keys())
    *lines, summary = json_of(*arguments, code=1)
    assert lines == [{"kind": "only_a", "id": msg_id.hex()} for msg_id in lost]
    assert (summary["only_a"], summary["only_b"], summary["differing"]) == (len(lost), 0, 0)
    shown = command(*arguments, code=1).stdout
    assert shown.count("only in A: ") == 20
    assert f"... and {len(lost) - 20:,} more only in A" in shown
    with pytest.raises(StoreError):
        plan_diff(catalogue(), path, tmp_path / "none")


# -- what is not read ---------------------------------------------------------------------------------------------------------


VHOSTS = DATA / "rabbitmq-3.10" / "clean" / "msg_stores" / "vhosts"
VHOST = VHOSTS / "14049IPWY5WMKYX4P32YLNPMV"
VERBS: dict[str, Callable[[Path, Path], list[object]]] = {
    **{verb: lambda path, _, verb=verb: [verb, path] for verb in ("scan", "map", "verify", "scrub", "inventory")},
    "salvage": lambda path, room: ["salvage", path, room / "to"],
    "migrate": lambda path, room: ["migrate", path, room / "to", "--to", "v2"],
    "reconcile": lambda path, room: ["reconcile", path, "--deltas", counts_file(room / "d.csv", [(bytes(16), 0)])],
    "diff": lambda path, _: ["diff", path, path],
}
"""The arguments, for a directory and one in which there is room. The counts agree with everything."""
FILES = {
    "quorum/rabbit@here/00000001.wal": 820,
    "quorum/rabbit@here/names.dets": 5904,
    "quorum/rabbit@here/ORDERSBNMU33V2OW5A/00000002.segment": 2372,
    "stream/orders_clicks_1795423140569518962/00000000000000000000.index": 8,
    "stream/orders_clicks_1795423140569518962/00000000000000000000.segment": 70,
    "coordination/rabbit@here/meta.dets": 5930,
    "schema.DAT": 100,
}


def not_read(*arguments: object) -> dict[tuple[str, str], tuple[int, int]]:
    """(path, what) to (files, bytes), of a command that ends with 3."""
    rows = [row for row in json_of(*arguments, code=3) if row.get("kind") == "not_read"]
    return {(row["path"], row["what"]): (row["files"], row["size"]) for row in rows}


def total(directory: Path, *patterns: str) -> tuple[int, int]:
    """(files, bytes) beneath a directory."""
    sizes = [path.stat().st_size for pattern in patterns for path in directory.rglob(pattern) if path.is_file()]
    return len(sizes), sum(sizes)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node with one vhost, a quorum queue and a stream."""
    top = tmp_path / "node"
    shutil.copytree(VHOST, top / "msg_stores" / "vhosts" / VHOST.name)
    for name, size in FILES.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(bytes(size))
    return top


@pytest.mark.parametrize("verb", VERBS)
def test_verb_names_what_it_does_not_read(verb, node, tmp_path):
    """All of a node; nothing of a store that is given directly. Damage is the more important result."""
    vhost = node / "msg_stores" / "vhosts" / VHOST.name
    queues = vhost / "queues"
    assert not_read(*VERBS[verb](node, tmp_path)) == {
        (str(queues), "queue indexes"): total(queues, "*.idx", "*.qi", "journal.jif"),
        (str(queues), "queue stores"): total(queues, "*.qs"),
        (str(node / "quorum"), "quorum queues"): (2, 820 + 2372),
        (str(node / "stream"), "streams"): (2, 78),
    }
    shutil.rmtree(tmp_path / "to", ignore_errors=True)
    assert "not read" not in command(*VERBS[verb](vhost / "msg_store_persistent", tmp_path)).stdout
    if verb != "migrate":
        shutil.rmtree(tmp_path / "to", ignore_errors=True)
        segment = vhost / "msg_store_persistent" / "0.rdq"
        segment.write_bytes(segment.read_bytes() + b"\0\0\0\1torn")
        assert str(node / "quorum") in command(*VERBS[verb](node, tmp_path), code=1).stdout


def test_vhosts_and_globs_name_their_queues(tmp_path, node):
    """A directory counts once. The names of directories alone are no sign of a broker."""
    shown = command("inventory", VHOST, code=3).stdout.splitlines()
    for what in ("queue indexes", "queue stores"):
        assert any(line.startswith(f"{VHOST / 'queues'} ") and what in line for line in shown), f"{what} are not named"
    assert {path for path, _ in not_read("inventory", VHOSTS / "*")} == {str(vhost / "queues") for vhost in VHOSTS.iterdir()}
    command("inventory", VHOSTS / "*" / "msg_store_persistent")  # a glob of stores searches no siblings
    assert not_read("inventory", node) == not_read("inventory", node, node, node / "msg_stores")
    for name in ("queues", "quorum", "stream"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        command("put", tmp_path / "tree" / name, "00" * 16)
    assert "not read" not in command("inventory", tmp_path / "tree").stdout


def test_verbs_of_one_store_name_those_beneath(node, tmp_path):
    for verb in ("info", "ls"):
        result = command(verb, node, code=2)
        assert str(node / "quorum") in result.stderr
        assert f"{VHOST.name}/msg_store_persistent" in result.stderr
    command("verify", node, "--refcounts", counts_file(tmp_path / "d.csv", [(bytes(16), 0)]), code=2)
