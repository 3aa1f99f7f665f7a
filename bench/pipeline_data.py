"""Inputs of the pipeline's jobs: stores, the same rows as Parquet, and changes of reference counts.

The repository's own code creates all inputs, from seeds. A larger input consists of hard links to the same segments in several
directories. Reading it costs as much as reading other segments in the page cache, but it uses no additional disk space.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import SEED

from msgstore import load_catalogue
from msgstore.jobs.columns.batches import record_batches
from msgstore.jobs.columns.schemas import project, records_schema
from msgstore.jobs.inputs import find_inputs
from msgstore.jobs.output.commit import StoreStaging
from msgstore.jobs.output.parts import PartWriter, StoreSpec

HEAD = 26
"""Bytes of a record of v2 in addition to its body."""
BATCH = 10_000
"""Messages that are created together."""
SMALL_RECORDS = 10
"""Messages of a small segment."""
UNKNOWN_IDS = 0.01
"""Fraction of the ids with changes of which no store has a record."""


def make_store(path: str, body: int, messages: int) -> int:
    """Create a store of messages with random ids and bodies, and return the bytes of its segments."""
    rng = random.Random(SEED + body)
    with StoreStaging.begin(StoreSpec(path)) as staging, PartWriter(staging.target, staging.path, 0) as writer:
        for ids, bodies in _messages(rng, body, messages):
            writer.add(ids, bodies)
        staging.commit([writer.finish()])
    return sum(file.stat().st_size for file in segments(path))


def _messages(rng: random.Random, body: int, messages: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    for first in range(0, messages, BATCH):
        count = min(BATCH, messages - first)
        yield _cut(rng.randbytes(16 * count), 16), _cut(rng.randbytes(body * count), body)


def _cut(block: bytes, size: int) -> list[bytes]:
    return [block[at : at + size] for at in range(0, len(block), size)]


def segments(path: str) -> list[Path]:
    return sorted(Path(path).glob("*.sqs"))


def link(store: str, to: str, times: int) -> None:
    """Create ``times`` directories in ``to``, each with hard links to all segments of ``store``."""
    for number in range(times):
        directory = Path(to, f"{number:02}")
        directory.mkdir(parents=True)
        for file in segments(store):
            os.link(file, directory / file.name)


def make_small(path: str, count: int) -> None:
    """Create segments of SMALL_RECORDS records: hard links to one."""
    rng = random.Random(SEED)
    source = f"{path}-source"
    with StoreStaging.begin(StoreSpec(source)) as staging, PartWriter(staging.target, staging.path, 0) as writer:
        for ids, bodies in _messages(rng, 100, SMALL_RECORDS):
            writer.add(ids, bodies)
        staging.commit([writer.finish()])
    Path(path).mkdir()
    (segment,) = segments(source)
    for number in range(count):
        os.link(segment, Path(path, f"{number}{segment.suffix}"))


def export(store: str, to: str, *columns: str) -> None:
    """Write the records as Parquet with zstd: the columns of the relation ``records``, or some."""
    found = find_inputs(load_catalogue(), [Path(store)]).inputs
    schema = project(whole := records_schema(found), columns or whole.names)
    Path(to).mkdir()
    for number, item in enumerate(found):
        with pq.ParquetWriter(Path(to, f"{number}.parquet"), schema, compression="zstd") as file:
            for batch in record_batches(item, schema):
                file.write_batch(batch)


def make_changes(records: str, to: str, changes: int) -> None:
    """Write random changes by one, two thirds of them positive, to four Parquet files.

    They change the ids in ``records`` and a few unknown ids.
    """
    rng = np.random.default_rng(SEED)
    known = pq.read_table(records, columns=["id"])["id"].combine_chunks()
    unknown = _cut(rng.bytes(16 * int(UNKNOWN_IDS * len(known))), 16)
    ids = pa.concat_arrays([known, pa.array(unknown, known.type)])
    Path(to).mkdir()
    for number in range(4):
        share = changes * (number + 1) // 4 - changes * number // 4
        chosen = ids.take(pa.array(rng.integers(0, len(ids), share)))
        counts = pa.array(np.where(rng.random(share) < 2 / 3, 1, -1))
        pq.write_table(pa.table({"id": chosen, "count": counts}), Path(to, f"{number}.parquet"), compression="zstd")
