"""Benchmark of sources, sinks and layouts beside plain Python loops over the same files: ``python bench/messages.py``.

A loop reads what a program would need, without any check: with ``struct``, one record after the other. For RocketMQ it also
splits the properties. Loops that write do the same and append a record or a line for each message. Times are processor time of
one thread, the best of the rounds; conversions run once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import struct
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
from rich.console import Console
from rich.table import Table

from msgstore.contract import MessageBatch
from msgstore.jobs.messages.conversion_plan import plan_convert
from msgstore.jobs.messages.convert import convert
from msgstore.jobs.messages.selection import select
from msgstore.jobs.messages.sources import open_source, source_spec
from msgstore.jobs.tasks import ProgressMeter
from msgstore.option_values import Backend
from msgstore.plugins.catalogue import load_catalogue
from msgstore_kestrel_journal.records import encode_addx
from msgstore_rocketmq_log import records as v1
from msgstore_rocketmq_log.frame import read_frame
from msgstore_rocketmq_log.reflow import to_v1, to_v2

STORE_MS = 1_700_000_000_000
LEAST = 0.5
"""Speed of a source, compared with that of the loop."""
_ADDX = struct.Struct("<iqq")
_HEAD = struct.Struct(">iIIiiqqiq4siq4siiqi")


@attrs.frozen
class Row:
    """One measured operation."""

    what: str
    size: int
    """Bytes of a body."""
    seconds: float
    messages: int
    ratio: float | None = None
    """Speed, compared with that of the loop or of v1."""
    required: float | None = None

    @property
    def verdict(self) -> str:
        """``met`` or ``MISSED``, with the requirement; empty if there is none."""
        if self.required is None or self.ratio is None:
            return ""
        return f"at least {self.required}: {'met' if self.ratio >= self.required else 'MISSED'}"


def best(call: Callable[[], object], rounds: int) -> float:
    """Return the processor time of the fastest of the rounds."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times)


def read_all(name: str, path: Path) -> int:
    """Read every message by a source."""
    count = 0
    with open_source(source_spec(load_catalogue(), path, Backend(name))) as source:
        for info in source.queues():
            count += sum(len(item) for item in source.messages(info.name, 0, None) if isinstance(item, MessageBatch))
    return count


def kestrel_loop(file: Path) -> list[tuple[int, int, bytes]]:
    data = file.read_bytes()
    at, end, found, read = 0, len(data), [], _ADDX.unpack_from
    while at < end:
        size, added, expiry = read(data, at + 1)
        found.append((added, expiry, data[at + 21 : at + 5 + size]))
        at += 5 + size
    return found


def rocketmq_loop(file: Path) -> list[tuple[int, int, bytes, dict[str, str]]]:
    data = file.read_bytes()
    at, end, found, read = 0, len(data), [], _HEAD.unpack_from
    while at < end:
        fields = read(data, at)
        body_end = at + 88 + fields[-1]
        topic = body_end + 1 + data[body_end]
        text = data[topic + 2 : at + fields[0]].decode()
        pairs = (pair.partition("\x01") for pair in text.split("\x02") if pair)
        found.append((fields[5], fields[11], data[at + 88 : body_end], {name: value for name, _, value in pairs}))
        at += fields[0]
    return found


def kestrel_into_kestrel(file: Path, to: Path) -> None:
    with to.open("wb") as out:
        for added, expiry, body in kestrel_loop(file):
            out.write(b"\2" + _ADDX.pack(16 + len(body), added, expiry) + body)


def kestrel_into_jsonl(file: Path, to: Path) -> None:
    with to.open("w") as out:
        for number, (added, expiry, body) in enumerate(kestrel_loop(file)):
            row = {
                "system": "kestrel", "queue": "queue", "position": number, "size": len(body), "timestamp_ms": added,
                "sha256": hashlib.sha256(body).hexdigest(), "body": b64encode(body).decode(), "expiry_ms": expiry or None,
            }  # fmt: skip
            out.write(json.dumps(row) + "\n")


LOOPS = {"kestrel": kestrel_into_kestrel, "jsonl": kestrel_into_jsonl}
"""Sink to a loop that writes the same."""


def make_kestrel(path: Path, size: int, count: int) -> Path:
    path.mkdir()
    content = (encode_addx(os.urandom(8).ljust(size, b"x"), STORE_MS + number, 0) for number in range(count))
    (path / "queue").write_bytes(b"".join(content))
    return path / "queue"


def make_rocketmq(path: Path, size: int, count: int) -> Path:
    (path / "commitlog").mkdir(parents=True)
    position, records = 0, []
    for number in range(count):
        records.append(rocketmq_record(size, number, position))
        position += len(records[-1])
    file = path / "commitlog" / f"{0:020}"
    file.write_bytes(b"".join(records))
    return file


def rocketmq_record(size: int, number: int, position: int) -> bytes:
    properties = b"UNIQ_KEY\x017F000001000118B4AAC2%08d\x02TAGS\x01TagA\x02colour\x01blue\x02" % number
    return v1.encode(
        body=os.urandom(8).ljust(size, b"x"), topic=b"TopicTest", properties=properties, queue_offset=number,
        physical_offset=position, store_timestamp=STORE_MS + number,
    )  # fmt: skip


def write_all(source: Path, destination: Path, sink: str) -> None:
    options = {"index": False} if sink == "rocketmq" else {}
    job = plan_convert(load_catalogue(), source, str(destination), select(), sink=Backend(sink, options))
    report = convert(job, ProgressMeter(0))
    assert report.total("written") == report.total("selected")


def measure(directory: Path, size: int, count: int, rounds: int) -> list[Row]:
    """Return the rows of one size of bodies."""
    rows = []
    makers = {"kestrel": (make_kestrel, kestrel_loop), "rocketmq": (make_rocketmq, rocketmq_loop)}
    for name, (make, loop) in makers.items():
        path = directory / f"{name}-{size}"
        file = make(path, size, count)
        bare = best(lambda loop=loop, file=file: loop(file), rounds)
        ours = best(lambda name=name, path=path: read_all(name, path), rounds)
        rows += [
            Row(f"{name}: loop", size, bare, count),
            Row(f"{name}: source", size, ours, count, bare / ours, LEAST),
        ]
    for sink in ("jsonl", "parquet", "store", "kestrel", "rocketmq"):
        origin, ratio = directory / f"kestrel-{size}", None
        ours = best(partial(write_all, origin, directory / f"out-{sink}-{size}", sink), 1)
        if (writing := LOOPS.get(sink)) is not None:
            bare = best(partial(writing, origin / "queue", directory / "loop"), rounds)
            rows.append(Row(f"kestrel into {sink}: loop", size, bare, count))
            ratio = bare / ours
        rows.append(Row(f"kestrel into {sink}", size, ours, count, ratio))
    return rows + measure_layouts(size, min(count, 20_000), rounds)


def measure_layouts(size: int, count: int, rounds: int) -> list[Row]:
    """Return what v2 costs beside v1: RIP-47 promises almost no overhead."""
    first = [rocketmq_record(size, number, 0) for number in range(count)]
    second = [to_v2(record).encode() for record in first]
    frames = [read_frame(record) for record in second]

    def decode_v1() -> None:
        for record in first:
            v1.decode(record, check_crc=True)

    def decode_v2() -> None:
        for record in second:
            frame = read_frame(record)
            assert not isinstance(frame, str)
            frame.header()

    def encode_v1() -> None:
        for number in range(count):
            rocketmq_record(size, number, 0)

    decoded, encoded = best(decode_v1, rounds), best(encode_v1, rounds)
    rows = [Row("v1: decode", size, decoded, count), Row("v1: encode", size, encoded, count)]
    for what, call, against in (
        ("v2: decode", decode_v2, decoded),
        ("v2: v1 to v2, encoded", lambda: [to_v2(record).encode() for record in first], encoded),
        ("v2: reflow to v1", lambda: [to_v1(frame) for frame in frames if not isinstance(frame, str)], encoded),
    ):
        seconds = best(call, rounds)
        rows.append(Row(what, size, seconds, count, against / seconds))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000, help="messages of each input")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    console = Console(width=120)
    console.print(
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}; {arguments.messages:,} messages"
    )
    table = Table("body", "what", "messages/s", "MB/s", "speed / that of the loop, or of v1", "required")
    with tempfile.TemporaryDirectory() as directory:
        for size in (100, 1024):
            for row in measure(Path(directory), size, arguments.messages, arguments.rounds):
                speed = row.messages / row.seconds
                ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
                table.add_row(f"{size:,} B", row.what, f"{speed:,.0f}", f"{speed * size / 1e6:,.0f}", ratio, row.verdict)
            table.add_section()
    console.print(table)


if __name__ == "__main__":
    main()
