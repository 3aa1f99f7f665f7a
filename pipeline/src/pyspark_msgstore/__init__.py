"""Module in which PySpark finds the data source ``msgstore`` without registration: it looks for ``pyspark_<name>``."""

from msgstore_spark.source import MsgStoreSource as DefaultSource

__all__ = ["DefaultSource"]
