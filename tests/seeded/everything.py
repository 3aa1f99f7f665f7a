"""All faults, in the order of a message's life."""

from __future__ import annotations

from seeded import appending, backends, collecting, jobs, opening, reading, reclaiming, writing

FAULTS = [
    *writing.FAULTS,
    *appending.FAULTS,
    *reading.FAULTS,
    *collecting.FAULTS,
    *reclaiming.FAULTS,
    *opening.FAULTS,
    *backends.FAULTS,
    *jobs.FAULTS,
]
