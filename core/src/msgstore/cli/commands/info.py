"""Commands ``info`` and ``verify``: show the state of a store, and check segments, index and counts. They write nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from msgstore.cli import not_read, options, output
from msgstore.cli.checking import SegmentCheck, check_segments
from msgstore.cli.commands.scan import MAX_LISTED_SPANS, show_damage
from msgstore.cli.stores import StoreTarget, find_store, find_stores
from msgstore.contract import ConfigError
from msgstore.engine.open.clean_shutdown import ShutdownFiles, last_v1_file
from msgstore.engine.open.settings import known_settings
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.scan import damaged_spans

_RECOVERY_TEXT = {
    "reconciled": "with the saved counts where the records agree with the index",
    "new": "empty",
    "trust": "as it was saved at the last clean stop",
    "tail": "from its index, and what was appended after the last commit",
    "rebuild": "by scanning every segment",
    "taken over": "from the index of the last opening",
    "live": "next to its writer: as of the last commit",
}
_COUNTS_TEXT = {
    "index": "from the index",
    "given": "as given",
    "msg_store_index.ets": "from msg_store_index.ets",
    "msg_store_index.ets in part": "from msg_store_index.ets where it agrees, otherwise one for each record",
    "one each": "one for each record, live or dead",
}
_EXACT_COUNTS = ("index", "given", "msg_store_index.ets")
"""Origins of counts with which a record is known to be a live message."""


@click.command()
@options.store
@options.config_file
@options.refcounts
@options.as_json
def info(store: str, config_file: Path | None, refcounts_file: Path | None, as_json: bool) -> None:
    """Show the content of a store, and how it would open. Writes nothing.

    \b
    Examples:
      msgstore info data/orders
      msgstore info orders --config msgstore.toml --json
    """
    target = find_store(store, config_file)
    with target.open("r", options.read_refcounts(refcounts_file)) as opened:
        facts = _facts(target, opened)
        damaged = bool(facts["quarantined"] or facts["damage"])
    if as_json:
        output.emit(facts)
    else:
        output.Terminal().print(_as_table(facts))
    if damaged:
        click.get_current_context().exit(1)


def _facts(target: StoreTarget, store: Store) -> dict[str, Any]:
    stats, segments, files = store.stats(), store.segments(), Files()
    settings = known_settings(files, target.config, target.catalogue)
    recovery = stats.recovery
    return {
        "path": str(target.path),
        "index": target.config.index.name,
        "format": target.config.format.name,
        "record": target.config.record,
        "body": target.config.body.name,
        "records": settings.records if settings else {},
        "known": settings is not None,
        "messages": stats.messages,
        "bytes_on_disk": stats.bytes_on_disk,
        "live_bytes": stats.live_bytes,
        "garbage_bytes": stats.garbage_bytes,
        "segments": stats.segments,
        "formats": dict(Counter(segment.format for segment in segments)),
        "last_v1_file": last_v1_file((segment.number, Path(segment.file).suffix) for segment in segments),
        "client_refs": len(ShutdownFiles.read(files, target.path).client_refs()),
        "recovery": {
            "how": recovery.how,
            "scanned": len(recovery.scanned),
            "hinted": len(recovery.hinted),
            "entered": recovery.entered,
            "garbage": recovery.garbage,
            "missing": recovery.missing,
            "counts": recovery.counts,
            "kept": recovery.kept,
            "revived": recovery.revived,
            "distrust": recovery.distrust,
        },
        "quarantined": stats.quarantined,
        "damage": list(recovery.damaged),
    }


def _as_table(facts: dict[str, Any]) -> Table:
    rows = output.table(facts["path"], "", "")
    rows.show_header = False
    recovery = facts["recovery"]
    bindings = ", ".join(f"{name} = {byte}" for name, byte in facts["records"].items())
    formats = ", ".join(f"{number} of {name}" for name, number in facts["formats"].items())
    rows.add_row("written by", "msgstore" if facts["known"] else "another program: never opened by msgstore")
    rows.add_row("backends", ", ".join(f"{key} {facts[key]}" for key in ("index", "format", "record", "body")))
    rows.add_row("record types", bindings or "the format's own")
    rows.add_row("messages", f"{facts['messages']:,}")
    rows.add_row("on disk", output.size(facts["bytes_on_disk"]))
    rows.add_row("live", output.size(facts["live_bytes"]))
    rows.add_row("garbage", output.size(facts["garbage_bytes"]))
    rows.add_row("segments", f"{facts['segments']:,}" + (f" ({formats})" if formats else ""))
    rows.add_row("last v1 file", "none" if facts["last_v1_file"] is None else str(facts["last_v1_file"]))
    rows.add_row("clients", f"{facts['client_refs']:,}")
    rows.add_row("would open", f"{_RECOVERY_TEXT[recovery['how']]} ({recovery['how']})")
    if recovery["scanned"] or recovery["hinted"]:
        rows.add_row("", f"{output.plural(recovery['entered'], 'live record')}, {recovery['garbage']:,} dead or copies")
    if recovery["how"] == "rebuild":
        rows.add_row("counts", _COUNTS_TEXT[recovery["counts"]])
    if recovery["missing"]:
        rows.add_row("", f"{recovery['missing']:,} ids with references have no record", style="red")
    if recovery["distrust"]:
        rows.add_row("", counts_line(recovery), style="red")
    for line in facts["damage"]:
        rows.add_row("damage", line, style="red")
    if facts["quarantined"] and not facts["damage"]:
        rows.add_row("damage", f"in {output.plural(facts['quarantined'], 'segment')}. 'msgstore verify' lists it.", style="red")
    return rows


def counts_line(recovery: Mapping[str, Any]) -> str:
    """Return a line about saved counts that do not fit the directory."""
    return (
        f"the saved counts do not fit the directory: {recovery['distrust']}; "
        f"{output.plural(recovery['kept'], 'message')} with the saved counts, {recovery['missing']:,} missing, "
        f"{recovery['revived']:,} removed earlier and live again"
    )


@click.command()
@options.store
@options.config_file
@options.refcounts
@options.as_json
def verify(store: str, config_file: Path | None, refcounts_file: Path | None, as_json: bool) -> None:
    """Check segments, index and counts against one another, and read every live message. Writes nothing.

    Every index entry must have a reference and a record of its id and size, inside its segment and without overlap. The row of
    each segment must have the counts of the index. In a broker's directory, every store is checked.

    \b
    Examples:
      msgstore verify data/orders
      msgstore verify msg_store_persistent --refcounts counts.csv
    """
    targets, others = find_stores(store, config_file)
    if others and refcounts_file is not None:
        stores = ", ".join(str(target.path) for target in targets)
        raise ConfigError(f"{store}: has several stores, but --refcounts has the counts of one. Name one of {stores}.")
    verdicts = [_verify(target, refcounts_file, as_json=as_json) for target in targets]
    if as_json:
        not_read.emit(others)
    else:
        not_read.show(output.Terminal(), others)
    not_read.leave(damaged=not all(verdicts), not_read=others)


def _verify(target: StoreTarget, refcounts_file: Path | None, *, as_json: bool) -> bool:
    """Check one store and print the findings. Returns False if anything is wrong."""
    checks: list[SegmentCheck] = []
    with target.open("r", options.read_refcounts(refcounts_file), live="never") as opened:
        stats = opened.stats()
        recovery = stats.recovery
        with output.progress("verifying", quiet=as_json) as progress:
            for check in check_segments(target, opened, progress):
                if as_json:
                    output.emit(check.as_json())
                checks.append(check.without_records())
    missing = recovery.missing
    entries = sum(check.entries for check in checks)
    is_whole = not (missing or recovery.lost or recovery.revived)
    ok = is_whole and stats.messages == entries and all(check.ok for check in checks)
    summary = {
        "kind": "summary",
        "path": str(target.path),
        "segments": len(checks),
        "messages": entries,
        "counted": stats.messages,
        "verified": sum(check.verified for check in checks),
        "unreachable": sum(len(check.unreachable) for check in checks),
        "findings": sum(len(check.findings) for check in checks),
        "missing": missing,
        "kept": recovery.kept,
        "revived": recovery.revived,
        "distrust": recovery.distrust,
        "damaged_segments": sum(not check.ok for check in checks),
        "lost": [f"{lost.file}: {lost}" for lost in recovery.lost],
        "recovery": recovery.how,
        "counts": recovery.counts,
        "ok": ok,
    }
    if as_json:
        output.emit(summary)
    else:
        _show_verdict(summary, checks)
    return ok


def _show_verdict(summary: dict[str, Any], checks: list[SegmentCheck]) -> None:
    console = output.Terminal()
    columns = ("file", "format", "size", "live", "verified", "unreachable", "damage", "counts", "end")
    rows = output.table(summary["path"], *columns, right="size live verified unreachable damage")
    spans = []
    for check in checks:
        found = damaged_spans(check.report) if check.report else []
        spans += [(check.path, span) for span in found]
        rows.add_row(
            check.path.name,
            check.format,
            output.size(check.size),
            output.count(check.entries),
            output.count(check.verified),
            output.count(len(check.unreachable), "bold red"),
            output.count(len(found), "bold red"),
            "agree" if check.counts_agree else f"{check.live_count:,} expected",
            output.state(check.report.scan.end.state) if check.report else "missing",
        )
    console.print(rows)
    console.print()
    if summary["distrust"]:
        console.print(counts_line(summary), style="red")
    if spans or not (summary["lost"] or summary["distrust"]):
        show_damage(console, spans)
    for check in checks:
        for entry in check.unreachable[:20]:
            console.print(f"{check.path.name} at offset {entry.offset}: {entry.msg_id.hex()}: {entry.reason}", style="red")
    _show_inconsistencies(console, checks)
    for line in summary["lost"]:
        console.print(line, style="red")
    if summary["counted"] != summary["messages"]:
        console.print(f"the index counts {summary['counted']:,} entries and lists {summary['messages']:,}", style="red")
    if summary["missing"]:
        console.print(f"{output.plural(summary['missing'], 'id')} with references without a record", style="red")
    noun = "live message" if summary["counts"] in _EXACT_COUNTS else "record"
    counts = f"; counts: {_COUNTS_TEXT[summary['counts']]}" if summary["recovery"] == "rebuild" else ""
    verdict = f"{summary['verified']:,} of {output.plural(summary['messages'], noun)} verified ({summary['recovery']}{counts})"
    console.print(verdict, style="green" if summary["ok"] else "bold red")


def _show_inconsistencies(console: output.Terminal, checks: list[SegmentCheck]) -> None:
    """Print the contradictions between index, counts and segments, one line each."""
    found = [(check.path.name, finding) for check in checks for finding in check.findings]
    for file, finding in found[:MAX_LISTED_SPANS]:
        where = "" if finding.msg_id is None else f" at offset {finding.offset}: {finding.msg_id.hex()}"
        console.print(f"{file}{where}: {finding.what}: {finding.detail}", style="red")
    if len(found) > MAX_LISTED_SPANS:
        console.print(f"... and {len(found) - MAX_LISTED_SPANS:,} more; --json lists them all")
