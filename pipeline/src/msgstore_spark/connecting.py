"""A session on a Spark Connect server: ``sc://HOST:PORT/;use_ssl=true;token=...``. Needs no Java here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from msgstore_spark.errors import SparkUnavailable
from msgstore_spark.masters import PATIENCE

INSTALL = "pip install 'msgstore-spark[connect]'"


def connect(url: str, settings: Mapping[str, str]) -> SparkSession:
    """Raises SparkUnavailable if nobody answers; PySpark itself would try again for ten minutes."""
    builder = _builder(url)
    import grpc  # the extra is there: _builder has looked

    channel = builder.toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=PATIENCE)
    except grpc.FutureTimeoutError:
        raise SparkUnavailable(
            f"no Spark Connect server answers at {builder.endpoint} within {PATIENCE:g} s. Is it running, and is the port its "
            "own? Start one: spark-class org.apache.spark.deploy.SparkSubmit "
            "--class org.apache.spark.sql.connect.service.SparkConnectServer spark-internal"
        ) from None
    finally:
        channel.close()
    try:
        spark = SparkSession.builder.remote(url).getOrCreate()
        for key, value in settings.items():
            spark.conf.set(key, value)
        _ = spark.version  # the first answer
    except (PySparkException, grpc.RpcError) as error:
        raise SparkUnavailable(f"Spark Connect at {builder.endpoint}: {str(error).strip().splitlines()[0]}") from None
    return spark


def endpoint(url: str) -> str:
    """``HOST:PORT`` of a URL."""
    return str(_builder(url).endpoint)


def url(running: SparkSession) -> str:
    """``HOST:PORT`` to which a session is connected."""
    return str(running.client._builder.endpoint)  # type: ignore[attr-defined]  # the session is a remote one


def _builder(url: str) -> Any:
    try:
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except (ImportError, PySparkException) as error:
        raise SparkUnavailable(f"{url}: Spark Connect needs packages that are not here ({error}). Try: {INSTALL}") from None
    try:
        return DefaultChannelBuilder(url)
    except (PySparkException, ValueError) as error:
        raise SparkUnavailable(f"{url}: no URL of Spark Connect: {error}") from None
