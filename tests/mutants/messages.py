"""Faults in sources and sinks of messages."""

from __future__ import annotations

import re
import time  # noqa: F401 - the tables use it
from contextlib import suppress
from datetime import UTC, datetime  # noqa: F401 - the tables use it
from pathlib import Path

import attrs

from msgstore.builtin import plugin as builtin
from msgstore.contract import BrokenPlugin, QueueInfo, QueueName, SourceDamage  # noqa: F401 - the tables use it
from msgstore.jobs.messages.files_sink import FilesSink
from msgstore.jobs.messages.json_lines import JsonLinesSink, JsonLinesSource, detect
from msgstore_kestrel_journal import plugin as kestrel
from msgstore_kestrel_journal.source import KestrelSource
from msgstore_rabbitmq_source import plugin as rabbitmq
from msgstore_rabbitmq_source.source import RabbitmqSource
from msgstore_rocketmq_log import plugin as rocketmq
from msgstore_rocketmq_log.source import RocketmqSource
from mutants import add_mutants

SOURCE = next(one for one in builtin.msgstore_sources() if one.name == "jsonl")
SINK, FILES = (next(one for one in builtin.msgstore_sinks() if one.name == name) for name in ("jsonl", "files"))
TORN = b'{"system": "sample", "queue": "q0", "body": ""}'


def reserve_first(content):
    number = re.search(rb"\d+", bytes(content[:2000]))
    bytearray(int(number[0]) if number and len(number[0]) == 8 else 0)


SHARED = {}

add_mutants(SOURCE, JsonLinesSource, r"""
a-queue-is-one-batch: all bodies of a queue are in memory at once
    messages: held >= _BATCH => False
damage-takes-no-positions: damage that is met cannot be made
    _found: SourceDamage(file=file, => SourceDamage(file,
damage-grows: each call of queues adds the damage again
    queues > (_, self._damage.extend(self._damage))[0]
damage-breaks-the-plugin: damage makes the source fail as a plugin
    _found: damage.append( => raise BrokenPlugin(file) or print(
damage-beyond-the-file: damage is not where it says
    _found: offset=begin => offset=end
damage-of-no-file: damage names a file that is not there
    _found: SourceDamage(file=file => SourceDamage(file=file + "x"
records-without-a-size: the record of each message has no byte
    messages: "size": len(line) => "size": 0
records-reach-too-far: a record reaches into the next
    messages: "size": len(line) => "size": len(line) + 1
records-of-no-file: the file of a record is not relative to the source's path
    messages: "file": self._names[queue.files[at]] => "file": self._context.path.name
positions-begin-at-zero: each call numbers its messages from 0
    messages: held, begin = 0, first => held, begin = 0, 0
positions-move: behind damage, the positions of a range are others than those of all
    messages: held, begin = 0, first => held, begin = 0, first + bool(self._damage and first)
asks-the-clock: messages depend on the clock of the machine
    messages > [item for item in _ if time.time() > 0]
queues-of-a-set: another process gives the queues in another order
    queues > sorted(_, key=lambda info: hash(info.name))
lost-in-silence: a wrong line costs all messages, and nothing says so
    queues > [] if self._damage else _
    damage > []
stop-is-too-late: the message at the end of a range is read, too
    messages: min(stop, len(queue.begins)) => min(stop + 1, len(queue.begins))
count-is-short-in-damage: beside damage, the last position is not counted
    count > _ - bool(self._damage)
count-is-short: the last position is not counted
    count > _ - 1
queues-change: another call gives other queues
    queues > _[self.__dict__.setdefault("calls", []).append(1) or len(self.calls) - 1:]
first-queue-for-all: each queue has the messages of the one that was read first
    messages: self._found()[name] => self._found()[self.__dict__.setdefault("first", name)]
nothing-in-1970: which messages there are depends on the time by which they expire
    messages > [item for item in _ if self._context.now_ms]
torn-is-a-message: a line that is cut off becomes a message
    _parsed: parse_line(line, => parse_line(line if line[-1:] == b"\n" else TORN,
raws-are-always-there: batches have raws without being asked for
    __init__ > self.__dict__.update(_context=__import__("attrs").evolve(context, raw=True))
rewrites-its-file: the file is written again
    close > self._context.path.write_bytes(self._context.path.read_bytes())
leaves-a-lock: a file beside the source is left
    close > self._context.path.with_suffix(".lock").touch()
leaves-a-file-open: close does not close a file
    _found > (_, self.__dict__.setdefault("left", self._context.path.open()))[0]
torn-in-silence: a line that is cut off is no damage
    _found: damage.append( => line.endswith(b"\n") and damage.append(
nothing-at-the-end: the position after the last message is an error
    messages: held, begin = 0, first => held, begin = 0 * queue.begins[first], first
queue-comes-twice: a queue is there twice
    queues > _ * 2
needs-bytes: a file is never mapped
    _found: content.find => content.startswith and content.find
one-reader-at-a-time: a queue that is read in the midst of another ends it
    messages: held >= _BATCH => held
    messages > (item for run in [self.__dict__.update(run=name)] for item in _ if self.run == name)
unread-without-a-reason: a part is not read, and nobody says why
    queues > [*_, QueueInfo(name=QueueName("jsonl", queue="more"), read=False)]
believes-a-count: memory is taken for the first number of the file, if it is large
    queues > (_, reserve_first(self._context.read("")))[0]
junk-costs-all: something behind the last line costs all messages, and nothing says so
    messages > [] if self._damage and self._context.read("")[-3:] == b"nnn" else _
    damage > []
one-file-of-two: of two files with one name before their first dots, one is read
    __init__ > self.__dict__.update(_names=[*{name.split(".")[0]: name for name in self._names}.values()])
one-memory-for-all: objects share what they have read, whatever their paths
    _content > SHARED.setdefault(number, _)
    close > SHARED.clear()
counts-each-line: the file is read again for each of its lines
    _found: line = content[begin:end] => line = content[begin:end] if content[:].count(content[begin:end]) else b""
whole-file-each-time: each range of positions reads the file again
    messages: queue = => self._queues = None; queue =
""")  # fmt: skip


def cut_last(part):
    path = Path(part)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    return part


add_mutants(SINK, JsonLinesSink, r"""
keeps-what-came-later: what was written after the last flush is kept
    __init__: context.token["size"] if context.token else 0 => self._file.tell()
forgets-what-was-flushed: a conversion that continues begins with nothing
    __init__: context.token["size"] if context.token else 0 => 0
flush-has-an-old-size: the last byte before a flush is not in its token
    flush > {"size": max(_["size"] - 1, 0)}
joins-backwards: parts are joined in the reverse order
    join: in parts => in reversed(parts)
joins-by-name: parts are joined in the order of their names
    join: in parts => in sorted(parts)
join-raises-key-error: a part that is not there makes a join raise another error than StoreError or OSError
    join: Path(part).open("rb") => {True: Path(part)}[Path(part).exists()].open("rb")
flush-without-sync: a flush does not wait for the disk
    flush: os.fsync(self._file.fileno()) => pass
syncs-too-early: a flush syncs before the last bytes are written
    flush: self._file.flush() => os.fsync(self._file.fileno())
    flush > (_, self._file.flush())[0] and {"size": self._file.tell()}
deep-token: a flush changes what is in the token of the one before
    flush > self.__dict__.setdefault("deep", {"size": 0, "of": [0]}).update(_) or self.deep["of"].append(1) or {**self.deep}
one-token: a flush changes the token of the one before
    flush > self.__dict__.setdefault("token", _).update(_) or self.token
zeros-dropped: bodies lose their zeros
    write: (batch) => (attrs.evolve(batch, bodies=[body.replace(b"\0", b"") for body in batch.bodies]))
bodies-are-quoted: its source reads other bodies
    write: (batch) => (attrs.evolve(batch, bodies=[b"'%s'" % body for body in batch.bodies]))
joins-the-first: further parts are left out
    join: in parts => in parts[:1]
joins-cut-parts: a part of one message that is not complete is joined without its end
    finish > (self._file.write(b"{}\n"), self._file.flush())
    join: in parts => in [cut_last(part) for part in parts]
times-of-the-next: a message has the time of the next one
    write: (batch) => (attrs.evolve(batch, timestamps_ms=batch.timestamps_ms and [*batch.timestamps_ms[1:], None]))
refused-writes: what is asked only is written
    refused > (_, self._file.write(b"x"), self._file.flush())[0]
refused-forgets: the second question has another answer
    refused > [(0, "first")] if not self.__dict__.setdefault("asked", []) and not self.asked.append(1) else _
""")  # fmt: skip

add_mutants(rabbitmq.msgstore_sources()[0], RabbitmqSource, r"""
one-entry-too-many: the entry of a shared body at the end of a range is given, too
    shared_entries: , stop) => , stop and stop + 1)
""")  # fmt: skip


def sync_once(self, files, directory):
    known = self.__dict__.setdefault("known", set())
    if directory not in known:
        known.add(directory)
        files.sync_directory(directory)


add_mutants(FILES, FilesSink, r"""
each-directory-once: a directory is synced at the first flush only that has something in it
    flush: files.sync_directory(directory) => sync_once(self, files, directory)
joins-nothing: a part that is not there is joined as one without messages
    join: if not part.is_dir(): => if False:
queue-replaces-queue: what a queue has is replaced by that of another with a similar name
    write: where = directory_of(batch.name) => where = directory_of(batch.name).replace("%2F", "_")
dots-join-names: virtual host and queue are joined by a dot, which both may have
    write: where = directory_of(batch.name) => where = f"{batch.name.vhost}.{batch.name.queue}".replace("/", "%2F")[:200]
names-have-characters: the length of a name is counted in characters, before it is that of a directory
    refused: where.split("/") => str(batch.name).split("/")
checks-the-directory-only: files that were flushed and are gone, or are not as they were, are not missed
    _discard: if changed := => if False and
queues-of-one-name: queues of one name, of two virtual hosts, become one
    refused: directory_of(batch.name), "" => directory_of(attrs.evolve(batch.name, vhost=None)), ""
    refused: != batch.name => and False
    write: where = directory_of(batch.name) => where = directory_of(attrs.evolve(batch.name, vhost=None))
token-has-few-queues: of many queues, the token has the last ones
    flush > {**_, "ends": dict([*_["ends"].items()][-20:]), "bytes": dict([*_["bytes"].items()][-20:])}
forgets-owners: a conversion that continues does not know which queue of two systems has a directory
    flush: "owners": owners => "owners": {}
keeps-other-files: files that were written after the token stay, if nothing replaces them
    _discard = lambda self: None
""")  # fmt: skip


def reserve(journal):
    at = 0
    while at + 5 <= len(journal) and (size := int.from_bytes(journal[at + 1 : at + 5], "little", signed=True)) >= 0:
        bytearray(size)
        at += 5 + size


add_mutants(kestrel.msgstore_sources()[0], KestrelSource, r"""
raws-have-other-times: with raw records, the times of messages are left out
    _batch > attrs.evolve(_, timestamps_ms=None) if _.raws else _
times-without-a-sign: times are read as numbers without a sign
    _batch: timestamps_ms=found.add_ms => timestamps_ms=[at % 2**64 for at in found.add_ms]
times-are-local: times are read as those of the time zone of the machine
    _batch: timestamps_ms=found.add_ms => timestamps_ms=[at + time.localtime(at / 1000).tm_gmtoff * 1000 for at in found.add_ms]
times-in-seconds: times are seconds
    _batch: timestamps_ms=found.add_ms => timestamps_ms=[at // 1000 for at in found.add_ms]
nothing-expires: no message has expired at any time
    _batch: 0 != at < replay.now_ms => 0 != at < 0
expires-as-it-likes: a message that expires has expired at any time
    _batch: 0 != at < replay.now_ms => 0 != at
whole-paths: files of records are not relative to the path of the source
    _path > str(self._context.path / _)
stops-at-a-file: an error of the disk in one file ends the command
    messages: error.errno not in _UNREADABLE => True
hides-pipes: a pipe in place of a file is not named
    messages: name=name) for now in odd => name=name) for now in ()
believes-a-size: memory is taken for what a record claims to have
    _replay: found = => [reserve(journal) for journal in journals]; found =
""")  # fmt: skip


def once(self, item):
    said = self.__dict__.setdefault("said", set())
    return not (item in said or said.add(item))


add_mutants(rocketmq.msgstore_sources()[0], RocketmqSource, r"""
damage-is-said-once: the damage of a queue is yielded at the first call only
    messages > (item for item in _ if not isinstance(item, SourceDamage) or once(self, item))
needs-queues-first: messages are there only after a call of queues
    messages: self._found()[key] => self._queues[key]
""")  # fmt: skip


def detect_by_name(path):
    return detect(path) if path.suffix == ".jsonl" and path.open() else None


def detect_by_reading(path):
    return detect(path) if path.suffix == ".jsonl" and path.is_file() and path.read_bytes() else None


def flush_anyway(file):
    with suppress(OSError):
        file.flush()


add_mutants(SOURCE, JsonLinesSource, r"""
detect-opens-anything: detect fails for a directory with the name of a file
""", detect="mutants.messages:detect_by_name")  # fmt: skip

add_mutants(SOURCE, JsonLinesSource, r"""
detect-reads-all: detect reads whole files
""", detect="mutants.messages:detect_by_reading")  # fmt: skip


def same_in_all(name):
    return attrs.evolve(name, system="kit", vhost=None)


add_mutants(SINK, JsonLinesSink, r"""
one-name-is-one-queue: queues of one name, of two systems or virtual hosts, become one
    write: (batch) => (attrs.evolve(batch, name=same_in_all(batch.name)))
write-refuses-names: a name that is not one of a file is refused by write, and not by refused
    write > [(0, "name")] if "%" in str(batch.name) else _
times-are-dates: a time that is no date is an error
    write: self._file => [datetime.fromtimestamp((at or 0) / 1000, UTC) for at in batch.timestamps_ms or ()], self._file
refused-looks-at-the-file: refused looks at what was written
    refused > [(0, "full")] if self._file.tell() > 5000 else _
refused-positions: what is refused are positions
    refused > [(at, "a text") for at, body in zip(batch.positions, batch.bodies) if body[:4] == b"text"]
write-returns-nothing: write returns None
    write > None
needs-times: a batch without times is an error
    write: self._file => batch.timestamps_ms[0], self._file
knows-what-is-ready: messages in other states are an error
    write: self._file => [{"ready": 0}[state] for state in batch.states], self._file
fills-what-is-lost: a file that has lost its end since the flush is made longer
    __init__: context.check_kept( => print(
disk-is-full: a flush ignores that the disk is full
    flush: self._file.flush() => flush_anyway(self._file)
stays-open: close does not close the file
    close > self.__dict__.setdefault("left", []).append(open("/dev/null"))
""")  # fmt: skip

add_mutants(FILES, FilesSink, r"""
name-is-a-path: the name of a queue is taken as a path
    write: where = directory_of(batch.name) => where = str(batch.name.queue)
""")  # fmt: skip
