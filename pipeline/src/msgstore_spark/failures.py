"""Translation of Spark's exceptions back into the MsgStoreError that a task raised. Spark passes on only its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from msgstore.contract import MsgStoreError, errors
from msgstore_spark.errors import SparkFailed

_MSGSTORE_ERROR = re.compile(r"^(?:msgstore\.contract\.errors\.|msgstore\.)(\w+): (.+)$", re.MULTILINE)


@contextmanager
def task_errors() -> Iterator[None]:
    """Raise the MsgStoreError that a task of the block raised, or SparkFailed if the job ended for another reason."""
    try:
        yield
    except PySparkException as error:
        raise _parse(str(error)) from error


def _parse(text: str) -> MsgStoreError:
    for name, message in _MSGSTORE_ERROR.findall(text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, MsgStoreError):
            try:
                return kind(message)
            except TypeError:  # the class needs more arguments
                return SparkFailed(message)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return SparkFailed(f"Spark ended the job: {lines[-1] if lines else 'it gave no reason'}. See Spark's log")
