"""All faults, in the order of a message's life."""

from __future__ import annotations

from seeded import writing

FAULTS = [*writing.FAULTS]
