"""Entry point of the built-in backends, and their options. Policies and the job runner are imported when they are selected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs
from attrs.validators import ge, optional

from msgstore.contract import (
    BodyCodecDescriptor,
    Capability,
    Duration,
    GcPolicyDescriptor,
    JobRunnerDescriptor,
    SinkDescriptor,
    Size,
    SourceDescriptor,
)
from msgstore.hookspecs import hookimpl
from msgstore.option_values import Backend


def _check_fraction(_: object, __: object, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"garbage: {value!r} is not a fraction between 0 and 1, such as 0.5")


@attrs.frozen
class HalfEmptyOptions:
    """Options of the policy ``half-empty``."""

    garbage: float = attrs.field(default=0.5, validator=_check_fraction)
    """Fraction of garbage above which a segment is compacted."""


@attrs.frozen
class RetentionOptions:
    """Options of the policy ``retention``."""

    max_age: Duration | None = None
    """Segments whose newest message is older than this are dropped."""
    max_bytes: Size | None = None
    """The oldest segments are dropped until all files together are at most this size, or only segments are left that may not be
    dropped: the current one, damaged ones, and those of unknown age."""
    then: Literal["never", "half-empty"] = "never"
    """Policy for the remaining segments, with its default options."""

    def __attrs_post_init__(self) -> None:
        if self.max_age is None and self.max_bytes is None:
            raise ValueError('give max_age, max_bytes, or both, as in { use = "retention", max_age = "7d" }')


@attrs.frozen
class LocalOptions:
    """Options of the job runner ``local``."""

    processes: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Number of worker processes. None: one per processor."""


@attrs.frozen
class StoreSourceOptions:
    """Options of the source ``store``."""

    body: Backend | None = None
    """Codec that reads the bodies. Its fields become properties, and its payload the body. None: the codec that the directory
    remembers."""
    format: Backend | None = None
    """Format of the store, as a table with the options of record types, such as a key. None: as the directory remembers, and
    record types have their default options."""


@attrs.frozen
class StoreSinkOptions:
    """Options of the sink ``store``: backends of the new store."""

    index: str = "ets"
    format: str = "v2"
    record: str = "message"
    body: Backend = Backend("raw")
    """Codec that encodes the bodies."""
    records: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Record types that no format assigns, each with its type byte, or with a table of ``byte`` and options, such as a key."""


@attrs.frozen
class FileSourceOptions:
    """Options of the sources ``jsonl`` and ``parquet``."""

    ignore_others: bool = False
    """Omit members or columns that a message does not have. Otherwise such a line is damage, and such a file an error."""


@attrs.frozen
class ParquetSinkOptions:
    """Options of the sink ``parquet``."""

    columns: str | None = None
    """Columns of the files, with commas between them. None: all. Without ``body``, no source reads the files;
    without ``properties``, the numbers of references are lost."""


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


@hookimpl
def msgstore_sources() -> list[SourceDescriptor]:
    return [
        SourceDescriptor(
            name="store",
            contract=(1, 0),
            factory="msgstore.jobs.messages.store_source:StoreSource",
            options=StoreSourceOptions,
            detect="msgstore.jobs.messages.store_source:detect",
            sample="msgstore.jobs.messages.store_source:sample",
            capabilities=[Capability.RANDOM_ACCESS, Capability.REFLOW],
            summary="the live messages of a store of msgstore, or of a broker's message store",
        ),
        SourceDescriptor(
            name="jsonl",
            contract=(1, 0),
            factory="msgstore.jobs.messages.json_lines:JsonLinesSource",
            options=FileSourceOptions,
            detect="msgstore.jobs.messages.json_lines:detect",
            sample="msgstore.jobs.messages.json_lines:sample",
            capabilities=[Capability.RANDOM_ACCESS],
            summary="files with a message on each line, as 'messages --json' prints them",
        ),
        SourceDescriptor(
            name="parquet",
            contract=(1, 0),
            factory="msgstore.jobs.messages.parquet:ParquetSource",
            options=FileSourceOptions,
            detect="msgstore.jobs.messages.parquet:detect",
            sample="msgstore.jobs.messages.parquet:sample",
            capabilities=[Capability.RANDOM_ACCESS],
            summary="Parquet files with the columns that the sink writes",
        ),
    ]


@hookimpl
def msgstore_sinks() -> list[SinkDescriptor]:
    return [
        SinkDescriptor(
            name="store",
            contract=(1, 0),
            factory="msgstore.jobs.messages.store_sink:StoreSink",
            options=StoreSinkOptions,
            summary="a new store of msgstore: ids and bodies, one reference for each queue",
        ),
        SinkDescriptor(
            name="jsonl",
            contract=(1, 0),
            factory="msgstore.jobs.messages.json_lines:JsonLinesSink",
            endings=(".jsonl", ".ndjson"),
            capabilities=[Capability.JOINS],
            summary="a file with a message on each line",
        ),
        SinkDescriptor(
            name="parquet",
            contract=(1, 0),
            factory="msgstore.jobs.messages.parquet:ParquetSink",
            options=ParquetSinkOptions,
            endings=(".parquet",),
            capabilities=[Capability.JOINS],
            summary="a directory of Parquet files",
        ),
        SinkDescriptor(
            name="files",
            contract=(1, 0),
            factory="msgstore.jobs.messages.files_sink:FilesSink",
            capabilities=[Capability.JOINS],
            summary="a directory with a file for each body",
        ),
    ]
