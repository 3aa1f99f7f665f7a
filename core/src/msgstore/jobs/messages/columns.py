"""The one Arrow schema of messages: of Parquet files and of Spark, with the names of the JSON objects. Needs pyarrow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from msgstore.contract import MessageBatch, StoreError
from msgstore.contract.messages import CERTAIN, STATES
from msgstore.jobs.messages.rows import encode, printable_name

ORIGIN = pa.struct([pa.field("file", pa.string()), pa.field("offset", pa.int64()), pa.field("size", pa.int64())])
MESSAGES = pa.schema([
    pa.field("system", pa.string(), nullable=False), pa.field("vhost", pa.string()), pa.field("queue", pa.string()),
    pa.field("partition", pa.int32()), pa.field("position", pa.int64(), nullable=False), pa.field("sequence", pa.int64()),
    pa.field("id", pa.string()), pa.field("size", pa.int64(), nullable=False), pa.field("sha256", pa.string(), nullable=False),
    pa.field("body", pa.binary(), nullable=False), pa.field("raw", pa.binary()), pa.field("exchange", pa.string()),
    pa.field("routing_keys", pa.list_(pa.string())), pa.field("properties", pa.string()), pa.field("headers", pa.string()),
    pa.field("raw_properties", pa.binary()), pa.field("timestamp_ms", pa.int64()), pa.field("expiry_ms", pa.int64()),
    pa.field("state", pa.string(), nullable=False), pa.field("certainty", pa.string(), nullable=False),
    pa.field("verified", pa.bool_()), pa.field("origin", ORIGIN, nullable=False),
])  # fmt: skip
"""``properties`` and ``headers`` are JSON text: their values have no common type."""


def _objects(column: Sequence[Any] | None) -> list[str | None] | None:
    return None if column is None else [None if value is None else encode(value) for value in column]


def record_batch(batch: MessageBatch, names: Sequence[str] = MESSAGES.names) -> pa.RecordBatch:
    """Return the columns ``names`` of a batch. A column that is not asked for is not made."""
    count = len(batch)
    makers: dict[str, Callable[[], Sequence[Any] | None]] = {
        "system": lambda: [batch.name.system] * count,
        "vhost": lambda: [batch.name.vhost] * count,
        "queue": lambda: [batch.name.queue] * count,
        "partition": lambda: [batch.name.partition] * count,
        "position": lambda: batch.positions,
        "sequence": lambda: batch.sequences,
        "id": lambda: batch.ids,
        "size": lambda: list(map(len, batch.bodies)),
        "sha256": lambda: [hashlib.sha256(body).hexdigest() for body in batch.bodies],
        "body": lambda: batch.bodies,
        "raw": lambda: batch.raws,
        "exchange": lambda: batch.exchanges,
        "routing_keys": lambda: batch.routing_keys,
        "properties": lambda: _objects(batch.properties),
        "headers": lambda: _objects(batch.headers),
        "raw_properties": lambda: batch.raw_properties,
        "timestamp_ms": lambda: batch.timestamps_ms,
        "expiry_ms": lambda: batch.expiries_ms,
        "state": lambda: batch.states,
        "certainty": lambda: batch.certainties or [CERTAIN] * count,
        "verified": lambda: batch.verified,
        "origin": lambda: [
            {"file": printable_name(file), "offset": offset, "size": size}
            for file, offset, size in zip(batch.files, batch.offsets, batch.sizes, strict=True)
        ],
    }
    schema = pa.schema([MESSAGES.field(name) for name in names])
    arrays = []
    for field in schema:
        values = makers[field.name]()
        arrays.append(pa.nulls(count, field.type) if values is None else pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of_batch(batch: pa.RecordBatch, file: Path, first: int) -> list[dict[str, Any]]:
    """Return rows of a Parquet file as the objects that :func:`msgstore.jobs.messages.rows.batch_of` takes.

    ``first``: number of the first row. A message without an origin gets the file's name and the number of its row, so that two
    equal messages are different ones. Raises StoreError for a value that a message cannot have.
    """
    rows: list[dict[str, Any]] = batch.to_pylist()
    for at, row in enumerate(rows):
        try:
            for member in ("system", "body"):
                if row.get(member) is None:
                    raise ValueError(f"its {member!r} is null")
            for member in ("properties", "headers"):
                if row.get(member) is not None:
                    row[member] = json.loads(row[member])
            if row.get("sha256") not in (None, hashlib.sha256(row["body"]).hexdigest()):
                raise ValueError("its body has another sha256")
            if (state := row.get("state")) is not None and state not in STATES:
                raise ValueError(f"there is no state {state!r}")
            if row.get("origin") is None:
                row["origin"] = {"file": printable_name(file.name), "offset": first + at, "size": len(row["body"])}
        except ValueError as error:
            raise StoreError(f"{file}, row {first + at}: is not a message: {error}") from None
    return rows
