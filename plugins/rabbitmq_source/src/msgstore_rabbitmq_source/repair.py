"""A copy of a node on which the broker that wrote it boots again, without what is damaged.

RabbitMQ stops to read a segment at the first record that does not fit, and fails at an index entry or a message that it cannot
decode. In the copy, each damaged segment is written anew from the messages that can be read, and a damaged index from its other
entries; an entry whose message cannot be read is acknowledged. Without the files of a clean stop, the broker recovers as after
a crash, and drops entries whose message is in no store.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import attrs

from msgstore.contract import Buffer, SourceDamage, StoreError
from msgstore_rabbitmq_source.layout import (
    JOURNAL,
    NUMBERED,
    QUEUE_NAME,
    RECOVERY,
    VHOST_CONFIG,
    VHOST_NAME,
    VhostFiles,
    joined,
)
from msgstore_rabbitmq_source.node import NO_JOURNAL
from msgstore_rabbitmq_source.queue_index import SEGMENT_NUMBERS, LiveEntry, read_index, right_header
from msgstore_rabbitmq_source.shared_store import SharedStore, segment_formats
from msgstore_rabbitmq_source.source import RabbitmqSource
from rabbitmq_files import index_v1, index_v2, names
from rabbitmq_files.messages import MessageError, read_message

CLEAN_FILES = ("clean.dot", "file_summary.ets", "msg_store_index.ets")
"""Files of a message store that the broker trusts after a clean stop."""
Damage = dict[str, list[SourceDamage]]
"""By file."""
_WRITE_BYTES = 4 * 2**20


def repair_node(source: RabbitmqSource, node: Path, copy: Path) -> list[str]:
    """Make the copy, and return what is different in it. Raises StoreError, OSError; then there is no copy."""
    if copy.exists():
        raise StoreError(f"{copy}: exists. Name a new directory.")
    if copy.resolve().is_relative_to(node.resolve()):
        raise StoreError(f"{copy}: is in {node}, in which nothing is written. Name a directory elsewhere.")
    for place, reason in source.node.files.skipped:  # the copy would share it with the node, or lack it
        raise StoreError(f"{node / place}: cannot be copied: {reason}")
    staging = copy.with_name(f".{copy.name}.msgstore-repair")
    if staging.exists():
        raise StoreError(f"{staging}: a repair is running, or one was interrupted. Delete it if none runs.")
    try:
        try:
            shutil.copytree(node, staging)
        except shutil.Error as error:  # a list of all that failed
            (file, _, reason), *others = error.args[0]
            more = f", and {len(others):,} other files" if others else ""
            raise StoreError(f"{file}: cannot be copied{more}: {reason}") from error
        changes = list(Repair(source, staging).changes())
        for directory, _, files in os.walk(staging, topdown=False):
            for name in files:
                _sync(Path(directory, name))
            _sync(Path(directory))
        staging.rename(copy)
        _sync(copy.parent)
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(staging)
        raise
    return changes


def _sync(path: Path) -> None:
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@attrs.frozen
class Repair:
    """Repairs a copy that is equal to the node of ``source``."""

    source: RabbitmqSource
    copy: Path

    def changes(self) -> Iterator[str]:
        """Repair, and yield what is changed."""
        damage: Damage = defaultdict(list)
        for info in list(self.source.queues()):
            for item in self.source.messages(info.name, 0, None) if info.read else ():
                if isinstance(item, SourceDamage):
                    damage[item.file].append(item)
        for vhost in self.source.node.files.vhosts.values():
            yield from self._names(vhost)
            changes = [*self._stores(vhost, damage), *self._queues(vhost, damage)]
            yield from changes
            if changes:
                yield from self._recover(vhost)

    def _names(self, vhost: VhostFiles) -> Iterator[str]:
        """Write the files that say names, where they are missing."""
        name = self.source.node.vhost_names[vhost.directory]
        if vhost.is_hashed and name is not None and not (self.copy / vhost.path(VHOST_NAME)).exists():
            (self.copy / vhost.path(VHOST_NAME)).write_bytes(name)
            yield f"{vhost.path(VHOST_NAME)}: written, as it was missing"
        config = self.copy / vhost.path(VHOST_CONFIG)
        is_used = any(name.endswith((".idx", ".jif")) for files in vhost.queues.values() for name in files)
        if vhost.is_hashed and is_used and (not config.exists() or names.read_segment_entries(config.read_bytes()) is None):
            config.write_text(f"{{segment_entry_count, {self.source.node.segment_entries(vhost)}}}.\n")
            yield f"{vhost.path(VHOST_CONFIG)}: written, as it was missing or damaged"
        for part in self.source.node.directories(vhost):
            place = joined(part.directory, QUEUE_NAME)
            if vhost.is_hashed and part.queue is not None and part.vhost is not None and not (self.copy / place).exists():
                queue = part.queue if part.priority is None else names.sub_queue(part.queue, part.priority)
                (self.copy / place).write_bytes(names.encode_queue_name(part.vhost, queue, part.version))
                yield f"{place}: written, as it was missing"

    def _stores(self, vhost: VhostFiles, damage: Damage) -> Iterator[str]:
        """Write damaged segments anew."""
        for store, segments in vhost.stores.items():
            for segment in (joined(store, name) for name in segments):
                if segment in damage:
                    kept, left = self._segment(self.source.node.store(vhost), segment)
                    without = f", without {left:,} that cannot be read" if left else ""
                    yield f"{segment}: written anew with {kept:,} messages{without}"

    def _queues(self, vhost: VhostFiles, damage: Damage) -> Iterator[str]:
        for directory, files in vhost.queues.items():
            if any(joined(directory, name) in damage for name in files):
                yield from self._queue(vhost, directory, damage)

    def _recover(self, vhost: VhostFiles) -> Iterator[str]:
        """Have the broker recover the vhost as after a crash: its tables are of the files before the repair."""
        tables = [joined(store, name) for store in vhost.stores for name in CLEAN_FILES]
        for place in [*tables, vhost.path(RECOVERY)]:
            if (self.copy / place).exists():
                (self.copy / place).unlink()
                yield f"{place}: deleted, so that the broker reads the segments and indexes"

    def _segment(self, shared: SharedStore, segment: str) -> tuple[int, int]:
        """Write one segment. Return the messages in it, and those that cannot be read."""
        form = segment_formats()[PurePosixPath(segment).suffix]
        ids, bodies, held, kept, left = list[bytes](), list[bytes](), 0, 0, 0
        with (self.copy / segment).open("r+b") as file:
            file.truncate(0)
            file.write(form.header)
            for msg_id, place in shared.places(segment):
                data = shared.read(place)
                try:
                    _, end = read_message(data)
                except MessageError:
                    left += 1
                    continue
                ids.append(msg_id)
                bodies.append(data[:end])
                held += end
                kept += 1
                if held >= _WRITE_BYTES:
                    file.write(form.encode(ids, bodies)[0])
                    ids, bodies, held = [], [], 0
            file.write(form.encode(ids, bodies)[0])
        return kept, left

    def _queue(self, vhost: VhostFiles, directory: str, damage: Damage) -> Iterator[str]:
        """Write a damaged index anew, and empty entries whose message cannot be read."""
        files = vhost.queues[directory]
        unread = {(span.file, span.offset) for name in files for span in damage[joined(directory, name)] if span.messages}
        if any(name.endswith((".idx", ".jif")) and damage[joined(directory, name)] for name in files):
            yield from self._index_v1(vhost, directory, unread)
        if any(span.reason == NO_JOURNAL for span in damage[joined(directory, QUEUE_NAME)]):
            (self.copy / directory / JOURNAL).touch()
            yield f"{joined(directory, JOURNAL)}: written empty, as it was missing"
        for name in sorted(files):
            place, match = joined(directory, name), NUMBERED.fullmatch(name)
            if match and match[2] == "qi":
                size = (self.copy / place).stat().st_size
                yield from self._index_v2(place, int(match[1]))
                yield from self._empty_entries(place, sorted(span.offset for span in damage[place] if span.messages))
                if any(span.offset == size for span in damage[place]):
                    yield from self._lost_end(vhost, place)
            elif match and match[2] == "qs":
                yield from self._stored(place, int(match[1]))
                if f"{match[1]}.qi" not in files:
                    yield from self._lost_index(place)
        for entry in self.source.node.entries(vhost, directory):
            if not isinstance(entry, LiveEntry) or (entry.file, entry.offset) not in unread or entry.sequence is None:
                continue
            if entry.file.endswith(".qs"):
                index = str(PurePosixPath(entry.file).with_suffix(".qi"))
                first = index_v2.read_index((self.copy / index).read_bytes()).first
                offset = index_v2.HEADER_SIZE + (entry.sequence - first) * index_v2.ENTRY_SIZE
                yield from self._empty_entries(index, [offset])

    def _index_v1(self, vhost: VhostFiles, directory: str, unread: set[tuple[str, int]]) -> Iterator[str]:
        """Write the segments of an index anew with the entries that can be read, and empty the journal."""
        for name in vhost.queues[directory]:
            if name.endswith((".idx", ".jif")):
                os.truncate(self.copy / joined(directory, name), 0)
        count, kept, left = self.source.node.segment_entries(vhost), 0, 0
        last = ""
        data: Buffer = b""
        for entry in self.source.node.entries(vhost, directory):
            if isinstance(entry, SourceDamage) or entry.sequence is None or not entry.file.endswith((".idx", ".jif")):
                continue
            if (entry.file, entry.offset) in unread:
                left += 1
                continue
            kept += 1
            if entry.file != last:
                last, data = entry.file, self.source.node.context.read(entry.file)
            term = data[entry.term_offset : entry.term_offset + entry.term_size]
            body = index_v1.encode_body(entry.msg_id, entry.body_size or 0, term, entry.expiry_us)
            segment, number = divmod(entry.sequence, count)
            publish = index_v1.encode_publish(number, body, is_persistent=entry.is_persistent)
            with (self.copy / joined(directory, f"{segment}.idx")).open("ab") as file:
                file.write(publish + index_v1.encode_mark(number))
        yield f"{directory}: the index is written anew with {kept:,} messages" + (f", without {left:,}" if left else "")

    def _index_v2(self, place: str, number: int) -> Iterator[str]:
        data = (self.copy / place).read_bytes()
        found, can_be_used = read_index(data, number)
        store = str(PurePosixPath(place).with_suffix(".qs"))
        if can_be_used and not data[: index_v2.HEADER_SIZE].strip(b"\0") and (self.copy / store).exists():
            yield from self._lost_index(store)
            return
        for offset, size, _ in found.damage:
            if offset == 0 and can_be_used:
                change_bytes(self.copy / place, 0, right_header(index_v2.INDEX_MAGIC, number))
                yield f"{place}: the header is written anew"
                continue
            if offset == 0:
                (self.copy / place).unlink()
                yield f"{place}: deleted, as its header is damaged"
                if (self.copy / place).with_suffix(".qs").exists():
                    yield from self._lost_index(str(PurePosixPath(place).with_suffix(".qs")))
                return
            if offset + size == len(data) and size < index_v2.ENTRY_SIZE:
                os.truncate(self.copy / place, offset)
            else:
                change_bytes(self.copy / place, offset, bytes(size))
            yield f"{place}: the entry at {offset:,} is empty now, as it is damaged"

    def _stored(self, place: str, number: int) -> Iterator[str]:
        data = (self.copy / place).read_bytes()
        if len(data) >= index_v2.HEADER_SIZE and index_v2.header_damage(data, index_v2.STORE_MAGIC):
            change_bytes(self.copy / place, 0, right_header(index_v2.STORE_MAGIC, number))
            yield f"{place}: the header is written anew"

    def _lost_index(self, store: str) -> Iterator[str]:
        """Write the index of a ``.qs`` file: with every message in it, acknowledged or not."""
        data = (self.copy / store).read_bytes()
        number = int(PurePosixPath(store).stem)
        first = number * SEGMENT_NUMBERS
        header = index_v2.encode_header(index_v2.INDEX_MAGIC, first, first + SEGMENT_NUMBERS)
        entries = list(_entries(data, index_v2.walk_stored(data)))
        index = PurePosixPath(store).with_suffix(".qi")
        (self.copy / index).write_bytes(header + b"".join(entries[:SEGMENT_NUMBERS]))
        yield f"{index}: written with the {len(entries):,} messages of {PurePosixPath(store).name}, as it was lost"

    def _lost_end(self, vhost: VhostFiles, index: str) -> Iterator[str]:
        """Add the entries behind which an index was cut: of every message there in ``.qs``, acknowledged or not."""
        store = str(PurePosixPath(index).with_suffix(".qs"))
        found = self.source.node.entries(vhost, str(PurePosixPath(index).parent))
        behind = [one for one in found if isinstance(one, LiveEntry) and one.file == store and one.is_unsure]
        places = [(one.offset, one.term_size) for one in behind]
        with (self.copy / index).open("ab") as file:
            slots = SEGMENT_NUMBERS - (file.tell() - index_v2.HEADER_SIZE) // index_v2.ENTRY_SIZE
            entries = list(_entries((self.copy / store).read_bytes(), places))[:slots]
            file.write(b"".join(entries))
        yield f"{index}: the entries of {len(entries):,} messages are added, as its end was lost"

    def _empty_entries(self, index: str, offsets: list[int]) -> Iterator[str]:
        """Empty entries of index v2, as an acknowledgement does."""
        for offset in offsets if (self.copy / index).exists() else ():
            change_bytes(self.copy / index, offset, bytes(index_v2.ENTRY_SIZE))
            yield f"{index}: the entry at {offset:,} is empty now, as its message cannot be read"


def _entries(stored: bytes, places: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Yield entries of index v2 for the messages at these offsets of ``.qs``, with these sizes, as far as they can be read."""
    for offset, size in places:
        with suppress(index_v2.StoredError, MessageError):
            term, _ = index_v2.read_stored(stored, offset, size)
            message, _ = read_message(stored, term)
            body_size = len(message.body) if message.indexed_size is None else message.indexed_size
            yield index_v2.encode_own(offset, size, body_size, is_persistent=message.is_persistent)


def change_bytes(file: Path, offset: int, new: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(new)
