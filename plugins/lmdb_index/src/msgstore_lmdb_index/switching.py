"""Many LMDB calls in a row, beside threads that compute.

py-lmdb gives up the interpreter lock in every call and takes it again behind it. Beside a thread that only computes, taking it
again lasts a switch interval, 5 ms unless changed: most of a minute for 10,000 puts. With a short interval it is a fraction of
a second.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

_SHORT = 1e-5
"""Seconds. Below this nothing was gained."""

_lock = threading.Lock()
_inside = 0
_usual = 0.0


@contextlib.contextmanager
def prompt_switching() -> Iterator[None]:
    """Let threads of this process wait at most 10 µs for one that computes. Any number of threads may be inside."""
    global _inside, _usual
    with _lock:
        if not _inside:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual, _SHORT))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                sys.setswitchinterval(_usual)
