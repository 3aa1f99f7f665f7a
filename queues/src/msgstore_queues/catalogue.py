"""Backing queues and queue indexes that are installed, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

import attrs
import pluggy

from msgstore.contract import ConfigError, PluginError
from msgstore.contract.descriptors import Descriptor
from msgstore.error_texts import install_line
from msgstore.option_values import Backend, structure
from msgstore_queues import builtin, hooks
from msgstore_queues.contract import BackingQueueDescriptor, QueueIndexDescriptor
from msgstore_queues.events import HOOKS, Observer

D = TypeVar("D", bound=Descriptor)
CONTRACT_VERSION = (1, 0)
KNOWN = {"v1": "msgstore-queue-index-v1", "v2": "msgstore-queue-index-v2", "kestrel": "msgstore-kestrel-journal"}
"""Names of this repository's plugins, and the distributions that have them."""


@attrs.frozen
class Catalogue:
    """The installed plugins of queues: descriptors by name. ``broken`` has a line for each plugin that cannot be loaded."""

    indexes: Mapping[str, QueueIndexDescriptor]
    backings: Mapping[str, BackingQueueDescriptor]
    broken: tuple[str, ...] = ()
    observers: tuple[Observer, ...] = ()

    def index(self, name: str, where: str) -> QueueIndexDescriptor:
        """Return a queue index. Raises PluginError."""
        return self._find(self.indexes, "queue index", name, where)

    def backing(self, name: str, where: str) -> BackingQueueDescriptor:
        """Return a backing queue. Raises PluginError."""
        return self._find(self.backings, "backing queue", name, where)

    def _find(self, known: Mapping[str, D], kind: str, name: str, where: str) -> D:
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, known, 1)
        hints = [f" Did you mean {near[0]!r}?"] if near else []
        hints += [f" Install it: {install_line(KNOWN[name])}"] if name in KNOWN else []
        hints += [f" Not loaded: {'; '.join(self.broken)}"] if self.broken else []
        raise PluginError(f"{where}: no {kind} {name!r} is installed. Installed: {', '.join(sorted(known))}.{''.join(hints)}")


def load_catalogue() -> Catalogue:
    """Load the plugins of the group ``msgstore_queues``, and those of this distribution. A broken one is remembered: it is an
    error where its name is selected."""
    manager = pluggy.PluginManager(hooks.GROUP)
    manager.add_hookspecs(hooks)
    broken: list[str] = []
    manager.register(builtin, "msgstore-queues")
    for point in entry_points(group=hooks.GROUP):
        try:
            manager.register(point.load(), point.name)
        except Exception as error:
            broken.append(f"{point.name}: {error!r}")
    return Catalogue(
        _registered(manager, "msgstore_queue_indexes", QueueIndexDescriptor, broken),
        _registered(manager, "msgstore_backing_queues", BackingQueueDescriptor, broken),
        tuple(broken),
        tuple(
            Observer(hook, one.plugin_name, _with_event(one))
            for hook in HOOKS
            for one in getattr(manager.hook, hook).get_hookimpls()
        ),
    )


def _with_event(implementation: pluggy.HookImpl) -> Callable[[object], object]:
    """Return a hook as a function of the event, which it may leave out."""
    return implementation.function if implementation.argnames else lambda _event: implementation.function()


def _registered(manager: pluggy.PluginManager, hook: str, kind: type[D], broken: list[str]) -> dict[str, D]:
    found: dict[str, D] = {}
    for implementation in getattr(manager.hook, hook).get_hookimpls():
        try:
            descriptors = implementation.function()
            if not isinstance(descriptors, Iterable):
                raise TypeError(f"{hook} returned {descriptors!r}, and must return a list of descriptors")
            for one in descriptors:
                if not isinstance(one, kind):
                    raise TypeError(f"{hook} gave {one!r}")
                if one.contract[0] != CONTRACT_VERSION[0] or one.contract > CONTRACT_VERSION:
                    raise ValueError(f"{one.name} was written for version {one.contract} of the contract")
                if one.name in found:
                    raise ValueError(f"a second {one.name!r}")
                found[one.name] = one
        except Exception as error:
            broken.append(f"{implementation.plugin_name}: {error}")
    return found


def make(descriptor: Descriptor, backend: Backend, where: str) -> tuple[Callable[..., Any], Any]:
    """Return the factory of a backend, and its options. Raises ConfigError, PluginError."""
    options = structure(descriptor.options, backend.options, where, backend.base)
    try:
        return descriptor.load_factory(), options
    except ConfigError:
        raise
    except Exception as error:
        raise PluginError(f"{where}: {descriptor.name!r} cannot be imported from {descriptor.factory}: {error!r}") from error
