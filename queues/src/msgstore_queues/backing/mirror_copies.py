"""Copies of a mirrored queue: what each says of itself, which one is right when the queue is opened, and resynchronisation.

``msgstore-mirror.json`` of each copy has its *epoch*, and its *position*, the number of its last flush. The first copy is
written before the second. So when a queue is opened:

- the epochs differ: the copy with the lower one was left out, and is resynchronised from the other;
- the epochs are equal, and both copies were closed: the positions are equal, too;
- the epochs are equal, and the process was killed: the first copy may be a flush ahead, of which nothing was confirmed.
  If they have not the same messages, the one with fewer is resynchronised: it may have lost some;
- anything else is an error that names both: nothing says which copy is right.

A copy without that file is new. While a copy is being resynchronised its epoch is 0.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from msgstore import forking
from msgstore.contract import ConfigError, MsgStoreError, StoreError, StoreLocked
from msgstore.files import Files
from msgstore.writer_lock import WriterLock
from msgstore_queues.contract import BackingQueue, BackingQueueContext, Message
from rabbitmq_files.names import queue_directory

log = logging.getLogger("msgstore.queues")

STATE_FILE = "msgstore-mirror.json"
_KEPT = (".queue_name", "msgstore-queue.json", "msgstore.lock", STATE_FILE)
_COPIED_BYTES = 2**24
"""Bytes that are copied between two flushes."""


@attrs.define
class State:
    """Epoch and position that a copy has on disk. The defaults are those of a new one."""

    epoch: int = 0
    position: int = 0
    is_open: bool = False
    """True while a process has it open, and after such a process was killed."""
    over: str = ""
    """Name of the backing queue that holds the copy."""


class Copy:
    """One copy. ``queue`` is set once it is open."""

    queue: BackingQueue

    def __init__(self, context: BackingQueueContext, directory: Path, number: int, second_directory: Path) -> None:
        self.directory = directory
        self.number = number
        """0: in the directory of the queue; 1: the other."""
        self.second_directory = second_directory
        self._context = context
        self.state = _read_state(context.files, directory)
        self._lock: WriterLock | None = None
        """Lock of the second copy: no process that has another vhost open may use it."""

    def open(self, terms: Mapping[str, Any] | None) -> None:
        """Open the backing queue of the copy. Raises ConfigError, StoreError, OSError."""
        over, context = self._context.options.over, self._context
        if self.state.over:
            if over.named and over.name != self.state.over:
                raise ConfigError(f"{self.directory}: the backing queue is {self.state.over!r}, and {over.name!r} is asked for")
            over = attrs.evolve(over, name=self.state.over)
        self.state.over = over.name
        if self.number and self._lock is None:
            context.files.make_directory(self.directory)
            self._lock = WriterLock(self.directory, context.files)
            forking.watch(self._lock)
        self.queue = context.open_other(over, self.directory, context.name, terms, embed_all=True)

    def save_state(self, *, is_open: bool, epoch: int | None = None, sync: bool = True) -> None:
        """``epoch``: a new one."""
        self.state.is_open = is_open
        if epoch is not None:
            self.state.epoch = epoch
        text = json.dumps({"version": 1, **attrs.asdict(self.state)})
        self._context.files.write_file(self.directory / STATE_FILE, [text.encode()], sync=sync)

    def note_flush(self, epoch: int, number: int) -> None:
        """The copy has all of a flush. So have the others of the mirror, which get the same epoch."""
        self.state.position = number
        self.save_state(is_open=True, epoch=epoch, sync=self._context.is_synced)

    def close(self) -> Mapping[str, Any]:
        """Close the copy after a flush. Return its terms."""
        terms = self.queue.terminate()
        self.save_state(is_open=False)
        self.release()
        return terms

    def abandon(self) -> None:
        """Close all files as the end of the process would."""
        if hasattr(self, "queue"):
            self.queue.abandon()
        self.release()

    def release(self) -> None:
        """Let other processes use the copy."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def clear(self) -> None:
        """Delete the files of a copy that cannot be opened."""
        for name in self._context.files.list(self.directory):
            if name not in _KEPT:
                self._context.files.unlink(self.directory / name)

    def flush(self) -> None:
        """Write all that was published to this copy alone."""
        self.queue.begin_flush()
        self.queue.write()
        self.queue.sync()()
        self.queue.end_flush()


def open_copies(context: BackingQueueContext) -> list[Copy]:
    """Open both copies, and make them equal: the one that is right is the *source*. Return those that work, in their order.
    Raises ConfigError, StoreError, OSError."""
    second = context.options.directory / queue_directory(context.vhost, context.name)
    if second == context.directory:
        raise ConfigError(f"{second}: is the directory of the queue itself. Name another one.")
    if not context.is_durable:
        context.files.remove_tree(second)  # of an earlier process
    copies = [Copy(context, directory, number, second) for number, directory in enumerate((context.directory, second))]
    _check(copies)
    source = max(copies, key=lambda copy: copy.state.epoch)  # the first one, if they are equal
    other = copies[1 - source.number]
    terms = context.terms or {}
    are_equal = source.state.epoch == other.state.epoch
    opened: list[Copy] = []
    try:
        try:
            source.open(_terms_of(terms, source))
        except (OSError, MsgStoreError) as error:
            if isinstance(error, ConfigError | StoreLocked) or not are_equal or not source.state.epoch:
                raise
            log.warning("%s: cannot be opened: %s. The queue goes on in %s", source.directory, error, other.directory)
            source, other, are_equal = other, source, False
            source.open(_terms_of(terms, source))
        opened.append(source)
        try:
            _join(source, other, terms, opened, are_equal=are_equal)
        except (OSError, MsgStoreError) as error:
            if isinstance(error, ConfigError | StoreLocked | Disagreement):
                raise
            kept = max((source, other), key=lambda copy: copy.state.epoch)  # that of a copy which is not whole is 0
            left_out = other if kept is source else source
            log.warning("%s: is left out of the mirror: %s. The queue goes on in %s", left_out.directory, error, kept.directory)
            left_out.abandon()
            kept.state.epoch += 1
            opened = [kept]
        for copy in opened:
            copy.save_state(is_open=True)
    except BaseException:
        for copy in copies:
            copy.abandon()
        raise
    return sorted(opened, key=lambda copy: copy.number)


class Disagreement(StoreError):
    """Two copies of one epoch are different."""


def _join(source: Copy, other: Copy, terms: Mapping[str, Any], opened: list[Copy], *, are_equal: bool) -> None:
    """Open the other copy, and make it equal to the source."""
    if not source.state.epoch:  # both are new
        other.open(None)
        opened.append(other)
        source.state.epoch = other.state.epoch = 1
        return
    if not are_equal:
        _resynchronise(source, other, opened)
        return
    was_open = source.state.is_open or other.state.is_open
    try:
        other.open(_terms_of(terms, other))
    except (OSError, MsgStoreError) as error:
        if isinstance(error, ConfigError | StoreLocked):
            raise
        log.warning("%s: cannot be opened, and is copied anew: %s", other.directory, error)
        _resynchronise(source, other, opened)
        return
    opened.append(other)
    if not was_open:
        if (len(source.queue), source.queue.body_bytes) != (len(other.queue), other.queue.body_bytes):
            raise _disagreement(source, other)
    elif (found := _contents(source.queue)) != (of_other := _contents(other.queue)):
        if of_other[0] > found[0]:
            source, other = other, source
        opened.remove(other)
        other.queue.abandon()
        _resynchronise(source, other, opened)
    other.state.position = source.state.position


def _resynchronise(source: Copy, other: Copy, opened: list[Copy]) -> None:
    """Copy all messages. The epoch of the source is raised before, so that no other copy is ever taken for it."""
    log.warning("%s: is copied from %s", other.directory, source.directory)
    source.state.epoch += 1
    source.save_state(is_open=True)
    other.state = State(over=source.state.over)
    if other.directory.exists():
        other.save_state(is_open=True)
    try:
        other.open(None)
    except (OSError, MsgStoreError):
        other.clear()
        other.open(None)
    opened.append(other)
    other.queue.purge()

    def copy(_: int, message: Message) -> None:
        other.queue.publish(message)
        if other.queue.unwritten > _COPIED_BYTES:
            other.flush()

    source.queue.fold(copy)
    other.flush()
    opened.remove(other)
    other.queue.terminate()
    other.open(None)  # as after a crash: each message may have been delivered before
    opened.append(other)
    other.state = attrs.evolve(source.state)


def _check(copies: list[Copy]) -> None:
    """Raise Disagreement for two copies of one epoch that cannot come of one history."""
    first, second = (copy.state for copy in copies)
    ahead = first.position - second.position
    if first.epoch == second.epoch and ahead and not (ahead == 1 and first.is_open and second.is_open):
        raise _disagreement(*copies)


def _disagreement(first: Copy, second: Copy) -> Disagreement:
    one, other = sorted((first, second), key=lambda copy: copy.number)
    return Disagreement(
        f"{one.directory} (flush {one.state.position}) and {other.directory} (flush {other.state.position}): are two copies of "
        f"one queue, both of epoch {one.state.epoch}, and have different messages. Delete the one that is wrong."
    )


def _terms_of(terms: Mapping[str, Any], copy: Copy) -> Mapping[str, Any] | None:
    """Return the terms of a copy, if they are those of its last stop."""
    state = copy.state
    if state.is_open or (terms.get("epoch"), terms.get("position")) != (state.epoch, state.position):
        return None
    found: Mapping[str, Any] | None = terms["copies"].get(str(copy.number))
    return found


def _contents(queue: BackingQueue) -> tuple[int, bytes]:
    """Return the number of messages that can be read, and a digest of them, in order."""
    digest, count = hashlib.blake2b(), 0

    def add(_: int, message: Message) -> None:
        nonlocal count
        count += 1
        for part in (message.body, message.raw_properties, message.expiry_us.to_bytes(8, "big")):
            digest.update(len(part).to_bytes(8, "big") + part)

    queue.fold(add)
    return count, digest.digest()


def _read_state(files: Files, directory: Path) -> State:
    path = directory / STATE_FILE
    try:
        table = json.loads(files.read_file(path))
        return State(table["epoch"], table["position"], table["is_open"], table["over"])
    except FileNotFoundError:
        return State()
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}: is not the state of a mirrored queue: {error!r}. Delete the copy that it is in.") from error
