"""Tests of what a sink makes of queues with any names, and of which messages it refuses. The base of ``SinkTests``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest

from msgstore.contract import QueueName
from msgstore.testing.messages.writing import (
    ALIKE,
    NAMES,
    Destination,
    check_same,
    complete,
    contents,
    flushed,
    full_batch,
    odd_batch,
    sample_batch,
    write,
)
from msgstore.testing.plugin import KitTests, skip_without
from msgstore.testing.probes import open_files
from msgstore.testing.subjects import Subject

Directories = Callable[[str], Destination]


class SinkQueueTests(KitTests):
    kinds = ("sink",)

    @pytest.fixture
    def directory(self, subject: Subject, tmp_path: Path) -> Directories:
        """Function that makes a destination in a new directory of this name."""
        if subject.descriptor.schemes:
            skip_without("a destination that is a path")
        return lambda name: Destination.in_directory(subject, tmp_path / name)

    def test_any_message_is_written_or_refused(self, directory: Directories, tmp_path: Path) -> None:
        """A failure means that a conversion ends with an error at a message without a time, with a value that others have
        not, or in another state than ``ready``, with a number of 64 bits, or a text that is not Unicode; or at a queue whose
        name is not one of a file, or that such a name makes a file beside the destination. Or that ``close`` leaves a file
        open."""
        batch, were_open, place = sample_batch("a", 0, 10), open_files(), directory("one")
        plain = attrs.evolve(batch, timestamps_ms=None, headers=None)
        sink = place.sink()
        for name in NAMES:
            for number, part in enumerate((plain, batch, full_batch(batch))):
                part = attrs.evolve(part, name=name, positions=range(10 * number, 10 * number + 10))
                write(sink, part)
            sink.flush()
        odd = odd_batch(attrs.evolve(batch, name=QueueName("kit", queue="odd"), positions=range(2**40, 2**40 + 10)))
        for row in range(len(batch)):
            write(sink, odd.take([row]))
        complete(sink)
        assert open_files() <= were_open, "close leaves a file open"
        top = place.path.parent
        others = [path for path in tmp_path.rglob("*") if path != top and not str(path).startswith(str(place.path))]
        assert not others, f"it writes beside its destination: {others[0]}"

    def test_no_queue_replaces_another(self, directory: Directories) -> None:
        """A failure means that the messages of a queue are lost if another one has a name that is the same as a path, once
        something in it is left out or replaced: the second is written over the first."""

        def written(where: str, names: Sequence[QueueName]) -> tuple[object, list[QueueName]]:
            """Write a message of each queue. Return what is there then, and the queues whose message was refused."""
            place = directory(where)
            batches = [attrs.evolve(sample_batch("a", 0, 1, repr(name).encode()), name=name) for name in names]
            taken = place.convert(batches)
            return contents(place.path, 2**20), [name for name, batch in zip(names, taken, strict=True) if not len(batch)]

        whole, refused = written("whole", ALIKE)
        for number, name in enumerate(ALIKE):
            without, _ = written(str(number), [other for other in ALIKE if other != name])
            assert name in refused or without != whole, f"the message of the queue {name} is not there beside those of others"

    def test_queues_of_one_name_are_kept_apart(self, directory: Directories) -> None:
        """A failure means that messages of two systems, of two virtual hosts, or of two partitions, whose queues have one name,
        come into one place, as if they were of one queue. Keep them apart, or refuse the second queue, also when the conversion
        continues: the token needs the names then. A sink that leaves out all names of queues may mix them."""
        name, numbers = QueueName("kit", "v", "a"), itertools.count()
        others = [QueueName(*parts) for parts in (
            ("kit", "v", "b"), ("other", "v", "a"), ("kit", "w", "a"), ("kit", None, "a"), ("kit", "v", "a", 0)
        )]  # fmt: skip
        pairs = [(name, other) for other in others]
        pairs.append((QueueName("kit", "v", "1"), QueueName("kit", None, "v", 1)))  # where what is absent leaves no trace
        pairs.append((QueueName("kit", "v"), QueueName("kit", None, "v")))

        def written(names: Sequence[QueueName], continues: bool) -> object:
            """Write a message of each queue. Return what is there then, or None if one was refused."""
            place = directory(str(next(numbers)))
            batches = [
                attrs.evolve(sample_batch("a", row, 1), name=name, ids=[f"{row:032x}"]) for row, name in enumerate(names)
            ]
            return contents(place.path, 2**20) if all(map(len, place.convert(batches, continues=continues))) else None

        for continues, pair, order in itertools.product((False, True), pairs, (1, -1)):
            names = pair[::order]
            alone, found = written((names[0], names[0]), continues), written(names, continues)
            is_mixed = found is not None and found == alone
            if is_mixed and pair == pairs[0]:
                return  # it leaves out all names
            when = "after a continuation, " if continues else ""
            assert not is_mixed, f"{when}{names[0]!r} and {names[1]!r} are one queue"

    def test_refused_says_all(self, directory: Directories) -> None:
        """A failure means that a dry run, which calls ``refused`` only, counts other messages than the conversion, which writes
        what was not refused, and continues now and then: ``write`` refuses, or ``refused`` looks at what was written. Or that a
        conversion of many queues that continues loses some of them."""
        places = [directory(name) for name in ("dry", "whole", "real")]
        dry, whole, real = (place.sink() for place in places)
        names = (*ALIKE, *NAMES, QueueName("other", "v", "a/b"), QueueName("kit", "w", "a/b"))
        for number, name in enumerate((*names, *names[:20])):
            plain = sample_batch("a", 10 * number, 10)
            batch = attrs.evolve(full_batch(plain), name=name, timestamps_ms=plain.timestamps_ms)
            found = [sorted(row for row, _ in sink.refused(batch)) for sink in (dry, whole, real)]
            assert found[0] == found[1] == found[2], f"{name!r}: a dry run refuses the rows {found[0]}, a conversion {found[2]}"
            if len(taken := batch.take([row for row in range(len(batch)) if row not in found[0]])):
                refused = [*whole.write(taken), *real.write(taken)]
                assert not refused, f"{name!r}: write refuses what refused has let pass: {refused[0][1]}"
            if number % 9 == 8:
                whole.flush()
                token = flushed(real)
                real.close()
                real = places[2].sink(token)
        dry.close()
        complete(whole, real)
        check_same(places[2].path, places[1].path)
