"""Segments of msgstore's stores on Apache Spark, on a laptop without Java as well as on a cluster.

Each name is imported at its first use, because loading the installed plugins must not load PySpark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msgstore_spark.errors import ExecutorMismatch, SparkFailed, SparkUnavailable
    from msgstore_spark.executors import check_executors, upload_wheels
    from msgstore_spark.sessions import session
    from msgstore_spark.shared import join_messages
    from msgstore_spark.source import register

_MODULES = {
    "ExecutorMismatch": "msgstore_spark.errors",
    "SparkUnavailable": "msgstore_spark.errors",
    "SparkFailed": "msgstore_spark.errors",
    "check_executors": "msgstore_spark.executors",
    "join_messages": "msgstore_spark.shared",
    "register": "msgstore_spark.source",
    "session": "msgstore_spark.sessions",
    "upload_wheels": "msgstore_spark.executors",
}

__all__ = [
    "ExecutorMismatch", "SparkFailed", "SparkUnavailable", "check_executors", "join_messages", "register", "session",
    "upload_wheels",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'msgstore_spark' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return found
