"""Subjects of the kit: a descriptor, and options to test it with."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import attrs
import pytest

from msgstore.config import structure
from msgstore.contract import Capability, Descriptor
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.plugins.loader import HOOKS, Observer, Provider, Registration
from msgstore.testing.guard import skip_without

OBSERVER = "observer"
"""Kind of the event hooks of a distribution, which have no descriptor."""

_UNREGISTERED = Provider("unregistered", "0", "none", "none")


@attrs.frozen(kw_only=True)
class Subject:
    """One backend under test, or the observers of a distribution."""

    kind: str
    name: str
    catalogue: Catalogue = attrs.field(repr=False)
    """All installed backends and the subject."""
    descriptor: Descriptor | None = None
    """None for observers."""
    options: dict[str, object] = attrs.field(factory=dict)
    """One of the descriptor's ``examples``: keys as a configuration has them."""
    observers: tuple[Observer, ...] = ()
    provider: Provider = _UNREGISTERED

    @classmethod
    def of(cls, descriptor: Descriptor, **options: object) -> Subject:
        """Make a subject of a descriptor that no installed distribution registers."""
        kind, installed = kind_of(descriptor), load_catalogue()
        mine = Registration(kind, descriptor, _UNREGISTERED)
        catalogue = attrs.evolve(installed, registrations=(*installed.registrations, mine))
        return cls(kind=kind, name=descriptor.name, catalogue=catalogue, descriptor=descriptor, options=options)

    def __str__(self) -> str:
        given = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.kind}:{self.name}" + (f"[{given}]" if given else "")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Keep the catalogue, a hundred lines, out of the failures that hypothesis prints."""
        printer.text(str(self))

    @property
    def made_options(self) -> Any:
        """Instance of the descriptor's class of options."""
        assert self.descriptor is not None
        return structure(self.descriptor.options, self.options, f"{self} options")

    def make(self, argument: object) -> Any:
        """Call the factory. Raises PluginError if it fails."""
        assert self.descriptor is not None
        return self.catalogue.make(self.descriptor, argument)

    def has(self, capability: Capability) -> bool:
        return self.descriptor is not None and capability in self.descriptor.capabilities

    def needs(self, capability: Capability) -> None:
        """Skip the rest of the test if the descriptor does not claim ``capability``."""
        if not self.has(capability):
            skip_without(capability.value)


def kind_of(descriptor: Descriptor) -> str:
    """Return the kind of a backend, as a configuration's key."""
    return next(kind for kind, (_, made) in HOOKS.items() if isinstance(descriptor, made))


def subjects_of(distribution: str) -> list[Subject]:
    """Everything that a distribution registers, each descriptor once for each of its ``examples``.

    Raises UsageError if it is not installed, cannot be loaded, or registers nothing.
    """
    try:
        name = metadata.distribution(distribution).metadata["Name"]
    except metadata.PackageNotFoundError:
        raise pytest.UsageError(
            f"--msgstore-dist: {distribution!r} is not installed; try: pip install {distribution}"
        ) from None
    catalogue = load_catalogue()
    broken = [f"{failure.provider} {failure.what}" for failure in catalogue.failures if failure.provider.distribution == name]
    if broken:
        raise pytest.UsageError(f"--msgstore-dist: {'; '.join(broken)}")
    found = [
        Subject(kind=kind, name=one.name, catalogue=catalogue, descriptor=one, options=dict(options), provider=provider)
        for kind, one, provider in ((it.kind, it.descriptor, it.provider) for it in catalogue.registrations)
        if provider.distribution == name
        for options in one.examples
    ]
    if observers := tuple(observer for observer in catalogue.observers if observer.provider.distribution == name):
        of = observers[0].provider
        found.append(Subject(kind=OBSERVER, name=name, catalogue=catalogue, observers=observers, provider=of))
    if not found:
        raise pytest.UsageError(
            f"--msgstore-dist: {name} registers nothing: its pyproject.toml needs an entry point in the group 'msgstore', "
            "and the module that it names a hook"
        )
    return found
