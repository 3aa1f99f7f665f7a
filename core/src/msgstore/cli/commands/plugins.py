"""Command ``plugins``: list installed backends and observers, and their problems."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import attrs
import click
from rich.text import Text

from msgstore.cli import options, output
from msgstore.config import read_config
from msgstore.contract import BodyCodecDescriptor, RecordTypeDescriptor
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.plugins.loader import Provider


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
    out.emit(*_as_json(catalogue))
    out.emit(*({"kind": "problem", "message": problem} for problem in problems))
    out.table(None, ("kind", "name", "distribution", "summary"), _rows(catalogue))
    if catalogue.disabled:
        out.print(f"disabled: {', '.join(catalogue.disabled)}")
    for problem in problems:
        out.print(f"problem: {problem}", "red")
    if not problems:
        out.print("no problems", "green")
    if check and problems:
        click.get_current_context().exit(2)


def _as_json(catalogue: Catalogue) -> Iterator[dict[str, object]]:
    for found in catalogue.registrations:
        descriptor = found.descriptor
        fields: dict[str, object] = {}
        if isinstance(descriptor, RecordTypeDescriptor | BodyCodecDescriptor):
            fields["fields"] = [attrs.asdict(field) for field in descriptor.fields]
        yield {
            "kind": found.kind,
            "name": descriptor.name,
            **_origin(found.provider),
            "contract": list(descriptor.contract),
            "capabilities": sorted(capability.value for capability in descriptor.capabilities),
            "summary": descriptor.summary,
            **fields,
        }
    for provider, hooks in _observers(catalogue):
        yield {"kind": "observer", "name": provider.entry_point, **_origin(provider), "events": hooks}


def _origin(provider: Provider) -> dict[str, str]:
    return {"distribution": provider.distribution, "version": provider.version, "entry_point": provider.entry_point}


def _observers(catalogue: Catalogue) -> list[tuple[Provider, list[str]]]:
    """Return each plugin with event hooks, and the names of these hooks."""
    found = sorted(catalogue.observers, key=lambda observer: str(observer.provider))
    return [
        (provider, [observer.hook for observer in group]) for provider, group in groupby(found, key=lambda one: one.provider)
    ]


def _rows(catalogue: Catalogue) -> Iterator[tuple[object, ...]]:
    """Yield a row for each backend and observer. Contract and capabilities are below the summary."""
    for found in sorted(catalogue.registrations, key=lambda found: (found.kind, found.descriptor.name)):
        descriptor = found.descriptor
        capabilities = ", ".join(sorted(capability.value for capability in descriptor.capabilities))
        below = f"contract {'.'.join(map(str, descriptor.contract))}{capabilities and f'; {capabilities}'}"
        summary = Text.assemble(descriptor.summary, (f"\n{below}", "dim"))
        yield found.kind, descriptor.name, _distribution(found.provider), summary
    for provider, hooks in _observers(catalogue):
        summary = Text(f"receives {output.plural(len(hooks), 'kind')} of events")
        yield "observer", provider.entry_point, _distribution(provider), summary


def _distribution(provider: Provider) -> Text:
    return Text(f"{provider.distribution} {provider.version}", no_wrap=True)
