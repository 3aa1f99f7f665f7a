"""Commands ``verify`` and ``scrub``: check segments, index and counts. ``scrub`` is ``verify --resume``.

The progress of a check is in ``msgstore-scrub.json`` in the store's directory, so that a stopped check can be resumed. The file
saves time and holds no data. If it is damaged, the check reports that and starts at the first segment.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click

from msgstore.cli import options, output
from msgstore.cli.checking import DamagedSpan, Inconsistency, SegmentCheck, check_segments
from msgstore.cli.commands.info import COUNTS_TEXT, counts_line
from msgstore.cli.option_texts import note_missing_keys
from msgstore.contract import Buffer, Capability, ConfigError, StoreLocked
from msgstore.directory import Settings, has_settings
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.option_values import option_digests, structure

STATE = "msgstore-scrub.json"
SAVE_INTERVAL_SECONDS = 1.0
"""Time between two writes of the state. A killed check repeats at most this much."""
_LAYOUT = 1
_COUNT = attrs.validators.ge(-1)
_MAX_STATE_BYTES = 16 * 2**20
"""Size limit of the file: a hundred thousand damaged spans."""
_EXACT_COUNTS = ("index", "given", "msg_store_index.ets")
"""Origins of counts with which a record is known to be a live message."""


@attrs.define
class ScrubState:
    """Results of a check up to and including the segment ``behind``. The names of the fields are keys in the file."""

    behind: int = attrs.field(default=-1, validator=_COUNT)
    segments: int = attrs.field(default=0, validator=_COUNT)
    records: int = attrs.field(default=0, validator=_COUNT)
    bytes: int = attrs.field(default=0, validator=_COUNT)
    options: str = ""
    """Names and hashed options, such as keys, of the body codec and the format with which messages are read."""
    spots: list[DamagedSpan] = attrs.field(factory=list)
    findings: list[Inconsistency] = attrs.field(factory=list)

    def add(self, check: SegmentCheck) -> None:
        """Add the results of one segment. After an interrupt here, spans are reported twice rather than never."""
        self.segments += 1
        self.records += len(check.entries)
        self.bytes += check.read
        self.spots += check.spans
        self.findings += check.findings
        self.behind = check.number


def parse_state(data: Buffer) -> ScrubState:
    """Parse a saved state. Raises ValueError for an invalid one. The checksum alone proves nothing: it can be forged."""
    if len(data) > _MAX_STATE_BYTES:
        raise ValueError(f"it is larger than {_MAX_STATE_BYTES} bytes")
    try:
        members = json.loads(data[:])
        if members.pop("crc32") != _checksum(members):
            raise ValueError("its checksum is wrong")
        if members.pop("layout") != _LAYOUT:
            raise ValueError("it was written by a newer msgstore")
        state = structure(ScrubState, members, "")
    except (ConfigError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("it is not what a check writes") from error
    found: list[DamagedSpan | Inconsistency] = [*state.spots, *state.findings]
    texts = (text for one in found for text in attrs.astuple(one) if isinstance(text, str))
    if not all(map(str.isprintable, texts)):
        raise ValueError("it contains control characters")
    return state


def write_state(files: Files, directory: Path, state: ScrubState) -> None:
    """Write the state atomically, without a sync: after a power loss, an older state is valid, too. Raises OSError."""
    members: dict[str, Any] = {"layout": _LAYOUT, **attrs.asdict(state)}
    text = json.dumps({**members, "crc32": _checksum(members)})
    files.write_file(directory / STATE, [text.encode() + b"\n"], sync=False)


def _checksum(members: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(members, sort_keys=True).encode())


def _options_of(target: options.StoreTarget) -> str:
    """Return what must be the same when a check is resumed: names and hashed options of the body codec and the format."""
    salt = hashlib.sha256(os.fsencode(os.path.realpath(target.path))).digest()
    found = [(one.name, option_digests(one, salt)) for one in (target.config.body, target.config.format)]
    return json.dumps(found, sort_keys=True)


def _load_state(target: options.StoreTarget) -> ScrubState:
    """Return the saved state, or a new one if it is missing, damaged, or of a check with other options. Says on standard error
    which it is."""
    directory, new = target.path, ScrubState(options=_options_of(target))
    try:
        with Files().view(directory / STATE) as data:
            state = parse_state(data)
    except FileNotFoundError:
        return new
    except ValueError as error:
        output.note(f"{directory / STATE}: cannot be used: {error}. Starting at the first segment.")
        return new
    if state.options != new.options:
        output.note(f"{directory}: the stopped check had other options, such as a key. Starting at the first segment.")
        return new
    if state.behind >= 0:
        without = "Without --resume (scrub: with --restart), the check starts at the first segment."
        output.note(f"{directory}: resumed after segment {state.behind}. {without}")
    return state


_rate = click.option(
    "--rate", type=options.size, metavar="SIZE", help="Read at most this many bytes per second, such as 20MiB."
)


@click.command()
@options.read
@_rate
@click.option("--resume", is_flag=True, help="Continue where a check with --rate or --resume was stopped.")
@options.as_json
def verify(store: options.StoreTarget, rate: int | None, resume: bool, out: output.Output) -> None:
    """Check segments, index and counts against one another, and read and decode every live message. Writes no data.

    Every index entry must have a reference and a record of its id and size, inside its segment and without overlap. The row of
    each segment must have the counts of the index. In a broker's directory, every store is checked.

    With --rate or --resume, the position is kept in msgstore-scrub.json in the store's directory until the check ends. Nothing
    is written to a broker's directory.

    \b
    Examples:
      msgstore verify data/orders
      msgstore verify data/orders --rate 20MiB --resume
      msgstore verify msg_store_persistent --refcounts counts.csv
    """
    _verify_all(store, out, rate, resume=resume, saves=resume or rate is not None)


@click.command()
@options.read
@_rate
@click.option("--restart", is_flag=True, help="Start at the first segment, even if a stopped check could be resumed.")
@options.as_json
def scrub(store: options.StoreTarget, rate: int | None, restart: bool, out: output.Output) -> None:
    """The same as verify --resume.

    \b
    Examples:
      msgstore scrub data/orders --rate 20MiB
      msgstore scrub data/orders --restart --json
    """
    _verify_all(store, out, rate, resume=not restart, saves=True)


def _verify_all(store: options.StoreTarget, out: output.Output, rate: int | None, *, resume: bool, saves: bool) -> None:
    targets, not_read = store.find_all()
    verdicts = []
    for target in targets:
        with _opened(target, is_limited=saves) as opened:
            state = _load_state(target) if resume else ScrubState(options=_options_of(target))
            verdicts.append(_verify(target, opened, out, rate, state, saves))
    if store.config_file is None:
        names = [name for target in targets for name in (target.settings() or Settings()).records]
        note_missing_keys(targets[0].catalogue, names, "--config FILE gives it")
    out.finish(damaged=not all(verdicts), not_read=not_read)


_COLUMNS = output.columns(
    "file=path:name format size:bytes live verified unreachable damage counts end",
    format=lambda check: check.segment.format if check.segment else "?",
    live=lambda check: len(check.entries),
    verified=lambda check: len(check.entries) - len(check.unreachable),
    unreachable=lambda check: output.count(len(check.unreachable), "bold red"),
    damage=lambda check: output.count(len(check.spans), "bold red"),
    counts=lambda check: "agree" if check.counts_agree else f"{check.segment.live_count if check.segment else 0:,} expected",
    end=lambda check: output.state(check.scan.end.state) if check.scan else "missing",
)


def _verify(
    target: options.StoreTarget, store: Store, out: output.Output, rate: int | None, state: ScrubState, saves: bool
) -> bool:
    """Check an open store from ``state`` on, always a whole number of segments. Returns False if anything is wrong."""
    keeps = saves and has_settings(target.path)  # nothing is written to a broker's directory
    resumed, before, begin = state.behind if state.behind >= 0 else None, state.bytes, time.monotonic()

    def save() -> None:
        nonlocal keeps
        try:
            write_state(Files(), target.path, state)
        except OSError as error:
            keeps = False
            text = f"cannot be written: {error.strerror}. If stopped, this check starts again."
            output.note(f"{target.path / STATE}: {text}")

    def checks() -> Iterator[SegmentCheck]:
        total, saved = len(store.segments()), begin
        with out.progress("verifying") as progress:
            for check in check_segments(target, store, rate, state.behind):
                state.add(check)
                if keeps and time.monotonic() - saved >= SAVE_INTERVAL_SECONDS:
                    save()
                    saved = time.monotonic()
                out.emit(*(span.as_json(target.path) for span in check.spans))
                if progress:
                    progress(state.segments, total)
                yield check

    out.emit(*(span.as_json(target.path) for span in state.spots))
    try:
        out.rows(str(target.path), _COLUMNS, checks(), as_json=lambda check: check.as_json())
    except BaseException:
        if keeps:
            save()
        raise
    summary = _summary(target, store, state, resumed, time.monotonic() - begin)
    if keeps:
        with contextlib.suppress(OSError):  # one that cannot be removed does no harm: the next check replaces it
            Files().unlink(target.path / STATE)
    out.print()
    if not out.as_json:
        _show(target, out, state, summary, state.bytes - before)
    out.emit(summary)
    return bool(summary["ok"])


def _opened(target: options.StoreTarget, *, is_limited: bool) -> Store:
    """Open the store. A limited check may take hours: it works next to a writer if the index can be read live."""
    try:
        return target.open("r", live="beside" if is_limited else "never")
    except StoreLocked as error:
        if is_limited or Capability.LIVE_READS not in target.catalogue.index(target.config.index.name).capabilities:
            raise
        raise StoreLocked(f"{error} 'msgstore verify --rate SIZE' checks it beside the writer.", error.pid) from error


def _summary(
    target: options.StoreTarget, store: Store, state: ScrubState, resumed: int | None, seconds: float
) -> dict[str, Any]:
    stats = store.stats()
    recovery = stats.recovery
    # The store may change between two parts of a check, and next to a writer. Then its counts need not agree.
    is_fixed = resumed is None and recovery.how != "live"
    is_whole = not (recovery.missing or recovery.lost or recovery.revived or state.spots or state.findings)
    unreachable = sum(span.msg_id is not None for span in state.spots)
    return {
        "kind": "summary",
        "path": str(target.path),
        "segments": state.segments,
        "messages": state.records,
        "counted": stats.messages,
        "records": state.records,
        "bytes": state.bytes,
        "verified": state.records - unreachable,
        "unreachable": unreachable,
        "findings": len(state.findings),
        **{name: getattr(recovery, name) for name in ("missing", "kept", "revived", "distrust")},
        "damaged_segments": len({one.file for found in (state.spots, state.findings) for one in found}),
        "damaged_spans": len(state.spots),
        "lost": [f"{lost.file}: {lost}" for lost in recovery.lost],
        "recovery": recovery.how,
        "counts": recovery.counts,
        "resumed_after": resumed,
        "seconds": round(seconds, 3),
        "ok": is_whole and (stats.messages == state.records or not is_fixed),
    }


def _show(target: options.StoreTarget, out: output.Output, state: ScrubState, summary: dict[str, Any], size: int) -> None:
    if summary["distrust"]:
        out.print(counts_line(summary), "red")
    if state.spots or not (summary["lost"] or summary["distrust"] or state.findings):
        out.damage([span.as_report(target.path) for span in state.spots])
    for finding in state.findings[: output.MAX_LISTED]:
        where = "" if finding.msg_id is None else f" at offset {finding.offset}: {finding.msg_id}"
        out.print(f"{finding.file}{where}: {finding.what}: {finding.detail}", "red")
    out.more(len(state.findings))
    for line in summary["lost"]:
        out.print(line, "red")
    if summary["resumed_after"] is None and summary["counted"] != summary["messages"]:
        out.print(f"the index counts {summary['counted']:,} entries and lists {summary['messages']:,}", "red")
    if summary["missing"]:
        out.print(f"{output.plural(summary['missing'], 'id')} with references without a record", "red")
    noun = "live message" if summary["counts"] in _EXACT_COUNTS else "record"
    counts = f"; counts: {COUNTS_TEXT[summary['counts']]}" if summary["recovery"] == "rebuild" else ""
    pace = f", {output.size(int(size / summary['seconds']))}/s" if summary["seconds"] >= 1 else ""
    verdict = f"{summary['verified']:,} of {output.plural(summary['messages'], noun)} verified ({summary['recovery']}{counts})"
    read = f"{output.plural(state.segments, 'segment')}, {output.size(state.bytes)}{pace}"
    out.print(f"{verdict}; {read}", "green" if summary["ok"] else "bold red")
