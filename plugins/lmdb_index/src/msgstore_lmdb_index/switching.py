"""Thread switch interval for series of LMDB calls.

py-lmdb releases the interpreter lock in every call and acquires it again afterwards. While another thread computes, acquiring
it takes one switch interval, 5 ms by default: most of a minute for 10,000 puts. A short interval reduces this to a fraction
of a second.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

_SHORT_INTERVAL_SECONDS = 1e-5
"""Shorter intervals brought no further gain."""

_lock = threading.Lock()
_active_blocks = 0
_original_interval = 0.0


@contextlib.contextmanager
def short_switch_interval() -> Iterator[None]:
    """Reduce the switch interval of this process to at most 10 µs during the block. Thread-safe; blocks may overlap."""
    global _active_blocks, _original_interval
    with _lock:
        if not _active_blocks:
            _original_interval = sys.getswitchinterval()
            sys.setswitchinterval(min(_original_interval, _SHORT_INTERVAL_SECONDS))
        _active_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _active_blocks -= 1
            if not _active_blocks:
                sys.setswitchinterval(_original_interval)
