"""All faults, in the order of a message's life."""

from __future__ import annotations

from seeded import appending, backends, collecting, jobs, opening, reading, reclaiming, writing
from seeded.fault import parsed

_MODULES = (writing, appending, reading, collecting, reclaiming, opening, backends, jobs)
FAULTS = [fault for module in _MODULES for fault in parsed(module.FAULTS)]
