"""The entry point: the engine ``spark``. PySpark is imported when the engine is made."""

from __future__ import annotations

from msgstore import hookimpl
from msgstore.contract import BulkEngineDescriptor
from msgstore_spark.engine_options import SparkOptions


@hookimpl
def msgstore_bulk_engines() -> list[BulkEngineDescriptor]:
    return [
        BulkEngineDescriptor(
            name="spark",
            contract=(2, 2),
            factory="msgstore_spark.engine:SparkEngine",
            options=SparkOptions,
            pays_from=10 * 2**30,
            summary="Apache Spark: the processors of this machine, or of a cluster",
        ),
    ]
