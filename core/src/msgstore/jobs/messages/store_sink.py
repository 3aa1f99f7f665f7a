"""Sink ``store``: a new store with the bodies. A message that is in several queues is stored once, with a reference for
each."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from msgstore.builtin.plugin import StoreSinkOptions
from msgstore.contract import MessageBatch, MsgStoreError, SinkContext, StoreError, StoreIOError
from msgstore.files import Files
from msgstore.jobs.messages.rows import message_id, references_of
from msgstore.jobs.output.commit import StoreStaging, numbered_segments
from msgstore.jobs.output.parts import PartWriter, StorePart, StoreSpec
from msgstore.jobs.output.staging_directory import PARTS, sync_tree
from msgstore.jobs.workers import body_codec

_ID = 16
_REST = struct.Struct(">8sQ")
"""In the list of ids after the id: first bytes of the hash of its body, and number of references."""
_ENTRY = _ID + _REST.size

_Encoded = tuple[bytes, bytes | None, str]


@contextmanager
def _os_errors() -> Iterator[None]:
    """Raise errors of the disk as OSError: a part's writer says that nothing is kept, and a conversion continues."""
    try:
        yield
    except StoreIOError as error:
        raise (error.__cause__ if isinstance(error.__cause__, OSError) else error) from None


class StoreSink:
    """Writer of a store. Queues, order and properties have no place in a store, and are left out.

    A part of the store is written for each flush. The list of ids has an entry for each message written: it gives the
    references. A message of a store may come with several: its property :data:`REFERENCES`.
    """

    def __init__(self, context: SinkContext) -> None:
        options: StoreSinkOptions = context.options
        self._context = context
        self._work = Path(context.destination).with_name(Path(context.destination).name + ".parts")
        bindings = tuple(options.records.items())
        self._target = StoreSpec(context.target, options.index, options.format, options.record, options.body, bindings)
        self._encode = body_codec(self._target.body).encode
        self._parts = int(context.token["parts"]) if context.token else 0
        if context.token and "entries" not in context.token:
            raise StoreError(f"{context.target}: another version of msgstore began this conversion. Begin anew with --restart.")
        if context.token:
            parts = [(self._work / f"{number}.json", 1) for number in range(self._parts)]
            context.check_kept([(self._work / "ids", int(context.token["entries"]) * _ENTRY), *parts])
            self._check_segments()
        for directory in (self._work, self._work / PARTS):
            directory.mkdir(exist_ok=True)
            Files().sync_directory(directory.parent)
        self._writer = self._next_part()  # first: it checks the backends
        self._list = open(self._work / "ids", "a+b")  # noqa: SIM115, PTH123 - until close
        self._list.truncate(int(context.token["entries"]) * _ENTRY if context.token else 0)
        self._hashes = {msg_id: digest for msg_id, digest, _ in self._entries()}
        """Id to the hash of its body, for each message that ``refused`` has accepted."""
        self._unwritten: set[bytes] = set()
        """Ids that ``refused`` has accepted and ``write`` has not written yet."""
        self._checked: tuple[Sequence[bytes] | None, list[_Encoded]] = (None, [])
        """Bodies that ``refused`` has encoded last, and the result: mostly, ``write`` gets the same ones."""

    def refused(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        self._checked = batch.bodies, list(self._encoded(batch))
        return [(row, reason) for row, (_, _, reason) in enumerate(self._checked[1]) if reason]

    def write(self, batch: MessageBatch) -> Sequence[tuple[int, str]]:
        ids, bodies, entries = [], [], []
        checked, encoded = self._checked
        self._checked = None, []
        for entry, stored, _ in encoded if checked is batch.bodies else self._encoded(batch):
            entries.append(entry)
            if stored is not None and (msg_id := entry[:_ID]) in self._unwritten:  # the first of several copies
                ids.append(msg_id)
                bodies.append(stored)
                self._unwritten.discard(msg_id)
        with _os_errors():
            self._writer.add(ids, bodies)
        self._list.write(b"".join(entries))
        return ()

    def _encoded(self, batch: MessageBatch) -> Iterator[_Encoded]:
        """Yield entry, stored body, None if it is stored already, and reason for a refusal of each message."""
        for row, body in enumerate(batch.bodies):
            msg_id, digest = message_id(batch, row), hashlib.blake2b(body, digest_size=8).digest()
            try:
                entry = msg_id + _REST.pack(digest, references_of(batch, row))
            except ValueError as error:
                yield msg_id, None, str(error)
                continue
            known, stored, reason = self._hashes.get(msg_id), None, ""
            if known is not None and known != digest:
                reason = f"the id {msg_id.hex()} has another body already, and an id names one body for ever"
            elif known is None or msg_id in self._unwritten:
                try:
                    stored = self._encode(msg_id, body)
                except MsgStoreError as error:
                    reason = str(error)
                else:
                    if len(stored) > self._writer.max_body:
                        reason = f"a body of {len(stored)} bytes does not fit into a record"
                if not reason:
                    self._hashes[msg_id] = digest
                    self._unwritten.add(msg_id)
            yield entry, stored, reason

    def flush(self) -> Mapping[str, Any]:
        with _os_errors():
            part = self._writer.finish()
        Files().sync_directory(self._work / PARTS)
        Files().write_file(self._work / f"{self._parts}.json", [json.dumps(attrs.asdict(part)).encode()], sync=True)
        self._parts += 1
        self._list.flush()
        os.fsync(self._list.fileno())
        self._writer = self._next_part()
        return {"parts": self._parts, "entries": self._list.tell() // _ENTRY}

    def finish(self) -> None:
        self._writer.abandon()
        store, parts = Path(self._context.destination), self._finished_parts()
        for segment, _, to in numbered_segments(parts, store):  # of a call that was interrupted
            if to.exists():
                Files().replace(to, segment)
        Files().remove_tree(store)
        StoreStaging.join(self._target, str(self._work)).build(store, parts, self._counts())
        sync_tree(Files(), store)
        Files().sync_directory(store.parent)

    def close(self) -> None:
        self._writer.abandon()
        self._list.close()

    def _finished_parts(self) -> list[StorePart]:
        found = []
        for path in (self._work / f"{number}.json" for number in range(self._parts)):
            try:
                fields = json.loads(path.read_bytes())
            except ValueError:  # it has lost its end
                self._context.check_kept([(path, path.stat().st_size + 1)])
                raise
            found.append(StorePart(**fields | {"files": tuple(map(tuple, fields["files"]))}))
        return found

    def _check_segments(self) -> None:
        """Raise StoreError if a segment is not whole, where it was written or where an interrupted ``finish`` has moved it."""
        for segment, size, to in numbered_segments(self._finished_parts(), Path(self._context.destination)):
            self._context.check_kept([(to if to.exists() else segment, size)])

    def _next_part(self) -> PartWriter:
        with _os_errors():
            return PartWriter(self._target, str(self._work), self._parts)

    def _entries(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield id, hash and references of each message."""
        self._list.flush()
        self._list.seek(0)
        while entry := self._list.read(_ENTRY):
            yield entry[:_ID], *_REST.unpack_from(entry, _ID)

    def _counts(self) -> Iterator[tuple[bytes, int]]:
        return ((msg_id, references) for msg_id, _, references in self._entries())
