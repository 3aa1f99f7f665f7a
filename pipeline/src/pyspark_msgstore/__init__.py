"""Where PySpark looks for a data source that nobody registered: by the name of this module."""

from msgstore_spark.source import MsgStoreSource as DefaultSource

__all__ = ["DefaultSource"]
