"""Start of the driver's JVM. Its output during the start is not shown, but kept for the text of an error."""

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
class JvmOutput:
    """Standard error of a JVM: captured during the start, and otherwise forwarded to standard error of this process."""

    captured: bytearray = attrs.field(factory=bytearray)
    is_forwarding: bool = False

    def read(self, pipe: int) -> None:
        """Read the pipe until the JVM ends. Runs on its own thread, so that the pipe never fills up."""
        with os.fdopen(pipe, "rb", buffering=0) as file:
            while chunk := file.read(65536):
                if self.is_forwarding:
                    os.write(2, chunk)
                else:
                    self.captured += chunk

    def capture(self) -> None:
        """Capture all output from now on."""
        self.is_forwarding = False
        self.captured.clear()

    def forward(self) -> None:
        """Forward all output from now on."""
        self.is_forwarding = True

    def reason(self) -> str:
        """Return the text of the first captured exception, without its class, or else the first line of the output."""
        text = self.captured.decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip() and not _TRACE.match(line)]
        errors = [line for line in lines if _CLASS.match(line)]
        return _CLASS.sub("", (errors or lines or ["it wrote no message"])[0]).strip()


_jvm_output = JvmOutput()
"""Output of the JVM of this process, which has at most one."""


def start_context(conf: SparkConf, *, show_output: bool) -> SparkContext:
    """Return a context in the JVM of this process; start the JVM if there is none. ``show_output`` forwards its output.

    Raises SparkUnavailable if the JVM ends before it answers, and Py4J's errors for a failure of the context.
    """
    if show_output:
        _jvm_output.forward()
    else:
        _jvm_output.capture()
    try:
        return SparkContext(conf=conf, gateway=SparkContext._gateway or _start_jvm(conf))
    finally:
        _jvm_output.forward()


def _start_jvm(conf: SparkConf) -> JavaGateway:
    read, write = os.pipe()
    reader = threading.Thread(target=_jvm_output.read, args=(read,), name="msgstore-spark-jvm", daemon=True)
    reader.start()
    try:
        try:
            gateway = launch_gateway(conf, {"stderr": write})  # type: ignore[no-untyped-call]  # PySpark has no types for it
        finally:
            os.close(write)
    except PySparkException:
        reader.join(5)  # until the pipe is empty
        raise SparkUnavailable(f"the JVM of Spark ended during its start: {_jvm_output.reason()}") from None
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit has started the JVM with its user's properties
        for key, _ in conf.getAll():
            gateway.jvm.System.clearProperty(key)  # the next session of this process would inherit it
    return gateway
