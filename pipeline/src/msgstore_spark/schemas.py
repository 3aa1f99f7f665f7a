"""Columns of the data source: those of core, the time of the segment, and ``name=value`` of directories."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from msgstore.contract import ConfigError
from msgstore.jobs.columns.batches import as_text
from msgstore.jobs.columns.schemas import DAMAGE, SEGMENTS, project, records_schema
from msgstore.jobs.inputs import JobInputs, SegmentInput
from msgstore_spark.options import ReadOptions, planning

MODIFIED = pa.timestamp("us", "UTC")
_PARTITION = re.compile(r"(?:^|/)([^/=]+)=([^/]*)")


def full_schema(options: ReadOptions, found: JobInputs) -> tuple[pa.Schema, tuple[str, ...]]:
    """Return all columns of the requested relation, and the names of those that ``constants_of`` has.

    Spark ignores the case of names. A directory whose name is that of another column, in any case, is no column.
    """
    if options.relation == "damage":
        return DAMAGE, ()
    if options.relation == "segments":
        return SEGMENTS.append(pa.field("modified", MODIFIED)), ()
    with planning():
        codec = options.codec()
    known = records_schema(found.inputs, codec)
    taken = {name.lower() for name in known.names}
    more = {} if "modified" in taken else {"modified": pa.field("modified", MODIFIED)}
    for store in dict.fromkeys(item.store for item in found.inputs):
        for name in partition_values(store):
            if name.lower() not in taken:
                more.setdefault(name.lower(), pa.field(name, pa.string()))
    return pa.schema([*known, *more.values()]), tuple(field.name for field in more.values())


@cache
def partition_values(store: str) -> dict[str, str]:
    """Return the value of each directory ``name=value`` in the path of a store."""
    return {as_text(name): as_text(unquote(value, errors="surrogateescape")) for name, value in _PARTITION.findall(store)}


def constants_of(found: SegmentInput, names: Collection[str]) -> dict[str, object]:
    """Return the columns ``names``, which are the same for all records of a segment."""
    values: dict[str, object] = {name.lower(): value for name, value in partition_values(found.store).items()}
    values["modified"] = None
    if "modified" in names:
        with suppress(OSError):  # deleted since it was listed
            values["modified"] = Path(found.path).stat().st_mtime_ns // 1000
    return {name: values.get(name.lower()) for name in names}


def columns(full: pa.Schema, schema: StructType, hint: str = "") -> tuple[pa.Schema, pa.Schema]:
    """Return the columns of ``schema``, in its order, as ``full`` has them and as the query must get them.

    The query may have names in another case, and columns ``NOT NULL``. Raises ConfigError for an unknown column, with
    ``hint``, or one of another type.
    """
    names = {name.lower(): name for name in full.names} | {name: name for name in full.names}
    try:
        chosen = project(full, [names.get(name, names.get(name.lower(), name)) for name in schema.fieldNames()])
    except ConfigError as error:
        raise ConfigError(f"msgstore: {error}{hint}") from None
    for ours, theirs in zip(from_arrow_schema(chosen), schema, strict=True):
        if ours.dataType != theirs.dataType:
            raise ConfigError(
                f"msgstore: the column {ours.name!r} is {ours.dataType.simpleString()}, not {theirs.dataType.simpleString()}; "
                f"cast it after .load()"
            )
    return chosen, to_arrow_schema(schema, timezone="UTC")
