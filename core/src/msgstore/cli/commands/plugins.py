"""Command ``plugins``: list installed backends and observers, and their problems."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import attrs
import click
from rich.text import Text

from msgstore.cli import options, output
from msgstore.config import read_config
from msgstore.contract import BodyCodecDescriptor, Descriptor, RecordTypeDescriptor
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.plugins.loader import Provider

_WIDE_COLUMNS = 130
"""Terminal width that the whole table needs. On a narrower one, contract and capabilities are below the summary."""


@click.command()
@click.option("--check", is_flag=True, help="Also import every backend. Exit with 2 if there is a problem.")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Omit plugins that FILE disables."
)
@options.as_json
def plugins(check: bool, config_file: Path | None, as_json: bool) -> None:
    """List the installed formats, record types, indexes, GC policies, body codecs, job runners and observers.

    \b
    Examples:
      msgstore plugins
      msgstore plugins --check --json
    """
    catalogue = load_catalogue(read_config(config_file).disabled if config_file else ())
    problems = [*catalogue.problems(), *(catalogue.unloadable() if check else ())]
    if as_json:
        _emit(catalogue, problems)
    else:
        _show(catalogue, problems)
    if check and problems:
        click.get_current_context().exit(2)


def _emit(catalogue: Catalogue, problems: list[str]) -> None:
    for found in catalogue.registrations:
        descriptor, provider = found.descriptor, found.provider
        output.emit(
            {
                "kind": found.kind,
                "name": descriptor.name,
                "distribution": provider.distribution,
                "version": provider.version,
                "entry_point": provider.entry_point,
                "contract": list(descriptor.contract),
                "capabilities": sorted(capability.value for capability in descriptor.capabilities),
                "summary": descriptor.summary,
                **_fields(descriptor),
            }
        )
    for provider, hooks in _observers(catalogue):
        output.emit(
            {
                "kind": "observer",
                "name": provider.entry_point,
                "distribution": provider.distribution,
                "version": provider.version,
                "entry_point": provider.entry_point,
                "events": hooks,
            }
        )
    for problem in problems:
        output.emit({"kind": "problem", "message": problem})


def _fields(descriptor: Descriptor) -> dict[str, object]:
    if not isinstance(descriptor, RecordTypeDescriptor | BodyCodecDescriptor):
        return {}
    return {"fields": [attrs.asdict(field) for field in descriptor.fields]}


def _observers(catalogue: Catalogue) -> list[tuple[Provider, list[str]]]:
    """Return each plugin with event hooks, and the names of these hooks."""
    found = sorted(catalogue.observers, key=lambda observer: str(observer.provider))
    return [
        (provider, [observer.hook for observer in group]) for provider, group in groupby(found, key=lambda one: one.provider)
    ]


def _show(catalogue: Catalogue, problems: list[str]) -> None:
    console = output.Terminal()
    wide = console.width >= _WIDE_COLUMNS
    columns = ("kind", "name", "distribution", *(("contract", "capabilities") if wide else ()), "summary")
    rows = output.table(None, *columns)
    for found in sorted(catalogue.registrations, key=lambda found: (found.kind, found.descriptor.name)):
        descriptor, provider = found.descriptor, found.provider
        contract = ".".join(map(str, descriptor.contract))
        capabilities = ", ".join(sorted(capability.value for capability in descriptor.capabilities))
        start = found.kind, descriptor.name, Text(f"{provider.distribution} {provider.version}", no_wrap=True)
        if wide:
            rows.add_row(*start, contract, capabilities or "-", descriptor.summary)
        else:
            suffix = f"; {capabilities}" if capabilities else ""
            rows.add_row(*start, Text.assemble(descriptor.summary, (f"\ncontract {contract}{suffix}", "dim")))
    for provider, hooks in _observers(catalogue):
        start = "observer", provider.entry_point, Text(f"{provider.distribution} {provider.version}", no_wrap=True)
        rows.add_row(*start, *(("-", "-") if wide else ()), f"receives {output.plural(len(hooks), 'kind')} of events")
    console.print(rows)
    if catalogue.disabled:
        console.print(f"disabled: {', '.join(catalogue.disabled)}")
    for problem in problems:
        console.print(f"problem: {problem}", style="red")
    if not problems:
        console.print("no problems", style="green")
