"""What goes wrong between here and Spark. Each message says what, where, and what to do; no Java stack trace."""

from __future__ import annotations

from msgstore.contract import MsgStoreError


class SparkUnavailable(MsgStoreError):
    """No session can be had: no Java, a master that is none or that does not answer, or another session in the way."""


class ExecutorMismatch(MsgStoreError):
    """Executors have another Python, msgstore or plugin than the driver, or do not see the files that they are to read."""


class SparkFailed(MsgStoreError):
    """A job ended in the middle, and not for a reason that a task of ours gave."""
