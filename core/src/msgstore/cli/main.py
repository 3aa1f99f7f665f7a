"""Program ``msgstore``: its commands, and the conversion of errors to one line and an exit code."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit

import msgstore
from msgstore.cli.commands.compact import compact, migrate
from msgstore.cli.commands.convert import convert_, export, import_
from msgstore.cli.commands.demo import demo
from msgstore.cli.commands.info import info, top
from msgstore.cli.commands.map import map_
from msgstore.cli.commands.message_lists import detect, messages, queues
from msgstore.cli.commands.messages import get, ls, put, rm
from msgstore.cli.commands.new_plugin import new_plugin
from msgstore.cli.commands.plugins import config, load_command, plugins
from msgstore.cli.commands.salvage import salvage
from msgstore.cli.commands.scan import diff, inventory, reconcile, scan
from msgstore.cli.commands.verify import scrub, verify
from msgstore.cli.output import note, visible
from msgstore.contract import CommandDescriptor, CorruptRecord, MsgStoreError
from msgstore.plugins.blame import blame
from msgstore.plugins.catalogue import load_catalogue

DAMAGE = 1
MISUSE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

_NO_FAULT = (MsgStoreError, OSError, click.ClickException, click.Abort, Exit)
"""Exceptions that end a command with one line and an exit code. Any other is a fault of the command."""
_DAMAGE_LOGGERS = ("msgstore.recovery", "msgstore.collection", "msgstore.index")
"""Loggers muted for the commands that print damage themselves."""


class Program(click.Group):
    """Command group that has plugins' commands beside its own, and reports msgstore's errors and OSError as one line with an
    exit code."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        if sys.stderr is None:
            # The caller has closed standard error. Otherwise a file of the store would get its descriptor number.
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the program ends
        if sys.stdout is None:  # Python would drop all output and exit with 0
            note("standard output is closed. To discard the output, write >/dev/null.")
            sys.exit(MISUSE)
        return super().main(*arguments, **options)

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _report_errors():  # --help and --version are printed here
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _report_errors():
            try:
                return super().invoke(ctx)
            except _NO_FAULT:
                raise
            except Exception as error:
                name = ctx.invoked_subcommand
                if name is None or name in self.commands:
                    raise
                catalogue = load_catalogue()
                raise catalogue.broken(catalogue.command(name), "failed", error) from error

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command of ours, or else of a plugin: no plugin replaces one of ours."""
        own = super().get_command(ctx, name)
        if own is not None or name not in (catalogue := load_catalogue()).names("command"):
            return own
        return load_command(catalogue, catalogue.command(name))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(f"{error.message}{load_catalogue().failed_to_load()}", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        found = {one.name: one.summary for one in load_catalogue().descriptors(CommandDescriptor)}
        if found := {name: summary for name, summary in found.items() if name not in self.commands}:
            with formatter.section("Commands of plugins"):
                formatter.write_dl(sorted(found.items()))


@contextlib.contextmanager
def _report_errors() -> Iterator[None]:
    """Print an exception as one line, or as the lines of an error that lists findings, and raise Exit with its exit code."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output has ended
        _discard_output()
        raise Exit(BROKEN_PIPE) from None
    except KeyboardInterrupt:
        note("interrupted")
        raise Exit(INTERRUPTED) from None
    except (click.Abort, Exit):
        raise
    except click.ClickException as error:
        error.message = visible(error.message)  # type: ignore[misc]  # declared final, and it may quote an argument
        raise
    except Exception as error:
        known = error if isinstance(error, MsgStoreError | OSError) else blame(error)
        if isinstance(error, MemoryError):
            known = MsgStoreError("this process has no more memory: give it more, or read less at once")
        if known is None:
            raise
        for line in str(known).splitlines() if getattr(known, "has_lines", False) else [_one_line(known)]:
            note(line)
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        raise Exit(DAMAGE if isinstance(error, CorruptRecord) else MISUSE) from error


def _discard_output() -> None:
    """Redirect standard output to the null device. Otherwise the interpreter would flush it again at exit, and fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return " ".join(text.split())


class _ErrorEcho(logging.Handler):
    """Prints warnings of the engine on standard error, one line each."""

    def __init__(self, muted: Collection[str]) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(lambda record: record.name not in muted)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and (not str(error) or str(error) not in message):
            message += ": " + " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())
        note(message)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(msgstore.__version__, prog_name="msgstore")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Inspect, check, change, convert and rescue message stores: those of msgstore, and what RabbitMQ, Kestrel or RocketMQ left
    on disk.

    STORE is a directory, or with --config FILE the name of a store in it. Every command takes --json: one object per line.

    \b
    Exit codes: 0 success, 1 damage found, 2 misuse or any other error, 3 no damage, but something was recognised and not read.

    \b
    Examples:
      msgstore demo
      msgstore detect unknown-directory
      msgstore scan /var/lib/rabbitmq/.../msg_store_persistent
      msgstore salvage old-directory rescued
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may be invalid text
    handler = _ErrorEcho(_DAMAGE_LOGGERS if main.commands.get(ctx.invoked_subcommand or "") in _PRINT_DAMAGE else ())
    logging.getLogger("msgstore").addHandler(handler)
    ctx.call_on_close(lambda: logging.getLogger("msgstore").removeHandler(handler))


_MESSAGES = (detect, queues, messages, convert_, export, import_)
_INSPECT = (scan, map_, info, verify, scrub, top, reconcile, inventory, diff)
_CHANGE = (ls, get, put, rm, compact, migrate, salvage)
_PRINT_DAMAGE = (*_INSPECT, salvage, demo)
for command in (*_MESSAGES, *_INSPECT, *_CHANGE, plugins, new_plugin, config, demo):
    main.add_command(command)
