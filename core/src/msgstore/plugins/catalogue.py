"""Catalogue: selects the backend that a name means. A catalogue is a value: built once, passed as an argument, never global.

No conflict is resolved silently. If a selected name is not available, the error names the distributions with versions and entry
points. It also lists the installed alternatives and the ``pip install`` line that helps.
"""

from __future__ import annotations

import difflib
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, takewhile
from typing import Any, TypeVar

import attrs

from msgstore.contract import (
    CONTRACT_VERSION,
    BodyCodecDescriptor,
    BrokenPlugin,
    CommandDescriptor,
    ConfigError,
    Descriptor,
    GcPolicyDescriptor,
    IndexDescriptor,
    JobRunnerDescriptor,
    MsgStoreError,
    PluginError,
    RecordTypeDescriptor,
    SegmentFormatDescriptor,
    SinkDescriptor,
    SourceDescriptor,
)
from msgstore.error_texts import first_line, install_line
from msgstore.plugins.descriptor_checks import extensions_of, missing_names
from msgstore.plugins.frames import nearest, package_of, package_of_factory, place_of
from msgstore.plugins.known import KNOWN_BODIES, KNOWN_DISTRIBUTIONS, KNOWN_EXTENSIONS, NOUNS
from msgstore.plugins.loader import Loaded, Provider, Registration, comes_from_outside, find_entry_points, load_once

D = TypeVar("D", bound=Descriptor)
_Exceptions = type[BaseException] | tuple[type[BaseException], ...]


def is_compatible(declared: tuple[int, int]) -> bool:
    """Return True if a plugin written against the contract version ``declared`` works with this core."""
    return declared[0] == CONTRACT_VERSION[0] and declared[1] <= CONTRACT_VERSION[1]


@attrs.frozen
class Catalogue(Loaded):
    """Installed backends, and the failures of their discovery.

    Methods that return a descriptor raise PluginError if the backend is not available.
    """

    disabled: tuple[str, ...] = ()
    remembered: Mapping[str, str] = attrs.field(factory=dict)
    """``kind name`` to the distribution that provided it, from a store's directory. Used in errors about missing backends."""

    def format(self, name: str) -> SegmentFormatDescriptor:
        """Return a segment format. Also raises PluginError if another format claims its extensions."""
        return self._only_claimant(self._resolve(SegmentFormatDescriptor, "format", name), "format")

    def record(self, format_name: str, name: str) -> RecordTypeDescriptor:
        """Return a record type of a format."""
        return self._resolve(RecordTypeDescriptor, "record", name, format_name)

    def index(self, name: str) -> IndexDescriptor:
        """Return an index."""
        return self._resolve(IndexDescriptor, "index", name)

    def gc_policy(self, name: str) -> GcPolicyDescriptor:
        """Return a GC policy."""
        return self._resolve(GcPolicyDescriptor, "gc", name)

    def body_codec(self, name: str) -> BodyCodecDescriptor:
        """Return a body codec."""
        return self._resolve(BodyCodecDescriptor, "body", name)

    def source(self, name: str) -> SourceDescriptor:
        """Return a source of messages."""
        return self._resolve(SourceDescriptor, "source", name)

    def sink(self, name: str) -> SinkDescriptor:
        """Return a sink of messages."""
        return self._resolve(SinkDescriptor, "sink", name)

    def claimed_sink(self, name: str) -> SinkDescriptor:
        """Return the sink that the name of a destination has selected. Also raises PluginError if another one claims its
        endings or schemes."""
        return self._only_claimant(self.sink(name), "sink")

    def job_runner(self, name: str) -> JobRunnerDescriptor:
        """Return a job runner."""
        return self._resolve(JobRunnerDescriptor, "runner", name)

    def command(self, name: str) -> CommandDescriptor:
        """Return a command of a plugin."""
        return self._resolve(CommandDescriptor, "command", name)

    def descriptors(self, kind_class: type[D]) -> list[D]:
        """Return all descriptors of a class."""
        return [found.descriptor for found in self.registrations if isinstance(found.descriptor, kind_class)]

    def names(self, kind: str) -> list[str]:
        """Return the registered names of a kind, sorted."""
        return sorted({found.descriptor.name for found in self._of(kind)})

    def provider(self, descriptor: Descriptor) -> Provider:
        """Return the provider of ``descriptor``, which is one of this catalogue."""
        return self._registration(descriptor).provider

    def third_party_providers(self, selected: Iterable[tuple[str, Descriptor]]) -> dict[str, str]:
        """Return ``kind name`` to distribution, for those of ``selected`` whose distribution core does not know."""
        found = ((kind, descriptor.name, self.provider(descriptor).distribution) for kind, descriptor in selected)
        return {
            f"{kind} {name}": distribution
            for kind, name, distribution in found
            if distribution not in ("msgstore", "?", KNOWN_DISTRIBUTIONS.get((kind, name)))
        }

    def changed_providers(self, used: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Yield a text for each (kind, name) of a store that another distribution provides than the one that it remembers."""
        for kind, name in used:
            owner, found = self._owner(kind, name), [one.provider for one in self._of(kind) if one.descriptor.name == name]
            if owner and found and not {_normal(one.distribution) for one in found} & {_normal(owner), "?"}:
                yield f"the {NOUNS[kind]} {name!r} is of {found[0]}, and was of the distribution {owner!r}"

    def _owner(self, kind: str, name: str) -> str | None:
        """Return the distribution that a store's directory, or core, knows as the provider of a backend."""
        return self.remembered.get(f"{kind} {name}") or KNOWN_DISTRIBUTIONS.get((kind, name))

    def known_codec(self, stored: bytes) -> str | None:
        """Return the body codec of a broker whose stored bodies begin like ``stored``, installed or not; None for others."""
        return KNOWN_BODIES.get(stored[:2])

    def brokers_codec(self, bodies: Sequence[bytes]) -> str | None:
        """Return the body codec of a broker that more than half of the stored ``bodies`` begin like, installed or not."""
        name, count = (Counter(map(self.known_codec, bodies)).most_common(1) or [(None, 0)])[0]
        return name if 2 * count > len(bodies) else None

    def formats_by_extension(self) -> dict[str, str]:
        """Return extension to format name, of segments and leftovers, for every installed format."""
        return {extension: form.name for form in self.descriptors(SegmentFormatDescriptor) for extension in extensions_of(form)}

    def leftover_extensions(self) -> frozenset[str]:
        """Return the extensions of files that become segments when a store is opened for writing."""
        return frozenset(chain.from_iterable(form.leftover_extensions for form in self.descriptors(SegmentFormatDescriptor)))

    def missing_format(self, extension: str, remembered: Iterable[str]) -> PluginError | None:
        """Return the error about the missing format of an ``extension`` that no installed format reads.

        The format is the known one of that extension, or else the first of ``remembered`` that is not available. Returns None
        if there is no such format: then the file is not a segment.
        """
        known = KNOWN_EXTENSIONS.get(extension)
        for name in (*([known] if known else ()), *remembered):
            try:
                self.format(name)
            except PluginError as error:
                return error
        return None

    # -- problems ---------------------------------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """Yield one line for everything that would be an error if it were selected."""
        yield from map(str, self.failures)
        named = ((found.kind, found.descriptor.name, _format_of(found.descriptor)) for found in self.registrations)
        checks: list[Callable[[], object]] = [partial(self._resolve, Descriptor, *one) for one in dict.fromkeys(named)]
        claims = ((found.kind, claim.lower()) for found in self.registrations for claim in _claims_of(found.descriptor))
        checks += [partial(self._check_single_claim, *one) for one in dict.fromkeys(claims)]
        for check in checks:
            try:
                check()
            except PluginError as error:
                yield str(error)

    def load_factory(self, descriptor: Descriptor) -> Callable[[Any], Any]:
        """Import a factory. Raises BrokenPlugin."""
        with self.attribute_errors(descriptor, "cannot be imported", passing=()):
            factory = descriptor.load_factory()
            if not callable(factory):
                raise TypeError(f"{descriptor.factory} is not callable")
            return factory

    def make(self, descriptor: Descriptor, argument: object) -> Any:
        """Call the factory of ``descriptor``. Exceptions of the plugin and missing methods become BrokenPlugin: otherwise the
        store would open, and a later flush or collection would fail."""
        about_the_store = (MsgStoreError, OSError) if isinstance(descriptor, IndexDescriptor) else MsgStoreError
        with self.attribute_errors(descriptor, "cannot be created", passing=about_the_store):
            backend = descriptor.load_factory()(argument)
            if missing := list(missing_names(backend, descriptor)):
                class_name = f"{type(backend).__module__}.{type(backend).__qualname__}"
                raise TypeError(f"{class_name} has no {', '.join(missing)}, which the contract requires")
        return backend

    @contextmanager
    def attribute_errors(
        self,
        descriptor: Descriptor,
        failed: str,
        *,
        passing: _Exceptions = (MsgStoreError, OSError),
        types: Iterable[RecordTypeDescriptor] = (),
    ) -> Iterator[None]:
        """Convert exceptions of calls to a backend to BrokenPlugin. ``failed`` says what the plugin could not do, and where.
        ``passing`` passes unchanged: by default, what is about the store, not about the plugin. ``types``: see ``broken``."""
        try:
            yield
        except passing:
            raise
        except (Exception, SystemExit) as error:
            if comes_from_outside(error):
                raise
            raise self.broken(descriptor, failed, error, types) from error

    def broken(
        self, descriptor: Descriptor, failed: str, error: BaseException, types: Iterable[RecordTypeDescriptor] = ()
    ) -> BrokenPlugin:
        """Return the error that says what a plugin could not do, and why.

        ``types``: record types that a format calls. The one whose code raised ``error`` is named instead of the format; all are
        named with it if core raised that, about a result of the format.
        """
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        called = list(takewhile(lambda frame: package_of(frame) != "msgstore", reversed(frames)))
        types = [one for one in types if package_of_factory(one) != package_of_factory(descriptor)]
        descriptor = nearest(types, called) or descriptor
        found = self._registration(descriptor)
        named = [found, *(map(self._registration, types) if frames and not called else ())]
        text = " or ".join(f"the {NOUNS[one.kind]} {one.descriptor.name!r} of {one.provider}" for one in named)
        text += f" {failed}: {first_line(error)}{place_of(descriptor, error)}"
        text += "".join(f", {note}" for note in getattr(error, "__notes__", ()) if "\n" not in note)
        if isinstance(error, OSError) or found.kind == "command":  # nothing that an installation would mend
            return BrokenPlugin(text)
        return BrokenPlugin(f"{text}. {_remedy(text, [one.provider.distribution for one in named])}")

    def failed_to_load(self) -> str:
        """Return the sentence about plugins that failed to load, after a space; "" if there are none."""
        if len(self.failures) == 1:
            return f" Failed to load: {self.failures[0]}."
        failed = ", ".join(dict.fromkeys(failure.provider.distribution for failure in self.failures))
        return f" Failed to load: {failed} ('msgstore plugins' says why)." if failed else ""

    # -- selection --------------------------------------------------------------------------------------------------------

    def _of(self, kind: str, of_format: str | None = None) -> list[Registration]:
        """Return the backends of a kind, or the record types of one format."""
        found = [found for found in self.registrations if found.kind == kind]
        return [one for one in found if of_format is None or _format_of(one.descriptor) == of_format]

    def _registration(self, descriptor: Descriptor) -> Registration:
        return next(found for found in self.registrations if found.descriptor is descriptor)

    def _resolve(self, kind_class: type[D], kind: str, name: str, of_format: str | None = None) -> D:
        """Return the only registration of a name. Raises PluginError for none, several, or one of another contract version."""
        same = [found for found in self._of(kind, of_format) if found.descriptor.name == name]
        if not same:
            raise self._missing(kind, name, of_format)
        if len(same) > 1:
            listed = "; ".join(str(found.provider) for found in same)
            owner = self._owner(kind, name)
            other = next((found.provider for found in same if found.provider.distribution != owner), same[0].provider)
            disable = "" if kind == "command" else f", or {_disable(other)}"  # found before a configuration is read
            raise PluginError(
                f"the {NOUNS[kind]} {name!r} is provided {len(same)} times: {listed}. "
                f"Keep one: 'pip uninstall' the others' distributions{disable}."
            )
        found = same[0]
        if not is_compatible(found.descriptor.contract):
            declared, ours = (".".join(map(str, version)) for version in (found.descriptor.contract, CONTRACT_VERSION))
            older = "msgstore" if found.descriptor.contract > CONTRACT_VERSION else found.provider.distribution
            raise PluginError(
                f"the {NOUNS[kind]} {name!r} of {found.provider} was written against contract {declared}; "
                f"this msgstore has contract {ours}. Try: pip install --upgrade {older}"
            )
        assert isinstance(found.descriptor, kind_class)
        return found.descriptor

    def _only_claimant(self, found: D, kind: str) -> D:
        """Return ``found`` if no other backend of its kind claims the same files or URLs. Raises PluginError."""
        for claim in _claims_of(found):
            self._check_single_claim(kind, claim)
        return found

    def _check_single_claim(self, kind: str, claim: str) -> None:
        """Raise PluginError if several backends have the claim. Ignores case, because some file systems do."""
        claims = [
            (found, claimed)
            for found in self._of(kind)
            for claimed in _claims_of(found.descriptor)
            if claimed.lower() == claim.lower()
        ]
        if len({found.descriptor.name for found, _ in claims}) < 2:
            return
        listed = "; ".join(f"{found.descriptor.name!r} of {found.provider}" for found, _ in claims)
        providers = [found.provider for found, _ in claims]
        ours = ("msgstore", *KNOWN_DISTRIBUTIONS.values())
        third_party = [one for one in providers if one.distribution not in ours]
        choice = " Or name one (--sink)." if kind == "sink" else ""
        claimed = f"{'files' if claim[0] == '*' else 'URLs'} {' and '.join(sorted({claimed for _, claimed in claims}))}"
        raise PluginError(
            f"{claimed} are claimed by {len(claims)} {NOUNS[kind]}s: {listed}. Keep one: 'pip uninstall' the others' "
            f"distributions, or {_disable((third_party or providers)[0])}.{choice}"
        )

    def _missing(self, kind: str, name: str, of_format: str | None) -> PluginError:
        """Return the error for a name without a registration: what is installed, what failed to load, and what to do."""
        what = f"{NOUNS[kind]} {name!r}" + (f" of format {of_format!r}" if of_format else "")
        installed = self._of(kind, of_format)
        distribution = KNOWN_DISTRIBUTIONS.get((kind, name)) or self.remembered.get(f"{kind} {name}")
        suspects = [
            f for f in self.failures if f.provider.distribution in (distribution, name) or f.provider.entry_point == name
        ]
        if suspects:
            text = f"the {what} cannot be used: {'; '.join(map(str, suspects))}"
            return BrokenPlugin(f"{text}. {_remedy(text, [suspects[0].provider.distribution])}")
        message = f"no installed plugin provides the {what}. Installed: {_listed(installed)}."
        message += self.failed_to_load()
        if self.disabled:
            message += (
                f" Disabled by the configuration: {', '.join(self.disabled)}. Remove the name from that list if it is there."
            )
        others = [found for found in self._of(kind) if of_format and found.descriptor.name == name]
        if others:
            same = " and ".join(f"{_format_of(found.descriptor)!r} of {found.provider.distribution}" for found in others)
            message += f" {name!r} is for format {same}; select that format, or another record type."
        elif near := difflib.get_close_matches(name, sorted({found.descriptor.name for found in installed}), n=1):
            message += f" Did you mean {near[0]!r}?"
        elif (kind, name) in KNOWN_DISTRIBUTIONS:
            message += f" Try: {install_line(KNOWN_DISTRIBUTIONS[kind, name])}"
        elif distribution:  # anybody may have written it: no line to copy
            message += f" According to the directory, the distribution {distribution!r} provides it: install that only if you "
            message += "trust it."
        elif self.failures:
            message += " Try: mend what failed to load, if it provides that, or install the distribution that does."
        else:
            begin = "Otherwise" if self.disabled else "Try"
            message += f" {begin}: pip install the distribution that provides it. 'msgstore plugins' lists what is installed."
        return PluginError(message)


def _normal(distribution: str) -> str:
    return re.sub("[-_.]+", "-", distribution).lower()


def _disable(provider: Provider) -> str:
    name = f"{provider.distribution}:{provider.entry_point}"
    return f'disable their entry points in a configuration (--config FILE): disabled = ["{name}"]'


def _claims_of(descriptor: Descriptor) -> list[str]:
    """Return the files and URLs that select a backend, such as ``*.sqs`` and ``amqp://``."""
    if isinstance(descriptor, SinkDescriptor):
        return [*(f"*{ending}" for ending in descriptor.endings), *(f"{scheme}://" for scheme in descriptor.schemes)]
    return [f"*{extension}" for extension in extensions_of(descriptor)]


def _format_of(descriptor: Descriptor) -> str | None:
    """Return the format of a record type; None for other descriptors."""
    return descriptor.format if isinstance(descriptor, RecordTypeDescriptor) else None


def _remedy(text: str, distributions: Sequence[str]) -> str:
    """Return what to do about a plugin's fault: only a missing module may be a fault of the installation."""
    if "ModuleNotFoundError: " in text:
        return f"Try: pip install --upgrade --force-reinstall {' '.join(distributions)}"
    return f"This is a fault of the plugin: upgrade {' or '.join(distributions)}, or report it to the author."


def _listed(found: Sequence[Registration]) -> str:
    """Return names, each with its distribution, as one line."""
    names = (f"{one.descriptor.name} ({one.provider.distribution} {one.provider.version})" for one in found)
    return ", ".join(sorted(names)) or "none"


def load_catalogue(disabled: Iterable[str] = ()) -> Catalogue:
    """Load every installed plugin except the entry points in ``disabled`` (``name`` or ``distribution:name``).

    Raises ConfigError if ``disabled`` names an entry point that is not installed. Otherwise a misspelt plugin would be loaded.
    """
    disabled = tuple(disabled)
    found = find_entry_points()
    names = {name for provider, _ in found for name in provider.names}
    for name in disabled:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            known = ", ".join(sorted(provider.entry_point for provider, _ in found))
            hint = f"Did you mean {near[0]!r}?" if near else f"Installed: {known}. If it was uninstalled, remove it there"
            raise ConfigError(
                f"disabled: no installed distribution has an entry point {name!r} in the group 'msgstore'. {hint}"
            )
    return Catalogue(**attrs.asdict(load_once(found, disabled), recurse=False), disabled=disabled)
