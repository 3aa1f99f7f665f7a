"""Starting the JVM of a driver without its chatter: what it says while it starts is kept for the error, if there is one."""

from __future__ import annotations

import os
import re
import threading

import attrs
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from msgstore_spark.errors import SparkUnavailable

_TRACE = re.compile(r"^(\s+at |\s+\.\.\. \d+ more|WARNING: |Using Spark's default|Setting |To adjust )")
_CLASS = re.compile(r'^(?:Exception in thread "[^"]*" )?(?:[a-z_]\w*\.)+[A-Z]\w*(?:Exception|Error): ')


@attrs.define
class Messages:
    """What a JVM writes to its standard error: kept until ``pass_on``, then written to that of this process."""

    kept: bytearray = attrs.field(factory=bytearray)
    passing: bool = False

    def listen(self, pipe: int) -> None:
        """Until the JVM ends. On a thread of its own, so that the pipe is never full."""
        with os.fdopen(pipe, "rb", buffering=0) as file:
            while chunk := file.read(65536):
                if self.passing:
                    os.write(2, chunk)
                else:
                    self.kept += chunk

    def keep(self) -> None:
        self.passing = False
        self.kept.clear()

    def pass_on(self) -> None:
        self.passing = True

    def reason(self) -> str:
        """The line that says most, without classes and stack: the first of the last exception, or the last of all."""
        lines = [line for line in self.kept.decode(errors="replace").splitlines() if line.strip() and not _TRACE.match(line)]
        errors = [line for line in lines if _CLASS.match(line)]
        return _CLASS.sub("", (errors or lines or ["it said nothing"])[0]).strip()


_messages = Messages()
"""Of the JVM of this process: there is one at most."""


def start_context(conf: SparkConf, *, aloud: bool) -> SparkContext:
    """A context in the JVM of this process, which is started if there is none yet. ``aloud``: nothing it says is kept.

    Raises SparkUnavailable if the JVM ends before it answers; an error of the context's is Py4J's.
    """
    if aloud:
        _messages.pass_on()
    else:
        _messages.keep()
    try:
        return SparkContext(conf=conf, gateway=SparkContext._gateway or _start_jvm(conf))
    finally:
        _messages.pass_on()


def _start_jvm(conf: SparkConf) -> JavaGateway:
    read, write = os.pipe()
    listener = threading.Thread(target=_messages.listen, args=(read,), name="msgstore-spark-jvm", daemon=True)
    listener.start()
    try:
        try:
            gateway = launch_gateway(conf, {"stderr": write})  # type: ignore[no-untyped-call]  # PySpark does not say
        finally:
            os.close(write)
    except PySparkException:
        listener.join(5)  # until the pipe is empty
        raise SparkUnavailable(f"the JVM of Spark ended while it started: {_messages.reason()}") from None
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started it, with what its user wants
        for key, _ in conf.getAll():
            gateway.jvm.System.clearProperty(key)  # or the next session of this process would have it too
    return gateway
