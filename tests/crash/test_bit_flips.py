"""A flipped bit costs at most the record that it hit, is never served as something right, and stops nothing."""

from __future__ import annotations

import pytest

from crash.flips import run_shared
from crash.recording import record
from crash.workload import CRASH_CELLS

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("crash_cell", CRASH_CELLS, ids=str)
def test_every_structure_may_have_a_flipped_bit(crash_cell, tmp_path, workers, sample, tell):
    recording = record(tmp_path, crash_cell, "os")
    outcome = run_shared(workers.pool, workers.count, recording, tmp_path, sample=sample)
    tell(f"{crash_cell} flipped bits", f"{outcome.states} flips, {len(outcome.failures)} failed")
    assert not outcome.failures, f"{len(outcome.failures)} of {outcome.states}, of which:\n" + "\n".join(outcome.failures[:5])
    assert outcome.states * sample.every > 500
