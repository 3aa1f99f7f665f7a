"""Errors of the connection to Spark and of its jobs. Messages have no Java stack trace."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from msgstore.contract import MsgStoreError, errors


class SparkUnavailable(MsgStoreError):
    """No session is available: no Java, an invalid or unreachable master, or another session is active."""


class ExecutorMismatch(MsgStoreError):
    """Executors have another Python, msgstore or plugin than the driver, or cannot read the input files."""

    has_lines = True
    """The command line keeps the lines."""


class SparkFailed(MsgStoreError):
    """Spark ended a job, and no error of msgstore was the reason."""


def jvm_has_ended(seconds: float = 1.0) -> bool:
    """Return True if the JVM that this process started has ended, or ends within this time."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.poll() is not None


_MSGSTORE_ERROR = re.compile(r"^(?:msgstore\.contract\.errors\.|msgstore\.)(\w+): (.+)$", re.MULTILINE)


@contextmanager
def task_errors() -> Iterator[None]:
    """Raise the MsgStoreError that a task of the block raised, or SparkFailed if the job ended for another reason.

    Spark passes on only the text of an exception. Raises SparkUnavailable if the JVM has ended.
    """
    try:
        yield
    except PySparkException as error:
        raise _parse(str(error)) from error
    except (Py4JError, ConnectionError) as error:
        if not jvm_has_ended():
            raise
        raise SparkUnavailable(
            "the JVM of Spark has ended. It may need more memory than the system has, or than it may use: pass another "
            'heap, as in config={"spark.driver.memory": "4g"}, to session(), which starts another one'
        ) from error


def _parse(text: str) -> MsgStoreError:
    for name, message in reversed(_MSGSTORE_ERROR.findall(text)):  # the last of a chain says the most, such as the host
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, MsgStoreError):
            try:
                return kind(message)
            except TypeError:  # the class needs more arguments
                return SparkFailed(message)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return SparkFailed(f"Spark ended the job: {lines[-1] if lines else 'it gave no reason'}. See Spark's log")
