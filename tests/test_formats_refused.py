"""Formats and indexes that fail while segments are collected: no message is lost, and the plugin is named."""

from __future__ import annotations

import functools
import logging
from typing import ClassVar

import attrs
import pytest

import msgstore
from msgstore.contract import Capability, Columns, GapFill, IndexDescriptor, RecordField, SegmentFormatDescriptor
from msgstore.plugins.loader import Provider, Registration
from msgstore.testing import stores
from msgstore_ets_index.index import EtsIndex
from msgstore_format_v2.format import SegmentFormatV2
from support import catalogue, contents, counts

ACME = Provider("acme-odd", "1.2", "odd", "acme_odd.plugin")
HOLES = frozenset({Capability.SELF_DESCRIBING, Capability.COMPACTABLE})


class Switched:
    """``faults``: method to the function that is called in its place, with the object, the method and the arguments."""

    faults: ClassVar[dict] = {}

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        fault = Switched.faults.get(name)
        if fault is None:
            return found
        return lambda *arguments, **options: fault(self, found, *arguments, **options)


class OddFormat(Switched, SegmentFormatV2):
    """Format v2, but for its faults."""

    def fields(self, record):
        return (record[0],)


class OddIndex(Switched, EtsIndex):
    """The index ets, but for its faults."""


@functools.cache
def odd_catalogue():
    """What is installed, and the plugins of acme: ``odd`` is compacted in place, ``copied`` by a copy, ``odds`` is an index."""
    odd = SegmentFormatDescriptor(
        name="odd", contract=(1, 0), factory=f"{__name__}:OddFormat", extension=".odd", generation=3, capabilities=HOLES
    )
    fields = (RecordField("kind", "int"),)
    copied = attrs.evolve(odd, name="copied", extension=".copied", capabilities={Capability.FIELDS}, fields=fields)
    odds = IndexDescriptor(name="odds", contract=(1, 0), factory=f"{__name__}:OddIndex")
    found = [Registration(kind, one, ACME) for kind, one in (("format", odd), ("format", copied), ("index", odds))]
    return attrs.evolve(catalogue(), registrations=(*catalogue().registrations, *found))


@pytest.fixture(autouse=True)
def faults(monkeypatch):
    found = {}
    monkeypatch.setattr(Switched, "faults", found)
    return found


@pytest.fixture
def opened(tmp_path, faults):
    """``opened(format, index)`` opens the store of ``tmp_path``, again and again; at the end all are abandoned."""
    found = []

    def open_it(form, index="ets"):
        keys = {"sync_interval": "1h", "gc_interval": 0, "file_size_limit": 20_000, "format": form, "index": index}
        found.append(stores.open_with(tmp_path, odd_catalogue(), **keys))
        return found[-1]

    yield open_it
    faults.clear()
    for store in found:
        store.abandon()


def fill(store):
    """One sealed segment of 60 messages, with small gaps and a large one in front of what is left, which is returned."""
    bodies = {bytes([number]) * 16: bytes([number]) * (40 + number) for number in range(60)}
    left = {msg_id: body for at, (msg_id, body) in enumerate(bodies.items()) if at in (0, 3, 6, 9) or at > 44}
    with store.client() as client:
        client.write_many(bodies.items())
        store.roll()
        client.write_many([(msg_id, bodies[msg_id]) for msg_id in list(left)[:3]])  # two references each
        client.remove([msg_id for msg_id in bodies if msg_id not in left])
    store.flush()
    return left


def files_of(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name[0].isdigit()}


# -- what a scan says ---------------------------------------------------------------------------------------------------------


def unordered(scan):
    rows, scan.records = sorted(scan.records.rows(), reverse=True), Columns()
    for row in rows:
        scan.records.add(*row)


def scanning(spoil):
    """A fault of ``scan``: what ``spoil`` makes of its records."""

    def scan(_, call, data, **options):
        found = call(data, **options)
        if len(found.records) > 2:
            spoil(found)
        return found

    return scan


def raising(*_, **__):
    raise ZeroDivisionError("of acme")


def nothing(*_, **__):
    return None


SPOILED = {
    "unordered": unordered,
    "overlapping": lambda scan: scan.records.sizes.__setitem__(1, scan.records.sizes[1] + 1),
    "out of bounds": lambda scan: scan.records.sizes.__setitem__(-1, scan.records.sizes[-1] + 10**6),
    "short of ids": lambda scan: scan.records.ids.__delitem__(slice(-3, None)),
    "short of sizes": lambda scan: scan.records.sizes.pop(),
    "no integers": lambda scan: setattr(scan.records, "offsets", [str(offset) for offset in scan.records.offsets]),
    "too early": lambda scan: scan.ended("clean", scan.records.offsets[1]),
}


# -- what else a format says --------------------------------------------------------------------------------------------------


def inside(make):
    """A fault of ``fill_gap``: ``make`` turns the bytes of each write inside the gap into others, or moves them."""

    def fill_gap(_, call, offset, size, records):
        fill = call(offset, size, records)
        return attrs.evolve(fill, inside=[make(at, data) for at, data in fill.inside]) if records else fill

    return "fill_gap", fill_gap


FILLS = {
    "fill_gap gives None": ("fill_gap", nothing),
    "fill_gap writes nothing": ("fill_gap", lambda *_: GapFill()),
    "fill_gap raises": ("fill_gap", raising),
    "fill_gap writes garbage": inside(lambda at, data: (at, b"x" * len(data))),
    "fill_gap writes too little": inside(lambda at, data: (at, data[:-9])),
    "fill_gap writes too much": inside(lambda at, data: (at, data + b"x" * 200)),
    "fill_gap writes elsewhere": inside(lambda at, data: (at + 10**6, data)),
    "fill_gap spoils a byte of a body": inside(lambda at, data: (at, data[:20] + b"\0" + data[21:])),
    "fill_gap turns records round": ("fill_gap", lambda _, call, offset, size, records: call(offset, size, records[::-1])),
    "gap_room gives more than there is": ("gap_room", lambda _, __, offset, size: size + 1),
    "gap_room gives None": ("gap_room", nothing),
    "gap_room raises": ("gap_room", raising),
}
ENCODES = {
    "encode gives None": ("encode", nothing),
    "encode raises": ("encode", raising),
    "encode gives short sizes": ("encode", lambda _, call, ids, bodies: (call(ids, bodies)[0], call(ids, bodies)[1][:-1])),
    "encode gives wrong sizes": (
        "encode",
        lambda _, call, ids, bodies: (call(ids, bodies)[0], [size - 1 for size in call(ids, bodies)[1]]),
    ),
    "encode writes garbage": ("encode", lambda _, call, ids, bodies: call(ids, [b"x" * len(body) for body in bodies])),
    "encode leaves one out": ("encode", lambda _, call, ids, bodies: call(ids[1:], bodies[1:])),
    "encode mixes ids": ("encode", lambda _, call, ids, bodies: call(ids[::-1], bodies)),
}
DECODES = {"decode raises": ("decode", raising), "decode gives None": ("decode", nothing)}
SCANNED = {f"scan is {fault}": ("scan", scanning(spoil)) for fault, spoil in SPOILED.items()}
SCANNED |= {"scan raises": ("scan", raising), "scan gives None": ("scan", nothing)}


# -- indexes ------------------------------------------------------------------------------------------------------------------


def halfway(self, call, ids, old, new):
    call(ids[:3], old[:3], new[:3])
    raising()


def store_garbage(self, call, ids, *_):
    self._entries.update(dict.fromkeys(ids, "anywhere"))
    return len(ids)


def forget(self, call, ids, *_):
    return len([self._entries.pop(msg_id) for msg_id in ids])


RELOCATES = {
    "does nothing": nothing,
    "says that it did, and did nothing": lambda self, call, ids, old, new: len(ids),
    "gives None": lambda self, call, *columns: nothing(call(*columns)),
    "stores other places": lambda self, call, ids, old, new: call(ids, old, [location + (1 << 40) for location in new]),
    "stores garbage": store_garbage,
    "forgets entries": forget,
    "fails halfway": halfway,
}
RELOCATED = {f"relocate {fault}": ("relocate", act) for fault, act in RELOCATES.items()}


# -- migrations ---------------------------------------------------------------------------------------------------------------


def test_migration_between_formats_of_one_generation(opened, tmp_path, caplog):
    """A warning names the fields that the new format does not keep."""
    store = opened("copied")
    left = fill(store)
    store.close()
    store = opened("odd")
    assert {done.outcome for done in store.migrate()} == {"migrated"}
    assert "the format odd does not keep the fields of the migrated records, except what is in bodies: kind" in caplog.text
    assert contents(store) == left
    assert not store.migrate()
    assert {path.suffix for path in tmp_path.iterdir() if path.name[0].isdigit()} == {".odd"}


# -- collections --------------------------------------------------------------------------------------------------------------

COLLECTED = {
    "compaction in place": ("odd", "odd", "ets", SCANNED | FILLS),
    "compaction by copy": ("copied", "copied", "ets", SCANNED | DECODES),
    "migration, whose copy is read and written": ("v1", "odd", "ets", SCANNED | ENCODES),
    "compaction in place, of an odd index": ("v2", "v2", "odds", RELOCATED),
    "compaction by copy, of an odd index": ("v1", "v1", "odds", RELOCATED),
    "migration, of an odd index": ("v1", "v2", "odds", RELOCATED),
}
"""Formats of the segments and of the store, the index, and the faults."""


def each_fault():
    """Faults of a scan are the same in each collection: all but those of the first one are slow."""
    for number, (name, (*_, faults)) in enumerate(COLLECTED.items()):
        for fault in faults:
            yield pytest.param(name, fault, marks=[pytest.mark.slow] if number and fault in SCANNED else [])


@pytest.mark.parametrize(("collection", "fault"), list(each_fault()))
def test_collection_with_failing_plugin_loses_nothing(collection, fault, opened, tmp_path, faults, caplog):
    """Neither in this store, nor the references of what has several, nor for a start after a crash. The plugin is named, and is
    used again when it is mended. A failing format changes no file."""
    written, target, index, found = COLLECTED[collection]

    def collect(store):
        return store.compact(everything=True) if target == written else store.migrate()

    store = opened(written, index)
    left = fill(store)
    if target != written:
        store.close()
        store = opened(target, index)
    before = files_of(tmp_path), counts(store)
    name, faults[name] = found[fault]
    with caplog.at_level(logging.WARNING, "msgstore.collection"):
        [done] = collect(store)
    faults.clear()
    blamed = ["the index 'odds'"] if index == "odds" else [f"the segment format {form!r}" for form in (written, target)]
    assert "of acme-odd 1.2 (entry point" in (done.skipped or ""), "a collection went on with a broken plugin"
    assert any(f"{tmp_path / done.file}: plugin failed: {what}" in caplog.text for what in blamed)
    assert (contents(store), counts(store)) == (left, before[1]), "messages are lost"
    if index == "ets":
        assert (done.outcome, files_of(tmp_path)) == ("none", before[0]), "the segment was changed"
        assert f"failed in {name}" in done.skipped
        assert [one.skipped for one in collect(store)] == [None], "a plugin that was mended is not used"
        assert contents(store) == left
    else:
        assert any(s.file == done.file and not s.quarantined for s in store.segments()), "the segment is gone"
    store.abandon()
    store = opened(target)
    assert not store.stats().recovery.damaged, "a start finds damage"
    there = contents(store)
    assert {msg_id: there[msg_id] for msg_id in left} == left, "a start finds less"
    collect(store)
    assert contents(store) == there


# -- openings -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [fault for fault in SCANNED if fault != "scan is too early"])
def test_opening_scan_fails_names_plugin_and_file(fault, opened, tmp_path, faults):
    """A store that is not opened loses nothing."""
    store = opened("odd")
    fill(store)
    everything = contents(store).keys()
    store.abandon()
    before = files_of(tmp_path)
    faults["scan"] = SCANNED[fault][1]
    with pytest.raises(msgstore.PluginError) as caught:
        opened("odd")
    assert f"{tmp_path / '0.odd'}: the segment format 'odd' of acme-odd 1.2 (entry point" in str(caught.value)
    assert files_of(tmp_path) == before
    faults.clear()
    assert everything <= contents(opened("odd")).keys()
