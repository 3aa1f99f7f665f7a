"""Descriptors: how a plugin registers a backend. A descriptor is a frozen value with a name, a contract version and a factory.

The factory is text, ``"package.module:attribute"``, and is imported when a store selects the backend. A minimal plugin is one
module, named by an entry point of the group ``msgstore``::

    # acme_policy/plugin.py
    from msgstore import hookimpl
    from msgstore.contract import GcPolicyDescriptor

    @hookimpl
    def msgstore_gc_policies():
        return [GcPolicyDescriptor(name="acme", contract=(1, 0), factory="acme_policy.policy:AcmePolicy", summary="...")]

    # pyproject.toml
    [project.entry-points.msgstore]
    acme = "acme_policy.plugin"
"""

from __future__ import annotations

import enum
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NewType, get_args

import attrs
from attrs.validators import deep_iterable, in_, instance_of

CONTRACT_VERSION: tuple[int, int] = (1, 0)
"""A minor version only adds, a major version changes or removes."""

Size = NewType("Size", int)
"""Option in bytes. In a configuration: an integer, or text such as ``"16MiB"``, ``"4000000B"``, ``"1 GiB"``."""
Duration = NewType("Duration", float)
"""Option in seconds. In a configuration: a number, or text such as ``"200ms"``, ``"1.5s"``, ``"2min"``, ``"400d"``; at
most 36500 d."""


class Capability(enum.Enum):
    """An optional feature of a backend, claimed in its descriptor. If it needs methods, it names the Protocol that has them."""

    PERSISTENT = "persistent"
    """Index: entries given to :meth:`Index.commit` survive a crash of the process."""
    LIVE_READS = "live-reads"
    """Index, with PERSISTENT: other processes can read it while one writes. See ``live`` of :class:`IndexContext`."""
    SELF_DESCRIBING = "self-describing"
    """Segment format: a message that returns is written anew, as its dead record may be a hole. A format that claims
    COMPACTABLE must claim this, too."""
    COMPACTABLE = "compactable"
    """Segment format: segments can be compacted in place. The format is a :class:`CompactableFormat`."""
    TYPED_RECORDS = "typed-records"
    """Segment format: records carry a type byte, and record types of other distributions can be bound to bytes."""
    VERBATIM = "verbatim"
    """Segment format: a record holds more than id and body, so salvage copies its bytes. Collections always do. A format
    whose records keep anything else, such as a time, must claim this."""
    FRAMED = "framed"
    """Record type, or segment format without TYPED_RECORDS: the number of bytes before a body, and after it, is the same in
    every record. Tools then call ``body_span`` once."""
    FIELDS = "fields"
    """Messages have fields beside the body, listed in the descriptor. A record type, or a segment format with VERBATIM and
    without TYPED_RECORDS, has the method of :class:`RecordFields`; a body codec is a :class:`BodyCodecWithFields`."""
    DROPS_MESSAGES = "drops-messages"
    """GC policy: it may return ``Drop``, which deletes live messages. Without this capability ``Drop`` is ignored."""
    RANDOM_ACCESS = "random-access"
    """Source: any positions of a queue are read in the same time. The source is a :class:`RandomAccessSource`."""
    SHARED_BODIES = "shared-bodies"
    """Source: queues share bodies that are stored apart. The source is a :class:`SharedBodiesSource`; a cluster joins them."""
    REFLOW = "reflow"
    """Source: records come in a layout that the reader takes, or are refused. See ``accepts`` of :class:`SourceContext`."""
    JOINS = "joins"
    """Sink: what several processes have written can be joined. The sink is a :class:`JoiningSink`."""
    PLAIN = "plain"
    """Body codec: stored bodies are equal to the bodies that clients read and write. The engine does not call it."""


@attrs.frozen
class NoOptions:
    """Options class of a backend without options."""


def _capabilities(values: Iterable[Capability | str]) -> frozenset[Capability]:
    return frozenset(map(Capability, values))


def has_form(pattern: str, form: str) -> Callable[[object, attrs.Attribute[Any], object], None]:
    """Return a validator of text. ``form`` is what an error says of it."""

    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise ValueError(f"the {attribute.name} {value!r} must be {form}")

    return check


_OBJECT = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
names_object = has_form(_OBJECT, "text such as 'package.module:name'")
may_name_object = has_form(f"|{_OBJECT}", "text such as 'package.module:name'")
FieldKind = Literal["int", "float", "text", "bytes", "time"]
"""``int`` and ``time`` (nanoseconds since the epoch, whatever the zone) are signed 64-bit integers. A ``text`` has no
surrogates: it is written as UTF-8."""


@attrs.frozen
class RecordField:
    """Name of a field and kind of its values."""

    name: str = attrs.field(
        validator=has_form(r"[a-z][a-z0-9_]{0,63}", "up to 64 lower-case letters, digits and '_', a letter first")
    )
    """Heading of tables and columns. Taken by scans: store, file, format, offset, size, type, id, body, references."""
    kind: FieldKind = attrs.field(validator=in_(get_args(FieldKind)))
    summary: str = ""
    """One line for ``msgstore plugins --json``."""


@attrs.frozen(kw_only=True)
class Descriptor:
    """Registers one backend. Each kind has a subclass. A plugin with values that can never work is reported as broken."""

    name: str = attrs.field(
        validator=has_form(r"[a-z0-9][a-z0-9_-]{0,63}", "up to 64 lower-case letters, digits, '_' and '-', no sign first")
    )
    """Name by which a configuration selects the backend. Names that reach disk are permanent."""
    contract: tuple[int, int]
    """Contract version that the plugin was written against: a literal, never ``CONTRACT_VERSION``."""
    factory: str = attrs.field(validator=names_object)
    """``"package.module:attribute"``. The subclass says what it is called with."""
    options: type[Any] = NoOptions
    """attrs class of its configuration keys. Annotate sizes as ``Size``, times as ``Duration``, paths as ``Path``."""
    capabilities: frozenset[Capability] = attrs.field(factory=frozenset, converter=_capabilities)
    summary: str = ""
    """One line for ``msgstore plugins``. The conformance kit needs it."""
    examples: tuple[Mapping[str, object], ...] = attrs.field(default=({},), hash=False)
    """Sets of options, as in a configuration. The conformance kit tests the backend with each of them, and
    ``map --html`` and ``inventory`` show the plan of a policy for each."""
    fields: tuple[RecordField, ...] = attrs.field(
        default=(), validator=deep_iterable(instance_of(RecordField), instance_of(tuple))
    )
    """Values that each message has beside id and body, for the capability FIELDS. No two have the same name."""

    def load_factory(self) -> Callable[..., Any]:
        """Import and return the factory. Exceptions of the import are not caught."""
        factory: Callable[..., Any] = pkgutil.resolve_name(self.factory)
        return factory


@attrs.frozen(kw_only=True)
class JobRunnerDescriptor(Descriptor):
    """``factory(options) -> msgstore.jobs.runner.JobRunner``: runs jobs over many segments, in processes or on a cluster."""

    min_input_bytes: int | None = None
    """Input size from which ``--runner auto`` selects this runner. None: it is selected by name only."""


@attrs.frozen(kw_only=True)
class CommandDescriptor(Descriptor):
    """``factory`` names a ``click.Command``, which becomes ``msgstore NAME``. It uses the public API, and has no options."""
