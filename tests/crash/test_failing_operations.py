"""Each file operation in turn fails: the error says where, the store stays readable, and nothing is lost when it is over."""

from __future__ import annotations

import pytest

from crash.failing import run_shared
from crash.workload import CRASH_CELLS

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("crash_cell", CRASH_CELLS, ids=str)
def test_every_operation_may_fail(crash_cell, tmp_path, workers, sample, tell):
    """With ``fsync``: its operations are those of ``os`` and the syncs."""
    operations, outcome = run_shared(workers.pool, workers.count, tmp_path, crash_cell, "fsync", sample=sample)
    tell(
        f"{crash_cell} failing operations", f"{operations} operations, {outcome.states} faults, {len(outcome.failures)} failed"
    )
    assert not outcome.failures, f"{len(outcome.failures)} of {outcome.states}, of which:\n" + "\n".join(outcome.failures[:5])
    assert operations > 150
