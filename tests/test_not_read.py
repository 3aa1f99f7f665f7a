"""What a broker's directory holds beside its message stores: every verb that reads names it, and ends with 3."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from msgstore.jobs.inputs import find_inputs
from support import DATA, catalogue, command, counts_file, json_of

CLEAN = DATA / "rabbitmq-3.10" / "clean"
VHOSTS = CLEAN / "msg_stores" / "vhosts"
VHOST = VHOSTS / "14049IPWY5WMKYX4P32YLNPMV"
STORE = VHOST / "msg_store_persistent"

Verb = Callable[[Path, Path], list[object]]
"""Of the directory, and of one in which there is room."""


def _deltas(room: Path) -> Path:
    """Counts with which everything agrees."""
    return counts_file(room / "deltas.csv", [(bytes(16), 0)])


VERBS: dict[str, Verb] = {
    "scan": lambda path, _: ["scan", path],
    "map": lambda path, _: ["map", path],
    "verify": lambda path, _: ["verify", path],
    "scrub": lambda path, _: ["scrub", path],
    "inventory": lambda path, _: ["inventory", path],
    "salvage": lambda path, room: ["salvage", path, room / "to"],
    "export": lambda path, room: ["export", path, room / "to"],
    "migrate": lambda path, room: ["migrate", path, room / "to", "--to", "v2"],
    "reconcile": lambda path, room: ["reconcile", path, "--deltas", _deltas(room)],
    "diff": lambda path, _: ["diff", path, path],
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
    for name, size in (
        ("quorum/rabbit@here/00000001.wal", 820),
        ("quorum/rabbit@here/names.dets", 5904),
        ("quorum/rabbit@here/ORDERSBNMU33V2OW5A/00000002.segment", 2372),
        ("stream/orders_clicks_1795423140569518962/00000000000000000000.index", 8),
        ("stream/orders_clicks_1795423140569518962/00000000000000000000.segment", 70),
        ("coordination/rabbit@here/meta.dets", 5930),
        ("schema.DAT", 100),
    ):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(bytes(size))
    return top


def test_verb_on_vhost_names_queues_and_exits_3(tmp_path):
    queues = VHOST / "queues"
    shown = command(*VERBS["inventory"](VHOST, tmp_path), code=3).stdout
    for what in ("queue indexes", "queue stores"):
        assert [line for line in shown.splitlines() if line.startswith(f"{queues} ") and what in line], f"{what} are not named"


@pytest.mark.parametrize("verb", VERBS)
def test_verb_on_node_emits_all_as_json(verb, node, tmp_path):
    queues = node / "msg_stores" / "vhosts" / VHOST.name / "queues"
    assert not_read(*VERBS[verb](node, tmp_path)) == {
        (str(queues), "queue indexes"): total(queues, "*.idx", "*.qi", "journal.jif"),
        (str(queues), "queue stores"): total(queues, "*.qs"),
        (str(node / "quorum"), "quorum queues"): (2, 820 + 2372),
        (str(node / "stream"), "streams"): (2, 78),
    }


@pytest.mark.parametrize("verb", VERBS)
def test_store_given_directly_is_alone(verb, tmp_path):
    assert "not read" not in command(*VERBS[verb](STORE, tmp_path)).stdout


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "migrate"])
def test_damage_beats_what_was_not_read(verb, node, tmp_path):
    segment = node / "msg_stores" / "vhosts" / VHOST.name / STORE.name / "0.rdq"
    segment.write_bytes(segment.read_bytes() + b"\0\0\0\1torn")
    assert str(node / "quorum") in command(*VERBS[verb](node, tmp_path), code=1).stdout


def test_glob_of_vhosts_names_their_queues():
    found = not_read("inventory", VHOSTS / "*")
    assert {path for path, _ in found} == {str(vhost / "queues") for vhost in VHOSTS.iterdir()}
    command("inventory", VHOSTS / "*" / "msg_store_persistent")  # a glob of stores searches no siblings


def test_tree_of_own_stores_exits_0(tmp_path):
    for name in ("queues", "quorum", "stream"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        command("put", tmp_path / "tree" / name, "00" * 16)
    assert "not read" not in command("inventory", tmp_path / "tree").stdout


def test_one_directory_given_twice_counts_once(node):
    once, twice = (find_inputs(catalogue(), paths).not_read for paths in ([node], [node, node, node / "msg_stores"]))
    assert once == twice


@pytest.mark.parametrize("verb", ["info", "ls"])
def test_verb_of_one_store_names_those_beneath(verb, node):
    result = command(verb, node, code=2)
    assert str(node / "quorum") in result.stderr
    assert f"{VHOST.name}/msg_store_persistent" in result.stderr


def test_verify_of_several_stores_refuses_counts(node, tmp_path):
    command("verify", node, "--refcounts", _deltas(tmp_path), code=2)
