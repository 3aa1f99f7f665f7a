"""Entry point of the built-in backends."""

from __future__ import annotations

from msgstore.builtin.options import HalfEmptyOptions, LocalOptions, RetentionOptions
from msgstore.contract import BodyCodecDescriptor, Capability, GcPolicyDescriptor, JobRunnerDescriptor
from msgstore.hookspecs import hookimpl


@hookimpl
def msgstore_gc_policies() -> list[GcPolicyDescriptor]:
    return [
        GcPolicyDescriptor(
            name="half-empty",
            contract=(1, 0),
            factory="msgstore.builtin.policies:HalfEmpty",
            options=HalfEmptyOptions,
            summary="compacts segments with more garbage than a fraction, by default half (the default)",
        ),
        GcPolicyDescriptor(
            name="combine",
            contract=(1, 0),
            factory="msgstore.builtin.policies:CombineNeighbours",
            summary="combines neighbours that fit into one segment when half of the store is garbage",
        ),
        GcPolicyDescriptor(
            name="never",
            contract=(1, 0),
            factory="msgstore.builtin.policies:Never",
            summary="collects nothing but empty segments",
        ),
        GcPolicyDescriptor(
            name="retention",
            contract=(1, 0),
            factory="msgstore.builtin.policies:Retention",
            options=RetentionOptions,
            capabilities=[Capability.DROPS_MESSAGES],
            examples=({"max_age": "7d"}, {"max_bytes": "1MiB", "then": "half-empty"}),
            summary="drops the oldest segments by age or total bytes, their live messages included",
        ),
    ]


@hookimpl
def msgstore_body_codecs() -> list[BodyCodecDescriptor]:
    return [
        BodyCodecDescriptor(
            name="raw",
            contract=(1, 0),
            factory="msgstore.builtin.policies:Raw",
            capabilities=[Capability.PLAIN],
            summary="stores bodies as they are",
        ),
    ]


@hookimpl
def msgstore_job_runners() -> list[JobRunnerDescriptor]:
    return [
        JobRunnerDescriptor(
            name="local",
            contract=(1, 0),
            factory="msgstore.jobs.local:LocalRunner",
            options=LocalOptions,
            examples=({}, {"processes": 1}),
            min_input_bytes=0,
            summary="the processors of this machine",
        ),
    ]
