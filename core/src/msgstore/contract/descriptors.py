"""What every kind of backend has in common: a name, a contract version, options, and a factory that is imported late.

A descriptor is a frozen value. Registering one costs nothing: the module that does the work is named by a string
(``"package.module:attribute"``) and is imported only when a store selects the backend.

A minimal plugin is one module, named in the entry-point group ``msgstore``::

    # acme_policy/plugin.py
    from msgstore import hookimpl
    from msgstore.contract import GcPolicyDescriptor

    @hookimpl
    def msgstore_gc_policies():
        return [GcPolicyDescriptor(name="acme", contract=(2, 0), factory="acme_policy.policy:AcmePolicy")]

    # pyproject.toml
    [project.entry-points.msgstore]
    acme = "acme_policy.plugin"
"""

from __future__ import annotations

import enum
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class Capability(enum.Enum):
    """An optional power of a backend. The engine asks for powers, never for names."""

    PERSISTENT = "persistent"
    """Index: what :meth:`Index.commit` was given is there after a crash of the process."""

    LIVE_READS = "live-reads"
    """Index, PERSISTENT: other processes can read it while one writes it; see ``live`` of its context."""

    SELF_DESCRIBING = "self-describing"
    """Segment format: a dead record needs no index entry to be skipped, so entries are dropped as soon as they are dead."""

    TYPED_RECORDS = "typed-records"
    """Segment format: records carry a type byte, and record types of third parties can be bound to bytes."""

    TRAILER = "trailer"
    """Segment format: a segment that takes no more records ends in bytes that are made of all of it, such as an index of its
    records. The format has the method :meth:`TrailingFormat.trailer`. Since 2.1."""

    VERBATIM = "verbatim"
    """Segment format: a record holds more than its id and its body, such as a longer key. Where a segment is rewritten in its
    own format, records are copied byte for byte, not encoded again. Since 2.1."""

    FRAMED = "framed"
    """Segment format without types, record type: the number of bytes in front of a body is the same in every record, and so is
    that behind it. Tools then ask ``body_span`` once, and not for each record. Since 2.2."""

    DROPS_MESSAGES = "drops-messages"
    """GC policy: it may answer with ``Drop``, so messages go that nobody has removed. Since 2.1: of a policy that was
    written against 2.1 or later and does not claim it, each ``Drop`` is passed over."""

    PLAIN = "plain"
    """Body codec: what is stored is what clients read and write. The engine then does not call it for each read."""


@attrs.frozen
class NoOptions:
    """The options of a backend that has none."""


def _check_name(_: object, __: object, value: str) -> None:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError(f"the name {value!r} is not lower-case letters, digits, '-' and '_' (at most 64)")


def _check_factory(_: object, __: object, value: str) -> None:
    if not isinstance(value, str) or _FACTORY.fullmatch(value) is None:
        raise ValueError(f"the factory {value!r} is not of the form 'package.module:attribute'")


def _check_contract(_: object, __: object, value: tuple[int, int]) -> None:
    if not (isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, int) for part in value)):
        raise ValueError(f"the contract version {value!r} is not a pair of integers such as (2, 1)")


def _check_options(_: object, __: object, value: type) -> None:
    if not (isinstance(value, type) and attrs.has(value)):
        raise ValueError(f"the options {value!r} are not an attrs class")


def _check_examples(_: object, __: object, value: tuple[object, ...]) -> None:
    if not value or not all(isinstance(example, Mapping) for example in value):
        raise ValueError(f"the examples {value!r} are not one mapping of options or several")


def _as_examples(values: Iterable[Mapping[str, object]]) -> tuple[Mapping[str, object], ...]:
    return tuple(values)


def _as_set(values: Iterable[Capability | str]) -> frozenset[Capability]:
    if isinstance(values, str) or not isinstance(values, Iterable):  # text would be taken apart into letters
        raise ValueError(f"the capabilities {values!r} are not a collection; write capabilities=({_shown(values)},)")  # noqa: TRY004 - as for every wrong value
    return frozenset(map(_as_capability, values))


def _as_capability(value: Capability | str) -> Capability:
    """A value of the enumeration stands for its member."""
    try:
        return Capability(value)
    except ValueError:
        known = ", ".join(capability.value for capability in Capability)
        raise ValueError(f"the capability {value!r} is not one of {known}") from None


def _shown(value: object) -> str:
    known = {capability.value: capability.name for capability in Capability}
    name = value.name if isinstance(value, Capability) else known.get(str(value), "PERSISTENT")
    return f"Capability.{name}"


@attrs.frozen(kw_only=True)
class Descriptor:
    """Names one backend of some kind. Kinds are the subclasses.

    Raises ValueError when made from values that could never work; the catalogue reports that under the plugin's name.
    """

    name: str = attrs.field(validator=_check_name)
    """What a configuration selects it by. Names that reach disk are permanent."""
    contract: tuple[int, int] = attrs.field(validator=_check_contract)
    """The contract version that the plugin was written against: a literal, never ``CONTRACT_VERSION``."""
    factory: str = attrs.field(validator=_check_factory)
    """``"package.module:attribute"``; what it is called with is said by the kind's descriptor."""
    options: type[Any] = attrs.field(default=NoOptions, validator=_check_options)
    """The attrs class of the backend's own keys in the configuration; annotate sizes as ``Size``, times as ``Duration``."""
    capabilities: frozenset[Capability] = attrs.field(factory=frozenset, converter=_as_set)
    """Optional powers; the engine asks for these, never for names."""
    summary: str = ""
    """One line for ``msgstore plugins``."""
    examples: tuple[Mapping[str, object], ...] = attrs.field(
        default=({},), converter=_as_examples, hash=False, validator=_check_examples
    )
    """Options as a configuration has them, to try the backend with: the conformance kit runs its tests once for each. Needed
    of a backend that must be told something, or that does other things if it is. Since contract 2.1."""

    def load_factory(self) -> Callable[..., Any]:
        """Import and return the factory. Whatever the import raises passes through."""
        module_name, _, attribute = self.factory.partition(":")
        factory: Callable[..., Any] = getattr(importlib.import_module(module_name), attribute)
        return factory
