"""Faults in sources and sinks of messages."""

from __future__ import annotations

import time  # noqa: F401 - the tables use it

from msgstore.builtin import plugin as builtin
from msgstore.contract import BrokenPlugin  # noqa: F401 - the tables use it
from msgstore.jobs.messages.json_lines import JsonLinesSink, JsonLinesSource
from mutants import add_mutants

SOURCE = next(one for one in builtin.msgstore_sources() if one.name == "jsonl")
SINK = next(one for one in builtin.msgstore_sinks() if one.name == "jsonl")

add_mutants(SOURCE, JsonLinesSource, r"""
damage-takes-no-positions: damage that is met cannot be made
    _enter: SourceDamage(file=file, => SourceDamage(file,
damage-breaks-the-plugin: damage makes the source fail as a plugin
    _enter: self._damage.append( => raise BrokenPlugin(file) or print(
damage-beyond-the-file: damage is not where it says
    _enter: offset=begin => offset=end
damage-of-no-file: damage names a file that is not there
    _enter: SourceDamage(file=file => SourceDamage(file=file + "x"
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
count-is-short: the last position is not counted
    count > _ - 1
queues-change: another call gives other queues
    queues > _[self.__dict__.setdefault("calls", []).append(1) or len(self.calls) - 1:]
raws-are-always-there: batches have raws without being asked for
    __init__ > self.__dict__.update(_context=__import__("attrs").evolve(context, raw=True))
rewrites-its-file: the file is written again
    close > self._context.path.write_bytes(self._context.path.read_bytes())
leaves-a-lock: a file beside the source is left
    close > self._context.path.with_suffix(".lock").touch()
""")  # fmt: skip

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
one-token: a flush changes the token of the one before
    flush > self.__dict__.setdefault("token", _).update(_) or self.token
zeros-dropped: bodies lose their zeros
    write: (batch) => (attrs.evolve(batch, bodies=[body.replace(b"\0", b"") for body in batch.bodies]))
joins-the-first: further parts are left out
    join: in parts => in parts[:1]
refused-writes: what is asked only is written
    refused > (_, self._file.write(b"x"), self._file.flush())[0]
refused-forgets: the second question has another answer
    refused > [(0, "first")] if not self.__dict__.setdefault("asked", []) and not self.asked.append(1) else _
""")  # fmt: skip
