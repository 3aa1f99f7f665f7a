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
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import metadata
from itertools import chain
from typing import Any, get_type_hints

import attrs
import pluggy

from msgstore import contract, hookspecs
from msgstore.contract import (
    BodyCodecDescriptor,
    Capability,
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
from msgstore.plugins.known import OTHER_GROUPS

RESERVED_EXTENSIONS = (
    ".tmp", ".erase", ".hint", ".damaged", ".dot", ".ets", ".json", ".lock", ".mdb", ".snapshot", ".toml",
    ".csv", ".jsonl", ".ndjson", ".parquet",
)  # fmt: skip
"""Extensions of other files in and next to store directories, in lower case. Some file systems ignore case."""
INSTALLATION_SECONDS = 5
"""Time for which an installation may go on after it has made a directory."""
SCAN_COLUMNS = frozenset({"store", "file", "format", "offset", "size", "type", "id", "body", "references"})
"""Columns of every scan: no field has one of these names."""

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

_PROTOCOLS: dict[tuple[type[Descriptor], Capability | None], type] = {
    (SegmentFormatDescriptor, None): contract.SegmentFormat,
    (SegmentFormatDescriptor, Capability.COMPACTABLE): contract.CompactableFormat,
    (SegmentFormatDescriptor, Capability.FIELDS): contract.RecordFields,
    (RecordTypeDescriptor, None): contract.RecordType,
    (RecordTypeDescriptor, Capability.FIELDS): contract.RecordFields,
    (IndexDescriptor, None): contract.Index,
    (GcPolicyDescriptor, None): contract.GcPolicy,
    (BodyCodecDescriptor, None): contract.BodyCodec,
    (BodyCodecDescriptor, Capability.FIELDS): contract.BodyCodecWithFields,
    (SourceDescriptor, None): contract.Source,
    (SourceDescriptor, Capability.RANDOM_ACCESS): contract.RandomAccessSource,
    (SourceDescriptor, Capability.SHARED_BODIES): contract.SharedBodiesSource,
    (SinkDescriptor, Capability.JOINS): contract.JoiningSink,
    (SinkDescriptor, None): contract.Sink,
}
"""Protocol of the objects that each kind's factory makes, and of the optional methods of a capability. Job runners are not part
of the contract, and commands are click's."""

_CAPABILITIES: dict[type[Descriptor], set[Capability]] = {
    SegmentFormatDescriptor: {
        Capability.SELF_DESCRIBING, Capability.COMPACTABLE, Capability.TYPED_RECORDS, Capability.VERBATIM, Capability.FRAMED,
        Capability.FIELDS,
    },
    RecordTypeDescriptor: {Capability.FRAMED, Capability.FIELDS},
    IndexDescriptor: {Capability.PERSISTENT, Capability.LIVE_READS},
    GcPolicyDescriptor: {Capability.DROPS_MESSAGES},
    BodyCodecDescriptor: {Capability.FIELDS, Capability.PLAIN},
    SourceDescriptor: {Capability.RANDOM_ACCESS, Capability.SHARED_BODIES, Capability.REFLOW},
    SinkDescriptor: {Capability.JOINS},
}  # fmt: skip
"""Capabilities that each kind may claim; the other kinds have none."""

CONTRACT_METHODS = {
    name for protocol in _PROTOCOLS.values() for name, value in vars(protocol).items() if inspect.isfunction(value)
}
"""Names of the methods that plugins implement."""

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
    hooks = [hook for hook in (*(hook for hook, _ in HOOKS.values()), *EVENT_HOOKS) if hook in names]
    unmarked = [
        hook for hook in hooks if hook not in implemented and inspect.isroutine(inspect.getattr_static(plugin, hook, None))
    ]
    if unmarked:
        yield f"does not mark {', '.join(unmarked)} with @msgstore.hookimpl, so nothing calls it"
    elif not implemented:
        yield "registers nothing: it implements no hook of msgstore (each is marked with @msgstore.hookimpl)"


def _without_event(function: Callable[[], object]) -> Callable[[events.Event], object]:
    return lambda _: function()


_READ_BY_TOOLS = {RecordTypeDescriptor: "records", SegmentFormatDescriptor: "segments"}


def check_descriptor(descriptor: object, expected: type[Descriptor] = Descriptor) -> None:
    """Raise ValueError or TypeError for a descriptor that can never work."""
    if not isinstance(descriptor, expected):
        raise TypeError(f"returned {descriptor!r}, not a {expected.__name__}")
    if not (isinstance(descriptor.options, type) and attrs.has(descriptor.options)):
        raise ValueError(f"the options {descriptor.options!r} are not an attrs class")
    if not (isinstance(descriptor.contract, tuple) and [*map(type, descriptor.contract)] == [int, int]):
        raise ValueError(f"the contract version {descriptor.contract!r} is not a pair of numbers, such as (1, 0)")
    if not (descriptor.examples and all(isinstance(example, Mapping) for example in descriptor.examples)):
        raise ValueError(f"the examples {descriptor.examples!r} are not sets of options, such as ({{}},)")
    known = next((found for kind, found in _CAPABILITIES.items() if isinstance(descriptor, kind)), set[Capability]())
    for other in descriptor.capabilities - known:
        raise ValueError(f"a {type(descriptor).__name__} cannot claim the capability {other.name}")
    names = [field.name for field in descriptor.fields]
    if taken := SCAN_COLUMNS.intersection(names):
        raise ValueError(f"a field cannot be named {min(taken)!r}: every scan has a column of this name")
    if len(set(names)) < len(names):
        raise ValueError(f"two fields have the same name: {', '.join(names)}")
    if bool(names) != (Capability.FIELDS in descriptor.capabilities):
        raise ValueError("a backend has fields if, and only if, it claims the capability FIELDS")
    if names and isinstance(descriptor, SegmentFormatDescriptor):
        if Capability.TYPED_RECORDS in descriptor.capabilities:
            raise ValueError("a format with the capability TYPED_RECORDS has no fields: its record types have them")
        if Capability.VERBATIM not in descriptor.capabilities:
            raise ValueError("a format with fields claims the capability VERBATIM: otherwise salvage would lose them")
    if Capability.COMPACTABLE in descriptor.capabilities and Capability.SELF_DESCRIBING not in descriptor.capabilities:
        raise ValueError("a format with the capability COMPACTABLE claims SELF_DESCRIBING, too")
    what = next((text for kind, text in _READ_BY_TOOLS.items() if isinstance(descriptor, kind)), "")
    for option in attrs.fields(descriptor.options) if what else ():
        if option.name == "byte" and isinstance(descriptor, RecordTypeDescriptor):
            raise ValueError("an option of a record type cannot be named 'byte': this key sets the type byte")
        if option.default is attrs.NOTHING:
            raise ValueError(f"the option {option.name!r} has no default: {what} are also read without a configuration")
    if "use" in attrs.fields_dict(descriptor.options) and not isinstance(descriptor, RecordTypeDescriptor):
        raise ValueError("an option cannot be named 'use': this key selects the backend")
    if isinstance(descriptor, SinkDescriptor):
        for name in ("endings", "schemes", "changeable"):
            texts = getattr(descriptor, name)
            if not (isinstance(texts, tuple) and all(isinstance(one, str) for one in texts)):
                raise ValueError(f"the {name} {texts!r} are not a tuple of text, such as ('one',)")
        for ending in descriptor.endings:
            if re.fullmatch(r"\.[^/]+", ending) is None:
                raise ValueError(f"the ending {ending!r} does not begin with '.', such as '.acme'")
    for extension in extensions_of(descriptor):
        if not isinstance(extension, str) or re.fullmatch(r"\.[A-Za-z0-9_]+", extension) is None:
            raise ValueError(f"the extension {extension!r} is not '.' followed by letters, digits and '_', such as '.acme'")
        if extension.lower() in RESERVED_EXTENSIONS:
            raise ValueError(
                f"the extension {extension!r} is used by other files of a store; choose another one, such as '.acme'"
            )
        if [one.lower() for one in extensions_of(descriptor)].count(extension.lower()) > 1:
            raise ValueError(f"the extension {extension!r} cannot be used for both segments and leftovers")


def extensions_of(descriptor: Descriptor) -> tuple[str, ...]:
    """Return the extensions of a segment format, that of its segments last; empty for other descriptors."""
    if not isinstance(descriptor, SegmentFormatDescriptor):
        return ()
    return *descriptor.leftover_extensions, descriptor.extension


def missing_names(backend: object, descriptor: Descriptor) -> Iterator[str]:
    """Yield the names that the protocols of the descriptor require and ``backend`` does not have, and the signature of each
    method that takes another number of arguments; each with what the backend has instead."""
    for (kind, capability), protocol in _PROTOCOLS.items():
        if not isinstance(descriptor, kind) or capability not in (None, *descriptor.capabilities):
            continue
        yield from (name for name in inspect.get_annotations(protocol) if not hasattr(backend, name))
        for name, method in vars(protocol).items():
            public = not name.startswith("_") or name == "__len__"
            if not public or not inspect.isfunction(method):
                continue
            if not callable(given := getattr(backend, name, None)):
                near = get_close_matches(name, [one for one in dir(backend) if one not in CONTRACT_METHODS], n=1)
                yield name + (f" (it has {near[0]})" if near else "")
            elif not _accepts(given, method):
                yield f"{name}{_parameters(method)} (it has {name}{_parameters(getattr(given, '__func__', given))})"


def _parameters(function: Any) -> str:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return f"({', '.join(name for name in names if name != 'self')})"


def _accepts(method: object, asked: types.FunctionType) -> bool:
    """Return False if a method is written in Python and cannot be called with the arguments of ``asked``, a protocol's method.

    Reads the code object: ``inspect.signature`` would take a millisecond of every opening.
    """
    function = getattr(method, "__func__", method)
    if not inspect.isfunction(function):
        return True
    code, wanted = function.__code__, asked.__code__
    count, known = wanted.co_argcount - 1, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    keywords = {*wanted.co_varnames[wanted.co_argcount :][: wanted.co_kwonlyargcount]}
    if not keywords.issubset(known) and not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    most = code.co_argcount - (function is not method)
    least = most - len(function.__defaults__ or ())
    return least <= count and (count <= most or bool(code.co_flags & inspect.CO_VARARGS))
