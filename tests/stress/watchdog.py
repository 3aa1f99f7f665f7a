"""A hang becomes a failure: the stacks of all threads, and the test goes on to fail.

What hangs is left behind as a daemon thread. If it holds the interpreter lock, nobody in this process can go on: then the
process prints its stacks and ends, a minute later.
"""

from __future__ import annotations

import faulthandler
import tempfile
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
GRACE = 60


def bounded(action: Callable[[], T], seconds: float, stderr: int) -> T:
    """What ``action`` returns or raises, on a thread of its own. AssertionError after ``seconds``. ``stderr``: descriptor."""
    done: list[Any] = []
    thread = threading.Thread(target=_keep, args=(action, done), name="bounded", daemon=True)
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=stderr)
    try:
        thread.start()
        thread.join(seconds)
        if not done:
            raise AssertionError(f"no end after {seconds:.0f} seconds; the threads are at\n{_stacks()}")
    finally:
        faulthandler.cancel_dump_traceback_later()
    result, error = done
    if error is not None:
        raise error
    return result


def _keep(action: Callable[[], object], done: list[Any]) -> None:
    try:
        done += [action(), None]
    except BaseException as error:
        done += [None, error]


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
