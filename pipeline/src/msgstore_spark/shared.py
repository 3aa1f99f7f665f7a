"""Messages whose bodies queues share: read by tasks of a queue, and of a part of the bodies, and joined on the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from msgstore.contract import Capability, ConfigError, MessageBatch, QueueName, SharedBodiesSource, SourceDamage
from msgstore.jobs.messages.columns import MESSAGES, record_batch
from msgstore.jobs.messages.selection import selected_queues
from msgstore.jobs.messages.sources import open_source
from msgstore.jobs.workers import worker_catalogue
from msgstore_spark.messages import MessageOptions, open_on_executor, read_queues
from msgstore_spark.tasks import freeze_imports

_NAME = [("vhost", pa.string()), ("queue", pa.string()), ("partition", pa.int32())]
_QUEUES = pa.schema([("system", pa.string()), *_NAME])
_ENTRIES = pa.schema([*_QUEUES, ("position", pa.int64()), ("key", pa.binary()), ("entry", pa.binary())])
_BODIES = pa.schema([("key", pa.binary()), ("body", pa.binary())])
_PARTS = "part string"
_MOST_TASKS = 10_000


def join_messages(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """Return the messages of a source as a DataFrame: ``join_messages(spark, "node", source="rabbitmq", queue="orders")``.

    Options and columns are those of ``spark.read.format("msgstore")``; without ``source``, the most likely one reads.

    If queues of the source share bodies, as in a RabbitMQ node, each task reads one queue or one part of the bodies, and Spark
    joins them. Otherwise, and with ``spark.read``, each task finds the bodies of its queue by itself. Messages in no queue need
    the latter. In the mode ``PERMISSIVE``, damage has no rows. Raises ConfigError, StoreError, PluginError.
    """
    found = MessageOptions.of({**options, "path": path})
    capabilities = worker_catalogue().source(found.spec.source.name).capabilities
    if Capability.SHARED_BODIES not in capabilities:
        return spark.read.format("msgstore").options(**{"source": found.spec.source.name, **options}).load(path)
    if found.fail_fast or "orphan" in found.selection.states:
        raise ConfigError("msgstore: bodies are joined in the mode PERMISSIVE, without the state 'orphan'. Use spark.read.")
    with open_source(found.spec) as source:
        queues = read_queues(selected_queues(source, found.selection), found)
        parts = cast("SharedBodiesSource", source).body_parts()
    rows = [attrs.astuple(info.name) for info in queues if info.name.queue is not None]
    names = _spread(spark, rows, from_arrow_schema(_QUEUES))
    own = names.mapInArrow(partial(_own, found), from_arrow_schema(_nullable()))
    entries = names.mapInArrow(partial(_entries, found), from_arrow_schema(_ENTRIES))
    bodies = _spread(spark, [(part,) for part in parts], _PARTS).mapInArrow(partial(_bodies, found), from_arrow_schema(_BODIES))
    joined = entries.join(bodies.dropDuplicates(["key"]), "key", "left")
    return own.unionByName(joined.mapInArrow(partial(_complete, found), from_arrow_schema(_nullable())))


def _nullable() -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in MESSAGES])


def _spread(spark: SparkSession, rows: list[Any], schema: Any) -> DataFrame:
    """Return rows as a DataFrame with a task for each."""
    return spark.createDataFrame(rows, schema).repartition(max(min(len(rows), _MOST_TASKS), 1))


def _names(batches: Iterable[pa.RecordBatch]) -> Iterator[QueueName]:
    for batch in batches:
        for row in batch.to_pylist():
            yield QueueName(row["system"], row["vhost"], row["queue"], row["partition"])


def _batch(item: MessageBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(record_batch(item).columns, schema=_nullable())


def _selected(options: MessageOptions, found: Iterable[MessageBatch | SourceDamage]) -> Iterator[pa.RecordBatch]:
    """Yield the messages in the selected states."""
    for item in found:
        if isinstance(item, MessageBatch) and len(chosen := options.selection.rows(item, Counter())):
            yield _batch(chosen)


def _own(options: MessageOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of queues whose bodies are in the queue's own files."""
    with open_on_executor(options.spec) as source:
        for name in _names(batches):
            yield from _selected(options, cast("SharedBodiesSource", source).own_messages(name, 0, None))
    freeze_imports()


def _entries(options: MessageOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the entries of queues whose bodies are apart."""
    with open_on_executor(options.spec) as source:
        for name in _names(batches):
            for found in cast("SharedBodiesSource", source).shared_entries(name, 0, None):
                keys, positions, entries = zip(*found, strict=True)
                about = [name.system, name.vhost, name.queue, name.partition]
                columns = [pa.array([value] * len(keys), field.type) for value, field in zip(about, _QUEUES, strict=True)]
                columns += [pa.array(positions, pa.int64()), pa.array(keys, pa.binary()), pa.array(entries, pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, schema=_ENTRIES)
    freeze_imports()


def _bodies(options: MessageOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the bodies of parts."""
    with open_on_executor(options.spec) as source:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                for found in cast("SharedBodiesSource", source).bodies(part):
                    yield pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*found, strict=True)], schema=_BODIES)
    freeze_imports()


def _complete(options: MessageOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of entries that have been joined with their bodies."""
    with open_on_executor(options.spec) as source:
        for batch in batches:
            rows = batch.to_pylist()
            rows.sort(key=lambda row: tuple(str(row[name]) for name in _QUEUES.names))
            for about, group in groupby(rows, itemgetter(*_QUEUES.names)):
                entries = [(row["position"], row["entry"], row["body"]) for row in group]
                yield from _selected(options, cast("SharedBodiesSource", source).complete(QueueName(*about), entries))
    freeze_imports()
