"""Process that commits until it is killed: ``python -m msgstore.testing.index.child``.

Its argument is a pickled descriptor, options and directory. It prints the number of each commit that has returned.
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgstore.contract import Index, IndexContext
from msgstore.files import Files
from msgstore.locations import pack_location
from msgstore.testing.index.place import Entries, Saved
from msgstore.testing.subjects import Subject

IDS = [random.Random(n).randbytes(16) for n in range(300)]
ROUND = b"round"


def expected(round_: int) -> Saved:
    """After a commit: every third id is absent in every other round; the others have a location of this round."""
    there = [msg_id for n, msg_id in enumerate(IDS) if n % 3 or round_ % 2]
    entries: Entries = {msg_id: (pack_location(round_, n, 100), 1 + round_ % 3) for n, msg_id in enumerate(there)}
    return Saved({ROUND: b"%d" % round_}, entries)


def work(index: Index, *, step_by_step: bool) -> None:
    """Commit for ever, or one round for each line of the input."""
    index.load()
    round_ = 0
    while not step_by_step or sys.stdin.buffer.readline():
        round_ += 1
        goal = expected(round_).entries
        index.enter(list(goal), [at for at, _ in goal.values()], [count for _, count in goal.values()])
        index.release([msg_id for msg_id in IDS if msg_id not in goal for _ in range(index.references(msg_id))])
        index.freeze({ROUND: b"%d" % round_})
        index.commit()
        os.write(1, b"%d\n" % round_)


class Committing:
    """The parent's side of the process."""

    def __init__(self, process: subprocess.Popen[bytes], *, step_by_step: bool) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._step_by_step = step_by_step
        self._round = 0

    def wait_for(self, round_: int) -> None:
        """Wait until it has committed so often."""
        while self._round < round_:
            if self._step_by_step:
                self._in.write(b"\n")
                self._in.flush()
            line = self._out.readline()
            assert line, "the process that commits has ended; its error is above"
            self._round = int(line)

    def kill(self) -> int:
        """Kill it; return the number of its last commit that has returned."""
        self._process.kill()
        lines = self._out.read().rpartition(b"\n")[0].split()
        return int(lines[-1]) if lines else self._round


@contextmanager
def committing(subject: Subject, directory: Path, *, step_by_step: bool = False) -> Iterator[Committing]:
    """A process that commits in ``directory``, killed at the end. ``step_by_step``: only in :meth:`Committing.wait_for`."""
    path = os.pathsep.join(filter(None, sys.path))
    given = (subject.descriptor, subject.made_options, directory, step_by_step)
    command = [sys.executable, "-m", "msgstore.testing.index.child", pickle.dumps(given).hex()]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        try:
            yield Committing(process, step_by_step=step_by_step)
        finally:
            process.kill()


def main() -> None:
    descriptor, options, directory, step_by_step = pickle.loads(bytes.fromhex(sys.argv[1]))
    factory: Any = descriptor.load_factory()
    work(factory(IndexContext(options, directory, Files())), step_by_step=step_by_step)


if __name__ == "__main__":
    main()
