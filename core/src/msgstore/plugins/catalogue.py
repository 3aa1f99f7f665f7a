"""Catalogue: selects the backend that a name means. A catalogue is a value: built once, passed as an argument, never global.

No conflict is resolved silently. If a selected name is not available, the error names the distributions with versions and entry
points. It also lists the installed alternatives and the ``pip install`` line that helps.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs

from msgstore.contract import (
    CONTRACT_VERSION,
    BodyCodec,
    BodyCodecDescriptor,
    BodyCodecWithFields,
    BrokenPlugin,
    Capability,
    CompactableFormat,
    ConfigError,
    Descriptor,
    GcPolicy,
    GcPolicyDescriptor,
    Index,
    IndexDescriptor,
    JobRunnerDescriptor,
    MsgStoreError,
    PluginError,
    RecordType,
    RecordTypeDescriptor,
    RecordTypeWithFields,
    SegmentFormat,
    SegmentFormatDescriptor,
)
from msgstore.plugins.loader import Loaded, Provider, Registration, find_entry_points, load

D = TypeVar("D", bound=Descriptor)

NOUNS = {
    "format": "segment format",
    "record": "record type",
    "index": "index",
    "gc": "GC policy",
    "body": "body codec",
    "runner": "job runner",
}
"""Kind of backend to its name in messages."""


def is_compatible(declared: tuple[int, int]) -> bool:
    """Return True if a plugin written against the contract version ``declared`` works with this core."""
    return declared[0] == CONTRACT_VERSION[0] and declared[1] <= CONTRACT_VERSION[1]


_KNOWN_DISTRIBUTIONS = {
    ("format", "v1"): "msgstore-format-v1",
    ("format", "v2"): "msgstore-format-v2",
    ("record", "message"): "msgstore-format-v2",
    ("record", "checksum"): "msgstore-checksum-record",
    ("index", "ets"): "msgstore-ets-index",
    ("index", "lmdb"): "msgstore-lmdb-index",
    ("body", "erlang"): "msgstore-erlang-body",
    ("runner", "spark"): "msgstore-spark",
}
"""Distribution of each backend of the project. Only used for hints in messages: installed plugins decide the selection."""
_KNOWN_EXTENSIONS = {".rdq": "v1", ".rdt": "v1", ".sqs": "v2"}
"""File extension to the format of the project that reads it."""
_KNOWN_BODIES = {b"\x83h": "erlang", b"\x83m": "erlang"}
"""First bytes of bodies that brokers store, to the body codec: an external term that is a tuple or a binary."""

_PROTOCOLS: dict[tuple[type[Descriptor], Capability | None], type] = {
    (SegmentFormatDescriptor, None): SegmentFormat,
    (SegmentFormatDescriptor, Capability.COMPACTABLE): CompactableFormat,
    (RecordTypeDescriptor, None): RecordType,
    (RecordTypeDescriptor, Capability.FIELDS): RecordTypeWithFields,
    (IndexDescriptor, None): Index,
    (GcPolicyDescriptor, None): GcPolicy,
    (BodyCodecDescriptor, None): BodyCodec,
    (BodyCodecDescriptor, Capability.FIELDS): BodyCodecWithFields,
}
"""Protocol of the objects that each kind's factory makes, and of the optional methods of a capability. Job runners are not part
of the contract."""


@attrs.frozen
class Catalogue(Loaded):
    """Installed backends, and the failures of their discovery."""

    disabled: tuple[str, ...] = ()
    remembered: Mapping[str, str] = attrs.field(factory=dict)
    """``kind name`` to the distribution that provided it, from a store's directory. Used in errors about missing backends."""

    def format(self, name: str) -> SegmentFormatDescriptor:
        """Return a segment format. Also raises PluginError if another format claims its extensions."""
        found = self._resolve(SegmentFormatDescriptor, "format", name)
        for extension in _extensions(found):
            self._check_single_claim(extension)
        return found

    def record(self, format_name: str, name: str) -> RecordTypeDescriptor:
        """Return a record type of a format. Raises PluginError if it is not available."""
        return self._resolve(RecordTypeDescriptor, "record", name, of_format=format_name)

    def index(self, name: str) -> IndexDescriptor:
        """Return an index. Raises PluginError if it is not available."""
        return self._resolve(IndexDescriptor, "index", name)

    def gc_policy(self, name: str) -> GcPolicyDescriptor:
        """Return a GC policy. Raises PluginError if it is not available."""
        return self._resolve(GcPolicyDescriptor, "gc", name)

    def body_codec(self, name: str) -> BodyCodecDescriptor:
        """Return a body codec. Raises PluginError if it is not available."""
        return self._resolve(BodyCodecDescriptor, "body", name)

    def known_codec(self, stored: bytes) -> str | None:
        """Return the body codec of a broker whose stored bodies begin like ``stored``, installed or not; None for others."""
        return _KNOWN_BODIES.get(stored[:2])

    def job_runner(self, name: str) -> JobRunnerDescriptor:
        """Return a job runner. Raises PluginError if it is not available."""
        return self._resolve(JobRunnerDescriptor, "runner", name)

    def third_party_providers(self, selected: Iterable[tuple[str, Descriptor]]) -> dict[str, str]:
        """Return ``kind name`` to distribution, for those of ``selected`` whose distribution core does not know."""
        found = ((kind, descriptor.name, self.provider(descriptor).distribution) for kind, descriptor in selected)
        return {
            f"{kind} {name}": distribution
            for kind, name, distribution in found
            if distribution not in ("msgstore", "?", _KNOWN_DISTRIBUTIONS.get((kind, name)))
        }

    def formats_by_extension(self) -> dict[str, str]:
        """Return extension to format name, of segments and leftovers, for every installed format."""
        return {
            extension: descriptor.name
            for descriptor in self._formats()
            for extension in (*descriptor.leftover_extensions, descriptor.extension)
        }

    def missing_format(self, extension: str, remembered: Iterable[str]) -> PluginError | None:
        """Return the error about the missing format of an ``extension`` that no installed format reads.

        The format is the known one of that extension, or else the first of ``remembered`` that is not available. Returns None
        if there is no such format: then the file is not a segment.
        """
        for name in (_KNOWN_EXTENSIONS.get(extension), *remembered):
            if name is not None:
                try:
                    self.format(name)
                except PluginError as error:
                    return error
        return None

    def leftover_extensions(self) -> frozenset[str]:
        """Return the extensions of files that become segments when a store is opened for writing."""
        return frozenset(extension for descriptor in self._formats() for extension in descriptor.leftover_extensions)

    def _formats(self) -> Iterator[SegmentFormatDescriptor]:
        for found in self.registrations:
            if isinstance(found.descriptor, SegmentFormatDescriptor):
                yield found.descriptor

    def names(self, kind: str) -> list[str]:
        """Return the registered names of a kind, sorted."""
        return sorted({found.descriptor.name for found in self.registrations if found.kind == kind})

    def problems(self) -> Iterator[str]:
        """Yield one line for everything that would be an error if it were selected."""
        for failure in self.failures:
            yield f"{failure.provider} {failure.what}"
        named: dict[tuple[str, str, str], list[Registration]] = {}
        for found in self.registrations:
            of_format = found.descriptor.format if isinstance(found.descriptor, RecordTypeDescriptor) else ""
            named.setdefault((found.kind, found.descriptor.name, of_format), []).append(found)
        for (kind, name, _), same in named.items():
            try:
                self._choose(kind, name, same)
            except PluginError as error:
                yield str(error)
        for extension in dict.fromkeys(map(str.lower, self.formats_by_extension())):
            try:
                self._check_single_claim(extension)
            except PluginError as error:
                yield str(error)

    def unloadable(self) -> Iterator[str]:
        """Import every factory. Yield one line for each that fails."""
        for found in self.registrations:
            try:
                if not callable(found.descriptor.load_factory()):
                    raise TypeError(f"{found.descriptor.factory} is not callable")
            except (Exception, SystemExit) as error:
                yield str(self._broken(found.descriptor, "cannot be imported", error))

    def make(self, descriptor: Descriptor, argument: object) -> Any:
        """Call the factory of ``descriptor``. Exceptions of the plugin and missing methods become BrokenPlugin."""
        with self.attribute_errors(descriptor, "cannot be created"):
            backend = descriptor.load_factory()(argument)
            _check_complete(backend, descriptor)
        return backend

    @contextmanager
    def attribute_errors(self, descriptor: Descriptor, failed: str) -> Iterator[None]:
        """Convert exceptions of calls to a backend to BrokenPlugin. ``failed`` says what the plugin could not do, and where."""
        try:
            yield
        except (MsgStoreError, OSError):  # about the store, not about the plugin
            raise
        except (Exception, SystemExit) as error:
            raise self._broken(descriptor, failed, error) from error

    def _broken(self, descriptor: Descriptor, failed: str, error: BaseException) -> BrokenPlugin:
        found = self._registration(descriptor)
        return BrokenPlugin(
            f"the {NOUNS[found.kind]} {descriptor.name!r} of {found.provider} {failed}: "
            f"{type(error).__name__}: {error}. Installed: {self._installed(found.kind, but=found)}. "
            f"Try: pip install --upgrade --force-reinstall {found.provider.distribution}"
        )

    def provider(self, descriptor: Descriptor) -> Provider:
        """Return the provider of ``descriptor``, which is one of this catalogue."""
        return self._registration(descriptor).provider

    def _registration(self, descriptor: Descriptor) -> Registration:
        return next(found for found in self.registrations if found.descriptor is descriptor)

    def _check_single_claim(self, extension: str) -> None:
        """Raise PluginError if several formats claim the extension. Ignores case, because some file systems do."""
        claims = [found for found in self.registrations if extension.lower() in map(str.lower, _extensions(found.descriptor))]
        if len({found.descriptor.name for found in claims}) < 2:
            return
        listed = "; ".join(f"{found.descriptor.name!r} of {found.provider}" for found in claims)
        third_party = [f for f in claims if _KNOWN_DISTRIBUTIONS.get((f.kind, f.descriptor.name)) != f.provider.distribution]
        example = (third_party or claims)[0].provider
        spellings = dict.fromkeys(e for f in claims for e in _extensions(f.descriptor) if e.lower() == extension.lower())
        files = " and ".join(f"*{ending}" for ending in sorted(spellings))
        raise PluginError(
            f"files {files} are claimed by {len(claims)} segment formats: {listed}. Keep one: 'pip uninstall' the others' "
            f'distributions, or disable their entry points, as in disabled = ["{example.distribution}:{example.entry_point}"].'
        )

    def _resolve(self, kind_class: type[D], kind: str, name: str, of_format: str | None = None) -> D:
        same = [
            found
            for found in self.registrations
            if found.kind == kind and found.descriptor.name == name and _is_of(found.descriptor, of_format)
        ]
        if not same:
            raise self._missing(kind, name, of_format)
        chosen = self._choose(kind, name, same)
        assert isinstance(chosen, kind_class)
        return chosen

    def _choose(self, kind: str, name: str, same: list[Registration]) -> Descriptor:
        """Return the only registration in ``same``. Raises PluginError for several, or one of another contract version."""
        if len(same) > 1:
            listed = "; ".join(str(found.provider) for found in same)
            raise PluginError(
                f"the {NOUNS[kind]} {name!r} is provided {len(same)} times: {listed}. "
                f"Keep one: 'pip uninstall' the others' distributions, or disable their entry points, as in "
                f'disabled = ["{same[0].provider.distribution}:{same[0].provider.entry_point}"].'
            )
        found = same[0]
        if not is_compatible(found.descriptor.contract):
            declared, ours = (".".join(map(str, version)) for version in (found.descriptor.contract, CONTRACT_VERSION))
            raise PluginError(
                f"the {NOUNS[kind]} {name!r} of {found.provider} was written against contract {declared}; "
                f"this msgstore has contract {ours}. Installed: {self._installed(kind, but=found)}. "
                f"Try: pip install --upgrade msgstore {found.provider.distribution}"
            )
        return found.descriptor

    def _missing(self, kind: str, name: str, of_format: str | None) -> PluginError:
        """Return the error for a name without a registration: what is installed, what failed to load, and what to do."""
        what = f"{NOUNS[kind]} {name!r}" + (f" of format {of_format!r}" if of_format else "")
        distribution = _KNOWN_DISTRIBUTIONS.get((kind, name)) or self.remembered.get(f"{kind} {name}")
        suspects = [f for f in self.failures if f.provider.distribution == distribution or f.provider.entry_point == name]
        if suspects:
            listed = "; ".join(f"{failure.provider} {failure.what}" for failure in suspects)
            return BrokenPlugin(
                f"the {what} cannot be used: {listed}. Installed: {self._installed(kind)}. "
                f"Try: pip install --force-reinstall {suspects[0].provider.distribution}"
            )
        message = f"no installed plugin provides the {what}. Installed: {self._installed(kind, of_format=of_format)}."
        if self.failures:
            message += " Failed to load: " + "; ".join(f"{failure.provider} {failure.what}" for failure in self.failures) + "."
        if self.disabled:
            message += (
                f" Disabled by the configuration: {', '.join(self.disabled)}. Remove the name from that list if it is there."
            )
        same = [f"{found} of {provider}" for found, provider in self._formats_of(name)] if of_format else []
        others = {f.descriptor.name for f in self.registrations if f.kind == kind and _is_of(f.descriptor, of_format)}
        near = difflib.get_close_matches(name, sorted(others), n=1)
        if same:
            message += f" {name!r} is for format {' and '.join(same)}; select that format, or another record type."
        elif near:
            message += f" Did you mean {near[0]!r}?"
        elif distribution:
            message += f" Try: pip install {distribution}"
        else:
            message += " Try: pip install the distribution that provides it. 'msgstore plugins' lists what is installed."
        return PluginError(message)

    def _formats_of(self, record: str) -> Iterator[tuple[str, str]]:
        """Yield (format, distribution) of each record type with this name."""
        for found in self.registrations:
            if isinstance(found.descriptor, RecordTypeDescriptor) and found.descriptor.name == record:
                yield repr(found.descriptor.format), found.provider.distribution

    def _installed(self, kind: str, but: Registration | None = None, of_format: str | None = None) -> str:
        """Return the names of a kind, each with its distribution, as one line."""
        found = [
            f"{other.descriptor.name} ({other.provider.distribution} {other.provider.version})"
            for other in self.registrations
            if other.kind == kind and other is not but and _is_of(other.descriptor, of_format)
        ]
        return ", ".join(sorted(found)) or "none"


def _extensions(descriptor: Descriptor) -> tuple[str, ...]:
    """Return the file extensions of a segment format; empty for other descriptors."""
    if not isinstance(descriptor, SegmentFormatDescriptor):
        return ()
    return descriptor.extension, *descriptor.leftover_extensions


def _is_of(descriptor: Descriptor, format_name: str | None) -> bool:
    """Return True for a record type of this format. With None, return True for every descriptor."""
    return format_name is None or (isinstance(descriptor, RecordTypeDescriptor) and descriptor.format == format_name)


def _check_complete(backend: object, descriptor: Descriptor) -> None:
    """Raise TypeError if methods are missing. Otherwise the store would open, and a later flush or collection would fail."""
    missing = list(_missing_names(backend, descriptor))
    if missing:
        class_name = f"{type(backend).__module__}.{type(backend).__qualname__}"
        raise TypeError(f"{class_name} has no {', '.join(missing)}, which the contract requires")


def _missing_names(backend: object, descriptor: Descriptor) -> Iterator[str]:
    """Yield the names that the protocols of the descriptor require and ``backend`` does not have."""
    for (kind, capability), protocol in _PROTOCOLS.items():
        if not isinstance(descriptor, kind) or capability not in (None, *descriptor.capabilities):
            continue
        yield from (name for name in inspect.get_annotations(protocol) if not hasattr(backend, name))
        for name, method in vars(protocol).items():
            public = not name.startswith("_") or name == "__len__"
            if public and inspect.isfunction(method) and not callable(getattr(backend, name, None)):
                yield name


def load_catalogue(disabled: Iterable[str] = ()) -> Catalogue:
    """Load every installed plugin except the entry points in ``disabled`` (``name`` or ``distribution:name``).

    Raises ConfigError if ``disabled`` names an entry point that is not installed. Otherwise a misspelt plugin would be loaded.
    """
    disabled = tuple(disabled)
    found = find_entry_points()
    names = {name for provider, _ in found for name in _names(provider)}
    for name in disabled:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            known = ", ".join(sorted(provider.entry_point for provider, _ in found))
            hint = f". Did you mean {near[0]!r}?" if near else f". Installed: {known}"
            raise ConfigError(f"disabled: no installed distribution has an entry point {name!r} in the group 'msgstore'{hint}")
    loaded = load([item for item in found if not _names(item[0]) & set(disabled)])
    return Catalogue(**attrs.asdict(loaded, recurse=False), disabled=disabled)


def _names(provider: Provider) -> set[str]:
    return {provider.entry_point, f"{provider.distribution}:{provider.entry_point}"}
