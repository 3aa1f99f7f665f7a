"""Tests of a source and a sink of the same name together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from msgstore.contract import MessageBatch, SinkContext
from msgstore.jobs.messages.sources import SourceSpec, open_source
from msgstore.option_values import Backend
from msgstore.testing.messages.reading import TIME_ZONES
from msgstore.testing.messages.writing import NEAR, complete, sample_batch, write
from msgstore.testing.plugin import KitTests, skip_without
from msgstore.testing.probes import in_zone
from msgstore.testing.subjects import Subject


class RoundTripTests(KitTests):
    """A source and the sink of the same name."""

    kinds = ("source", "sink")

    def test_the_source_reads_what_the_sink_writes(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that the source gives other bodies than the sink was given, as it does if an example has a limit that
        bodies of 1 MiB exceed. Or that a message comes back with the time or a header of another one, or with a time of another
        time zone. Or that a queue has to fit into memory: many large bodies come in one batch."""
        other = "sink" if subject.kind == "source" else "source"
        if subject.name not in subject.catalogue.names(other):
            skip_without(f"a {other} of the same name")
        descriptor = getattr(subject.catalogue, other)(subject.name)
        mate = attrs.evolve(subject, kind=other, descriptor=descriptor, options=dict(descriptor.examples[0]))
        source, writer = (subject, mate) if other == "sink" else (mate, subject)
        if writer.descriptor.schemes:
            skip_without("a destination that is a path")
        place = tmp_path / "content"
        options = writer.made_options
        sink = writer.make(SinkContext(destination=str(place), target=str(tmp_path / "target"), options=options))
        given = [*NEAR, *(bytes([number]) * 2**20 for number in range(17))]
        plain = sample_batch("a", 0, len(given))
        times = [1_700_000_000_000 + 3_600_000 * row if row % 3 else None for row in range(len(given))]
        with in_zone(TIME_ZONES[0]):
            batch = write(sink, attrs.evolve(plain, bodies=given, timestamps_ms=times))
            sink.flush()
        complete(sink)
        spec = SourceSpec(str(place), Backend(source.name, source.options), 0, False)
        with open_source(spec, source.catalogue) as opened:
            items = [item for info in opened.queues() for item in opened.messages(info.name, 0, None)]
        found = [item.bodies for item in items if isinstance(item, MessageBatch)]
        is_same = sorted(body for bodies in found for body in bodies) == sorted(batch.bodies)
        assert is_same, "the source gives other bodies than the sink was given. All examples have to allow bodies of 1 MiB"
        wanted = {body: (was, headers["number"]) for body, was, headers in columns_of(batch) if headers}
        for item in items:
            for body, time, headers in columns_of(item) if isinstance(item, MessageBatch) else ():
                was, number = wanted[body]
                is_same = time is None or was is None or abs(time - was) < 60_000
                assert is_same, f"the time of a message is {time} instead of {was}"
                assert (headers or {}).get("number", number) == number, "a message has a header of another one"
        largest = max(sum(map(len, bodies)) for bodies in found)
        assert largest <= 12 * 2**20, f"a batch has {largest:,} bytes"


def columns_of(batch: MessageBatch) -> Iterator[tuple[bytes, int | None, Any]]:
    nothing = [None] * len(batch)
    return zip(batch.bodies, batch.timestamps_ms or nothing, batch.headers or nothing, strict=True)
