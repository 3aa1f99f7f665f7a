"""Command ``info``: show the state of a store. It writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from msgstore.cli import options, output, stores
from msgstore.engine.open.clean_shutdown import ShutdownFiles, last_v1_file
from msgstore.files import Files

_RECOVERY_TEXT = {
    "reconciled": "with the saved counts where the records agree with the index",
    "new": "empty",
    "trust": "as it was saved at the last clean shutdown",
    "tail": "from its index, and what was appended after the last commit",
    "rebuild": "by scanning every segment",
    "taken over": "from the index of the last opening",
    "live": "next to its writer: as of the last commit",
}
COUNTS_TEXT = {
    "index": "from the index",
    "given": "as given",
    "msg_store_index.ets": "from msg_store_index.ets",
    "msg_store_index.ets in part": "from msg_store_index.ets where it agrees, otherwise one for each record",
    "one each": "one for each record, live or dead",
}


@click.command()
@stores.read
@options.as_json
def info(store: stores.StoreArgument, out: output.Output) -> None:
    """Show the content of a store, and how it would open. Writes nothing.

    \b
    Examples:
      msgstore info data/orders
      msgstore info orders --config msgstore.toml --json
    """
    target = store.find()
    with target.open("r") as opened:
        stats, segments = opened.stats(), opened.segments()
        settings, recovery = target.settings(), stats.recovery
        facts = {
            "path": str(target.path),
            "index": target.config.index.name,
            "format": target.config.format.name,
            "record": target.config.record,
            "body": target.config.body.name,
            "records": settings.records if settings else {},
            "known": settings is not None,
            **{name: getattr(stats, name) for name in ("messages", "bytes_on_disk", "live_bytes", "garbage_bytes", "segments")},
            "formats": dict(Counter(segment.format for segment in segments)),
            "last_v1_file": last_v1_file((segment.number, Path(segment.file).suffix) for segment in segments),
            "client_refs": len(ShutdownFiles.read(Files(), target.path).client_refs()),
            "recovery": {
                "how": recovery.how,
                "scanned": len(recovery.scanned),
                "hinted": len(recovery.hinted),
                **{
                    name: getattr(recovery, name)
                    for name in ("entered", "garbage", "missing", "counts", "kept", "revived", "distrust")
                },
            },
            "quarantined": stats.quarantined,
            "damage": list(recovery.damaged),
        }
    out.emit(facts)
    if not out.as_json:
        out.print(output.facts(facts["path"], _rows(facts)))
    out.finish(damaged=bool(facts["quarantined"] or facts["damage"]))


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str | Text]]:
    recovery = facts["recovery"]
    bindings = ", ".join(f"{name} = {byte}" for name, byte in facts["records"].items())
    formats = ", ".join(f"{number} of {name}" for name, number in facts["formats"].items())
    yield "written by", "msgstore" if facts["known"] else "another program: never opened by msgstore"
    yield "backends", ", ".join(f"{key} {facts[key]}" for key in ("index", "format", "record", "body"))
    yield "record types", bindings or "the format's own"
    yield "messages", f"{facts['messages']:,}"
    yield "on disk", output.size(facts["bytes_on_disk"])
    yield "live", output.size(facts["live_bytes"])
    yield "garbage", output.size(facts["garbage_bytes"])
    yield "segments", f"{facts['segments']:,}" + (f" ({formats})" if formats else "")
    yield "last v1 file", "none" if facts["last_v1_file"] is None else str(facts["last_v1_file"])
    yield "clients", f"{facts['client_refs']:,}"
    yield "would open", f"{_RECOVERY_TEXT[recovery['how']]} ({recovery['how']})"
    if recovery["scanned"] or recovery["hinted"]:
        yield "", f"{output.plural(recovery['entered'], 'live record')}, {recovery['garbage']:,} dead or copies"
    if recovery["how"] == "rebuild":
        yield "counts", COUNTS_TEXT[recovery["counts"]]
    if recovery["missing"]:
        yield "", Text(f"{recovery['missing']:,} ids with references have no record", "red")
    if recovery["distrust"]:
        yield "", Text(counts_line(recovery), "red")
    for line in facts["damage"]:
        yield "damage", Text(line, "red")
    if facts["quarantined"] and not facts["damage"]:
        where = f"in {output.plural(facts['quarantined'], 'segment')}. 'msgstore verify' lists it."
        yield "damage", Text(where, "red")


def counts_line(recovery: Mapping[str, Any]) -> str:
    """Return a line about saved counts that do not fit the directory."""
    return (
        f"the saved counts do not fit the directory: {recovery['distrust']}; "
        f"{output.plural(recovery['kept'], 'message')} with the saved counts, {recovery['missing']:,} missing, "
        f"{recovery['revived']:,} removed earlier and live again"
    )
