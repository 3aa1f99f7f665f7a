"""Registration of the record type ``audit``. The factory is imported when a store selects the record type."""

from __future__ import annotations

import attrs

from msgstore import hookimpl
from msgstore.contract import Capability, RecordField, RecordTypeDescriptor

ACTOR_SIZE = 32
"""Size of the actor in a record, in bytes of UTF-8."""


def _check_actor(_: object, __: object, value: str) -> None:
    """Raise ValueError for an invalid actor. msgstore shows its text to the user, after file, table and key."""
    if not value.isprintable():
        raise ValueError(f"actor: {value!r} has characters that cannot be printed")
    if len(value.encode()) > ACTOR_SIZE:
        raise ValueError(f"actor: {value!r} is too long; a record has {ACTOR_SIZE} bytes for it")


@attrs.frozen
class AuditOptions:
    """Keys of the configuration in addition to ``byte``. Each needs a default: tools read records without a configuration."""

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
                RecordField("time", "time", "time at which the message was written"),
                RecordField("actor", "text", "program that wrote the message"),
            ),
            summary="a message with its time of writing and an actor, with a CRC-32",
            # Options with which the conformance kit tests the record type.
            examples=({}, {"actor": "billing"}, {"actor": "ü" * (ACTOR_SIZE // 2)}),
        )
    ]
