"""What a broker's directory holds beside its message stores: every verb that reads names it, and ends with 3."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import DATA, command, counts_file, json_of

VHOSTS = DATA / "rabbitmq-3.10" / "clean" / "msg_stores" / "vhosts"
VHOST = VHOSTS / "14049IPWY5WMKYX4P32YLNPMV"
VERBS: dict[str, Callable[[Path, Path], list[object]]] = {
    **{verb: lambda path, _, verb=verb: [verb, path] for verb in ("scan", "map", "verify", "scrub", "inventory")},
    **{verb: lambda path, room, verb=verb: [verb, path, room / "to"] for verb in ("salvage", "export")},
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
