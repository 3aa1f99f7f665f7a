"""Opening the backing queues of a vhost: finding their directories, and making what the catalogue has for them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import ConfigError, StoreIOError
from msgstore.files import Files
from msgstore.option_values import Backend
from msgstore_queues import directories
from msgstore_queues.catalogue import Catalogue, make
from msgstore_queues.contract import BackingQueue, BackingQueueContext, Bodies, QueueIndex, QueueIndexContext
from msgstore_queues.directories import Remembered
from msgstore_queues.options import QueueOptions, VHostOptions
from rabbitmq_files.names import split_sub_queue

log = logging.getLogger("msgstore.queues")


def find_queues(files: Files, directory: Path, vhost: str) -> list[tuple[Path, Remembered]]:
    """Return the directories of durable queues, and remove those of others. Their backing queues open the sub-queues. What has
    not the name of a queue's directory, such as a copy, is left alone."""
    queues, sub_queues = dict[str, tuple[Path, Remembered]](), dict[str, Remembered]()
    for path in sorted((directory / directories.QUEUES).iterdir()):
        found = directories.read_queue_directory(files, path) if directories.is_hash(path) else None
        if found is None and directories.is_hash(path) and directories.is_unfinished(path):
            files.remove_tree(path)
        elif found is None or path != directories.sub_queue_path(directory, vhost, found):
            log.warning("%s: is not the directory of a queue of this vhost, and is left alone", path)
        elif not found.durable:
            files.remove_tree(path)
        elif found.level is None:
            queues[found.name] = path, found
        else:
            sub_queues[found.name] = found
    for name in sub_queues.keys() - queues.keys():  # RabbitMQ makes no directory for the queue itself
        path, found = directories.queue_path(directory, vhost, name), sub_queues[name]
        queues[name] = path, Remembered(name, "priority", found.index, found.durable)
        directories.make_queue_directory(files, path, vhost, queues[name][1])
    return list(queues.values())


@attrs.define(kw_only=True)
class Opener:
    """Opens backing queues of a vhost."""

    vhost: str
    directory: Path
    where: str
    """Start of error messages."""
    options: VHostOptions
    catalogue: Catalogue
    files: Files
    report_lost: Callable[[str, int, str], object]
    """Called with the name of a queue, the number of messages that it has lost, and the reason."""
    persistent: Bodies
    transient: Bodies

    def open(
        self,
        found: Remembered,
        path: Path,
        options: QueueOptions,
        terms: Mapping[str, Any] | None,
        *,
        embed_below: int | None = None,
    ) -> BackingQueue:
        """Open the backing queue of a directory. ``embed_below``: other than that of the options. Raises ConfigError,
        PluginError, StoreIOError."""
        where = f"{self.where} queue {found.name!r}"
        backend = found.chosen(options.backing)

        def open_index(terms: Mapping[str, Any] | None) -> QueueIndex:
            factory, values = make(self.catalogue.index(found.index, where), options.index, where)
            context = QueueIndexContext(
                options=values, directory=path, files=self.files, terms=terms, is_synced=self.options.durability != "os",
                segment_entries=directories.segment_entries(self.files, self.directory) if found.index == "v1" else None,
                is_for_broker=self.options.layout != "own",
            )  # fmt: skip
            index: QueueIndex = factory(context)
            return index

        def open_other(
            backend: Backend, directory: Path, name: bytes, terms: Mapping[str, Any] | None, *, embed_all: bool = False
        ) -> BackingQueue:
            level = split_sub_queue(name)[1]
            other = Remembered(found.name, backend.name, found.index, found.durable, level)
            if directory != path:
                there = directories.read_queue_directory(self.files, directory) if directory.exists() else None
                if there is None:
                    directories.make_queue_directory(self.files, directory, self.vhost, other)
                elif there.full_name != name or (backend.named and there.backing != backend.name):
                    raise ConfigError(
                        f"{where}: {directory} has the backing queue {there.backing!r} of the queue {there.name!r}, and "
                        f"{backend.name!r} is asked for. Name {there.backing!r}, or another directory."
                    )
                other = there or other
            below = attrs.evolve(options, backing=attrs.evolve(backend, name=other.backing, named=True))
            most = sys.maxsize if embed_all else embed_below
            return self.open(other, directory, below, terms, embed_below=most)

        factory, values = make(self.catalogue.backing(backend.name, where), backend, where)
        context = BackingQueueContext(
            options=values, directory=path, vhost=self.vhost.encode(), name=found.full_name, is_durable=found.durable,
            is_synced=self.options.durability != "os", terms=terms, files=self.files, open_index=open_index,
            open_other=open_other, persistent=self.persistent, transient=self.transient,
            embed_below=self.options.embed_below if embed_below is None else embed_below,
            report_lost=lambda messages, reason: self.report_lost(found.name, messages, reason),
        )  # fmt: skip
        try:
            backing: BackingQueue = factory(context)
        except OSError as error:
            raise StoreIOError(f"{path}: the queue {found.name!r} cannot be opened: {error}") from error
        return backing
