"""Command ``plugins``: list installed backends and observers, and their problems."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import click
from rich.text import Text

from msgstore.cli import options, output
from msgstore.config import read_config
from msgstore.contract import BodyCodecDescriptor, RecordTypeDescriptor
from msgstore.plugins.catalogue import Catalogue, load_catalogue


@click.command()
@click.option("--check", is_flag=True, help="Also import every backend. Exit with 2 if there is a problem.")
@options.file("--config", "config_file", help="Omit plugins that FILE disables.")
@options.as_json
def plugins(check: bool, config_file: Path | None, out: output.Output) -> None:
    """List the installed formats, record types, indexes, GC policies, body codecs, job runners and observers.

    \b
    Examples:
      msgstore plugins
      msgstore plugins --check --json
    """
    catalogue = load_catalogue(read_config(config_file).disabled if config_file else ())
    problems = [*catalogue.problems(), *(catalogue.unloadable() if check else ())]
    columns: output.Columns[dict[str, Any]] = {
        "kind": lambda one: one["kind"],
        "name": lambda one: one["name"],
        "distribution": lambda one: Text(f"{one['distribution']} {one['version']}", no_wrap=True),
        "summary": _summary,
    }
    backends = _backends(catalogue)
    if not out.as_json:
        backends.sort(key=lambda one: (one["kind"], one["name"]))
    out.rows(None, columns, [*backends, *_observers(catalogue)], as_json=lambda one: one)
    out.emit(*({"kind": "problem", "message": problem} for problem in problems))
    if catalogue.disabled:
        out.print(f"disabled: {', '.join(catalogue.disabled)}")
    for problem in problems:
        out.print(f"problem: {problem}", "red")
    if not problems:
        out.print("no problems", "green")
    if check and problems:
        click.get_current_context().exit(2)


def _backends(catalogue: Catalogue) -> list[dict[str, Any]]:
    return [
        {
            "kind": found.kind,
            "name": found.descriptor.name,
            **attrs.asdict(found.provider, filter=lambda field, _: field.name in ("distribution", "version", "entry_point")),
            "contract": list(found.descriptor.contract),
            "capabilities": sorted(capability.value for capability in found.descriptor.capabilities),
            "summary": found.descriptor.summary,
            **(
                {"fields": [attrs.asdict(field) for field in found.descriptor.fields]}
                if isinstance(found.descriptor, RecordTypeDescriptor | BodyCodecDescriptor)
                else {}
            ),
        }
        for found in catalogue.registrations
    ]


def _observers(catalogue: Catalogue) -> list[dict[str, Any]]:
    """Return each plugin with event hooks, and the names of these hooks."""
    found = sorted(catalogue.observers, key=lambda observer: str(observer.provider))
    return [
        {
            "kind": "observer",
            "name": provider.entry_point,
            "distribution": provider.distribution,
            "version": provider.version,
            "entry_point": provider.entry_point,
            "events": [observer.hook for observer in group],
        }
        for provider, group in groupby(found, key=lambda observer: observer.provider)
    ]


def _summary(one: dict[str, Any]) -> Text:
    """Return the summary of a backend, with contract and capabilities below it, or the number of an observer's events."""
    if "events" in one:
        return Text(f"receives {output.plural(len(one['events']), 'kind')} of events")
    below = "; ".join(filter(None, [f"contract {'.'.join(map(str, one['contract']))}", ", ".join(one["capabilities"])]))
    return Text.assemble(one["summary"], (f"\n{below}", "dim"))
