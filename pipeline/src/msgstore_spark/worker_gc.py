"""Reduction of the garbage collection work in Spark's Python workers."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_imports() -> None:
    """Exclude all current objects, such as imported modules, from garbage collection. Only the first call has an effect.

    PySpark runs a full collection after each task. With the objects of PySpark, pyarrow and the plugins, it takes tens of
    milliseconds, more than most tasks.
    """
    gc.freeze()
