"""Arguments and options that several commands share: STORE and how it is opened, inputs, and the choice of a job runner."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import attrs
import click

from msgstore.cli import output
from msgstore.config import Config, StoreConfig, read_config
from msgstore.contract import ConfigError, Duration, NoOptions, StoreError
from msgstore.directory import Settings, has_settings, known_settings, list_segments
from msgstore.engine.backends import Backends, resolve
from msgstore.engine.opening import LiveMode, load_config, open_configured, remembered_config
from msgstore.engine.state.clean_shutdown import CLEAN
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.jobs.counts import sums_of
from msgstore.jobs.inputs import no_segments
from msgstore.jobs.reports import NotRead, find_not_read
from msgstore.jobs.runner import AUTO, JobRunner, choose_runner, make_runner
from msgstore.jobs.store_directories import stores_beneath
from msgstore.jobs.workers import disable_plugins, disabled_plugins
from msgstore.option_values import Backend, backend_of
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.scan import FormatSet, bind_records
from msgstore.units import parse_duration, parse_size

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
FILE = click.Path(path_type=Path)
_CONFIG = f"{__name__}.config"
"""Key of the content of the file of ``--config`` among what a call of the program keeps."""
OMIT = "Omit what FILE disables. A store in FILE may be given by its name."


def file(*names: str, metavar: str = "FILE", **keys: Any) -> Decorator[Any]:
    """Return an option whose value is a path."""
    return click.option(*names, type=FILE, metavar=metavar, **keys)


def _read_configuration(context: click.Context, _: click.Parameter, given: Path | None) -> Path | None:
    """Keep the content of the file for the command, and disable its plugins until the command ends."""
    if given is not None:
        config = context.meta[_CONFIG] = load_config(given).config
        if config.disabled:
            context.with_resource(disable_plugins(config.disabled))
    return given


def given_config() -> Config | None:
    """Return the content of the file of ``--config``, or None if the command is called without it."""
    config: Config | None = click.get_current_context().meta.get(_CONFIG)
    return config


def _directories(_: click.Context, __: click.Parameter, given: Any) -> Any:
    """Replace the name of a store in the file of ``--config`` by its directory."""
    config = given_config()
    if config is None:
        return given
    if isinstance(given, tuple):
        return tuple(config.store(str(path)).path if str(path) in config.names else path for path in given)
    return config.store(str(given)).path if str(given) in config.names else given


def inputs(name: str, metavar: str, **keys: Any) -> Decorator[Any]:
    """Return an argument: a path, or with ``--config`` the name of a store."""
    return click.argument(name, metavar=metavar, type=FILE, callback=_directories, **keys)


def configuration(text: str, *, value: bool = True) -> Decorator[Any]:
    """Return the option ``--config``. Eager, because other options look for plugins, and the file disables some. Without
    ``value``, the command does not get the name of the file."""
    return file("--config", "config_file", help=text, is_eager=True, callback=_read_configuration, expose_value=value)


def named(*names: str, text: str, metavar: str = "NAME", **keys: Any) -> Decorator[Any]:
    """Return an option whose value is the name of a backend."""
    return click.option(*names, metavar=metavar, callback=_without_options, help=text, show_default="default" in keys, **keys)


def _without_options(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    """Return the value of an option that is a name. Raises BadParameter for a table."""
    if name and name.lstrip().startswith("{"):
        raise click.BadParameter(
            "a name of a backend, not a table. Its options are in the configuration file with which the store is opened."
        )
    return name


def _codec(body: str | None) -> Backend | None:
    """Return a codec with its options. With ``--config`` they are those of a store in the file that has this codec."""
    if body is None:
        return None
    found, config = backend_of(body), given_config()
    if config is None or found.options:
        return found
    if load_catalogue(disabled_plugins()).body_codec(found.name).options is NoOptions:
        return found
    bodies = [store.body for store in config.stores.values() if store.body.name == found.name]
    if not bodies and disabled_plugins():
        return found
    if not bodies or any(one != bodies[0] for one in bodies):
        what = "several stores with this codec, and different options" if bodies else "no store with this codec"
        raise ConfigError(
            f"{config.file}: has {what}. Give the options with its name: "
            f"""--body '{{ use = "{found.name}", OPTION = ... }}'"""
        )
    return bodies[0]


def body(text: str) -> Decorator[Any]:
    """Return a decorator that adds ``--body`` and ``--config``. The command gets the codec, or None, as ``body``."""
    as_table = 'With options, a table: { use = "NAME", OPTION = ... }.'
    codec = bundle("body", _codec, body=click.option("--body", metavar="NAME", help=f"{text} {as_table}"))
    configured = configuration(f"{OMIT} Take the options of the codec of --body from a store in FILE that has it.", value=False)
    return lambda function: codec(configured(function))


def bundle(name: str, make: Callable[..., object], **parts: Decorator[Any]) -> Decorator[Any]:
    """Return a decorator that adds several parameters to a command. Their values become one argument ``name``.

    ``parts`` has the decorator of each parameter by its name, which is also a keyword of ``make``.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command(*arguments: Any, **values: Any) -> Any:
            own = {key: values.pop(key) for key in parts}
            return function(*arguments, **{name: make(**own)}, **values)

        return cast("F", functools.reduce(lambda result, part: part(result), reversed(parts.values()), command))

    return decorate


def message_id(value: str) -> bytes:
    """Parse 32 hexadecimal digits. Raises BadParameter."""
    if re.fullmatch("[0-9A-Fa-f]{32}", value) is None:
        raise click.BadParameter(f"{value!r} is not a message id: 32 hexadecimal digits")
    return bytes.fromhex(value)


def size(value: str) -> int:
    """Parse a positive size in bytes, as in a configuration. Raises BadParameter."""
    found = _parsed(parse_size, int(value) if value.isascii() and value.isdigit() else value)
    if not found:
        raise click.BadParameter("the size must not be 0")
    return found


def seconds(value: str) -> float:
    """Parse a time of at least 100 ms, as in a configuration: seconds, or text such as 500ms. Raises BadParameter."""
    given: float | str = value
    with contextlib.suppress(ValueError):
        given = float(value)
    found = _parsed(parse_duration, given)
    if found < 0.1:
        raise click.BadParameter("at least 100ms")
    return found


def _parsed(parse: Callable[[object], R], value: object) -> R:
    try:
        return parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def binding(value: str) -> tuple[str, int]:
    """Parse NAME=BYTE. Raises BadParameter."""
    name, _, byte = value.partition("=")
    if not name or not (byte.isascii() and byte.isdigit()):
        raise click.BadParameter(f"{value!r} is not of the form NAME=BYTE, such as checksum=4")
    return name, int(byte)


def bindings(option: str, text: str, name: str = "records") -> Decorator[Any]:
    """Return a repeatable option NAME=BYTE. The command gets ``name``: record type to type byte, checked."""
    return click.option(
        option, name, type=binding, multiple=True, metavar="NAME=BYTE", help=text,
        callback=lambda _, __, given: bind_records(load_catalogue(disabled_plugins()), given, option) if given else {},
    )  # fmt: skip


as_json = click.option(
    "--json", "out", is_flag=True, help="Print JSON Lines: one compact object per line.",
    callback=lambda _, __, value: output.Output(as_json=value),
)  # fmt: skip
paths = inputs("paths", "PATH...", nargs=-1, required=True)
sources = inputs("sources", "SRC...", nargs=-1, required=True)
destination = click.argument("destination", metavar="DEST", type=FILE)
records = bindings("--record", "Bind a record type to a type byte.")
refcounts = file(
    "--refcounts",
    "refcounts_file",
    help="Lines 'id,count', used where counts must be rebuilt (a RabbitMQ directory, a crash). Other ids are garbage.",
)

# -- job runners --------------------------------------------------------------------------------------------------------------


@attrs.frozen
class RunnerOptions:
    """Values of the options that select a job runner. ``engine`` is the former name of ``runner``."""

    runner: str = AUTO
    engine: str | None = None
    master: str | None = None
    processes: int | None = None

    def run(
        self, out: output.Output, what: str, catalogue: Catalogue, size: int, call: Callable[[JobRunner, output.Bar | None], R]
    ) -> R:
        """Call ``call`` with the runner for ``size`` bytes of input, and return its report. ``what`` is in progress.

        If ``auto`` had a choice, print the choice and its reason on standard error.
        """
        given = {key: value for key in ("master", "processes") if (value := getattr(self, key)) is not None}
        name, reason = choose_runner(catalogue, self.engine or self.runner, size, given)
        if reason:
            output.note(f"runner {name}: {reason}")
        runner = make_runner(catalogue, name, given)
        with out.progress(what, runner.progress_unit) as bar:
            return call(runner, bar)


def _choose_runner(context: click.Context, _: click.Parameter, given: str | None) -> str | None:
    if given is not None:
        context.default_map = {"runner": AUTO}  # it takes the runner that has a master
    return given


master = click.option(
    "--master",
    metavar="URL",
    is_eager=True,
    callback=_choose_runner,
    help="Where Spark runs: local[4], spark://host:7077, sc://host:15002.",
)
runner = bundle(
    "runner",
    RunnerOptions,
    runner=click.option("--runner", default=AUTO, metavar="NAME", show_default=True, help="auto (by size), local, or spark."),
    engine=click.option("--engine", metavar="NAME", hidden=True, help="Former name of --runner."),
    master=master,
    processes=click.option("--processes", type=int, metavar="N", help="Number of worker processes of the local runner."),
)
"""Adds ``--runner``, ``--master`` and ``--processes``. The command gets them as ``runner``."""

# -- stores -------------------------------------------------------------------------------------------------------------------


@attrs.frozen
class StoreTarget:
    """A store that is not open yet: its configuration, its plugins, and the options that say how to open it."""

    config: StoreConfig
    catalogue: Catalogue
    config_file: Path | None = None
    refcounts_file: Path | None = None
    """Counts to use if they must be rebuilt."""
    adopt: bool = False
    """A broker's directory may be changed, also if the configuration does not say so."""

    @property
    def path(self) -> Path:
        return self.config.path

    def settings(self) -> Settings | None:
        """Return what the directory remembers, or None if msgstore has never opened it."""
        return known_settings(Files(), self.path)

    def backends(self) -> Backends:
        """Return the backends of the store, with the settings that its directory remembers."""
        return resolve(self.config, self.catalogue, self.settings())

    def has_store(self) -> bool:
        """Return False for a directory without segments that msgstore has not opened. An opening reports a missing one."""
        if not self.path.is_dir() or has_settings(self.path) or (self.path / CLEAN).exists():
            return True
        return bool(list_segments(Files(), self.path, self._formats().extensions))

    def _formats(self) -> FormatSet:
        return resolve(self.config, self.catalogue, None).formats

    def open(
        self, mode: Literal["rw", "r"], refcounts: Iterable[tuple[bytes, int]] | None = None, *, live: LiveMode = "beside"
    ) -> Store:
        """Open the store without background collection, and show the progress of a recovery."""
        if refcounts is None and self.refcounts_file is not None:
            refcounts = list(sums_of(self.refcounts_file).items())
        # Commands collect only on request.
        config = attrs.evolve(self.config, gc_interval=Duration(0), adopt=self.config.adopt or self.adopt)
        with output.progress("recovering") as progress:
            store = open_configured(config, self.catalogue, mode=mode, refcounts=refcounts, progress=progress, live=live)
        store._unclosed.detach()  # a command that cannot close it says why
        click.get_current_context().call_on_close(store.abandon)  # and ends: nothing is tried again
        return store

    def find(self) -> StoreTarget:
        """Return this store. Raises StoreError if there is none.

        Without that check, every unrelated directory would be reported as a store without damage, and a verb that changes
        stores would create one.
        """
        if not self.path.exists():
            raise StoreError(f"{self.path}: there is no such directory. 'msgstore put NAME --config FILE' creates a store")
        if not self.has_store():
            raise StoreError(no_segments(self.path, self._formats(), self.catalogue))
        return self

    def find_all(self) -> tuple[list[StoreTarget], tuple[NotRead, ...]]:
        """Return the store, or the stores in a broker's directory and what else was recognised there. Raises as ``find``."""
        not_read = () if self.has_store() else find_not_read(self.path)
        paths = stores_beneath(self.path, self._formats()) if not_read else []
        if not paths:
            return [self.find()], ()
        if self.refcounts_file is not None:
            stores = ", ".join(map(str, paths))
            raise ConfigError(f"{self.path}: has several stores, but --refcounts has the counts of one. Name one of {stores}.")
        return [self.at(path) for path in paths], not_read

    def at(self, path: Path) -> StoreTarget:
        """Return the store of a directory at or below this one. An adopted store keeps the settings that it remembers."""
        if path == self.path:
            return self
        return attrs.evolve(self, config=_bare_config(path) if has_settings(path) else attrs.evolve(self.config, path=path))


def _bare_config(directory: Path) -> StoreConfig:
    """Return the backends of the last opening of a directory, or the defaults."""
    return attrs.evolve(remembered_config(directory), durability="fsync")  # what a command has changed is on disk when it ends


def target_of(
    store: str | Path, catalogue: Catalogue | None = None, config_file: Path | None = None, **given: Any
) -> StoreTarget:
    """Return a directory that holds or may get a store: STORE as it was given. ``given``: other members of StoreTarget.

    Raises ConfigError, PluginError, and StoreError for a directory that does not exist.
    """
    if config_file is not None:
        configured = read_config(config_file)
        config = configured.find(store) or configured.store(str(store))  # which says that there is none
        return StoreTarget(config, load_catalogue(configured.disabled), config_file, **given)
    directory = Path(store)
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "there is no such directory"
        raise StoreError(f"{directory}: {what}. STORE is a directory, or with --config FILE the name of a store in it.")
    return StoreTarget(_bare_config(directory), catalogue or load_catalogue(), **given)


_parts = {
    "store": click.argument("store", metavar="STORE"),
    "config_file": configuration("Configuration that has STORE, which is its name or directory."),
}
watched = bundle("store", target_of, **_parts)
"""Adds STORE and ``--config``. The command gets them as ``store``."""
adopt = click.option(
    "--adopt", is_flag=True, help="Change a directory that a broker wrote. It belongs to msgstore from then on."
)
read = bundle("store", target_of, **_parts, refcounts_file=refcounts)
"""Also adds ``--refcounts``."""
changed = bundle("store", target_of, **_parts, adopt=adopt, refcounts_file=refcounts)
"""Also adds ``--refcounts`` and ``--adopt``."""
