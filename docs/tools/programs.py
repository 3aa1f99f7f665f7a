"""Of the command line: each verb with its arguments and options, from click."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator

import click

from msgstore.cli.main import main
from source import UndocumentedError, cell, table

SHARED = ("--json", "--config", "--refcounts", "--runner", "--master", "--processes")
"""Said once, at the top of the page, unless a verb means something of its own by them."""


def verbs(group: click.Group = main, prefix: str = "msgstore") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from verbs(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


_OPTION = re.compile(r"(?<!\S)(--[a-z-]+)")


@functools.cache
def _usual() -> dict[str, str]:
    """What most verbs say of the shared options."""
    said: dict[str, list[str]] = {}
    for _, command in verbs():
        for option in _options(command):
            said.setdefault(option.opts[0], []).append(option.help or "")
    return {name: max(said[name], key=said[name].count) for name in SHARED}


def _options(command: click.Command) -> list[click.Option]:
    found = [parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden]
    for option in found:
        if not option.help:
            raise UndocumentedError(f"msgstore {command.name} {option.opts[0]} has no help")
    return found


def shared() -> str:
    of = {name: next(o for _, command in verbs() for o in _options(command) if o.opts[0] == name) for name in SHARED}
    rows = [(_head(of[name]), _marked(text) + _default(of[name]), _who(name)) for name, text in _usual().items()]
    return table(("option", "", ""), rows)


def _who(name: str) -> str:
    """The shorter list of the two."""
    has = {verb.removeprefix("msgstore "): name in [o.opts[0] for o in _options(command)] for verb, command in verbs()}
    those, others = ([verb for verb, there in has.items() if there == wanted] for wanted in (True, False))
    if not others:
        return "every command"
    return f"only: {', '.join(those)}" if len(those) < len(others) else f"not: {', '.join(others)}"


def verb(command: click.Command) -> str:
    said = _marked(inspect.cleandoc(command.help or "").partition("\n\n\b\nExamples:")[0].replace("\b\n", ""))
    own = [option for option in _options(command) if _usual().get(option.opts[0]) != option.help]
    if not own:
        return said
    rows = [(_head(option), _marked(cell(option.help or "")) + _default(option)) for option in own]
    return f"{said}\n\n{table(('option', ''), rows)}"


def _marked(text: str) -> str:
    return _OPTION.sub(r"`\1`", text)


def _head(option: click.Option) -> str:
    return f"`{' '.join([option.opts[0], *([] if option.is_flag else [option.metavar or ''])])}`"


def _default(option: click.Option) -> str:
    also = " Must be given." if option.required else ""
    also += " May be given several times." if option.multiple else ""
    return f" Default: `{option.default}`.{also}" if option.show_default else also


REGIONS: dict[str, Callable[[], str]] = {
    "shared options": shared,
    **{name: functools.partial(verb, command) for name, command in verbs()},
}
