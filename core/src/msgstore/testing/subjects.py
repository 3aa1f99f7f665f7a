"""Subjects of the kit: a descriptor, and options to test it with; and the tests of every descriptor."""

from __future__ import annotations

import contextlib
import functools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from itertools import islice
from typing import Any, get_args, get_type_hints

import attrs
import pytest

from msgstore.contract import Capability, ConfigError, Descriptor
from msgstore.option_values import structure
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.plugins.loader import HOOKS, Observer, Provider, Registration
from msgstore.testing.plugin import KitTests, skip_without

_UNREGISTERED = Provider("unregistered", "0", "none", "none")


@attrs.frozen(kw_only=True)
class Subject:
    """One backend under test, or the observers of a distribution."""

    kind: str
    name: str
    catalogue: Catalogue = attrs.field(repr=False)
    """All installed backends and the subject."""
    descriptor: Any = None
    """None for observers."""
    options: dict[str, object] = attrs.field(factory=dict)
    """One of the descriptor's ``examples``: keys as a configuration has them."""
    observers: tuple[Observer, ...] = ()
    provider: Provider = _UNREGISTERED

    @classmethod
    def of(cls, descriptor: Descriptor, **options: object) -> Subject:
        """Make a subject of a descriptor. An installed distribution may register the same backend: this one replaces it."""
        kind, installed = kind_of(descriptor), load_catalogue()
        others = [it for it in installed.registrations if it.descriptor.factory != descriptor.factory]
        catalogue = attrs.evolve(installed, registrations=(*others, Registration(kind, descriptor, _UNREGISTERED)))
        return cls(kind=kind, name=descriptor.name, catalogue=catalogue, descriptor=descriptor, options=options)

    @classmethod
    def registered_by(cls, distribution: str) -> list[Subject]:
        """Everything that a distribution registers, each descriptor once for each of its ``examples``.

        Raises UsageError if it is not installed, cannot be loaded, or registers nothing.
        """
        try:
            name = metadata.distribution(distribution).metadata["Name"]
        except metadata.PackageNotFoundError:
            raise pytest.UsageError(
                f"--msgstore-dist: {distribution!r} is not installed; it is no backend's name; try: pip install {distribution}"
            ) from None
        catalogue = load_catalogue()
        if broken := [str(failure) for failure in catalogue.failures if failure.provider.distribution == name]:
            raise pytest.UsageError(f"--msgstore-dist: {'; '.join(broken)}")
        found = [
            cls(kind=it.kind, name=it.descriptor.name, catalogue=catalogue, descriptor=it.descriptor,
                options=dict(options), provider=it.provider)
            for it in catalogue.registrations if it.provider.distribution == name
            for options in it.descriptor.examples
        ]  # fmt: skip
        if observers := tuple(observer for observer in catalogue.observers if observer.provider.distribution == name):
            of = observers[0].provider
            found.append(cls(kind="observer", name=name, catalogue=catalogue, observers=observers, provider=of))
        if not found:
            raise pytest.UsageError(
                f"--msgstore-dist: {name} registers nothing: its pyproject.toml needs an entry point in the group 'msgstore', "
                "and the module that it names a hook"
            )
        return found

    def __str__(self) -> str:
        given = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.kind}:{self.name}" + (f"[{given}]" if given else "")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Keep the catalogue, a hundred lines, out of the failures that hypothesis prints."""
        printer.text(str(self))

    @property
    def made_options(self) -> Any:
        """Instance of the descriptor's class of options."""
        return structure(self.descriptor.options, self.options, f"{self} options")

    def make(self, argument: object) -> Any:
        """Call the factory. Raises PluginError if it fails."""
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


LONGEST_TEXT = 300
"""Characters of the longest option that is tried."""


def with_other_options(subject: Subject) -> Iterator[tuple[str, Any, Subject]]:
    """Yield the name of an option, another value that its class accepts, and the subject with it. Of texts, the longest that
    the class accepts is one, also with characters of several bytes."""

    def accepted(name: str, values: Iterable[object]) -> Iterator[tuple[str, Any, Subject]]:
        for value in values:
            found = attrs.evolve(subject, options={**subject.options, name: value})
            with contextlib.suppress(ConfigError):
                if value != getattr(subject.made_options, name) and found.made_options:
                    yield name, value, found

    kinds = get_type_hints(subject.descriptor.options)
    for name, value in attrs.asdict(subject.made_options, recurse=False).items():
        match value:
            case bool():
                yield from accepted(name, [not value])
            case None:
                yield from accepted(name, (0, 1, "", "x", True, 2**32, 2**64))
            case int() | float():
                yield from accepted(name, (0.001, 0.5, 0.999) if isinstance(value, float) else ())
                sizes = (2**bits + more for bits in (7, 8, 15, 16, 31, 32, 63, 64) for more in (-1, 0))
                yield from accepted(name, (0, 1, 2, -1, *sizes))
            case str():
                yield from accepted(name, get_args(kinds.get(name)))  # of a Literal
                yield from accepted(name, (it[name] for it in subject.descriptor.examples if name in it))
                yield from accepted(name, (digit + value[1:] for digit in "01" if value))  # a key of a fixed length
                yield from accepted(name, (value[::-1], value * 2, value + value[:1], "", "x", " x ", "ü", "x\ny\0z"))
                for begin, letter in (("", "x"), ("", "ü"), ("x", "ü"), ("", "€")):
                    yield from islice(accepted(name, (begin + letter * more for more in range(LONGEST_TEXT, 1, -1))), 1)


def others_of(subject: Subject) -> Iterator[Subject]:
    """Yield subjects of the same descriptor with other options: its examples, and :func:`with_other_options`."""
    yield from (attrs.evolve(subject, options=dict(it)) for it in subject.descriptor.examples if it != subject.options)
    yield from (found for _, _, found in with_other_options(subject))


class DescriptorTests(KitTests):
    """Descriptors are light values, each selected by its name."""

    kinds = tuple(HOOKS)

    def test_its_name_gives_it(self, subject: Subject) -> None:
        """A failure means that another installed distribution registers the same name, or that the contract version is one
        that this core does not serve: what users select by the name is not this. If ``contract`` is newer than the core
        installed here, give ``dependencies`` a lower bound."""
        catalogue, names = subject.catalogue, [subject.name]
        if subject.kind == "record":
            names.insert(0, subject.descriptor.format)
        look_up = {"gc": catalogue.gc_policy, "body": catalogue.body_codec, "runner": catalogue.job_runner}
        assert (look_up.get(subject.kind) or getattr(catalogue, subject.kind))(*names) is subject.descriptor

    def test_it_is_a_value(self, subject: Subject) -> None:
        """A failure means that the descriptor, or its class of options, is made inside a function, or holds something that
        cannot be pickled: workers of a cluster are sent descriptors. Or that ``msgstore plugins`` has nothing to say of it, or
        breaks its table: the summary is one line. Or that users who write the example into their configuration get an error:
        an option is needed, and ``examples`` does not give it."""
        copy, summary = pickle.loads(pickle.dumps(subject.descriptor)), subject.descriptor.summary
        assert (copy, hash(copy)) == (subject.descriptor, hash(subject.descriptor))
        assert len(summary.splitlines()) == 1 <= len(summary.strip()), f"summary is {summary!r}, not one line of text"
        for field in subject.descriptor.fields:
            assert len(field.summary.splitlines()) < 2, f"the summary of the field {field.name} is not one line"
        assert isinstance(subject.made_options, subject.descriptor.options)

    def test_registering_it_imports_no_work(self, subject: Subject) -> None:
        """A failure means that the module of the entry point imports the module of the factory. Every program that opens any
        store would pay for it: name the factory by its string, and import what it needs where it is. Or that ``contract`` is
        ``CONTRACT_VERSION``: write the version as a literal, because a later core has another contract than you have read."""
        module = subject.descriptor.factory.partition(":")[0]
        assert module != subject.provider.value, f"{module} is the module of the entry point itself"
        late, imported = _loaded_elsewhere()
        assert [subject.kind, subject.name] not in late, "contract is CONTRACT_VERSION, and not a literal such as (1, 0)"
        assert module not in imported, f"{subject.provider.value} imports {module}"


@functools.cache
def _loaded_elsewhere() -> tuple[list[list[str]], list[str]]:
    """Load the catalogue in a new process. Return the kind and name of each backend whose contract is the newest version, and
    the modules that were imported."""
    code = (
        "import json, msgstore, msgstore.contract.descriptors as descriptors, sys\n"
        "msgstore.contract.CONTRACT_VERSION = descriptors.CONTRACT_VERSION = later = (1, 999)\n"
        "found = msgstore.load_catalogue().registrations\n"
        "late = [(it.kind, it.descriptor.name) for it in found if it.descriptor.contract == later]\n"
        "print('\\n' + json.dumps([late, sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    late, imported = json.loads(done.stdout.splitlines()[-1])
    return late, imported
