"""All faults, in the order of a message's life."""

from __future__ import annotations

from seeded import backends, collecting, opening, writing

FAULTS = [*writing.FAULTS, *collecting.FAULTS, *opening.FAULTS, *backends.FAULTS]
