"""What is fuzzed: one line a parser. A check raises AssertionError where a parser does what it does not promise.

A parser's own documented refusal is an outcome; anything else that it raises is a failure, whatever it is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import attrs

from fuzzing import corpus
from fuzzing.mutations import Member
from msgstore.cli.scrub_state import parse_state
from msgstore.contract import RESCUED_KEY, Columns, RecordError, SegmentFormat, SegmentScan
from msgstore.directory import Settings, _settings, parse_settings
from msgstore.engine.open.clean_shutdown import parse_client_refs
from msgstore.engine.segment import hint_file
from msgstore.engine.state import checkpoint
from msgstore.jobs.reading.chains import read_spans
from msgstore.locations import pack_locations, unpack_location
from msgstore.testing.formats.segments import check_scan
from msgstore.writer_lock import parse_lock
from msgstore_erlang_body.codec import ErlangBody
from msgstore_erlang_body.message import read_message
from msgstore_erlang_body.term import is_term
from msgstore_ets_index import snapshot
from msgstore_lmdb_index.index import _items

Check = Callable[[bytes, Member], None]


@attrs.frozen
class Target:
    """One parser, or one use of it."""

    name: str
    share: int
    """Of all inputs, relative to the other shares."""
    members: Callable[[], Sequence[Member]]
    check: Check
    """Called with a mutated input and what it was made of."""
    parse: Callable[[bytes], object]
    """The parser alone, for measurements of time and memory; may raise its documented refusal, which is a ValueError."""
    repair: Callable[[bytes], bytes] | None = None
    """Makes the checksum right again, so that what stands behind it is reached; used for every second input."""


def whole_scan(form: SegmentFormat) -> Check:
    """Scan a segment, from its start and from the middle, with a codec's test and without."""

    def check(data: bytes, member: Member) -> None:
        scan = form.scan(data)
        check_scan(form, data, scan)
        kind = len(data) % 8  # something that a seed decides
        if kind == 0:
            check_scan(form, data, form.scan(data, check_body=lambda _, stored: is_term(stored)))
        elif kind == 1 and scan.end.offset and form is not corpus.V1:
            check_prefix(form, data, scan)
        elif kind <= 3 and member.fields:
            start = max(member.fields[len(data) % len(member.fields)] + kind - 2, 0)
            if start <= len(data):
                check_scan(form, data, form.scan(data, start=start), start)
        elif kind <= 5:
            begin = scan.end.offset + 1 if kind == 4 else 0
            found = form.find_chain(data, begin, 2 if kind == 4 else 8)
            assert found is None or max(begin, len(form.header)) <= found < len(data)
            if found is not None:
                chain = form.scan(data, start=found)
                assert len(chain.records) or chain.damage

    return check


def check_prefix(form: SegmentFormat, data: bytes, scan: SegmentScan) -> None:
    """What stands before the end that a scan found is a clean segment of the same records."""
    prefix = form.scan(data[: scan.end.offset])
    assert prefix.end.state == "clean"
    assert (prefix.records, prefix.duplicates, prefix.damage) == (scan.records, scan.duplicates, scan.damage)


def salvaged(form: SegmentFormat) -> Check:
    """Salvage's reading: every byte is in a record, in a hole, or in a damaged span that is reported."""

    def check(data: bytes, member: Member) -> None:
        spans = read_spans(form, data)
        assert not spans or spans[0].offset in (0, len(form.header))
        assert all(one.end == other.offset for one, other in pairwise(spans)), "neither gap nor overlap"
        assert (spans[-1].end if spans else len(form.header)) == len(data)
        for span in spans:
            if span.id is not None:
                form.decode(span.id, data[span.offset : span.end])

    return check


def decoded(data: bytes, member: Member) -> None:
    """A checksummed record, as a read sees it: what was written, or an error. A flipped type byte makes it another type's."""
    msg_id = member.data[5:21]
    try:
        body = corpus.CHECKSUM.decode(msg_id, data)
    except RecordError:
        return
    written = data[0] == 3 or any(data == other.data for other in member.others)  # another one of this id, spliced in whole
    assert written, "a checksummed record that is not what was written passed"
    assert body == data[21 if data[0] == 3 else 25 :]


def loaded(data: bytes, member: Member) -> None:
    """A snapshot of the index ``ets``: refused untouched, or read and judged; as a damaged one if its checksum is wrong."""
    entries: dict[bytes, int] = {}
    counts: dict[bytes, int] = {}
    try:
        state = snapshot.read(data, entries, counts)
    except snapshot.InvalidSnapshot:
        assert not entries
        assert not counts
        return
    assert with_crc(data) == data or RESCUED_KEY in state, "a snapshot whose checksum is wrong was read as a sound one"
    for location in entries.values():
        unpack_location(location)
    judged(corpus.frame({key[:2000]: value[:2000] for key, value in state.items()}), member)


def with_crc(data: bytes, start: int = 0) -> bytes:
    return data[:-4] + zlib.crc32(data[:-4], start).to_bytes(4) if len(data) >= 4 else data


def read_hint(data: bytes) -> Columns:
    size = corpus.WIDE if data[24:32] == corpus.WIDE.to_bytes(8) else corpus.NARROW
    return hint_file.read(data, corpus.HINTED, size, 1)


def hinted(data: bytes, member: Member) -> None:
    """A hint: refused, or, its checksum made right again, records one behind the other inside the segment."""
    try:
        hint = read_hint(data)
    except hint_file.InvalidHint:
        return
    assert with_named_crc(data) == data, "a hint whose checksum is wrong was read"
    end = 0
    for location, msg_id in zip(pack_locations(7, hint.offsets, hint.sizes), hint.id_list(), strict=True):
        number, offset, size = unpack_location(location)
        assert number == 7
        assert len(msg_id) == 16
        assert end <= offset
        end = offset + size
    assert end <= int.from_bytes(data[24:32])


def with_named_crc(data: bytes) -> bytes:
    """That of a hint begins with the segment's name."""
    return with_crc(data, zlib.crc32(corpus.HINTED.encode()))


def judged(data: bytes, member: Member) -> None:
    """The rows of segments in an index's state."""
    try:
        rows = checkpoint.rows(corpus.unframe(data))
    except ValueError:
        return
    for name, row in rows.items():
        assert isinstance(name, str)
        assert row.size >= 0
        assert row.mtime_ns is None or row.mtime_ns >= 0


def listed(data: bytes, member: Member) -> None:
    """LMDB's entries, as ``items`` sees them; the environment has checked that they are whole rows."""
    whole = data[: len(data) // 40 * 40]
    for (msg_id, location, references), at in zip(_items(whole, {}), range(0, len(whole), 40), strict=True):
        assert msg_id == whole[at : at + 16]
        assert (location << 48 | references).to_bytes(24) == whole[at + 16 : at + 40]
        unpack_location(location)


def settings_in(data: bytes) -> Settings:
    return _settings(parse_settings(data))


def remembered(data: bytes, member: Member) -> None:
    """``msgstore.json``: refused, or what was written: its checksum is over what it says."""
    try:
        settings = settings_in(data)
    except (ValueError, TypeError):
        return
    names = (settings.index, settings.format, settings.record, settings.body, *settings.records)
    assert all(isinstance(name, str) for name in names)
    assert all(type(byte) is int and 0 <= byte <= 255 for byte in settings.records.values())
    assert with_json_crc(data) == data or settings_in(with_json_crc(data)) == settings


def with_json_crc(data: bytes) -> bytes:
    """The checksum made right again, if it is an object at all."""
    try:
        members = json.loads(data)
        members.pop("crc32", None)
        return json.dumps({**members, "crc32": zlib.crc32(json.dumps(members, sort_keys=True).encode())}).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        return data


def scrubbed(data: bytes, member: Member) -> None:
    """The state of a scrub: refused, or numbers and lines of text."""
    try:
        state = parse_state(data)
    except ValueError:
        return
    assert all(type(number) is int and number >= -1 for number in (state.behind, state.segments, state.records, state.bytes))
    for spot in state.spots:
        assert type(spot.offset) is type(spot.size) is int
        assert (spot.file + spot.reason + (spot.msg_id or "")).isprintable()
    for finding in state.findings:
        assert type(finding.offset) is type(finding.size) or None in (finding.offset, finding.size)
        assert (finding.file + finding.what + finding.detail + (finding.msg_id or "")).isprintable()


def stopped(data: bytes, member: Member) -> None:
    """``clean.dot``: some names, each of which stands in it."""
    refs = parse_client_refs(data)
    assert all(isinstance(ref, bytes) for ref in refs)
    assert sum(map(len, refs)) <= len(data)


def held(data: bytes, member: Member) -> None:
    """The lock file: a process id and a session, or nothing."""
    pid, session = parse_lock(data)
    assert pid is None or 0 < pid < 2**31
    assert pid is None or data.split()[0] == str(pid).encode()
    assert len(session) < len(data) or not session


def walked(data: bytes, member: Member) -> None:
    """An Erlang term, and a body as the codec reads it."""
    assert is_term(data) in (True, False)
    body = ErlangBody.decode(_CODEC, bytes(16), data)
    assert body in data
    message = read_message(data)
    if message is not None:
        assert len(message[3] or b"") <= len(data) or data[1] == 80
        assert message[2] is None or isinstance(json.loads(message[2]), dict)
        json.dumps(message[:3], ensure_ascii=False).encode()


def _refused(decode: Callable[[bytes, bytes], bytes], msg_id: bytes, data: bytes) -> bytes | None:
    try:
        return decode(msg_id, data)
    except RecordError:
        return None


_CODEC = ErlangBody.__new__(ErlangBody)

_V1, _V2, _CHECKSUM = (partial(corpus.segments, name) for name in ("v1", "v2", "checksum"))
TARGETS = {
    target.name: target
    for target in (
        Target("v1-scan", 20, _V1, whole_scan(corpus.V1), corpus.V1.scan),
        Target("v2-scan", 20, _V2, whole_scan(corpus.V2), corpus.V2.scan),
        Target("checksum-scan", 20, _CHECKSUM, whole_scan(corpus.CHECKSUM), corpus.CHECKSUM.scan),
        Target("v1-salvage", 4, _V1, salvaged(corpus.V1), partial(read_spans, corpus.V1)),
        Target("v2-salvage", 4, _V2, salvaged(corpus.V2), partial(read_spans, corpus.V2)),
        Target(
            "checksum-salvage",
            4,
            _CHECKSUM,
            salvaged(corpus.CHECKSUM),
            partial(read_spans, corpus.CHECKSUM),
        ),
        Target("checksum-record", 8, corpus.records, decoded, partial(_refused, corpus.CHECKSUM.decode, bytes(16))),
        Target("ets-snapshot", 10, corpus.snapshots, loaded, lambda data: snapshot.read(data, {}, {}), with_crc),
        Target("hint", 8, corpus.hints, hinted, read_hint, with_named_crc),
        Target("state-rows", 8, corpus.states, judged, lambda data: checkpoint.rows(corpus.unframe(data))),
        Target("lmdb-slots", 4, corpus.slots, listed, lambda data: list(_items(data[: len(data) // 40 * 40], {}))),
        Target("settings", 6, corpus.settings, remembered, settings_in, with_json_crc),
        Target("scrub-state", 4, corpus.scrubs, scrubbed, parse_state, with_json_crc),
        Target("clean-dot", 8, corpus.cleans, stopped, parse_client_refs),
        Target("lock-file", 2, corpus.pids, held, parse_lock),
        Target("erlang-term", 20, corpus.terms, walked, is_term),
    )
}
