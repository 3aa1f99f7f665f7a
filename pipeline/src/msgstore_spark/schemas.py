"""Columns of the data source: those of core, the time of the segment, and ``name=value`` of directories."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from msgstore.contract import ConfigError
from msgstore.jobs.columns.schemas import DAMAGE, SEGMENTS, project, records_schema
from msgstore.jobs.inputs import JobInputs, SegmentInput
from msgstore_spark.options import ReadOptions

MODIFIED = pa.timestamp("us", "UTC")
_PARTITION = re.compile(r"(?:^|/)([^/=]+)=([^/]*)")


def full_schema(options: ReadOptions, found: JobInputs) -> pa.Schema:
    """Return all columns of the requested relation."""
    if options.relation == "damage":
        return DAMAGE
    if options.relation == "segments":
        return SEGMENTS
    known = records_schema(found.inputs, options.codec())
    more = {"modified": MODIFIED, **{name: pa.string() for item in found.inputs for name, _ in partition_values(item.store)}}
    return pa.schema([*known, *(pa.field(name, kind) for name, kind in more.items() if name not in known.names)])


@cache
def partition_values(store: str) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of each directory ``name=value`` in the path of a store."""
    return tuple((name, unquote(value)) for name, value in _PARTITION.findall(store))


def constants_of(found: SegmentInput) -> dict[str, object]:
    """Return the columns that are the same for all records of a segment, without those that core has."""
    try:
        modified = Path(found.path).stat().st_mtime_ns // 1000
    except OSError:  # deleted since it was listed
        modified = None
    return {"modified": modified, **dict(partition_values(found.store))}


def columns(full: pa.Schema, schema: StructType) -> pa.Schema:
    """Return the columns of ``schema``, in its order, with their own names: those of ``schema`` may be in another case.

    Raises ConfigError for an unknown column, or one of another type.
    """
    names = {name.lower(): name for name in full.names} | {name: name for name in full.names}
    chosen = project(full, [names.get(name, names.get(name.lower(), name)) for name in schema.fieldNames()])
    for ours, theirs in zip(from_arrow_schema(chosen), schema, strict=True):
        if ours.dataType != theirs.dataType:
            raise ConfigError(
                f"msgstore: the column {ours.name!r} is {ours.dataType.simpleString()}, not {theirs.dataType.simpleString()}; "
                f"cast it after .load()"
            )
    return chosen
