"""Directories of a broker: a directory that one wrote is changed only if the caller adopts it, and keeps the body codec of its
records. Reference counts that the broker saved in ``msg_store_index.ets`` when it stopped cleanly.

The counts are exact if nothing has changed since. The file does not show that, and has no checksum. So it is compared with the
files next to it: ``clean.dot``, ``file_summary.ets`` (size and live bytes of each segment), and the records of the segments.

If everything agrees, the counts are used as they are, and a record without a count is dead. If anything contradicts, an entry
whose record is at its location keeps its count, and every other record counts one, dead or not, also with a count of 0: a
surplus message can be removed, a lost one cannot be brought back.

Both tables are saved with ``ets:tab2file``, as an Erlang ``disk_log``: 8 bytes of header, then items of a 4-byte size, the 4
bytes ``bWLA`` and an external term. The first item describes the table, the last one is ``['$end_of_table', [{count, N}]]``,
each one between is a row. Terms are not decoded: a row is matched against the few encodings that Erlang has for it. So no
length, atom, nesting or compression that a damaged or hostile file claims is ever followed.
"""

from __future__ import annotations

import logging
import mmap
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import BodyCodec, MsgStoreError, NotAdopted, RecordError, StoreError, StoreMismatch
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.directory import Settings
from msgstore.engine.backends import Backends
from msgstore.engine.open.recovery_plan import CountsFrom, SegmentAndScan
from msgstore.engine.segment.segments import Segments
from msgstore.engine.state.clean_shutdown import SAVED_COUNTS, SAVED_SUMMARY, ShutdownFiles
from msgstore.locations import LIMIT, MASK, NUMBER_SHIFT, pack_location
from msgstore.option_values import Backend, structure
from msgstore.plugins.catalogue import Catalogue

log = logging.getLogger("msgstore.recovery")
_store_log = logging.getLogger("msgstore.store")  # commands that report damage themselves mute the other logger

_HEADER = b"\x01\x02\x03\x04cXM\x0b"
"""Includes the mark of a log that was closed."""
_MAGIC, _HEAD = b"bWLA", 8
"""Bytes of an item before its term (size and magic), and of the header of the file."""
_NEXT_ROW = _MAGIC + b"\x83h"
"""Every row is a tuple of fewer than 256 members."""
_BROKERS_NAME = re.compile(
    r"msg_store_(persistent|transient|index\.ets)|file_summary\.ets|recovery\.dets|\.vhost|\.queue_name|journal\.jif|\d+\.(idx|q[is])"
)
"""Names of files and directories in a broker's virtual host, message store or queue directory."""
_CODEC = "erlang"
"""Codec of the bodies of all brokers."""
_BODIES, _BODY_BYTES = 1000, 2**26
"""Bodies that are checked to find their codec, and their bytes, about."""


def admit(
    config: StoreConfig, catalogue: Catalogue, backends: Backends, remembered: Settings | None, segments: Segments
) -> StoreConfig:
    """Check that ``segments`` may be changed. Return the configuration, with the body codec of an adopted directory.

    Raises NotAdopted for segments without ``msgstore.json`` unless the configuration adopts them, StoreMismatch for a second
    body codec, and PluginError if the codec of the records is not installed.
    """
    if remembered is None and not config.adopt:
        names = segments.files.list(config.path).keys() | segments.files.non_regular_files(config.path).keys()
        theirs = next(filter(_BROKERS_NAME.fullmatch, sorted(names)), None)
        if segments.by_number:
            first, extension = next(iter(segments)).path.name, backends.write_format.descriptor.extension
            raise NotAdopted(
                f"{config.path}: belongs to the broker that wrote it: there is {first}, and no msgstore.json. Released "
                f"RabbitMQ reads *.rdq only, and no released broker reads *.sqs; this store would write *{extension}. "
                f"Copy its messages into a fresh store: msgstore salvage {config.path} DEST. To change the directory itself, "
                f"copy it first, and adopt it: --adopt on the command line, adopt=True in Python, adopt = true in a "
                f"configuration."
            )
        if theirs is not None:
            raise NotAdopted(
                f"{config.path}: belongs to a broker: there is {theirs}. A store in it would hide what the broker has there. "
                f"Choose another directory. To make a store here anyway: adopt=True, or --adopt."
            )
    if not segments.by_number:
        return config
    if remembered is None:
        return attrs.evolve(config, body=_codec_of_records(config, catalogue, backends.codec, segments))
    check_codec(config, remembered)
    return config


def check_codec(config: StoreConfig, remembered: Settings) -> None:
    """Check that a directory with segments gets no second body codec. Raises StoreMismatch."""
    if config.body.named and config.body.name != remembered.body:
        raise StoreMismatch(
            f"{config.path}: its bodies are stored by the codec {remembered.body!r}, and the configuration names "
            f'{config.body.name!r}; a directory has one codec. Write body = "{remembered.body}", or leave it out; to change '
            f"the codec, make a fresh store: msgstore convert {config.path} NEW --sink store "
            f"--sink-option body={config.body.name}"
        )


def _codec_of_records(config: StoreConfig, catalogue: Catalogue, codec: BodyCodec, segments: Segments) -> Backend:
    """Return the codec of a broker if the records have it, otherwise the configured one.

    Without records, a broker's directory has the codec of a broker, unless the configuration names another one. With records,
    more than half of the first bodies decide: a few damaged or ambiguous ones decide nothing.
    """
    bodies = _first_bodies(segments)
    if not (bodies or config.body.named) and any(segment.path.suffix == ".rdq" for segment in segments):
        return Backend(_CODEC)  # a record of another codec ends the broker's reading of the segment

    def fits(codec: BodyCodec) -> bool:
        accepted = 0
        for body in bodies:
            with suppress(Exception):  # third-party code may raise anything
                accepted += bool(codec.is_valid(*body))
        return 2 * accepted > len(bodies)

    told = None
    name = catalogue.brokers_codec([stored for _, stored in bodies])
    if name is not None:
        try:
            descriptor = catalogue.body_codec(name)
            theirs = catalogue.make(descriptor, structure(descriptor.options, {}, f"{config.path}: the body codec {name}"))
        except MsgStoreError as error:
            raise type(error)(f"{config.path}: its bodies are stored by the body codec {name!r}: {error}") from error
        if fits(theirs):
            if not config.body.named or config.body.name == name:
                return config.body if config.body.named else Backend(name)
            told = f'stored by the codec {name!r}. Write body = "{name}"'
    if told is None:
        if not config.body.named or not bodies or fits(codec):
            return config.body
        told = "none of its. Name the codec that they were stored by"
    raise StoreMismatch(
        f"{config.path}: the configuration names the body codec {config.body.name!r}, and the bodies that are there are "
        f"{told}, or leave it out."
    )


def _first_bodies(segments: Segments) -> list[tuple[bytes, bytes]]:
    """Return the first (id, stored body) of the segments."""
    bodies: list[tuple[bytes, bytes]] = []
    total = 0
    for segment in segments:
        form = segment.form.format
        with segments.files.view(segment.path) as data:
            for msg_id, offset, size, _ in form.scan(data).records.rows():
                if len(bodies) >= _BODIES or total >= _BODY_BYTES:
                    return bodies
                with suppress(RecordError):
                    bodies.append((msg_id, form.decode(msg_id, data[offset : offset + size])))
                    total += size
    return bodies


def _atom(name: bytes) -> bytes:
    """Return the pattern of an atom in the encodings of all Erlang releases: Latin-1 or UTF-8, with 1 or 2 bytes of length."""
    return rb"(?:[dv]\0" + re.escape(bytes([len(name)])) + rb"|[sw]" + re.escape(bytes([len(name)])) + rb")" + re.escape(name)


_INTEGER = rb"(a.|b[\0-\x7f].{3}|" + b"|".join(rb"n%b\0.{%d}" % (re.escape(bytes([n])), n) for n in range(1, 9)) + rb")"
"""Integers from 0 to 2**64 - 1."""
_OTHER = rb"(?:" + _INTEGER.replace(b"(", b"(?:", 1) + rb"|" + _atom(b"undefined") + rb")"
_FLAG = rb"(?:" + _atom(b"true") + rb"|" + _atom(b"false") + rb")"
_ITEM = rb"(?s)(.{4})" + _MAGIC + rb"\x83"

LOCATION = re.compile(_ITEM + rb"h\x06" + _atom(b"msg_location") + rb"m\0\0\0\x10(.{16})" + _INTEGER * 4)
SUMMARY = re.compile(_ITEM + rb"h\x08" + _atom(b"file_summary") + _INTEGER * 2 + _OTHER * 2 + _INTEGER + _FLAG + _OTHER)
_END = re.compile(
    _ITEM + rb"l\0\0\0\x02" + _atom(b"$end_of_table") + rb"l\0\0\0\x01h\x02" + _atom(b"count") + _INTEGER + rb"jj"
)


@attrs.define
class BrokerCounts:
    """Rows of ``msg_store_index.ets``, and the first reason not to trust them."""

    directory: Path
    locations: dict[bytes, int] = attrs.field(factory=dict)
    """Packed location of each id."""
    references: dict[bytes, int] = attrs.field(factory=dict)
    problem: str | None = None
    """First reason not to trust the counts, or None."""

    def add(self, msg_id: bytes, references: int, number: int, offset: int, size: int) -> None:
        if offset >= LIMIT or size >= LIMIT or references > MAX_REFERENCES:
            self.object(f"{SAVED_COUNTS} has an impossible entry, of {msg_id.hex()}")
        elif msg_id in self.locations:
            self.object(f"{SAVED_COUNTS} names {msg_id.hex()} twice")
        else:
            self.locations[msg_id] = pack_location(number, offset, size)
            self.references[msg_id] = references

    def object(self, problem: str) -> None:
        self.problem = self.problem or problem

    def compare_summary(self, segments: Segments, rows: Iterator[tuple[Any, ...]]) -> None:
        """Compare ``file_summary.ets`` with the sizes of the segments, and with the live bytes of each by the counts."""
        summary = {number: (live_bytes, size) for number, live_bytes, size in rows}
        live = Counter[int]()
        for location, references in zip(self.locations.values(), self.references.values(), strict=True):
            live[location >> NUMBER_SHIFT] += (location & MASK) * bool(references)
        for number in sorted(summary.keys() - segments.by_number.keys()):
            self.object(f"segment {number} is missing, and has {summary[number][0]} bytes of live records by {SAVED_SUMMARY}")
        for segment in segments:
            live_bytes, size = summary.get(segment.number, (0, -1))
            name, alive = segment.path.name, live[segment.number]
            if size != segment.size:
                self.object(f"{name} has {segment.size} bytes, and not as many by {SAVED_SUMMARY}")
            elif live_bytes != alive:
                self.object(f"{alive} bytes of {name} are alive by it, and {live_bytes} by {SAVED_SUMMARY}")

    def decide(self, found: Sequence[SegmentAndScan]) -> tuple[CountsFrom, dict[bytes, int]]:
        """Compare with the records of all segments. Return the source of the counts, and the count of every live message."""
        live = {msg_id: count for msg_id, count in self.references.items() if count}
        agreed = {
            msg_id: live[msg_id]
            for segment, scan in found
            for msg_id, offset, size, _ in scan.records.rows()
            if msg_id in live and self.locations[msg_id] == pack_location(segment.number, offset, size)
        }
        contradicted = len(live) - len(agreed)
        if contradicted:
            self.object(f"{contradicted} of its {len(live)} messages have no record where it says")
        if self.problem is None:
            what = "%s: the reference counts are those of %s: %d messages with %d references"
            log.info(what, self.directory, SAVED_COUNTS, len(live), sum(live.values()))
            return "msg_store_index.ets", live
        there = {msg_id: 1 for _, scan in found for msg_id in scan.records.id_list()}
        what = (
            "%s: %s does not fit the segments: %s. %d messages agree with their record and keep their count, %d contradict it, "
            "and %d records count as one message each, dead or not. Pass the counts (refcounts=, --refcounts) if you have them."
        )
        _store_log.warning(
            what, self.directory, SAVED_COUNTS, self.problem, len(agreed), contradicted, len(there) - len(agreed)
        )
        # Those of ``live`` alone are reported as missing.
        return "msg_store_index.ets in part" if agreed else "one each", live | there | agreed


def read_broker_counts(segments: Segments, shutdown_files: ShutdownFiles, *, read_only: bool) -> BrokerCounts | None:
    """Read the counts that a broker saved. Return None, and log why, if there are none that can be used.

    Raises StoreError if the system cannot read them, unless ``read_only``: an opening that writes removes them permanently.
    """
    path, summary = shutdown_files.find_saved(SAVED_COUNTS), shutdown_files.find_saved(SAVED_SUMMARY)
    counts, unused = BrokerCounts(segments.directory), None
    if path is None:
        path, unused = segments.directory / SAVED_SUMMARY, f"there is no {SAVED_COUNTS} beside it"
    elif shutdown_files.text is None:
        unused = "there is no clean.dot beside it, so it may be older than the segments"
    else:
        try:
            with segments.files.view(path) as data:
                for msg_id, *numbers in read_rows(data, LOCATION, counts.object):
                    counts.add(msg_id, *numbers)
            if not counts.references and counts.problem:
                unused = counts.problem
            elif summary is None:
                counts.object(f"there is no {SAVED_SUMMARY} beside it")
            else:
                with segments.files.view(summary) as data:
                    rows = read_rows(data, SUMMARY, lambda problem: counts.object(f"{SAVED_SUMMARY}: {problem}"))
                    counts.compare_summary(segments, rows)
        except OSError as error:
            if not read_only:
                raise StoreError(
                    f"{error.filename or path}: cannot be read: {error.strerror or error}. It has the reference counts. Fix "
                    f"the cause and open the store again; if it is lost, move it away, or pass the counts (refcounts=, "
                    f"--refcounts)."
                ) from error
            path, unused = error.filename or path, error.strerror or str(error)
    if unused is None:
        return counts
    what = "%s: not used: %s. Every record counts as one message. Pass the counts (refcounts=, --refcounts) if you have them."
    _store_log.warning(what, path, unused)
    return None


def read_rows(data: bytes | mmap.mmap, form: re.Pattern[bytes], report: Callable[[str], None]) -> Iterator[tuple[Any, ...]]:
    """Yield the members of every intact row, also after damage, which is reported. ``form``: LOCATION, (id, references, file,
    offset, size), or SUMMARY, (file, live bytes, size). The search for the next row only moves forward: the time is linear."""
    if data[:_HEAD] != _HEADER:
        report("it is not a table that was closed")
    at, rows = _end_of_item(data, _HEAD), 0
    if data[at + 4 : at + _HEAD] != _MAGIC:
        at = _HEAD  # no item: search for the first row from here
    while at >= 0:
        if (row := form.match(data, at)) and _end_of_item(data, at) == row.end():
            members = row.groups()[1:]
            yield (*members[: form is LOCATION], *map(_integer, members[form is LOCATION :]))
            rows += 1
            at = row.end()
        elif end := _END.match(data, at):
            if not _end_of_item(data, at) == end.end() == len(data) or _integer(end[2]) != rows:
                report(f"its end does not fit its {rows} rows")
            return
        else:
            report(f"it is damaged or cut off at offset {at}")
            at = data.find(_NEXT_ROW, at + _HEAD) - 4


def _end_of_item(data: bytes | mmap.mmap, at: int) -> int:
    return at + _HEAD + int.from_bytes(data[at : at + 4], "big")


def _integer(encoded: bytes) -> int:
    return int.from_bytes(encoded[3:], "little") if encoded[:1] == b"n" else int.from_bytes(encoded[1:], "big")
