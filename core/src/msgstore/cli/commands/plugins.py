"""Commands ``plugins`` and ``config check``: list installed backends, and check the backends that a configuration names."""

from __future__ import annotations

import contextlib
import math
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import click
from click.exceptions import Exit
from rich.text import Text

from msgstore.cli import options, output
from msgstore.cli.config_check import check_store
from msgstore.cli.option_texts import hinted_fields, toml_type, toml_value
from msgstore.config import read_config
from msgstore.contract import (
    BodyCodecDescriptor,
    BrokenPlugin,
    CommandDescriptor,
    ConfigError,
    Descriptor,
    FormatContext,
    IndexDescriptor,
    JobRunnerDescriptor,
    MsgStoreError,
    RecordContext,
    RecordTypeDescriptor,
    SegmentFormatDescriptor,
    SinkContext,
    SinkDescriptor,
    SourceContext,
    SourceDescriptor,
)
from msgstore.engine.opening import load_config
from msgstore.files import stat_regular_file
from msgstore.option_values import check_type, structure
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.plugins.known import NOUNS
from msgstore.plugins.loader import Provider
from msgstore.scan.formats import THIRD_PARTY_BYTES

_OWN_MEMBERS: dict[type[Descriptor], tuple[str, ...]] = {
    RecordTypeDescriptor: ("format", "assigned_byte"),
    SegmentFormatDescriptor: ("extension", "generation"),
    SinkDescriptor: ("endings", "schemes"),
}
"""Attributes that only the descriptors of some kinds have, for ``--json``."""


@click.command()
@click.option(
    "--check",
    is_flag=True,
    help="Also import the backends, and create those that open no store and connect to nothing. Exit with 2 for a problem.",
)
@options.file("--config", "config_file", help="Omit plugins that FILE disables.")
@options.as_json
def plugins(check: bool, config_file: Path | None, out: output.Output) -> None:
    """List the installed formats, record types, indexes, GC policies, body codecs, sources, sinks, job runners, commands and
    observers.

    \b
    Examples:
      msgstore plugins
      msgstore plugins --check --json
    """
    catalogue = load_config(config_file).catalogue if config_file else load_catalogue()
    problems = [*catalogue.problems(), *(_unusable(catalogue) if check else ())]
    installed = list(_installed(catalogue))
    if not out.as_json:
        installed.sort(key=lambda one: ("events" in one, one["kind"], one["name"]))
    columns = output.columns(
        "kind name distribution summary",
        distribution=lambda one: Text(f"{one['distribution']} {one['version']}", no_wrap=True),
        summary=_summary,
    )
    out.rows(None, columns, installed, as_json=lambda one: one)
    out.emit(*({"kind": "problem", "message": problem} for problem in problems))
    if catalogue.disabled:
        out.print(f"disabled: {', '.join(catalogue.disabled)}")
    for problem in problems:
        out.print(f"problem: {problem}", "red")
    if not problems:
        out.print("no problems", "green")
    if check and problems:
        click.get_current_context().exit(2)


def load_command(catalogue: Catalogue, descriptor: CommandDescriptor) -> click.Command:
    """Import a plugin's command. Raises BrokenPlugin."""
    with catalogue.attribute_errors(descriptor, "cannot be imported", passing=()):
        command = descriptor.load_factory()
        if not isinstance(command, click.Command):
            raise TypeError(f"{descriptor.factory} is not a click.Command")
        return command


def _unusable(catalogue: Catalogue) -> Iterator[str]:
    """Import each factory, and create the backend with each set of options that its descriptor has as an example. Yield one
    line for each that fails. Indexes, job runners and sinks of services are only imported: they would open a store, start a
    cluster, or connect."""
    program = click.get_current_context().find_root().command
    own_commands = program.commands if isinstance(program, click.Group) else {}
    for found in catalogue.registrations:
        descriptor = found.descriptor
        try:
            if isinstance(descriptor, CommandDescriptor):
                if descriptor.name in own_commands:
                    yield f"the command {descriptor.name!r} of {found.provider} cannot be called: msgstore has one of this name"
                load_command(catalogue, descriptor)
                continue
            catalogue.load_factory(descriptor)
            fields = hinted_fields(descriptor.options)
            defaults = {field.name: field.default for field in fields if _can_be_checked(field.default)}
            for option in fields:
                try:
                    check_type(option.name, option.type)
                except TypeError as error:
                    yield f"the {NOUNS[found.kind]} {descriptor.name!r} of {found.provider}: {error}"
            if isinstance(descriptor, SourceDescriptor):
                with catalogue.attribute_errors(descriptor, "cannot be asked what it recognises"):
                    descriptor.load_detect()
            for example in () if isinstance(descriptor, IndexDescriptor | JobRunnerDescriptor) else descriptor.examples:
                where = f"the {NOUNS[found.kind]} {descriptor.name!r} of {found.provider}: examples"
                given = structure(descriptor.options, example, where)
                structure(descriptor.options, defaults | dict(example), f"{where} with the defaults:")
                if isinstance(descriptor, SourceDescriptor | SinkDescriptor):
                    _make_at_path(catalogue, descriptor, given)
                    continue
                if isinstance(descriptor, RecordTypeDescriptor):
                    given = RecordContext(given, descriptor.assigned_byte or min(THIRD_PARTY_BYTES))
                elif isinstance(descriptor, SegmentFormatDescriptor):
                    given = FormatContext(given)
                catalogue.make(descriptor, given)
        except MsgStoreError as error:
            yield str(error)


def _can_be_checked(default: object) -> bool:
    """Return False for a factory, a table, and a time without end, which no file has."""
    if isinstance(default, list | tuple):
        return all(map(_can_be_checked, default))
    is_made = isinstance(default, attrs.Factory)  # type: ignore[arg-type]  # attrs types this class as a function
    if is_made or default is attrs.NOTHING or attrs.has(type(default)):
        return False
    return not isinstance(default, float) or math.isfinite(default)


def _make_at_path(catalogue: Catalogue, descriptor: SourceDescriptor | SinkDescriptor, given: Any) -> None:
    """Create and close a source or sink in an empty directory."""
    if isinstance(descriptor, SinkDescriptor) and descriptor.schemes:
        return
    with tempfile.TemporaryDirectory() as directory:
        context: object
        if isinstance(descriptor, SinkDescriptor):
            context = SinkContext(destination=f"{directory}/made", target=directory, options=given)
        else:
            context = SourceContext(path=Path(directory), options=given, read=lambda name: Path(directory, name).read_bytes())
        try:
            made = catalogue.make(descriptor, context)
        except MsgStoreError as error:  # a source finds nothing here, or a library is missing
            if isinstance(error, BrokenPlugin) and (isinstance(context, SinkContext) or isinstance(error.__cause__, TypeError)):
                raise
        else:
            with catalogue.attribute_errors(descriptor, "failed in close"):
                made.close()


def _installed(catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """Yield the object of each backend, and of each plugin with event hooks."""

    def members(kind: str, name: str, provider: Provider, **own: Any) -> dict[str, Any]:
        origin = {"distribution": provider.distribution, "version": provider.version, "entry_point": provider.entry_point}
        return {"kind": kind, "name": name, **origin, **own}

    for found in catalogue.registrations:
        descriptor = found.descriptor
        own: dict[str, Any] = {"contract": descriptor.contract}
        own["capabilities"] = sorted(capability.value for capability in descriptor.capabilities)
        own["summary"] = descriptor.summary
        own["options"] = list(_options(descriptor))
        if isinstance(descriptor, RecordTypeDescriptor | BodyCodecDescriptor | SegmentFormatDescriptor):
            own["fields"] = [attrs.asdict(field) for field in descriptor.fields]
        for kind, names in _OWN_MEMBERS.items():
            own |= {name: getattr(descriptor, name) for name in names if isinstance(descriptor, kind)}
        yield members(found.kind, descriptor.name, found.provider, **own)
    observers = sorted(catalogue.observers, key=lambda observer: str(observer.provider))
    for provider, group in groupby(observers, key=lambda observer: observer.provider):
        yield members("observer", provider.entry_point, provider, events=[observer.hook for observer in group])


def _options(descriptor: Descriptor) -> Iterator[dict[str, str]]:
    """Yield name, type and default of each option. If the class of options cannot be examined, yield one row with the error."""
    try:
        for field in list(hinted_fields(descriptor.options)):
            kind, default = toml_type(field.type), toml_value(field.type, field.default)
            yield {"name": field.name, "type": kind.replace("`", ""), "default": default.replace("`", "")}
    except Exception as error:  # a plugin's annotations may raise anything
        yield {"name": "?", "type": f"{type(error).__name__}: {error}", "default": "?"}


def _summary(one: dict[str, Any]) -> Text:
    """Return the summary of a backend, and below it what else its descriptor has; or the number of an observer's events."""
    if "events" in one:
        return Text(f"receives {output.plural(len(one['events']), 'kind')} of events")
    parts = [f"contract {'.'.join(map(str, one['contract']))}", ", ".join(one["capabilities"])]
    if "extension" in one:
        parts.append(f"files *{one['extension']}, generation {one['generation']}")
    if "format" in one:
        byte = "" if one["assigned_byte"] is None else f", byte {one['assigned_byte']}"
        parts.append(f"type of {one['format']}{byte}")
    below = ["; ".join(filter(None, parts))]
    for option in one["options"]:
        default = "must be given" if option["default"] == "must be given" else f"default {option['default']}"
        below.append(f"{option['name']}: {option['type']}, {default}")
    return Text.assemble(one["summary"], ("\n" + "\n".join(below), "dim"))


@click.group()
def config() -> None:
    """Work with configuration files."""


@config.command()
@options.file("--config", "config_file", default=Path("msgstore.toml"), show_default=True, help="The file to check.")
@options.as_json
def check(config_file: Path, out: output.Output) -> None:
    """Check every key, and that every named backend is installed, accepts its options and fits the directory.

    Reads no segment, and writes nothing. Tables of vhosts are checked if msgstore-queues is installed; else the exit code is 3.

    \b
    Examples:
      msgstore config check
      msgstore config check --config msgstore.toml --json
    """
    failed = False
    for store, path, errors in _check_file(config_file):
        failed |= bool(errors)
        out.emit({"store": store, "path": path, "ok": not errors, "errors": errors})
        for error in () if out.as_json else errors:
            output.note(error)
        if not errors:
            out.print(f"{store}: ok ({path})", soft_wrap=True)
    code = _check_vhosts(config_file, out)
    if failed or code:
        click.get_current_context().exit(2 if failed else code)


def _check_vhosts(file: Path, out: output.Output) -> int:
    """Check the tables of vhosts by the command of the distribution that has them. Return an exit code."""
    try:
        found = read_config(file)
        catalogue = load_catalogue(found.disabled)
    except ConfigError:  # reported with the stores
        return 0
    if not found.vhosts:
        return 0
    if "vhost" not in catalogue.names("command"):
        output.note(f"{file}: [vhosts] was not checked: {', '.join(found.vhosts)}. Install msgstore-queues.")
        return output.NOT_READ
    group = load_command(catalogue, catalogue.command("vhost"))
    check_vhosts = group.commands["check"] if isinstance(group, click.Group) else group
    try:
        click.get_current_context().invoke(check_vhosts, config_file=file, out=out)
    except Exit as error:
        return error.exit_code
    return 0


def _check_file(file: Path) -> Iterator[tuple[str | None, str | None, list[str]]]:
    """Yield (store, path, errors) of every store. The store is None for errors of the file as a whole."""
    found = catalogue = stores = file_error = None
    try:
        found = read_config(file)
        catalogue = load_catalogue(found.disabled)
    except ConfigError as error:
        file_error = f"{file}: {error}" if found else str(error)
        catalogue = None if found else load_catalogue()
    with contextlib.suppress(OSError, ValueError, RecursionError):  # what can be read is checked
        stat_regular_file(file)  # a pipe would wait for a writer
        stores = tomllib.loads(file.read_text(encoding="utf-8")).get("stores")
    checked = []
    for name, keys in stores.items() if isinstance(stores, dict) else ():
        if isinstance(keys, dict):
            errors = check_store(keys, f"{file}: [stores.{name}]", file.parent, catalogue)
            checked.append((name, str(file.parent / str(keys.get("path", ""))), errors))
    if file_error is None and not checked and not (found and found.vhosts):
        file_error = f"{file}: there is no table [stores.NAME]"
    if file_error is not None and not any(file_error in errors for _, _, errors in checked):
        yield None, None, [file_error]
    yield from checked
