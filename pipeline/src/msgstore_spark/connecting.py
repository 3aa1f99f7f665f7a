"""Session on a Spark Connect server, ``sc://HOST:PORT/;use_ssl=true;token=...``. Needs no Java on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from msgstore_spark.errors import SparkUnavailable
from msgstore_spark.masters import CONNECT_TIMEOUT_SECONDS

INSTALL = "pip install 'msgstore-spark[connect]'"


def connect(url: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session on the server at ``url``, with these settings.

    Raises SparkUnavailable if no server answers within ten seconds; PySpark itself would retry for ten minutes.
    """
    builder = _builder(url)
    import grpc  # the extra is installed: _builder would have raised

    channel = builder.toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT_SECONDS)
    except grpc.FutureTimeoutError:
        raise SparkUnavailable(
            f"no Spark Connect server answers at {builder.endpoint} within {CONNECT_TIMEOUT_SECONDS:g} s. Check that it runs "
            "and uses this port, or start one: spark-class org.apache.spark.deploy.SparkSubmit "
            "--class org.apache.spark.sql.connect.service.SparkConnectServer spark-internal"
        ) from None
    finally:
        channel.close()
    try:
        spark = SparkSession.builder.remote(url).getOrCreate()
        for key, value in settings.items():
            spark.conf.set(key, value)
        _ = spark.version  # the first request to the server
    except (PySparkException, grpc.RpcError) as error:
        raise SparkUnavailable(f"Spark Connect at {builder.endpoint}: {str(error).strip().splitlines()[0]}") from None
    return spark


def endpoint(url: str) -> str:
    """Return ``HOST:PORT`` of a URL."""
    return str(_builder(url).endpoint)


def url(running: SparkSession) -> str:
    """Return ``HOST:PORT`` of the server to which a session is connected."""
    return str(running.client._builder.endpoint)  # type: ignore[attr-defined]  # the session is a remote one


def _builder(url: str) -> Any:
    try:
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except (ImportError, PySparkException) as error:
        raise SparkUnavailable(f"{url}: packages for Spark Connect are not installed ({error}). Try: {INSTALL}") from None
    try:
        return DefaultChannelBuilder(url)
    except (PySparkException, ValueError) as error:
        raise SparkUnavailable(f"{url}: not a URL of Spark Connect: {error}") from None
