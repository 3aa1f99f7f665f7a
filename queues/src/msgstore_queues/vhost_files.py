"""VHostFiles: the message stores and backing queues of a vhost. They are opened, opened again after a failure, and closed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgstore.contract import ConfigError, MsgStoreError, StoreClosed
from msgstore.files import Files
from msgstore.writer_lock import WriterLock
from msgstore_queues import directories
from msgstore_queues.base_queue import BaseQueue
from msgstore_queues.catalogue import Catalogue, make
from msgstore_queues.contract import BackingQueue
from msgstore_queues.directories import Remembered
from msgstore_queues.events import Dispatcher, MessagesLostEvent
from msgstore_queues.opening import Opener, find_queues
from msgstore_queues.options import SUFFIX, QueueOptions, VHostOptions
from msgstore_queues.queue import Queue
from msgstore_queues.queue_state import OnLost
from msgstore_queues.stores import Bodies, OpenStore

log = logging.getLogger("msgstore.queues")


class VHostFiles:
    """The files of a vhost. Callers hold the locks."""

    def __init__(
        self,
        path: Path,
        name: str,
        options: VHostOptions,
        catalogue: Catalogue,
        *,
        where: str,
        files: Files,
        open_store: OpenStore,
    ) -> None:
        self.name = name
        self.options = options
        self.directory = directories.vhost_path(path, name)
        self._where = where
        self._catalogue = catalogue
        self._files = files
        self._is_released = False
        """True when all files are closed."""
        self._must_count = False
        """True if a queue has failed. References of its bodies may be left over, so the next start has to count them."""
        self._backings: dict[str, tuple[BackingQueue, Remembered]] = {}
        self._queues: dict[str, Queue] = {}
        keys, skips = options.store_keys, options.damaged == "skip"
        self._make_stores = (
            partial(Bodies, self.directory / directories.PERSISTENT, open_store, keys, skips_damaged=skips),
            partial(Bodies, self.directory / directories.TRANSIENT, open_store, {**keys, "durability": "os"}),
        )
        self._stores: Sequence[Bodies] = ()
        self._events = Dispatcher(name, self.directory, catalogue.observers)
        self._progress: Callable[[int, int], object] | None = None
        self._lock_file: WriterLock | None = None

    def _open(self, terms: Mapping[str, Any] | None) -> bool:
        """Open stores and queues. Without terms, all queues are read, and references of bodies are counted. Return False then.
        ``_backings`` has those that are open, in any case."""
        self._files.remove_tree(self.directory / directories.TRANSIENT)
        self.persistent, self.transient = (make_store() for make_store in self._make_stores)
        self._stores = (self.persistent, self.transient)
        self._opener = Opener(
            vhost=self.name, directory=self.directory, where=self._where, options=self.options, catalogue=self._catalogue,
            files=self._files, report_lost=self._note_lost, persistent=self.persistent, transient=self.transient,
        )  # fmt: skip
        found_queues = find_queues(self._files, self.directory, self.name)
        for number, (path, found) in enumerate(found_queues, 1):
            options = self._queues[found.name].options if found.name in self._queues else QueueOptions()
            of_queue = None if terms is None else terms.get(path.name)
            self._backings[found.name] = self._open_found(found, path, options, of_queue), found
            if self._progress and terms is None:
                self._progress(number, len(found_queues))
        counts = (
            None if terms is not None else Counter(one for backing, _ in self._backings.values() for one in backing.shared())
        )
        self.persistent.open(counts)
        return terms is not None or not found_queues

    def _open_found(
        self, found: Remembered, path: Path, options: QueueOptions, terms: Mapping[str, Any] | None
    ) -> BackingQueue:
        """Open a backing queue by its terms, or if they make no sense, by its files."""
        try:
            return self._opener.open(found, path, options, terms)
        except (OSError, MsgStoreError):
            raise
        except Exception as error:
            if terms is None:
                raise
            log.warning("%s: what was saved at the last stop makes no sense (%r): its files are read", path, error)
            return self._opener.open(found, path, options, None)

    def _note_lost(self, queue: str, messages: int, reason: str) -> None:
        self._events.publish(MessagesLostEvent, queue=queue, messages=messages, reason=reason)

    def reopen_queue(self, queue: BaseQueue) -> BackingQueue:
        """Abandon the backing queue of a queue, and open it as after a crash. Caller holds the queue."""
        self._must_count = True
        backing, found = self._backings[queue.name]
        _abandon(queue, backing)
        path = directories.queue_path(self.directory, self.name, queue.name)
        backing = self._opener.open(found, path, queue.options, None)
        self._backings[queue.name] = backing, found
        return backing

    def _backing_for(self, name: str, wanted: QueueOptions, where: str) -> BackingQueue:
        """Return the backing queue of a queue that is declared, with its options. Caller holds the lock."""
        path = directories.queue_path(self.directory, self.name, name)
        if name not in self._backings and path.exists():
            self._open_left(name, path)
        if name not in self._backings:
            made = Remembered(name, wanted.backing.name, wanted.index.name, wanted.durable)
            made = made.with_backing(wanted.backing, where)
            make(self._catalogue.backing(made.backing, where), wanted.backing, where)
            make(self._catalogue.index(made.index, where), wanted.index, where)
            directories.make_queue_directory(self._files, path, self.name, made)
            try:
                self._backings[name] = self._opener.open(made, path, wanted, None), made
            except Exception:
                self._files.remove_tree(path)  # with it the vhost could not be opened again
                raise
            return self._backings[name][0]
        backing, found = self._backings[name]
        if (changed := self._check_same(name, wanted, where)) != found:
            make(self._catalogue.backing(changed.backing, where), wanted.backing, where)
            opened = None
            try:
                opened = self._opener.open(changed, path, wanted, self._backings.pop(name)[0].terminate())
                directories.save_queue_file(self._files, path, changed)
            except Exception:
                for one in (backing, opened):
                    if one is not None:
                        _abandon(self._where, one)
                self._open_left(name, path)
                raise
            self._backings[name] = opened, changed
            return opened
        return backing

    def _open_left(self, name: str, path: Path) -> None:
        """Open a queue by its files, of which a change of its options has failed. If this fails, too, the next call does it."""
        if (found := directories.read_queue_directory(self._files, path)) is not None:
            self._must_count = True
            self._backings[name] = self._opener.open(found, path, QueueOptions(), None), found

    def _is_own(self, name: str) -> bool:
        """Return True if there is a queue of this name that msgstore has made, not a broker."""
        path = directories.queue_path(self.directory, self.name, name)
        if name not in self._backings or not (path / directories.QUEUE_FILE).exists():
            return False
        # A queue that the broker has made of priorities gets the file when it is opened first.
        return self.options.layout == "own" or self._backings[name][1].backing != "priority"

    def _check_same(self, name: str, wanted: QueueOptions, where: str) -> Remembered:
        """Return what the directory of a queue would remember with these options. Raises ConfigError for another backing queue,
        index or ``durable`` than it has."""
        _, found = self._backings[name]
        for key, there, asked in (
            ("backing", found.backing, wanted.backing.name if wanted.backing.named else found.backing),
            ("index", found.index, wanted.index.name if wanted.index.named else found.index),
            ("durable", found.durable, wanted.durable),
        ):
            if there != asked:
                path = directories.queue_path(self.directory, self.name, name)
                raise ConfigError(f"{where} {key}: is {asked!r}, and the directory has {there!r}: {path}")
        return found.with_backing(wanted.backing, where) if wanted.backing.named else found

    def _delete(self, name: str) -> list[tuple[Queue, list[OnLost]]]:
        """Delete a queue that has ended, and before it its delayed messages. Return what to call for messages that will not be
        confirmed. Caller holds the locks."""
        lost = []
        for one in (name + SUFFIX, name):
            if one in self._backings:
                if (queue := self._queues.pop(one, None)) is not None:
                    if queue.closed is None:
                        queue.end(StoreClosed(f"{queue}: was deleted"))
                    with queue.lock:
                        lost.append((queue, queue.forget_confirms()))
                backing, _ = self._backings.pop(one)
                backing.delete_and_terminate()
                self._files.remove_tree(directories.queue_path(self.directory, self.name, one))
        return lost

    def reopen(self) -> dict[str, BackingQueue]:
        """Abandon stores and backing queues, and open all as after a crash. Return the backing queues. Caller holds all."""
        self.abandon_files()
        before, self._backings = self._backings, {}
        try:
            self._open(None)
            for queue in self._queues.values():
                if queue.name not in self._backings:  # not durable: its directory was removed
                    path, found = directories.queue_path(self.directory, self.name, queue.name), before[queue.name][1]
                    directories.make_queue_directory(self._files, path, self.name, found)
                    self._backings[queue.name] = self._opener.open(found, path, queue.options, None), found
        except BaseException:
            self.abandon_files()
            self._backings = {**before, **self._backings}
            raise
        self._must_count = False
        return {name: backing for name, (backing, _) in self._backings.items()}

    def abandon_files(self) -> None:
        """Close all files but the lock, as the end of the process would."""
        for backing, _ in self._backings.values():
            _abandon(self, backing)
        for store in self._stores:
            _abandon(self, store)

    def is_in_use(self, store: object) -> bool:
        """Return True if a message store is one of those that the vhost uses now."""
        return store in self._stores

    def _save(self) -> None:
        """Close queues and stores, and save the terms, by which the next start need not read the queues. Caller holds the lock
        of the flusher."""
        if self._must_count:
            self.persistent.close()
            return
        terms, counts = {}, {}
        for name, (backing, found) in self._backings.items():
            if found.durable:
                directory = directories.queue_path(self.directory, self.name, name).name
                count = _count_all(backing)
                try:
                    terms[directory] = backing.terminate()
                except (OSError, MsgStoreError):
                    raise
                except Exception:
                    log.exception(
                        "%s: the queue %r has failed in the end, so the next start reads all queues", self._where, name
                    )
                    return
                counts[directory] = count if terms[directory] else (0, 0)  # without terms, nothing is on disk
        self.persistent.close()
        directories.save_terms(self._files, self.directory, terms, counts)

    def _release(self) -> None:
        """Close all files, and unlock the directory. What was closed already stays so."""
        self.abandon_files()
        if self._lock_file is not None:
            self._lock_file.release()
        self._is_released = True


def _abandon(where: object, what: BackingQueue | Bodies) -> None:
    """Close the files of what has failed, and may fail once more."""
    try:
        what.abandon()
    except Exception:
        log.exception("%s: what has failed cannot be closed, and is left open", where)


def _count_all(backing: BackingQueue) -> tuple[int, int]:
    """Return the messages of a queue that are ready or unacked, and the bytes of their bodies."""
    sizes: list[int] = []
    backing.fold_acks(lambda _, message: sizes.append(len(message.body)))
    return len(backing) + len(sizes), backing.body_bytes + sum(sizes)
