"""What is fuzzed: one line a parser, with a judge, which raises AssertionError where a parser does what it does not promise.

A parser's own documented refusal is an outcome; anything else that it raises is a failure, whatever it is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import attrs

from fuzzing import corpus, messages, rabbitmq
from fuzzing.mutations import Member
from msgstore.cli.commands.verify import ScrubState, parse_state
from msgstore.contract import RESCUED_KEY, Columns, ConfigError, NoOptions, RecordError, SegmentFormat, SegmentScan
from msgstore.directory import Settings, _settings, parse_settings
from msgstore.engine.segment import hints as hint_files
from msgstore.engine.state import checkpoint
from msgstore.engine.state.clean_shutdown import parse_client_refs
from msgstore.jobs.messages.rows import parse_line
from msgstore.jobs.reading.chains import SegmentSpan, read_spans
from msgstore.locations import pack_locations, unpack_location
from msgstore.testing.segments import check_scan
from msgstore.writer_lock import parse_lock
from msgstore_erlang_body.codec import ErlangBody
from msgstore_erlang_body.message import read_message
from msgstore_erlang_body.term import is_term
from msgstore_ets_index import snapshot
from msgstore_lmdb_index.index import _items
from msgstore_rocketmq_log import check as check_record
from msgstore_rocketmq_log.files import read_index
from msgstore_rocketmq_log.frame import read_frame
from msgstore_rocketmq_log.inner_batch import BodyError, split
from rabbitmq_files.properties import PropertiesError, read_properties
from rabbitmq_files.terms import TermError

Judge = Callable[[Any, bytes, Member], None]
"""Called with the result of a parser, a mutated input, and what that was made of."""


@attrs.frozen
class FuzzTarget:
    """One parser, or one use of it."""

    name: str
    share: int
    """Of all inputs, relative to the other shares."""
    members: Callable[[], Sequence[Member]]
    parse: Callable[[bytes], object]
    judge: Judge
    refuses: tuple[type[Exception], ...] = ()
    """The documented refusal."""
    repair: Callable[[bytes], bytes] | None = None
    """Makes the checksum right again, so that what stands behind it is reached; used for every second input."""

    def check(self, data: bytes, member: Member) -> None:
        try:
            result = self.parse(data)
        except self.refuses:
            return
        self.judge(result, data, member)


def whole_scan(form: SegmentFormat) -> Judge:
    """A scan from the start; and one from the middle, or with a codec's test, or the search for a chain."""

    def judge(scan: SegmentScan, data: bytes, member: Member) -> None:
        check_scan(form, data, scan)
        kind = len(data) % 8  # something that a seed decides
        if kind == 0:
            check_scan(form, data, form.scan(data, check_body=lambda _, stored: is_term(stored)))
        elif kind == 1 and scan.end.offset and form is not corpus.V1:
            prefix = form.scan(data[: scan.end.offset])
            assert prefix.end.state == "clean"
            assert (prefix.records, prefix.duplicates, prefix.damage) == (scan.records, scan.duplicates, scan.damage)
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

    return judge


def salvaged(form: SegmentFormat) -> Judge:
    """Salvage's reading: every byte is in a record, in a hole, or in a damaged span that is reported."""

    def judge(spans: list[SegmentSpan], data: bytes, member: Member) -> None:
        assert not spans or spans[0].offset in (0, len(form.header))
        assert all(one.end == other.offset for one, other in pairwise(spans)), "neither gap nor overlap"
        assert (spans[-1].end if spans else len(form.header)) == len(data)
        for span in spans:
            if span.id is not None:
                form.decode(span.id, data[span.offset : span.end])

    return judge


def decoded(body: bytes, data: bytes, member: Member) -> None:
    """A checksummed record, as a read sees it: what was written. A flipped type byte makes it another type's."""
    written = data[0] == 3 or any(data == other.data for other in member.others)  # another one of this id, spliced in whole
    assert written, "a checksummed record that is not what was written passed"
    assert body == data[21 if data[0] == 3 else 25 :]


def read_snapshot(data: bytes) -> tuple[dict[bytes, bytes], dict[bytes, int]]:
    entries: dict[bytes, int] = {}
    counts: dict[bytes, int] = {}
    try:
        return snapshot.read(data, entries, counts), entries
    except snapshot.InvalidSnapshot:
        assert not entries
        assert not counts
        raise


def loaded(found: tuple[dict[bytes, bytes], dict[bytes, int]], data: bytes, member: Member) -> None:
    """A snapshot of the index ``ets``: as a damaged one if its checksum is wrong."""
    state, entries = found
    assert with_crc(data) == data or RESCUED_KEY in state, "a snapshot whose checksum is wrong was read as a sound one"
    for location in entries.values():
        unpack_location(location)
    TARGETS["state-rows"].check(corpus.frame({key[:2000]: value[:2000] for key, value in state.items()}), member)


def with_crc(data: bytes, start: int = 0) -> bytes:
    return data[:-4] + zlib.crc32(data[:-4], start).to_bytes(4) if len(data) >= 4 else data


def read_hint(data: bytes) -> Columns:
    size = corpus.WIDE if data[24:32] == corpus.WIDE.to_bytes(8) else corpus.NARROW
    return hint_files.read_hint(data, corpus.HINTED, size, 1)


def hinted(hint: Columns, data: bytes, member: Member) -> None:
    """Records one behind the other inside the segment."""
    assert with_named_crc(data) == data, "a hint whose checksum is wrong was read"
    end = 0
    for location, msg_id in zip(pack_locations(7, hint.offsets, hint.sizes), hint.id_list(), strict=True):
        number, offset, size = unpack_location(location)
        assert (number, len(msg_id)) == (7, 16)
        assert end <= offset
        end = offset + size
    assert end <= int.from_bytes(data[24:32])


def with_named_crc(data: bytes) -> bytes:
    """That of a hint begins with the segment's name."""
    return with_crc(data, zlib.crc32(corpus.HINTED.encode()))


def judged(rows: Any, data: bytes, member: Member) -> None:
    """The rows of segments in an index's state."""
    for name, row in rows.items():
        assert isinstance(name, str)
        assert row.size >= 0
        assert row.mtime_ns is None or row.mtime_ns >= 0


def lmdb_items(data: bytes) -> list[tuple[bytes, int, int]]:
    """LMDB's entries. The environment has checked that they are whole rows."""
    return list(_items(data[: len(data) // 40 * 40], {}))


def listed(items: list[tuple[bytes, int, int]], data: bytes, member: Member) -> None:
    for (msg_id, location, references), at in zip(items, range(0, len(data) // 40 * 40, 40), strict=True):
        assert msg_id + (location << 48 | references).to_bytes(24) == data[at : at + 40]
        unpack_location(location)


def settings_in(data: bytes) -> Settings:
    return _settings(parse_settings(data))


def remembered(settings: Settings, data: bytes, member: Member) -> None:
    """``msgstore.json``: what was written, since its checksum is over what it says."""
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


def scrubbed(state: ScrubState, data: bytes, member: Member) -> None:
    """The state of a scrub: numbers and lines of text."""
    assert all(type(number) is int and number >= -1 for number in (state.behind, state.segments, state.records, state.bytes))
    for spot in state.spots:
        assert type(spot.offset) is type(spot.size) is int
        assert (spot.file + spot.reason + (spot.msg_id or "")).isprintable()
    for finding in state.findings:
        assert type(finding.offset) is type(finding.size) or None in (finding.offset, finding.size)
        assert (finding.file + finding.what + finding.detail + (finding.msg_id or "")).isprintable()


def stopped(refs: Sequence[bytes], data: bytes, member: Member) -> None:
    """``clean.dot``: some names, each of which stands in it."""
    assert all(isinstance(ref, bytes) for ref in refs)
    assert sum(map(len, refs)) <= len(data)


def held(found: tuple[int | None, str], data: bytes, member: Member) -> None:
    """The lock file: a process id and a session, or nothing."""
    pid, session = found
    assert pid is None or 0 < pid < 2**31
    assert pid is None or data.split()[0] == str(pid).encode()
    assert len(session) < len(data) or not session


def walked(is_valid: bool, data: bytes, member: Member) -> None:
    """An Erlang term, and a body as the codec reads it."""
    assert is_valid in (True, False)
    assert ErlangBody(NoOptions()).decode(bytes(16), data) in data
    message = read_message(data)
    if message is not None:
        assert len(message[3] or b"") <= len(data) or data[1] == 80
        assert message[2] is None or isinstance(json.loads(message[2]), dict)
        json.dumps(message[:3], ensure_ascii=False).encode()


FORMS: dict[str, SegmentFormat] = {"v1": corpus.V1, "v2": corpus.V2, "checksum": corpus.CHECKSUM}
RECORD_ID = bytes(range(16))
"""Of every record in the corpus of records."""
TARGETS = {
    target.name: target
    for target in (
        *(FuzzTarget(f"{n}-scan", 20, partial(corpus.segments, n), form.scan, whole_scan(form)) for n, form in FORMS.items()),
        *(
            FuzzTarget(f"{n}-salvage", 4, partial(corpus.segments, n), partial(read_spans, form), salvaged(form))
            for n, form in FORMS.items()
        ),
        FuzzTarget("checksum-record", 8, corpus.records, partial(corpus.CHECKSUM.decode, RECORD_ID), decoded, (RecordError,)),
        FuzzTarget("ets-snapshot", 10, corpus.snapshots, read_snapshot, loaded, (snapshot.InvalidSnapshot,), with_crc),
        FuzzTarget("hint", 8, corpus.hints, read_hint, hinted, (hint_files.InvalidHint,), with_named_crc),
        FuzzTarget("state-rows", 8, corpus.states, lambda data: checkpoint.rows(corpus.unframe(data)), judged, (ValueError,)),
        FuzzTarget("lmdb-slots", 4, corpus.slots, lmdb_items, listed),
        FuzzTarget("settings", 6, corpus.settings, settings_in, remembered, (ValueError, TypeError), with_json_crc),
        FuzzTarget("scrub-state", 4, corpus.scrubs, parse_state, scrubbed, (ValueError,), with_json_crc),
        FuzzTarget("clean-dot", 8, corpus.cleans, parse_client_refs, stopped),
        FuzzTarget("lock-file", 2, corpus.pids, parse_lock, held),
        FuzzTarget("erlang-term", 20, corpus.terms, is_term, walked),
        FuzzTarget("kestrel-journal", 12, messages.journals, messages.replay, messages.replayed),
        FuzzTarget("rocketmq-log", 12, messages.logs, messages.read_log, messages.read),
        FuzzTarget("rocketmq-record", 8, messages.log_records, check_record, messages.recovered),
        FuzzTarget("rocketmq-v2", 8, messages.frames, read_frame, messages.unframed, (), messages.with_frame_crc),
        FuzzTarget("rocketmq-index", 4, messages.indexes, read_index, messages.looked_up, (ValueError,)),
        FuzzTarget("rocketmq-queue", 4, messages.consume_queues, messages.read_small, messages.entered, (ValueError,)),
        FuzzTarget("rocketmq-batch", 4, messages.batches, split, messages.unpacked, (BodyError,)),
        FuzzTarget(
            "rocketmq-store", 4, messages.stores, messages.read_store, messages.all_there, (ConfigError,), messages.with_sums
        ),
        FuzzTarget("rocketmq-config", 4, messages.tables, messages.configured, messages.known),
        FuzzTarget("rabbitmq-term", 12, rabbitmq.terms, rabbitmq.read_term, rabbitmq.decoded, (TermError,)),
        FuzzTarget("rabbitmq-properties", 6, rabbitmq.properties, read_properties, rabbitmq.propertied, (PropertiesError,)),
        FuzzTarget("rabbitmq-index-v1", 6, rabbitmq.indexes_v1, rabbitmq.read_v1, rabbitmq.indexed_v1),
        FuzzTarget("rabbitmq-index-v2", 6, rabbitmq.indexes_v2, rabbitmq.read_v2, rabbitmq.indexed_v2),
        FuzzTarget("rabbitmq-tables", 6, rabbitmq.tables, rabbitmq.read_all, rabbitmq.listed),
        FuzzTarget("json-line", 8, messages.lines, parse_line, messages.encoded, (ValueError,)),
    )
}
