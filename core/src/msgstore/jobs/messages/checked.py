"""Results of sources and sinks are checked before anything uses them. One that the contract forbids is an error that names the
plugin and its method. Per column of a batch: of the JSON values, the first is examined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import lt
from typing import Any

import attrs

from msgstore.contract import STATES, Descriptor, MessageBatch, MsgStoreError, QueueInfo, QueueName, SourceDamage
from msgstore.contract.messages import CERTAINTIES
from msgstore.jobs.messages.rows import encode
from msgstore.plugins.blame import blame
from msgstore.plugins.catalogue import Catalogue
from msgstore.plugins.loader import comes_from_outside

_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("positions", "offsets", "sizes"), (int,)),
    **dict.fromkeys(("states", "files", "certainties"), (str,)),
    **dict.fromkeys(("sequences", "timestamps_ms", "expiries_ms"), (int, type(None))),
    **dict.fromkeys(("ids", "refusals", "exchanges"), (str, type(None))),
    **dict.fromkeys(("properties", "headers"), (dict, type(None))),
    "routing_keys": (list, tuple, type(None)),
    "verified": (bool, type(None)),
}
"""Column to the types of its values, the expected one first."""
_NUMBERS = tuple(column for column, types in _TYPES.items() if types[0] is int)
_COLUMNS = [field.name for field in attrs.fields(MessageBatch) if field.name != "name"]
Refusals = Sequence[tuple[int, str]]


@attrs.frozen
class _Checked:
    backend: Any
    catalogue: Catalogue
    descriptor: Descriptor
    place: str
    """Path or destination, for errors."""

    @contextmanager
    def calling(self, method: str) -> Iterator[Any]:
        """Yield a method of the plugin. What the block raises becomes BrokenPlugin, unless it is no fault of the plugin."""
        try:
            yield getattr(self.backend, method)
        except (MsgStoreError, OSError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            broken = blame(error)
            if broken is None and (comes_from_outside(error) or self.descriptor.factory.startswith("msgstore.")):
                raise
            broken = broken or self.catalogue.broken(self.descriptor, f"failed in {method}", error)
            raise type(broken)(f"{self.place}: {broken}") from error

    def close(self) -> None:
        with self.calling("close") as close:
            close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


class CheckedSource(_Checked):
    """Source of a plugin."""

    def queues(self) -> list[QueueInfo]:
        with self.calling("queues") as queues:
            found = list(_check(queues(), Iterable))
            for info in found:
                _check(info, QueueInfo, name=QueueName, type=str, reason=str, details=Mapping)
                _check(info.name, QueueName, system=str, vhost=str | None, queue=str | None, partition=int | None)
                _check_range("partitions", [info.name.partition], 32)
                encode({**info.details})
            names = set[QueueName]()
            for name in (info.name for info in found if info.read):
                if name in names:
                    raise ValueError(f"the queue {name} is there twice")
                names.add(name)
        return found

    def damage(self) -> list[SourceDamage]:
        with self.calling("damage") as damage:
            return [_check_damage(span) for span in _check(damage(), Iterable)]

    def messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        return self._read("messages", name, first, stop)

    def own_messages(self, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        return self._read("own_messages", name, first, stop)

    def _read(self, method: str, name: QueueName, first: int, stop: int | None) -> Iterator[MessageBatch | SourceDamage]:
        last = first - 1
        with self.calling(method) as read:
            for item in _check(read(name, first, stop), Iterable):
                if isinstance(item, SourceDamage):
                    _check_damage(item)
                elif len(_check_batch(item, name)):
                    positions = item.positions
                    if not all(map(lt, chain([last], positions), positions)):
                        raise ValueError(
                            f"the positions from {positions[0]} to {positions[-1]} do not grow, or begin below {last + 1}"
                        )
                    last = positions[-1]
                    if stop is not None and last >= stop:
                        raise ValueError(f"it yields the position {last}, and was asked for those below {stop}")
                yield item

    def complete(
        self, name: QueueName, entries: Sequence[tuple[int, bytes, bytes | None]]
    ) -> Iterator[MessageBatch | SourceDamage]:
        with self.calling("complete") as complete:
            for item in _check(complete(name, entries), Iterable):
                yield _check_damage(item) if isinstance(item, SourceDamage) else _check_batch(item, name)

    def count(self, name: QueueName) -> int:
        with self.calling("count") as count:
            found: int = _check(count(name), int)
            return found


class CheckedSink(_Checked):
    """Sink of a plugin."""

    def refused(self, batch: MessageBatch) -> Refusals:
        return self._refusals("refused", batch)

    def write(self, batch: MessageBatch) -> Refusals:
        return self._refusals("write", batch)

    def _refusals(self, method: str, batch: MessageBatch) -> Refusals:
        with self.calling(method) as call:
            found = [(row, reason) for row, reason in _check(call(batch), Iterable)]
            for row, reason in found:
                if not isinstance(row, int) or not 0 <= row < len(batch) or not isinstance(reason, str):
                    what = f"it refuses the row {row!r} of {len(batch)} messages, with the reason {reason!r:.40}"
                    raise ValueError(f"{what}; it returns pairs of a row, from 0 on, and a text")
        return found

    def flush(self) -> Mapping[str, Any]:
        with self.calling("flush") as flush:
            token: Mapping[str, Any] = _check(flush(), Mapping)
            encode(token)
        return token

    def join(self, parts: Sequence[str]) -> None:
        with self.calling("join") as join:
            join(parts)

    def finish(self) -> None:
        with self.calling("finish") as finish:
            finish()


def _check(value: Any, expected: type, **members: Any) -> Any:
    """Return a value that is of the expected class, and has members of these types. Raises TypeError."""
    if not isinstance(value, expected):
        raise TypeError(f"it gives {type(value).__name__}, not {expected.__name__}")
    for member, types in members.items():
        if not isinstance(found := getattr(value, member), types):
            raise TypeError(f"the {member} of a {expected.__name__} is {found!r:.40}")
    return value


def _check_damage(span: Any) -> SourceDamage:
    found: SourceDamage = _check(
        span, SourceDamage, file=str, reason=str, offset=int, size=int, messages=int, name=QueueName | None
    )
    return found


def _check_range(what: str, values: Iterable[int | None], bits: int) -> None:
    """Raises ValueError for a number that files of messages have no place for."""
    present = [value for value in values if value is not None]
    for value in (min(present, default=0), max(present, default=0)):
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError(f"one of the {what} is {value!r:.40}, which is no number of {bits} bits")


def _check_batch(batch: Any, name: QueueName) -> MessageBatch:
    """Return a batch of the queue whose columns fit together. Raises TypeError, ValueError."""
    found: MessageBatch = _check(batch, MessageBatch)
    if found.name != name:
        raise ValueError(f"it yields messages of {found.name}, and was asked for {name}")
    lengths = {column: len(value) for column in _COLUMNS if (value := getattr(found, column)) is not None}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns of a batch have different lengths: {lengths}")
    if unknown := {*found.states}.difference(STATES) or {*(found.certainties or ())}.difference(CERTAINTIES):
        raise ValueError(f"there is no state or certainty {min(unknown)!r}")
    for column in ("bodies", "raws", "raw_properties"):
        if wrong := {*map(type, getattr(found, column) or ())} - {bytes, type(None) if column != "bodies" else bytes}:
            raise TypeError(f"one of the {column} is {min(map(repr, wrong))}, not bytes")
    for column, types in _TYPES.items():
        values = getattr(found, column) or ()
        if not all(issubclass(kind, types) for kind in {*map(type, values)}):
            value = next(value for value in values if not isinstance(value, types))
            found_type, expected = type(value).__name__, types[0].__name__
            raise TypeError(f"one of the {column} is {value!r:.40}, of the type {found_type}, not {expected}")
    for column in _NUMBERS:
        _check_range(column, getattr(found, column) or (), 64)
    if found.routing_keys is not None:
        for key in chain.from_iterable(keys or () for keys in found.routing_keys):
            if not isinstance(key, str):
                raise TypeError(f"one of the routing_keys has {key!r:.40}, of the type {type(key).__name__}, not str")
    for mapping in (found.properties, found.headers):
        if mapping and mapping[0]:
            encode(mapping[0])
    return found
