"""The source on damaged nodes: nothing is invented, what is lost is named, and a repaired copy has the rest."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from msgstore.contract import SourceDamage, StoreError
from msgstore_rabbitmq_source import layout, naming, opening
from msgstore_rabbitmq_source.opening import open_node
from msgstore_rabbitmq_source.queue_index import likely_segment_entries
from msgstore_rabbitmq_source.repair import repair_node
from rabbitmq_files import index_v1, names
from rabbitmq_files.node_tables import DurableQueue
from rabbitmq_nodes import DATA, checksums, facts, listed, rows, unpack
from support import command

CLEAN = DATA / "rabbitmq-3.10/clean"
MANIFEST = json.loads((CLEAN / "manifest.json").read_text())
VHOST = Path("msg_stores/vhosts") / names.vhost_directory(b"/")
ORDERS = Path("msg_stores/vhosts") / names.vhost_directory(b"orders")
STORE = VHOST / "msg_store_persistent"
WHOLE = {name: facts(listed(found)) for name, found in rows(CLEAN)[0].items() if listed(found)}
"""The messages of each queue of the sound node."""
GONE = {one["sha256"] for one_queue in MANIFEST["queues"] for one in one_queue.get("gone", [])}
"""Bodies of acknowledged messages, which a damaged index may bring back."""
ALL = sum(map(len, WHOLE.values()))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return shutil.copytree(CLEAN, tmp_path / "node")


def queue(vhost: Path, name: str) -> Path:
    return vhost / "queues" / names.queue_directory(b"/" if vhost == VHOST else b"orders", name.encode())


def change(file: Path, offset: int, new: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(new)


def wrong_sizes(node: Path) -> None:
    """Five sizes: too large, too small, over two records, zero, and an end mark."""
    segment = node / STORE / "0.rdq"
    data, at, starts = segment.read_bytes(), 0, []
    while at < len(data):
        starts.append(at)
        at += 9 + int.from_bytes(data[at : at + 8], "big")
    sizes = [int.from_bytes(data[at : at + 8], "big") for at in starts]
    change(segment, starts[1] + 2, b"\x7f")
    change(segment, starts[4], (sizes[4] - 40).to_bytes(8, "big"))
    change(segment, starts[7], (sizes[7] + 9 + sizes[8]).to_bytes(8, "big"))
    change(segment, starts[11], bytes(8))
    change(segment, starts[13] - 1, b"\0")


def stored_body(node: Path) -> None:
    """A bit in a live message of a ``.qs`` file, which has a checksum."""
    change(node / queue(VHOST, "fan.b") / "0.qs", 0xA05 + 8 + 200, b"\x00")


UNNOTICED = ""
"""Text of damage that nothing shows: a record of a message store has no checksum."""
Damage = Callable[[Path], object]
DAMAGES: dict[str, tuple[Damage, int, str]] = {
    "wrong sizes": (wrong_sizes, 0, "the message was read by its own length"),
    "stored body": (stored_body, 1, "its checksum differs"),
    "no journal": (lambda node: (node / queue(VHOST, "fan.c") / "journal.jif").unlink(), 3, "in its index, and"),
    "journal cut": (lambda node: change_size(node / queue(VHOST, "fan.c") / "journal.jif", -30), 2, "bytes that are no entry"),
    "index cut": (lambda node: change_size(node / queue(VHOST, "fan.a") / "0.idx", -3), 1, "bytes that are no entry"),
    "queue gone": (lambda node: shutil.rmtree(node / queue(VHOST, "fan.a")), 10, "is missing, and had 10 persistent"),
    "no .qi": (lambda node: (node / queue(VHOST, "events.v2") / "0.qi").unlink(), 16, "0.qi is missing"),
    "short .qi": (
        lambda node: change_size(node / queue(VHOST, "events.v2") / "0.qi", -32 * 9), 5, "ends before the entries of the last",
    ),
    "no .qs": (lambda node: (node / queue(VHOST, "events.v2") / "0.qs").unlink(), 13, "in a .qs file that is missing"),
    "segment gone": (lambda node: (node / STORE / "0.rdq").unlink(), 9, "segment 0 is missing: it had"),
    "store gone": (lambda node: shutil.rmtree(node / ORDERS / "msg_store_persistent"), 15, "in no shared store"),
    "tables of a stop": (lambda node: change(node / VHOST / "recovery.dets", 0, bytes(4096)), 0, "no header of a DETS file"),
    "vhost name": (lambda node: change(node / VHOST / ".vhost", 0, b"x"), 0, "is not that of the vhost 'x'"),
    "queue name": (
        lambda node: change(node / queue(VHOST, "fan.a") / ".queue_name", 16, b"b"), 10, "is not that of the queue 'ban.a'",
    ),
    "record id": (lambda node: change(node / STORE / "1.rdq", 8, b"\xaa\xaa"), 4, "in no shared store"),
    "record body": (lambda node: change(node / STORE / "1.rdq", 2000, b"\xaa"), 4, UNNOTICED),
    "index entry": (lambda node: change(node / queue(VHOST, "fan.b") / "0.qi", 64 + 32 * 7, b"\x07"), 1, "no broker writes"),
    "index header": (
        lambda node: change(node / queue(ORDERS, "orders.audit") / "0.qi", 0, b"RABB"), 16, "begins with 52 41 42 42",
    ),
    "stored cut": (lambda node: change_size(node / queue(VHOST, "dead2.q") / "0.qs", -9), 1, "are not in the file"),
    "stored header": (
        lambda node: change(node / queue(VHOST, "fan.b") / "0.qs", 0, b"XXXX"), 0, "begins with 58 58 58 58 02",
    ),
    "journal of zeros": (lambda node: (node / queue(VHOST, "fan.c") / "journal.jif").write_bytes(bytes(999)), 3, "only zeros"),
    "index middle": (
        lambda node: change(node / queue(VHOST, "fan.a") / "0.idx", 36, bytes(2) + b"\x3f"), 1, "bytes that are no entry",
    ),
    "no .config": (lambda node: (node / VHOST / ".config").unlink(), 0, UNNOTICED),
}  # fmt: skip
"""Name to the damage to do, the number of messages that it costs at most, and a text of the report."""


def change_size(file: Path, by: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size + by)


def compared(path: Path, *, wrong: int = 0) -> tuple[int, list[SourceDamage]]:
    """Return the number of lost messages, and the damage. None is invented but ``wrong``, and each queue is in order."""
    found, damage = rows(path)
    invented = 0
    for name, all_of in found.items():
        whole = WHOLE.get(name, [])
        sure = facts([row for row in listed(all_of) if row["certainty"] == "certain"])
        known = [fact for fact in sure if fact in whole]
        remaining = iter(whole)
        assert all(fact in remaining for fact in known), f"{name}: out of order"
        invented += 0 if names.HASHED.fullmatch(str(name[1])) else len(sure) - len(known)
    assert invented <= wrong
    got = sum(len(set(WHOLE[name]) & set(facts(listed(found.get(name, []))))) for name in WHOLE)
    lost = sum(len(set(one)) for one in WHOLE.values()) - got
    return lost, damage


HIDING = {
    "no journal", "journal cut", "queue gone", "no .qi", "no .qs", "segment gone", "queue name", "vhost name",
    "tables of a stop",
}  # fmt: skip
"""Damages that hide others: a file that another damage needs is gone."""
ALONE = {*HIDING, "wrong sizes", "stored body", "store gone", "index entry"}
"""Damages that the fast suite tries by themselves, too."""
LEFT_IN_A_COPY = ("segment", "the queue directory", "in the queue index", "the directory is not", "memory only")
"""Beginnings of the damage that a repaired copy may have."""


def check_repair(node: Path, copy: Path, lost: int, *, wrong: int) -> None:
    """Check that a repaired copy has the same messages, and no damage in them."""
    before = checksums(node)
    with open_node(node) as source:
        repair_node(source, node, copy)
    assert checksums(node) == before
    after, damage = compared(copy, wrong=wrong)
    assert after == lost
    reasons = [span.reason for span in damage if "no header of a DETS" not in span.reason]
    assert [reason for reason in reasons if not reason.startswith(LEFT_IN_A_COPY)] == []
    assert not list(copy.parent.glob(".*"))


@pytest.mark.parametrize("name", [name if name in ALONE else pytest.param(name, marks=pytest.mark.slow) for name in DAMAGES])
def test_damage_is_named_and_repaired_as_far_as_possible(node, name, tmp_path):
    make, most, text = DAMAGES[name]
    make(node)
    wrong = most if text == UNNOTICED else 0
    lost, damage = compared(node, wrong=wrong)
    assert lost <= most
    assert any(text in span.reason for span in damage) or text == UNNOTICED, damage
    for span in damage:
        assert (node / span.file).is_file()
        assert 0 <= span.offset <= (node / span.file).stat().st_size
    check_repair(node, tmp_path / "copy", lost, wrong=wrong)


def test_all_damages_of_one_node_are_named_and_repaired(node, tmp_path):
    damages = {name: DAMAGES[name] for name in DAMAGES if name not in HIDING}
    for make, _, _ in damages.values():
        make(node)
    wrong = DAMAGES["record body"][1]
    lost, damage = compared(node, wrong=wrong)
    for name, (_, _, text) in damages.items():
        assert any(text in span.reason for span in damage), name
    assert lost <= sum(most for _, most, _ in damages.values())
    check_repair(node, tmp_path / "copy", lost, wrong=wrong)


def test_repair_refuses_a_directory_that_exists_or_is_in_the_node(node, tmp_path):
    for copy, text in ((tmp_path, "exists"), (node / "copy", "in which nothing is written")):
        with open_node(node) as source, pytest.raises(StoreError, match=text):
            repair_node(source, node, copy)


def test_repair_names_what_it_cannot_copy_and_deletes_nothing(node, tmp_path):
    (node / "link").symlink_to(node / STORE)  # a copy would share it with the node
    assert f"{node / 'link'}: cannot be copied: a symbolic link" in run("repair", node, tmp_path / "copy", code=2)
    (node / "link").unlink()
    (tmp_path / ".copy.msgstore-repair").mkdir()
    (tmp_path / ".copy.msgstore-repair/own").touch()
    assert "Delete it if none runs" in run("repair", node, tmp_path / "copy", code=2)
    assert (tmp_path / ".copy.msgstore-repair/own").exists()


def let_reads_fail(monkeypatch: pytest.MonkeyPatch, fails: Callable[[Path], bool], error: int) -> None:
    """Let the source fail to read some files."""
    read = opening._read

    def failing(files, path):
        if fails(path):
            raise OSError(error, os.strerror(error), str(path))
        return read(files, path)

    monkeypatch.setattr(opening, "_read", failing)


def test_tables_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    node = unpack(tmp_path)
    let_reads_fail(monkeypatch, lambda path: path.suffix in (".LOG", ".DCD", ".DCL"), errno.EACCES)
    assert "rabbit_vhost.DCD: cannot be read: Permission denied" in run("definitions", node, code=2)


def test_directory_that_cannot_be_entered_costs_its_files_only(node, monkeypatch):
    place = node / queue(VHOST, "fan.a")

    def failing(path, **keys):
        if Path(path).parent == place:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return os.lstat(path)

    monkeypatch.setattr(layout.os, "stat", failing)
    lost, damage = compared(node)
    assert lost == 10
    assert any("cannot be examined: Permission denied" in span.reason for span in damage)


def test_links_and_special_files_are_named(node):
    shutil.move(node / ORDERS, node / "elsewhere")
    (node / ORDERS).symlink_to(node / "elsewhere")
    os.mkfifo(node / VHOST / "pipe")
    reasons = {span.file: span.reason for span in rows(node)[1]}
    assert "a symbolic link, and is not read" in reasons[str(ORDERS)]
    assert "neither a file nor a directory" in reasons[str(VHOST / "pipe")]


UNREADABLE = {
    "segment": (STORE / "0.rdq", 9),
    "index": (queue(VHOST, "fan.a") / "0.idx", 10),
    "name": (queue(VHOST, "fan.a") / ".queue_name", 10),
    "terms": (VHOST / "recovery.dets", 0),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_file_that_cannot_be_read_costs_its_messages_only(node, name, monkeypatch):
    place, most = UNREADABLE[name]
    let_reads_fail(monkeypatch, lambda path: path == node / place, errno.EIO)
    lost, damage = compared(node)
    assert lost <= most
    assert (str(place), "cannot be read: Input/output error") in {(span.file, span.reason) for span in damage}


def test_table_of_a_sparse_tebibyte_is_not_read(node):
    os.truncate(node / VHOST / "recovery.dets", 2**40)
    lost, damage = compared(node)
    assert lost == 0
    assert any("larger than any that a broker writes" in span.reason for span in damage)


def test_name_that_ends_like_a_priority_is_that_of_the_tables(node, monkeypatch):
    place, name = node / queue(VHOST, "fan.a"), b"fan\0a"
    place = place.rename(place.with_name(names.queue_directory(b"/", name)))
    (place / ".queue_name").write_bytes(names.encode_queue_name(b"/", name, 1))
    assert ("/", "fan") in rows(node)[0]
    monkeypatch.setattr(naming, "durable_queues", lambda _: [DurableQueue(b"/", name, "classic", False, [])])
    assert ("/", "fan\0a") in rows(node)[0]


@pytest.mark.parametrize("count", [index_v1.SEGMENT_ENTRIES, index_v1.OLD_SEGMENT_ENTRIES])
def test_entries_of_a_segment_follow_from_the_acknowledgements(count, tmp_path):
    body = index_v1.encode_body(b"i" * 16, 100)
    for segment in (1, 2):
        entries = b"".join(index_v1.encode_publish(number, body) for number in range(200))
        (tmp_path / f"{segment}.idx").write_bytes(entries)
    marks = (index_v1.encode_journal_mark(2 * count + number, is_acknowledged=True) for number in range(9))
    (tmp_path / "journal.jif").write_bytes(b"".join(marks))
    listed = {"": ["1.idx", "2.idx", "journal.jif"]}
    assert likely_segment_entries(listed, lambda name: (tmp_path / name).read_bytes()) == count


@pytest.mark.parametrize("seeds", [range(4), pytest.param([*range(4, 12), *range(100, 600)], marks=pytest.mark.slow)])
def test_mutated_nodes_are_read_without_a_wrong_message(seeds, tmp_path):
    for seed in seeds:
        node = shutil.copytree(CLEAN, tmp_path / "node")
        what = mutate(node, random.Random(seed))
        try:
            check_mutated(node)
        except Exception as error:
            error.add_note(f"seed {seed}: {what}")
            raise
        shutil.rmtree(node)


def mutate(node: Path, rng: random.Random) -> str:
    """Cut a file, or flip some bits of it, or swap two blocks."""
    files = sorted(file for file in (node / "msg_stores").rglob("*") if file.is_file() and file.stat().st_size)
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    kind = rng.choice(["cut", "bits", "bits", "zeros", "copy"])
    at = rng.randrange(len(data))
    if kind == "cut":
        del data[at:]
    elif kind == "bits":
        for _ in range(rng.choice([1, 1, 3, 50])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "zeros":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    else:
        other = rng.randrange(len(data))
        block = data[at : at + rng.choice([2, 8, 32, 400])]
        data[other : other + len(block)] = block
    file.write_bytes(data)
    return f"{kind} in {file.relative_to(node)}"


def check_mutated(node: Path) -> None:
    """Check that damage has a place, and that what has a checksum is right."""
    known = {fact[0] for all_of in WHOLE.values() for fact in all_of} | GONE
    with open_node(node) as source:
        for info in list(source.queues()):
            for item in source.messages(info.name, 0, None) if info.read else ():
                if isinstance(item, SourceDamage):
                    assert 0 <= item.offset <= (node / item.file).stat().st_size, item
                    continue
                for row, verified in enumerate(item.verified or ()):
                    assert not verified or item.states[row] != "ready" or hashlib.sha256(item.bodies[row]).hexdigest() in known
        for span in source.damage():
            assert 0 <= span.offset <= (node / span.file).stat().st_size, span


def run(*arguments: object, code: int = 0) -> str:
    """Return what a command for a node prints."""
    return command("rabbitmq", *arguments, code=code).output


def test_commands_say_what_is_there(node, tmp_path):
    output = run("check", node)
    assert "stopped cleanly" in output
    assert f"{ALL:,} messages" in output
    wrong_sizes(node)
    assert "0.rdq at" in run("check", node, code=1)
    assert "0.rdq: written anew with" in run("repair", node, tmp_path / "copy", code=1)
    run("check", tmp_path / "copy")


def test_counts_are_the_references_of_the_queues(node):
    counts = [int(line.split(",")[1]) for line in run("counts", node).splitlines()]
    assert (len(counts), sum(counts)) == (52, 69)
    assert len(run("counts", node, "--vhost", "orders").splitlines()) == 9
    assert "has no vhost 'order'" in run("counts", node, "--vhost", "order", code=2)


def test_path_is_the_hashed_directory(node):
    assert run("path", node, "/", "fan.a").strip() == str(node / queue(VHOST, "fan.a"))
    assert run("path", node, "orders").strip() == str(node / ORDERS)
    assert "A queue that never held a message has no directory" in run("path", node, "/", "fan.z", code=1)
    assert len(run("path", DATA / "rabbitmq-3.10/priority_lazy", "/", "prio.v2").splitlines()) == 6


def test_definitions_need_the_tables(node):
    assert "has no tables" in run("definitions", node, code=2)


def test_counts_of_a_damaged_index_say_so(node):
    change(node / queue(VHOST, "fan.a") / "0.idx", 0, bytes(2))
    assert "the counts may be too low" in run("counts", node, code=1)


def test_repair_that_mends_nothing_does_not_say_that_all_is_well(node, tmp_path):
    change(node / VHOST / "recovery.dets", 0, bytes(4096))
    assert "of which none can be mended" in run("repair", node, tmp_path / "copy", code=1)


def test_copy_of_a_vhost_is_named_and_not_read(node):
    for name in (".bak", ".bak2"):
        shutil.copytree(node / VHOST, node / f"{VHOST}{name}")
    lost, damage = compared(node)
    assert lost == 0
    assert sum("another copy of the vhost '/'" in span.reason for span in damage) == 2
