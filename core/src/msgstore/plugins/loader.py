"""Load the plugins of the entry-point group ``msgstore`` one by one, and record every failure.

The loader raises for no failure: a broken plugin matters only to a store that selects it.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from importlib import metadata
from itertools import chain
from typing import get_type_hints

import attrs
import pluggy

from msgstore import hookspecs
from msgstore.contract import (
    BodyCodecDescriptor,
    CommandDescriptor,
    Descriptor,
    GcPolicyDescriptor,
    IndexDescriptor,
    JobRunnerDescriptor,
    RecordTypeDescriptor,
    SegmentFormatDescriptor,
    SinkDescriptor,
    SourceDescriptor,
    events,
)
from msgstore.error_texts import first_line
from msgstore.plugins.descriptor_checks import check_descriptor
from msgstore.plugins.known import OTHER_GROUPS

INSTALLATION_SECONDS = 5
"""Time for which an installation may go on after it has made a directory."""
HOOKS: dict[str, tuple[str, type[Descriptor]]] = {
    "format": ("msgstore_segment_formats", SegmentFormatDescriptor),
    "record": ("msgstore_record_types", RecordTypeDescriptor),
    "index": ("msgstore_indexes", IndexDescriptor),
    "gc": ("msgstore_gc_policies", GcPolicyDescriptor),
    "body": ("msgstore_body_codecs", BodyCodecDescriptor),
    "source": ("msgstore_sources", SourceDescriptor),
    "sink": ("msgstore_sinks", SinkDescriptor),
    "runner": ("msgstore_job_runners", JobRunnerDescriptor),
    "command": ("msgstore_commands", CommandDescriptor),
}
"""Kind of backend to (hook, class of its descriptors). A kind is the configuration key or option that selects a backend; a
command is selected by its name."""

EVENT_HOOKS: dict[str, type[events.Event]] = {
    name: get_type_hints(hook)["event"]
    for name, hook in vars(hookspecs).items()
    if "event" in getattr(hook, "__annotations__", ())
}
"""Event hook to the class of its events."""


@attrs.frozen
class Provider:
    """Origin of a plugin: distribution and entry point."""

    distribution: str
    version: str
    entry_point: str
    """Name of the entry point in the group ``msgstore``."""
    value: str
    """The module that the entry point names."""

    @property
    def names(self) -> set[str]:
        """Names of it in ``disabled`` of a configuration."""
        return {self.entry_point, f"{self.distribution}:{self.entry_point}"}

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} (entry point '{self.entry_point} = {self.value}')"


@attrs.frozen
class Failure:
    """A plugin, or one of its registrations, that cannot be used."""

    provider: Provider
    what: str
    """One line that says what failed, with the text of the exception."""

    def __str__(self) -> str:
        return f"{self.provider} {self.what}"


@attrs.frozen
class Registration:
    """One registered descriptor."""

    kind: str
    descriptor: Descriptor
    provider: Provider


@attrs.frozen
class Observer:
    """One plugin's implementation of one event hook."""

    hook: str
    call: Callable[[events.Event], object]
    provider: Provider


@attrs.frozen
class Loaded:
    """Result of loading all entry points."""

    registrations: tuple[Registration, ...] = ()
    observers: tuple[Observer, ...] = ()
    """Receivers of events. Observers have no names to select: every installed, enabled one is used."""
    failures: tuple[Failure, ...] = ()
    providers: tuple[Provider, ...] = ()
    """Every plugin that was loaded without a failure, in the order of loading."""


def find_entry_points() -> list[tuple[Provider, metadata.EntryPoint]]:
    """Return the entry points of the group, ordered by distribution and name, each distribution once. Thread-safe.

    Reading the metadata of all installed distributions takes about 10 ms, so the result is kept until ``sys.meta_path``, or an
    entry of ``sys.path`` or its modification time, changes: an installation adds a directory there. It may go on for some
    seconds after that.
    """
    return list(_read_entry_points((*map(_modified, sys.path), *map(id, sys.meta_path))))


def _modified(path: str) -> object:
    try:
        modified, now = os.stat(path or ".").st_mtime_ns, time.time_ns()  # noqa: PTH116 - a third of the time of Path.stat
        return path, modified if modified < now - INSTALLATION_SECONDS * 1_000_000_000 else now
    except (OSError, TypeError, ValueError):  # programs put anything into sys.path
        return path


@functools.lru_cache(maxsize=1)
def _read_entry_points(_installed: tuple[object, ...]) -> tuple[tuple[Provider, metadata.EntryPoint], ...]:
    found: dict[tuple[str, str, str], tuple[Provider, metadata.EntryPoint]] = {}
    every = metadata.entry_points()
    alike = [  # ``load`` reports the wrong ones
        group for group in every.groups if group.lower().startswith(hookspecs.GROUP) and group not in OTHER_GROUPS
    ]
    for entry_point in chain.from_iterable(every.select(group=group) for group in alike):
        distribution = entry_point.dist
        name = distribution.metadata["Name"] if distribution else "?"
        version = distribution.version if distribution else "?"
        provider = Provider(name, version, entry_point.name, entry_point.value)
        found.setdefault((name, entry_point.name, entry_point.value), (provider, entry_point))
    return tuple(found[key] for key in sorted(found))


class _PluginManager(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """Return the options of a hook implementation; None for other names.

        Of a module only functions and methods are examined: pluggy takes milliseconds for all names that it imports, and would
        import what a name stands for that the module only computes (``__getattr__``).
        """
        if isinstance(plugin, types.ModuleType) and not isinstance(
            vars(plugin).get(name), types.FunctionType | types.MethodType
        ):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def load(entry_points: Iterable[tuple[Provider, metadata.EntryPoint]]) -> Loaded:
    """Import and register each plugin, and call its registration hooks. Records failures instead of raising."""
    manager = _PluginManager(hookspecs.GROUP)
    manager.add_hookspecs(hookspecs)
    failures: list[Failure] = []
    providers: dict[str, Provider] = {}
    for provider, entry_point in entry_points:
        key = f"{provider.distribution}:{provider.entry_point}"
        try:
            if key in providers:
                raise ValueError(f"the distribution has two entry points named {provider.entry_point!r}")
            _register(manager, entry_point, key)
        except BaseException as error:
            if comes_from_outside(error):
                raise
            if key not in providers and manager.has_plugin(key):
                manager.unregister(name=key)
            failures.append(Failure(provider, f"cannot be loaded: {first_line(error)}"))
        else:
            providers[key] = provider
            failures += (Failure(provider, problem) for problem in _find_unmarked(manager, manager.get_plugin(key)))
    registrations: list[Registration] = []
    observers: list[Observer] = []
    for kind, (hook, expected) in HOOKS.items():
        for implementation in getattr(manager.hook, hook).get_hookimpls():  # one at a time: a failure names its plugin
            provider = providers[implementation.plugin_name]
            try:
                found = implementation.function()
                if not isinstance(found, Iterable):
                    raise TypeError(f"it returned {found!r}, and must return a list of descriptors")
                found = list(found)
                for descriptor in found:
                    check_descriptor(descriptor, expected)
            except BaseException as error:
                if comes_from_outside(error):
                    raise
                failures.append(Failure(provider, f"{hook} failed: {first_line(error)}"))
            else:
                registrations += (Registration(kind, descriptor, provider) for descriptor in found)
    for hook in EVENT_HOOKS:
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            provider = providers[implementation.plugin_name]
            if implementation.wrapper or implementation.hookwrapper:
                what = f"{hook} cannot be used: it is a wrapper, and event hooks have no call to wrap"
                failures.append(Failure(provider, what))
            else:  # pluggy has checked that it takes the event or nothing
                call = implementation.function if implementation.argnames else _without_event(implementation.function)
                observers.append(Observer(hook, call, provider))
    broken = {failure.provider for failure in failures}
    intact = tuple(provider for provider in providers.values() if provider not in broken)
    return Loaded(tuple(registrations), tuple(observers), tuple(failures), intact)


_KEPT: dict[tuple[object, ...], tuple[Sequence[object], Loaded]] = {}
"""Identities of entry points, and disabled names, to the result of ``load_once``. The entry points are kept with it, so that
no others get their identities; they are other objects after a change of the installation."""
_MOST_KEPT = 8


def load_once(entry_points: Sequence[tuple[Provider, metadata.EntryPoint]], disabled: tuple[str, ...] = ()) -> Loaded:
    """Load all but the ``disabled``. The result is kept for the next store of this process, unless something has failed: a
    module that is executed again, as by ``importlib.reload``, does not change it."""
    key = (*map(id, entry_points), *disabled)
    kept = _KEPT.get(key)
    if kept is not None:
        return kept[1]
    loaded = load(item for item in entry_points if item[0].names.isdisjoint(disabled))
    if not loaded.failures:
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        _KEPT[key] = entry_points, loaded
    return loaded


def comes_from_outside(error: BaseException) -> bool:
    """Return True for Ctrl-C and for what a signal handler raises. Any other exception is the plugin's, SystemExit too."""
    handlers = map(signal.getsignal, signal.valid_signals())
    called = [handler.func if isinstance(handler, functools.partial) else handler for handler in handlers]
    codes = {
        getattr(each, "__code__", None) or getattr(type(each).__call__, "__code__", None) for each in called if callable(each)
    }
    return isinstance(error, KeyboardInterrupt) or any(
        frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _register(manager: pluggy.PluginManager, entry_point: metadata.EntryPoint, key: str) -> None:
    """Import the plugin of an entry point and register it as ``key``. Raises what the import raises, and ValueError."""
    if entry_point.group != hookspecs.GROUP:
        raise ValueError(
            f"the group {entry_point.group!r} is not read: write [project.entry-points.{hookspecs.GROUP}] in its pyproject.toml"
        )
    if entry_point.pattern.match(entry_point.value) is None:  # a distribution name may have hyphens, a module name may not
        likely = re.sub(r"[^\w.]+", "_", entry_point.value).strip("_") or "package.plugin"
        raise ValueError(f"{entry_point.value!r} is not a module path, such as {likely!r}")
    plugin = entry_point.load()
    if other := manager.get_name(plugin):
        raise ValueError(f"{entry_point.value} is already the module of the entry point {other}. Remove one of them.")
    manager.register(plugin, name=key)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        name = str(error).split("'")[1]
        near = get_close_matches(name, [*(hook for hook, _ in HOOKS.values()), *EVENT_HOOKS], n=1)
        raise ValueError(f"there is no hook {name!r}" + (f", but {near[0]!r}" if near else "")) from None


def _find_unmarked(manager: pluggy.PluginManager, plugin: object) -> Iterator[str]:
    """Yield problems of a plugin whose hooks are never called: pluggy ignores functions without ``hookimpl``."""
    implemented = {caller.name for caller in manager.get_hookcallers(plugin) or ()}
    names = vars(plugin) if isinstance(plugin, types.ModuleType) else dir(plugin)
    known = [*(hook for hook, _ in HOOKS.values()), *EVENT_HOOKS]
    left = [hook for hook in known if hook in names and hook not in implemented]
    unmarked = [hook for hook in left if inspect.isroutine(inspect.getattr_static(plugin, hook, None))]
    if unmarked:
        yield f"does not mark {', '.join(unmarked)} with @msgstore.hookimpl, so nothing calls it"
    elif not implemented:
        yield "registers nothing: it implements no hook of msgstore (each is marked with @msgstore.hookimpl)"


def _without_event(function: Callable[[], object]) -> Callable[[events.Event], object]:
    return lambda _: function()
