"""Job ``diff``: find the messages that only one of two stores, or trees of stores, has, and those whose bodies differ.

``digest`` hashes the bodies of the intact records of one segment, in any process. Of several copies of an id in one store, the
first by rank and offset counts, as in a salvage. Stored bodies are compared, or with codecs what clients read, not record
types or segments.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import attrs

from msgstore.config import Config
from msgstore.contract import BodyCodec, Buffer, CheckBody, ConfigError, PluginError
from msgstore.contract.formats import split_ids
from msgstore.jobs.inputs import JobInputs, SegmentInput, find_inputs
from msgstore.jobs.reading.segment_check import IntactRecords, intact_records, read_intact
from msgstore.jobs.reports import Findings, NotRead
from msgstore.jobs.tasks import ProgressMeter, Run, Task, group_into_tasks, map_segments
from msgstore.jobs.workers import body_check, body_codec, worker_catalogue
from msgstore.option_values import Backend
from msgstore.plugins.catalogue import Catalogue
from msgstore.plugins.known import KNOWN_BODIES
from msgstore.scan import OpenFormat

log = logging.getLogger("msgstore.bulk")

DIGEST = 16
"""Bytes of a BLAKE2b hash. Two different bodies have the same hash with a probability of 2 to the power -128."""
KINDS = ("differing", "only_a", "only_b")


@attrs.frozen
class DiffJob:
    """Picklable. Made and checked by :func:`plan_diff`."""

    a: str
    b: str
    """Paths as given."""
    found_a: JobInputs
    found_b: JobInputs
    body_a: Backend | None = None
    body_b: Backend | None = None
    """Codecs that decode the bodies of each side before they are compared. Both are None, or neither is."""

    @property
    def size(self) -> int:
        """Bytes of the segments."""
        return self.found_a.size + self.found_b.size

    def check_no_writer_since(self) -> None:
        """Raise StoreError if a writer has opened a store of either side since the job was planned."""
        for found in (self.found_a, self.found_b):
            found.check_no_writer_since()


def plan_diff(
    catalogue: Catalogue,
    a: Path,
    b: Path,
    *,
    records: Mapping[str, int] | None = None,
    body: Backend | None = None,
    config: Config | None = None,
) -> DiffJob:
    """Read no segment. ``records`` binds record types beside those that the directories remember. With ``body``, this codec
    decodes the bodies of both sides before they are compared: a codec may store one body in several ways. Without it, stored
    bodies are compared. If the directories of A and of B remember different codecs, each side is decoded by its own instead,
    with the options that ``config`` has for its directories; if one is raw and the other a broker's, stored bodies are.

    Raises StoreError (no segments), StoreLocked, ConfigError (also for a codec without the options that it needs), PluginError.
    """
    found_a, found_b = (find_inputs(catalogue, [path], records=records, offline=True) for path in (a, b))
    body_check(body)
    body_a = body_b = body
    if body is None and _remember_different_codecs(found_a, found_b):
        if all(len(found.codecs) == 1 and not found.unknown for found in (found_a, found_b)):
            body_a, body_b = _own_codec(a, found_a, config), _own_codec(b, found_b, config)
        else:
            log.warning("%s and %s have directories with several body codecs: stored bodies are compared", a, b)
    return DiffJob(str(a), str(b), found_a, found_b, body_a, body_b)


def _remember_different_codecs(a: JobInputs, b: JobInputs) -> bool:
    """Return False also for raw and a broker's codec: a rescued store has a broker's bodies as they were stored, under raw."""
    names = {*a.codecs, *b.codecs}
    return bool(a.codecs and b.codecs) and set(a.codecs) != set(b.codecs) and not names <= {"raw", *KNOWN_BODIES.values()}


def _own_codec(path: Path, found: JobInputs, config: Config | None) -> Backend:
    """Return the codec that the directories of one side remember, with its options. Raises ConfigError, PluginError."""
    (name,) = found.codecs
    codecs: list[Backend] = []
    for directory in sorted({item.store for item in found.inputs}):
        store = config and config.find(Path(directory).resolve())
        codec = store.body if store and store.body.name == name else Backend(name)
        if codec not in codecs:
            codecs.append(codec)
    if len(codecs) > 1 and config:
        raise ConfigError(
            f"{path}: {config.file} has different options of the codec {name!r} for its directories. Compare them one by one"
        )
    codec = codecs[0] if codecs else Backend(name)
    remembered = {kind: distribution for item in found.inputs for kind, distribution in item.distributions}
    try:
        attrs.evolve(worker_catalogue(), remembered=remembered).body_codec(name)
        body_check(codec)
    except (ConfigError, PluginError) as error:
        options = " Options of the codec come from a store in --config FILE." if isinstance(error, ConfigError) else ""
        raise type(error)(
            f"{path}: remembers the body codec {name!r}, and the other side another one, so bodies must be decoded: "
            f"{str(error).rstrip('.')}.{options} To compare stored bodies: --body raw"
        ) from error
    return codec


def digest(item: SegmentInput, body: Backend | None = None) -> IntactRecords:
    """Hash the bodies of one segment. A segment that cannot be read is one damaged span. Raises PluginError."""
    return read_intact(
        item, partial(_with_digests, check_body=body_check(body), codec=None if body is None else body_codec(body))
    )


def _with_digests(
    path: Path, form: OpenFormat, data: Buffer, check_body: CheckBody | None, codec: BodyCodec | None
) -> IntactRecords:
    good, decode = intact_records(path, form, data), form.format.decode
    digests = bytearray()
    for msg_id, offset, size, _ in good.records.rows():
        body, key = decode(msg_id, data[offset : offset + size]), b""
        if codec and check_body and check_body(msg_id, body):  # any other body is compared as it is stored
            body, key = codec.decode(msg_id, body), b"decoded"  # and equals no decoded one
        digests += blake2b(body, digest_size=DIGEST, key=key).digest()
    return attrs.evolve(good, digests=bytes(digests))


# -- the report ---------------------------------------------------------------------------------------------------------------


@attrs.define
class Side(Findings):
    path: str
    segments: int
    size: int
    """Bytes of the segments."""
    messages: int = 0

    @classmethod
    def of(cls, path: str, found: JobInputs) -> Side:
        """Return a side without messages and without the damage in its segments."""
        side = cls(path, len(found.inputs), found.size)
        found.add_to(side)
        return side

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("path", "segments", "size", "messages")},
            "damaged_spans": len(self.damage),
        }


@attrs.define
class DiffReport:
    """Result of a comparison, the same with every runner."""

    a: Side
    b: Side
    same: int = 0
    """Number of messages with the same body in both."""
    ids: dict[str, list[bytes]] = attrs.field(factory=lambda: {kind: [] for kind in KINDS})
    """Sorted ids of the others: ``differing`` bodies, ``only_a``, ``only_b``."""

    @property
    def agrees(self) -> bool:
        """Return True if both sides have the same messages, and no damage that may hide another one."""
        return not (any(self.ids.values()) or self.a.damage or self.b.damage)

    @property
    def not_read(self) -> list[NotRead]:
        """Return the files of both sides that were not read."""
        return [*self.a.not_read, *self.b.not_read]

    def count_messages(self) -> None:
        """Set the number of messages of both sides."""
        both = self.same + len(self.ids["differing"])
        self.a.messages, self.b.messages = both + len(self.ids["only_a"]), both + len(self.ids["only_b"])

    def as_json(self) -> dict[str, Any]:
        counts = {kind: len(found) for kind, found in self.ids.items()}
        return {"kind": "summary", "a": self.a.as_json(), "b": self.b.as_json(), "same": self.same, **counts}

    def rows_as_json(self) -> Iterator[dict[str, Any]]:
        for kind, found in self.ids.items():
            for msg_id in found:
                yield {"kind": kind, "id": msg_id.hex()}


# -- on one machine -----------------------------------------------------------------------------------------------------------


def diff(job: DiffJob, run: Run[Task, list[IntactRecords]], meter: ProgressMeter) -> DiffReport:
    """Execute a job. ``run`` executes the tasks that read segments; ids and hashes of one side are in this process's memory."""
    report = DiffReport(Side.of(job.a, job.found_a), Side.of(job.b, job.found_b))

    def messages(found: JobInputs, side: Side, body: Backend | None) -> Iterator[tuple[bytes, bytes]]:
        for item, good in map_segments(run, partial(digest, body=body), group_into_tasks(found.inputs), meter):
            side.add_damage(item.path, good.damage)
            yield from zip(good.records.id_list(), split_ids(good.digests), strict=True)

    found: dict[bytes, bytes | str] = {}
    """Id to the hash of its first copy in A; once B has the id, to the result."""
    for msg_id, its_hash in messages(job.found_a, report.a, job.body_a):
        found.setdefault(msg_id, its_hash)
    for msg_id, its_hash in messages(job.found_b, report.b, job.body_b):
        theirs = found.setdefault(msg_id, "only_b")
        if isinstance(theirs, bytes):
            found[msg_id] = "same" if theirs == its_hash else "differing"
    for msg_id, result in found.items():
        if result == "same":
            report.same += 1
        else:
            report.ids["only_a" if isinstance(result, bytes) else result].append(msg_id)
    for ids in report.ids.values():
        ids.sort()
    job.check_no_writer_since()
    report.count_messages()
    return report
