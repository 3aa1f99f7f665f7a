"""Reference of the command line: each command with its arguments and options, from click."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator

import click

from msgstore.cli.main import main
from msgstore_queues.commands.queue import queue
from msgstore_queues.commands.vhost import vhost
from source import UndocumentedError, cell, table

SHARED = ("--json", "--config", "--refcounts", "--runner", "--master", "--processes")
"""Options that are documented once, at the top of the page, except for commands with another text for them."""


def commands(group: click.Group = main, prefix: str = "msgstore") -> Iterator[tuple[str, click.Command]]:
    """Yield (full name, command) of each command of core and of msgstore-queues."""
    others = {"queue": queue, "vhost": vhost} if group is main else {}
    for name, command in {**group.commands, **others}.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


_OPTION = re.compile(r"(?<!\S)(--[a-z-]+)")


@functools.cache
def _common() -> dict[str, str]:
    """Return the most frequent text of each shared option: its help with its default."""
    texts: dict[str, list[str]] = {}
    for _, command in commands():
        for option in _options(command):
            texts.setdefault(option.opts[0], []).append(_text(option))
    return {name: max(texts[name], key=texts[name].count) for name in SHARED}


def _text(option: click.Option) -> str:
    return _mark_options(cell(option.help or "")) + _default(option)


def _options(command: click.Command) -> list[click.Option]:
    found = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    for option in found:
        if not option.help:
            raise UndocumentedError(f"msgstore {command.name} {option.opts[0]} has no help")
    return found


def shared() -> str:
    found = [option for _, command in commands() for option in _options(command)]
    options = {name: next(o for o in found if o.opts[0] == name and _text(o) == text) for name, text in _common().items()}
    return table(("option", "", ""), [(_heading(option), _text(option), _scope(name)) for name, option in options.items()])


def _scope(name: str) -> str:
    """Return the commands that have the option with the common text. Others have a row of it in a table of their own."""
    texts = {full.removeprefix("msgstore "): [_text(o) for o in _options(c) if o.opts[0] == name] for full, c in commands()}
    has = [full for full, found in texts.items() if found == [_common()[name]]]
    return "every command" if len(has) == len(texts) else f"only: {', '.join(has)}"


def command_section(command: click.Command) -> str:
    """Return the help of a command, without examples, and a table of the options with texts of their own."""
    text = _mark_options(inspect.cleandoc(command.help or "").partition("\n\n\b\nExamples:")[0].replace("\b\n", ""))
    own = [option for option in _options(command) if _common().get(option.opts[0]) != _text(option)]
    if not own:
        return text
    return f"{text}\n\n{table(('option', ''), [(_heading(option), _text(option)) for option in own])}"


def _mark_options(text: str) -> str:
    return _OPTION.sub(r"`\1`", text)


def _heading(option: click.Option) -> str:
    choices = "\\|".join(option.type.choices) if isinstance(option.type, click.Choice) else ""
    return f"`{' '.join([option.opts[0], *([] if option.is_flag else [option.metavar or choices])])}`"


def _default(option: click.Option) -> str:
    also = " Must be given." if option.required else ""
    also += " May be given several times." if option.multiple else ""
    return f" Default: `{option.default}`.{also}" if option.show_default else also


REGIONS: dict[str, Callable[[], str]] = {
    "shared options": shared,
    **{name: functools.partial(command_section, command) for name, command in commands()},
}
