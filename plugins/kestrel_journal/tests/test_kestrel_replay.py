"""Replay against journals that the real code, or a reader written from the facts page, has read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msgstore_kestrel_journal import replay
from msgstore_kestrel_journal.files import queue_files, queue_names

VECTORS = json.loads((Path(__file__).parents[3] / "tests/data/vectors/kestrel.json").read_text())
BY_NAME = {vector["name"]: vector for vector in VECTORS}


def unpack(vector: dict, directory: Path) -> Path:
    for name, content in vector["journal_files"].items():
        (directory / name).write_bytes(bytes.fromhex(content))
    return directory


def state_of(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Content, time of modification and time of change of each file. Reading may change the time of access."""
    found = {path.name: path.stat() for path in directory.iterdir()}
    return {name: ((directory / name).read_bytes(), its.st_mtime_ns, its.st_ctime_ns) for name, its in found.items()}


@pytest.mark.parametrize("name", BY_NAME)
def test_vector(name, tmp_path):
    vector = BY_NAME[name]
    before = state_of(unpack(vector, tmp_path))
    found = replay(tmp_path, vector["queue"], now_ms=vector["now_ms"]).to_json()
    assert json.loads(json.dumps(found)) == vector["expected"]
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("name", [name for name in BY_NAME if "expected_if_opcode_8_is_state_dump" in BY_NAME[name]])
def test_vector_with_state_dump(name, tmp_path):
    vector = BY_NAME[name]
    found = replay(unpack(vector, tmp_path), vector["queue"], now_ms=vector["now_ms"], state_dump=True).to_json()
    assert json.loads(json.dumps(found)) == vector["expected_if_opcode_8_is_state_dump"]


def test_reservation_takes_xid_of_item_in_another_file(tmp_path):
    add_xid = b"\x07" + (9).to_bytes(4, "little") + (17).to_bytes(4, "little") + bytes(16) + b"x"
    (tmp_path / "q.5").write_bytes(add_xid)
    (tmp_path / "q").write_bytes(b"\x03")
    assert replay(tmp_path, "q").state.opened.keys() == {9}


def test_files_of_a_queue():
    last, too_high = f"q.{2**63 - 1}", f"q.{2**63}"
    names = [last, too_high, "q", "q.2", "q.10", "q.3.pack", "q~~1", "q.x", "q.01", "q+c", "q+c.5", "qq", "job.1"]
    found = queue_files(names, "q")
    assert [name for name, _ in found.order] == ["q.3", "q.10", last, "q"]
    assert found.replaced == ("q.2",)
    assert found.temporary == ("q~~1",)
    assert found.foreign == ("q.01", too_high, "q.x")
    assert queue_names(names) == ["job", "q", "q+c", "qq"]
