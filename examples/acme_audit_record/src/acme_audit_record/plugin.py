"""What this distribution registers. Light: the module that does the work is imported when a store selects it."""

from __future__ import annotations

import attrs

from msgstore import hookimpl
from msgstore.contract import Capability, RecordField, RecordTypeDescriptor

ACTOR_SIZE = 32
"""Bytes that a record has for the actor, in UTF-8."""


def _check_actor(_: object, __: object, value: str) -> None:
    """The text of this ValueError is what a user reads, behind file, table and key."""
    if not value.isprintable():
        raise ValueError(f"actor: {value!r} has characters that cannot be printed")
    if len(value.encode()) > ACTOR_SIZE:
        raise ValueError(f"actor: {value!r} is too long; a record has {ACTOR_SIZE} bytes for it")


@attrs.frozen
class AuditOptions:
    """The keys beside ``byte``. Each has a default: tools read records without a configuration."""

    actor: str = attrs.field(default="", validator=_check_actor)


@hookimpl
def msgstore_record_types() -> list[RecordTypeDescriptor]:
    return [
        RecordTypeDescriptor(
            name="audit",
            contract=(1, 0),
            factory="acme_audit_record.record:AuditRecord",
            format="v2",
            options=AuditOptions,
            capabilities=[Capability.FIELDS],
            fields=(
                RecordField("time", "time", "when it was written"),
                RecordField("actor", "text", "who wrote it"),
            ),
            summary="a message with the time of its writing and an actor, under a CRC-32",
            # What the conformance kit tries it with.
            examples=({}, {"actor": "billing"}, {"actor": "ü" * (ACTOR_SIZE // 2)}),
        )
    ]
