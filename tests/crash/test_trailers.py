"""The same promises for a format whose segments end in a trailer, which sealing, compaction and rewriting write and cut off."""

from __future__ import annotations

import pytest

from crash.points import run_shared
from crash.recording import record
from crash.workload import CrashCell
from support import needs_foreign

pytestmark = pytest.mark.crash


@needs_foreign
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("crash_cell", [CrashCell("ets", "ledger"), CrashCell("lmdb", "ledger")], ids=str)
def test_every_crash_point(crash_cell, durability, tmp_path, workers, sample, tell):
    recording = record(tmp_path, crash_cell, durability)
    trailers = [at for at in recording.log if at.kind == "pwrite" and at.data.endswith(b"LEDGEREX")]
    assert len(trailers) > 5
    outcome = run_shared(workers.pool, workers.count, recording, tmp_path, sample=sample)
    tell(
        f"{crash_cell} {durability}",
        f"{len(recording.log)} operations, {len(trailers)} trailers, {outcome.points} crash points, {outcome.states} different"
        f" ones reopened, {len(outcome.failures)} failed",
    )
    assert not outcome.failures, f"{len(outcome.failures)} of {outcome.states}, of which:\n" + "\n".join(outcome.failures[:5])
    assert outcome.points > 400
