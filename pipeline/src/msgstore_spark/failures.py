"""Errors of ours that were raised in an executor come back as text inside Spark's; here they become what they were."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from msgstore.contract import MsgStoreError, errors
from msgstore_spark.errors import SparkFailed

_OURS = re.compile(r"^(?:msgstore\.contract\.errors\.|msgstore\.)(\w+): (.+)$", re.MULTILINE)


@contextmanager
def our_errors() -> Iterator[None]:
    """Raises the MsgStoreError that a task raised; SparkFailed for whatever else ended the job."""
    try:
        yield
    except PySparkException as error:
        raise _ours(str(error)) from error


def _ours(text: str) -> MsgStoreError:
    for name, message in _OURS.findall(text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, MsgStoreError):
            try:
                return kind(message)
            except TypeError:  # it wants more than a text
                return SparkFailed(message)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return SparkFailed(f"Spark ended the job: {lines[-1] if lines else 'it did not say why'}. Its log says more")
