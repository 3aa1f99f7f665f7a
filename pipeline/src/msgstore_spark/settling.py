"""What a Python worker does once, when it has done its first task."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle() -> None:
    """What has been imported and made by now stays: the collector of garbage need not look at it again.

    PySpark has all garbage collected after each task; with what it imports itself, and with pyarrow and the plugins, that is
    tens of milliseconds of each task, more than most of ours need.
    """
    gc.freeze()
