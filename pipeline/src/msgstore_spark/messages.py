"""Messages of any source as DataFrames: ``spark.read.format("msgstore").option("source", "kestrel").load(PATH)``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from msgstore.contract import ConfigError, QueueInfo, Source, SourceDamage, StoreError
from msgstore.jobs.messages.columns import MESSAGES, record_batch
from msgstore.jobs.messages.parallel import QueuePart, queue_parts
from msgstore.jobs.messages.selection import Selection, select, selected_messages, selected_queues
from msgstore.jobs.messages.sources import SourceSpec, open_source, source_spec
from msgstore.jobs.paths import is_glob
from msgstore.jobs.workers import worker_catalogue
from msgstore_spark.options import parse_options, paths_of, planning
from msgstore_spark.schemas import columns
from msgstore_spark.tasks import freeze_imports, join_small, name_host, require

log = logging.getLogger("msgstore.spark")
OPTIONS = {
    "path": "argument of `.load()`: what the source reads",
    "source": "name of a source, such as `store` (its live messages), `rabbitmq`, `kestrel` or `rocketmq`; or a JSON object "
    "with `use` and its options",
    "vhost": "virtual hosts, as a glob",
    "queue": "queues, as a glob",
    "state": "states, with commas; or `all`. Default: what a restart would deliver, and `expired`",
    "raw": "`true`: the column `raw` has the records as stored",
    "mode": "`PERMISSIVE` (default): damage has no rows; `FAILFAST`: damage fails the query",
}


class MessagePartition(InputPartition):
    """Part of a queue; None if there is no queue."""

    def __init__(self, part: QueuePart | None) -> None:
        self.part = part


@attrs.frozen
class MessageOptions:
    """Options of one DataFrame of messages."""

    spec: SourceSpec
    selection: Selection
    fail_fast: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> MessageOptions:
        """Parse the options as Spark passes them. Raises ConfigError, StoreError, PluginError."""
        given = {key.lower(): value for key, value in options.items()}
        paths = paths_of(given.pop("path", None), given.pop("paths", None))
        if len(paths) > 1 or (is_glob(paths[0]) and not Path(paths[0]).exists()):
            raise ConfigError("msgstore: a source reads one path; make a DataFrame of each, and a union of them")
        if "relation" in given:
            raise ConfigError(f"msgstore: a source has no relation. See its damage with: msgstore queues {paths[0]}")
        parsed = parse_options(given, OPTIONS)
        states = tuple(filter(None, map(str.strip, parsed.pop("state", "").split(","))))
        everything = states == ("all",)
        globs = [tuple(filter(None, [parsed.get(option)])) for option in ("vhost", "queue")]
        selection = select(vhosts=globs[0], queues=globs[1], states=() if everything else states, everything=everything)
        is_raw = _is_true(parsed.get("raw", "false"))
        with planning():
            spec = source_spec(worker_catalogue(), Path(paths[0]), parsed.get("source"), raw=is_raw)
        return cls(spec, selection, parsed.get("fail_fast", False))


def _is_true(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"msgstore: option 'raw': {text!r} is neither true nor false")
    return text.lower() == "true"


class MessageReader(DataSourceReader):
    """Reader of one query. A task opens the source for itself, and reads a part of one queue."""

    def __init__(self, options: MessageOptions, schema: StructType) -> None:
        """Raises ConfigError for an unknown column of ``schema``, or one of another type."""
        self._options = options
        chosen, self._asked = columns(MESSAGES, schema)
        self._columns = chosen.names

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of all selected queues."""
        with open_source(self._options.spec) as source:
            queues = read_queues(selected_queues(source, self._options.selection), self._options)
            if self._options.fail_fast:
                _refuse(self._options.spec.path, next(iter(source.damage()), None))
            parts = queue_parts(source, self._options.spec, queues)
        return [MessagePartition(part) for part in parts] or [MessagePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the messages of a part."""
        assert isinstance(partition, MessagePartition)
        for batch in join_small(self._batches(partition)):
            yield batch.rename_columns(self._asked.names).cast(self._asked)
        freeze_imports()

    def _batches(self, partition: MessagePartition) -> Iterator[Any]:
        if (part := partition.part) is None:
            return
        selection = attrs.evolve(self._options.selection, first=part.first)
        with open_on_executor(self._options.spec) as source:
            for item in selected_messages(source, part.name, selection, stop=part.stop):
                if isinstance(item, SourceDamage):
                    if self._options.fail_fast:
                        _refuse(self._options.spec.path, item)
                    continue
                yield record_batch(item, self._columns)


def read_queues(found: Sequence[QueueInfo], options: MessageOptions) -> list[QueueInfo]:
    """Return the queues that the source reads. Logs a warning about the others, such as quorum queues, which have no rows."""
    unread = [info for info in found if not info.read]
    if unread:
        more = f", and {len(unread) - 1} more (msgstore queues lists them)" if len(unread) > 1 else ""
        text = "%s: without rows, because it is not read: %s (%s)%s"
        log.warning(text, options.spec.path, unread[0].name, unread[0].reason, more)
    return [info for info in found if info.read]


@contextmanager
def open_on_executor(spec: SourceSpec) -> Iterator[Source]:
    """Open a source on an executor. Errors name its host if it lacks the path or the plugin."""
    with name_host():
        require(spec.path)
        with open_source(spec) as source:
            yield source


def _refuse(path: str, damage: SourceDamage | None) -> None:
    if damage is not None:
        raise StoreError(
            f"msgstore: {path}: {damage.file or 'the file'} at offset {damage.offset}: {damage.reason}; the mode is FAILFAST"
        )
