"""Command ``salvage``: copy the intact records of damaged directories into a new store."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import click

from msgstore.cli import options, output
from msgstore.cli.option_texts import note_defaults, note_missing_keys, print_doubt, print_unbound_type
from msgstore.jobs.reports import SETTINGS_DAMAGED, sums
from msgstore.jobs.salvage import SalvageJob, plan_salvage
from msgstore.jobs.workers import disabled_plugins
from msgstore.option_values import Backend
from msgstore.plugins.catalogue import Catalogue, load_catalogue

_MAX_IGNORED = 20
"""Names of omitted files that are listed for people."""


@click.command()
@options.sources
@options.destination
@options.named("--index", default="ets", text="Index of the new store.")
@options.named("--format", default="v2", text="Format of the new store.")
@options.named("--record", text="Record type that all records are encoded as. Default: their own type.")
@options.bindings("--bind", "The type byte of the record type of --record.", "bind")
@options.body("Body codec of the new store. Every body must be valid for it.")
@options.bindings("--source-record", "A record type of the sources that their directories do not remember.")
@options.file(
    "--refcounts",
    "counts",
    help="Lines 'id,count', or Parquet. Other ids are dead and omitted. The new store has these counts.",
)
@options.runner
@options.as_json
def salvage(
    sources: tuple[Path, ...],
    destination: Path,
    body: Backend | None,
    runner: options.RunnerOptions,
    out: output.Output,
    **choices: Any,
) -> None:
    """Copy every intact record in SRC into a new store at DEST, and report every damaged span. SRC is only read.

    SRC is a segment, a directory of segments, a tree of such directories, or a glob; several may be copies of one store. After
    a damaged span, the search continues for chains of intact records. Of several copies of an id one is kept: from the first
    SRC, and there from the highest segment. Each message gets one reference, unless counts are given. DEST must not exist or
    must be empty. It appears when it is complete.

    \b
    Examples:
      msgstore salvage msg_store_persistent rescued
      msgstore salvage broken backup rescued --index lmdb --record checksum --json
      msgstore salvage /backups/node1 rescued --runner spark --master 'local[4]'
    """
    catalogue = load_catalogue(disabled_plugins())
    job = plan_salvage(catalogue, sources, destination, body=body, check_body=body, **choices)
    note_defaults(catalogue, job.target.format, choices["record"], "convert gives others: --sink-option records=...")
    remedy = "'msgstore convert NAME DEST --config FILE' leaves out what it refuses"
    note_missing_keys(catalogue, job.found.bound_types(), remedy)
    run_salvage(job, catalogue, runner, out, "salvaging")


def run_salvage(job: SalvageJob, catalogue: Catalogue, runner: options.RunnerOptions, out: output.Output, what: str) -> None:
    """Run the job and print its report."""
    report = runner.run(out, what, catalogue, job.size, lambda by, bar: by.salvage(job, bar))
    for found in report.inputs:
        out.emit(found.as_json(), *found.recovered_as_json())
    several = len({Path(found.path).parent for found in report.inputs}) > 1
    spec = "size:bytes copied=records recovered:yellow intact=good:bytes copies=duplicates:bytes "
    spec += f"{'dead:bytes ' if any(found.dead for found in report.inputs) else ''}holes:bytes damaged:bytes"
    if is_long := len(report.inputs) > output.MAX_LISTED:  # a row for each store, else for each segment
        groups = [(d, list(found)) for d, found in groupby(report.inputs, lambda found: str(Path(found.path).parent))]
        groups.append(("total", list(report.inputs)))
    else:
        groups = [(one.path if several else Path(one.path).name, [one]) for one in reversed(report.inputs)]
    rows = [
        {
            "name": name,
            "segments": len(inputs),
            "format": inputs[0].format,
            "recovered": sum(len(one.recovered) for one in inputs),
            **sums(inputs, "size", "records", "good", "duplicates", "dead", "holes", "damaged"),
        }
        for name, inputs in groups
    ]
    columns = output.columns(f"{'store=name segments' if is_long else 'file=name format'} {spec}")
    out.rows(f"{', '.join(report.sources)} to {report.destination}", columns, rows, bold_last=is_long)
    out.print()
    out.damage(report.damage, len(report.sources))
    print_doubt(out, job.check_body, report.damage, catalogue)
    print_unbound_type(out, report.damage, catalogue, "--source-record")
    if not out.as_json and any(span.reason == SETTINGS_DAMAGED for span in report.damage):
        loss = "bindings of record types and the name of the body codec are lost. Give those of third parties with"
        output.note(f"{loss} --source-record NAME=BYTE and --body NAME.")
    if report.ignored:
        ignored = report.ignored if several else [Path(name).name for name in report.ignored]
        more = f" and {len(ignored) - _MAX_IGNORED:,} more (--json lists them)" if len(ignored) > _MAX_IGNORED else ""
        out.print(f"omitted, not segments: {', '.join(ignored[:_MAX_IGNORED])}{more}", "dim")
    if report.missing:
        out.print(f"{output.plural(report.missing, 'message')} with counts have no intact record", "bold red")
    recovered = f", {report.recovered:,} of them recovered after damage" if report.recovered else ""
    dead = "" if job.counts else "; no counts: removed messages are among them"
    out.print(f"{output.plural(report.messages, 'message')} copied{recovered}{dead}")
    if not job.complete and any(found.format != job.target.format for found in report.inputs):
        out.print(f"The new store has the format {job.target.format} and the index {job.target.index}.", "dim")
    out.finish(damaged=bool(report.damage or report.missing), not_read=report.not_read, summary=report.as_json())
