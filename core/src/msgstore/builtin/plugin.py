"""The entry point of core's own backends."""

from __future__ import annotations

from msgstore.contract import BodyCodecDescriptor, Capability, GcPolicyDescriptor
from msgstore.hookspecs import hookimpl


@hookimpl
def msgstore_gc_policies() -> list[GcPolicyDescriptor]:
    return [
        GcPolicyDescriptor(
            name="half-empty",
            contract=(2, 0),
            factory="msgstore.builtin.policies:HalfEmpty",
            summary="compacts segments of which less than half is live",
        ),
    ]


@hookimpl
def msgstore_body_codecs() -> list[BodyCodecDescriptor]:
    return [
        BodyCodecDescriptor(
            name="raw",
            contract=(2, 0),
            factory="msgstore.builtin.codecs:Raw",
            capabilities=[Capability.PLAIN],
            summary="stores bodies as they are",
        ),
    ]
