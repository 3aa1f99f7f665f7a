"""Tests of what a sink makes of queues with any names, and of which messages it refuses. The base of ``SinkTests``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from msgstore.contract import QueueName, SinkContext
from msgstore.jobs.messages.checked import CheckedSink
from msgstore.testing.messages.writing import (
    ALIKE,
    NAMES,
    accepted,
    check_same,
    complete,
    contents,
    full_batch,
    odd_batch,
    sample_batch,
)
from msgstore.testing.plugin import KitTests, skip_without
from msgstore.testing.probes import open_files
from msgstore.testing.subjects import Subject


class SinkQueueTests(KitTests):
    kinds = ("sink",)

    @pytest.fixture
    def place(self, subject: Subject, tmp_path: Path) -> Path:
        if subject.descriptor.schemes:
            skip_without("a destination that is a path")
        (tmp_path / "one").mkdir()
        return tmp_path / "one" / "content"

    def test_any_message_is_written_or_refused(self, subject: Subject, place: Path, tmp_path: Path) -> None:
        """A failure means that a conversion ends with an error at a message without a time, with a value that others have
        not, or in another state than ``ready``, with a number of 64 bits, or a text that is not Unicode; or at a queue whose
        name is not one of a file, or that such a name makes a file beside the destination. Or that ``close`` leaves a file
        open."""
        batch, were_open = sample_batch("a", 0, 10), open_files()
        plain = attrs.evolve(batch, timestamps_ms=None, headers=None)
        sink = self._sink(subject, place, None)
        for name in NAMES:
            for number, part in enumerate((plain, batch, full_batch(batch))):
                part = attrs.evolve(part, name=name, positions=range(10 * number, 10 * number + 10))
                if len(taken := accepted(sink, part)):
                    sink.write(taken)
            sink.flush()
        for row in range(len(batch)):
            odd = odd_batch(attrs.evolve(batch, name=QueueName("kit", queue="odd"), positions=range(2**40, 2**40 + 10)))
            if len(taken := accepted(sink, odd.take([row]))):
                sink.write(taken)
        complete(sink)
        assert open_files() <= were_open, "close leaves a file open"
        others = [path for path in tmp_path.rglob("*") if path != place.parent and not str(path).startswith(str(place))]
        assert not others, f"it writes beside its destination: {others[0]}"

    def test_no_queue_replaces_another(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that the messages of a queue are lost if another one has a name that is the same as a path, once
        something in it is left out or replaced: the second is written over the first."""
        if subject.descriptor.schemes:
            skip_without("a destination that is a path")
        whole, refused = self._written(subject, tmp_path / "whole", ALIKE)
        for number, name in enumerate(ALIKE):
            without, _ = self._written(subject, tmp_path / str(number), [other for other in ALIKE if other != name])
            assert name in refused or without != whole, f"the message of the queue {name} is not there beside those of others"

    def test_queues_of_one_name_are_kept_apart(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that messages of two systems, of two virtual hosts, or of two partitions, whose queues have one name,
        come into one place, as if they were of one queue. Keep them apart, or refuse the second queue, also when the conversion
        continues: the token needs the names then. A sink that leaves out all names of queues may mix them."""
        if subject.descriptor.schemes:
            skip_without("a destination that is a path")
        name, numbers = QueueName("kit", "v", "a"), itertools.count()
        others = [QueueName(*parts) for parts in (
            ("kit", "v", "b"), ("other", "v", "a"), ("kit", "w", "a"), ("kit", None, "a"), ("kit", "v", "a", 0)
        )]  # fmt: skip
        pairs = [(name, other) for other in others]
        pairs.append((QueueName("kit", "v", "1"), QueueName("kit", None, "v", 1)))  # where what is absent leaves no trace
        pairs.append((QueueName("kit", "v"), QueueName("kit", None, "v")))
        for continues, pair, order in itertools.product((False, True), pairs, (1, -1)):
            names = pair[::order]
            alone, found = (
                self._two(subject, tmp_path / str(next(numbers)), two, continues) for two in ((names[0], names[0]), names)
            )
            is_mixed = found is not None and found == alone
            if is_mixed and pair == pairs[0]:
                return  # it leaves out all names
            when = "after a continuation, " if continues else ""
            assert not is_mixed, f"{when}{names[0]!r} and {names[1]!r} are one queue"

    def _two(self, subject: Subject, directory: Path, names: Sequence[QueueName], continues: bool) -> object:
        """Write a message of each queue. Return what is there then, or None if one was refused."""
        directory.mkdir()
        sink = self._sink(subject, directory / "content", None)
        for row, name in enumerate(names):
            if continues and row:
                token = json.loads(json.dumps(sink.flush()))
                sink.close()
                sink = self._sink(subject, directory / "content", token)
            batch = attrs.evolve(sample_batch("a", row, 1), name=name, ids=[f"{row:032x}"])
            if not len(accepted(sink, batch)):
                sink.close()
                return None
            sink.write(batch)
        complete(sink)
        return contents(directory / "content", 2**20)

    def test_refused_says_all(self, subject: Subject, tmp_path: Path) -> None:
        """A failure means that a dry run, which calls ``refused`` only, counts other messages than the conversion, which writes
        what was not refused, and continues now and then: ``write`` refuses, or ``refused`` looks at what was written. Or that a
        conversion of many queues that continues loses some of them."""
        if subject.descriptor.schemes:
            skip_without("a destination that is a path")
        for directory in ("dry", "whole", "real"):
            (tmp_path / directory).mkdir()
        dry, whole, real = (self._sink(subject, tmp_path / which / "content", None) for which in ("dry", "whole", "real"))
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
                token = json.loads(json.dumps(real.flush()))
                real.close()
                real = self._sink(subject, tmp_path / "real" / "content", token)
        dry.close()
        complete(whole, real)
        check_same(tmp_path / "real" / "content", tmp_path / "whole" / "content")

    def _written(self, subject: Subject, directory: Path, names: Sequence[QueueName]) -> tuple[object, list[QueueName]]:
        """Write a message of each queue. Return what is there then, and the queues whose message was refused."""
        directory.mkdir()
        sink, refused = self._sink(subject, directory / "content", None), []
        for name in names:
            batch = attrs.evolve(sample_batch("a", 0, 1, repr(name).encode()), name=name)
            if len(accepted(sink, batch)):
                sink.write(batch)
            else:
                refused.append(name)
        complete(sink)
        return contents(directory / "content", 2**20), refused

    def _sink(self, subject: Subject, place: Path, token: Any) -> Any:
        target = str(place.parent / "target")
        context = SinkContext(destination=str(place), target=target, options=subject.made_options, token=token)
        return CheckedSink(subject.make(context), subject.catalogue, subject.descriptor, target)
