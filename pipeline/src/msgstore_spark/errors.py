"""Errors of the connection to Spark and of its jobs. Messages have no Java stack trace."""

from __future__ import annotations

from msgstore.contract import MsgStoreError


class SparkUnavailable(MsgStoreError):
    """No session is available: no Java, an invalid or unreachable master, or another session is active."""


class ExecutorMismatch(MsgStoreError):
    """Executors have another Python, msgstore or plugin than the driver, or cannot read the input files."""


class SparkFailed(MsgStoreError):
    """Spark ended a job, and no error of msgstore was the reason."""
