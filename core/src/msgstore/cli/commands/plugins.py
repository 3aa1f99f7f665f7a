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
from msgstore.contract import BodyCodecDescriptor, Descriptor, RecordTypeDescriptor
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.plugins.loader import Provider

_WIDE_COLUMNS = 130
"""Terminal width that the whole table needs. On a narrower one, contract and capabilities are below the summary."""


@click.command()
@click.option("--check", is_flag=True, help="Also import every backend. Exit with 2 if there is a problem.")
@click.option("--config", "config_file", type=options.FILE, metavar="FILE", help="Omit plugins that FILE disables.")
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
    out.table(None, _rows(catalogue, wide=out.console.width >= _WIDE_COLUMNS))
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
        yield {
            "kind": found.kind,
            "name": descriptor.name,
            **_origin(found.provider),
            "contract": list(descriptor.contract),
            "capabilities": sorted(capability.value for capability in descriptor.capabilities),
            "summary": descriptor.summary,
            **_fields(descriptor),
        }
    for provider, hooks in _observers(catalogue):
        yield {"kind": "observer", "name": provider.entry_point, **_origin(provider), "events": hooks}


def _origin(provider: Provider) -> dict[str, str]:
    return {"distribution": provider.distribution, "version": provider.version, "entry_point": provider.entry_point}


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


def _rows(catalogue: Catalogue, *, wide: bool) -> Iterator[dict[str, object]]:
    for found in sorted(catalogue.registrations, key=lambda found: (found.kind, found.descriptor.name)):
        descriptor = found.descriptor
        contract = ".".join(map(str, descriptor.contract))
        capabilities = ", ".join(sorted(capability.value for capability in descriptor.capabilities))
        narrow = Text.assemble(descriptor.summary, (f"\ncontract {contract}{capabilities and f'; {capabilities}'}", "dim"))
        yield {
            **_start(found.kind, descriptor.name, found.provider),
            **({"contract": contract, "capabilities": capabilities or "-"} if wide else {}),
            "summary": descriptor.summary if wide else narrow,
        }
    for provider, hooks in _observers(catalogue):
        yield {
            **_start("observer", provider.entry_point, provider),
            **({"contract": "-", "capabilities": "-"} if wide else {}),
            "summary": f"receives {output.plural(len(hooks), 'kind')} of events",
        }


def _start(kind: str, name: str, provider: Provider) -> dict[str, object]:
    return {"kind": kind, "name": name, "distribution": Text(f"{provider.distribution} {provider.version}", no_wrap=True)}
