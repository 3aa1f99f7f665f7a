"""Executors: check that they have the driver's versions and plugins and can read the inputs, and upload of wheels to them.

Plugins are not pickled: each executor finds them by its own entry points. So all executors must have the same plugins in the
same versions as the driver. Without the check, a difference would appear only in the stack trace of a failed task.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.utils import is_remote

import msgstore
from msgstore import error_texts
from msgstore.contract import ConfigError, RecordTypeDescriptor
from msgstore.jobs.workers import disabled_plugins
from msgstore_spark.errors import ExecutorMismatch, SparkUnavailable
from msgstore_spark.sessions import in_this_process

TIMEOUT_SECONDS = 60.0
"""Time that a cluster may be without an executor."""
ROUNDS = 5
"""Attempts to reach every executor: one that is busy does not get a task of the check."""
MIN_ARROW_VERSION = 18
"""Minimum major version of pyarrow, as in pyproject.toml."""
MAX_SHOWN_PATHS = 3
"""Unreadable paths of one executor that an error lists."""

CHECKOUT = f"{error_texts.CHECKOUT} ./pipeline, in a checkout"

log = logging.getLogger("msgstore.spark")
Answer = dict[str, Any]
"""Fields of one executor: ``host``; ``process``, from which its workers are forked; ``fingerprint``; ``unreadable``, the reason
for each path that does not exist or cannot be accessed; ``problem``, the reason why msgstore-spark cannot be imported there;
``python``, its version; ``missing``, the dependencies that are not installed."""


def fingerprint() -> dict[str, str]:
    """Return the versions that must be equal on driver and executors, by name, and the reasons why plugins cannot be loaded."""
    catalogue = msgstore.load_catalogue(disabled_plugins())
    found: defaultdict[str, list[str]] = defaultdict(list)
    found["Python"] = [".".join(platform.python_version_tuple()[:2])]
    plugins = {one.provider.distribution for one in catalogue.registrations} - {"msgstore", "msgstore-spark"}
    for name, version in _distributions()[0].items():
        if name not in plugins:  # also a library of a plugin
            found[name] = [f"{name} {version}"]
    version = metadata.version("pyarrow")
    is_new = int(version.split(".")[0]) >= MIN_ARROW_VERSION  # all versions that are new enough are equal
    found["pyarrow"] = [f"pyarrow {MIN_ARROW_VERSION} or newer" if is_new else f"pyarrow {version}"]
    for one in catalogue.registrations:
        descriptor = one.descriptor
        of_format = f" of {descriptor.format}" if isinstance(descriptor, RecordTypeDescriptor) else ""
        contract = ".".join(map(str, descriptor.contract))
        provider = f"{one.provider.distribution} {one.provider.version}"
        found[f"{one.kind} {descriptor.name}{of_format}"].append(f"{provider} (contract {contract})")
    for failure in catalogue.failures:
        found[f"plugin {failure.provider.distribution}"].append(failure.what)
    return {key: "; ".join(sorted(values)) for key, values in sorted(found.items())}


def check_executors(spark: SparkSession, paths: Iterable[str | Path] = ()) -> int:
    """Check all current executors and return their number. Executors that start later are not checked.

    ``paths`` are input files and directories: each must exist on the executors under the same path, and so must the first file
    in a directory, which an empty mount point does not have. A warning names paths that do not exist on the driver. The check
    runs one tiny task per task slot. Raises ExecutorMismatch with each host, its differences, and the
    action, such as a ``pip`` command. Raises SparkUnavailable if a cluster starts no executor within a minute.
    """
    checked = list(map(os.path.abspath, paths))
    for path in checked[:]:
        checked += _first_file(path)
        if not Path(path).exists():
            log.warning("%s: does not exist on the driver, and is not checked", path)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_remote() and not count(spark):
        if time.monotonic() > deadline:
            raise no_executor(spark)
        time.sleep(0.2)  # Spark has no call that waits for executors
    answers: dict[tuple[str, int], Answer] = {}
    for _ in range(ROUNDS):
        answers |= {(answer["host"], answer["process"]): answer for answer in _ask_executors(spark, checked)}
        known = len(answers) if is_remote() else count(spark)
        if len(answers) >= known:
            break
    else:
        log.warning("only %d of %d executors were free to answer; the others are not checked", len(answers), known)
    here = fingerprint()
    problems = sorted({f"on {answer['host']}: {line}" for answer in answers.values() for line in _problems(here, answer)})
    if problems:
        raise ExecutorMismatch("\n".join(["executors cannot do what the driver can", *problems]))
    return len(answers)


def _first_file(path: str) -> list[str]:
    """Return a file in a directory, or in one below it, if there is any."""
    return next(([str(Path(top, min(files)))] for top, _, files in os.walk(path) if files), [])


def no_executor(spark: SparkSession) -> SparkUnavailable:
    """Return the error for a cluster without executors."""
    asked = {"spark.cores.max": "all", "spark.executor.cores": "all", "spark.executor.memory": "1g"}
    settings = ", ".join(f"{name} {spark.sparkContext.getConf().get(name, value)}" for name, value in asked.items())
    return SparkUnavailable(
        f"{spark.sparkContext.master}: no executor within {TIMEOUT_SECONDS:g} s. Check that it has a worker with enough "
        f"cores and memory: {settings}. Another application may hold them: by default one takes all cores (spark.cores.max)"
    )


def _problems(here: Mapping[str, str], answer: Answer) -> list[str]:
    if answer["python"] != here["Python"]:
        return differences(here, {"Python": answer["python"]})
    missing = answer["missing"]
    bring = [f"dependencies are missing: {', '.join(missing)}. Install them there with pip: wheels do not bring them"]
    if answer["problem"]:
        remedy = _remedy(_distributions()[0], missing)
        return [f"msgstore-spark cannot be used ({answer['problem']}). {remedy}", *(bring if missing else ())]
    lines = [
        f"{path}: {why}. Executors need it under this path, and permission to read it"
        for path, why in answer["unreadable"].items()
        if os.access(path, os.R_OK)  # on the driver; a segment may have been collected in the meantime
    ]
    if len(lines) > MAX_SHOWN_PATHS:
        lines[MAX_SHOWN_PATHS:] = [f"... and {len(lines) - MAX_SHOWN_PATHS} more such files"]
    different = differences(here, answer["fingerprint"], missing)
    return lines + different + (bring if missing else [])


def differences(here: Mapping[str, str], there: Mapping[str, str], missing: Collection[str] = ()) -> list[str]:
    """Return a line for each distribution that another Python lacks or has in another version, with the remedy. Another version
    of Python is the only line. ``missing``: dependencies that it lacks."""
    if (version := there.get("Python", "nothing")) != here["Python"]:
        return [
            f"Python {version}, here {here['Python']}. Set PYSPARK_PYTHON to a Python {here['Python']} that is on every host"
        ]
    lines = []
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for key, driver in here.items():
        executor = there.get(key, "nothing")
        if executor != driver and not key.startswith("plugin "):  # more plugins do no harm: the driver names all backends
            found[executor, driver].append(key)
    for (executor, driver), keys in found.items():
        name, version, *_ = driver.split()
        why = there.get(f"plugin {name}", "")
        because = f", because {name} {why}" if why else ""
        remedy = f"Install there: 'pyarrow>={MIN_ARROW_VERSION}'" if name == "pyarrow" else _remedy({name: version}, missing)
        lines.append(f"{', '.join(keys)}: {executor}{because}; here {driver}. {remedy}")
    return lines


def _remedy(wanted: Mapping[str, str], missing: Collection[str]) -> str:
    """Return what to do on a host that lacks distributions, given by name with their versions, and dependencies of theirs."""
    others = [f"{name}=={version}" for name, version in wanted.items() if not name.startswith("msgstore")]
    ways = [CHECKOUT] if len(others) < len(wanted) else []
    ways += [f"{' '.join(others)}, the way you did here"] if others else []
    wheels = "" if missing else ", or upload wheels (upload_wheels(), spark-submit --py-files)"
    return f"Install there: {'; '.join(ways)}{wheels}"


def _distributions() -> tuple[dict[str, str], list[str]]:
    """Return name and version of msgstore's distributions and the plugins that this Python has, and the names of the others
    that they need, installed or not."""
    catalogue = msgstore.load_catalogue(disabled_plugins())
    left = ["msgstore", "msgstore-spark", *(one.provider.distribution for one in catalogue.registrations)]
    found: dict[str, str] = {}
    others: set[str] = set()
    while left:
        if (name := left.pop()) not in found:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:  # a library whose wheel is missing
                continue
            needed = [re.split(r"[^\w.-]", line)[0] for line in metadata.requires(name) or () if ";" not in line]
            left += [one for one in needed if one.startswith("msgstore")]
            others.update(one for one in needed if not one.startswith("msgstore"))
    return dict(sorted(found.items())), sorted(others - found.keys() - {"pyspark"})  # Spark itself brings PySpark


def _make_probe(paths: Sequence[str], needed: Sequence[str]) -> Callable[[int], str]:
    """Return the function that executors run. It is pickled by value, so it works where this package is not installed."""

    def answer(_: int) -> str:
        import json
        import os
        import socket
        import sys
        from importlib import metadata

        found: dict[str, Any] = {
            "host": f"{socket.gethostname()} ({sys.executable})",
            "process": os.getppid(),
            "python": "{}.{}".format(*sys.version_info),
            "missing": [],
            "fingerprint": {},
            "problem": "",
        }
        found["unreadable"] = {}
        for path in paths:
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            except OSError as error:
                found["unreadable"][path] = error.strerror
        for name in needed:
            try:
                metadata.version(name)
            except metadata.PackageNotFoundError:
                found["missing"].append(name)
        try:
            from msgstore_spark.executors import fingerprint

            found["fingerprint"] = fingerprint()
        except Exception as error:
            found["problem"] = f"{type(error).__name__}: {error}"
        return json.dumps(found)

    return answer


def _ask_executors(spark: SparkSession, paths: Sequence[str]) -> list[Answer]:
    # Without Arrow, an executor needs only Python, neither pyarrow nor pandas.
    ask = sf.udf(_make_probe(paths, _distributions()[1]), "string", useArrow=False).asNondeterministic()
    # Number of tasks that run at the same time. With so many partitions, every idle executor gets one.
    if is_remote():
        slots = spark.range(0, 10_000).select(sf.spark_partition_id()).distinct().count()
    else:
        slots = spark.sparkContext.defaultParallelism
    try:
        rows = spark.range(0, slots, 1, slots).select(ask("id")).collect()
    except (PySparkException, Py4JJavaError) as error:
        # The line of the stack trace that gives the reason why a Python worker did not start.
        reasons = r"\[PYTHON_VERSION_MISMATCH\].*|Cannot run program \".*|^(?:ModuleNotFound|Import)Error: .*"
        found = re.search(reasons, str(error), re.MULTILINE)
        reason = found[0] if found else str(error).strip().splitlines()[0]
        host = re.search(r"\(TID \d+\) \((\S+) executor", str(error))
        where = f"on the host that Spark names {host[1]}" if host else "executors"
        python = "Python" if is_remote() else spark.sparkContext.pythonExec
        starts = "the Spark Connect server" if is_remote() else "this program"
        setting = f"Set PYSPARK_PYTHON, where {starts} starts, to"
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            setting = "With spark-submit --conf spark.pyspark.python=PATH, name"
        raise ExecutorMismatch(
            f"{where}: no task can be run with {python}: {reason.rstrip('.')}. {setting} "
            f"a Python {fingerprint()['Python']} that is at the same path on every host and on this machine. The "
            "executors' user must be able to run it, and the interpreter it links to"
        ) from None
    return [json.loads(row[0]) for row in rows]


def count(spark: SparkSession) -> int:
    """Return the number of executors of a classic session. With a master ``local``, the driver is the only executor."""
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return 1 if in_this_process(str(spark.sparkContext.master)) else len(infos) - 1


# -- wheels -------------------------------------------------------------------------------------------------------------------


_uploaded: dict[tuple[str, str], bytes] = {}
"""(session, name of a wheel) to its hash: Spark refuses a second file of a name."""


def upload_wheels(spark: SparkSession, *wheels: str | os.PathLike[str]) -> None:
    """Make the distributions in ``wheels`` importable on all current and later executors of a session, entry points included.

    Dependencies are not resolved: they must be installed on the executors, or uploaded too. A wheel that this session has is
    not uploaded again. Raises ConfigError, and uploads nothing, if a file is no wheel, has compiled modules or a package
    without ``__init__.py``, which Python cannot import from a zip file, or has the name of another one that this session has.
    """
    from msgstore_spark.source import register  # which takes a second, and is not needed for a check

    # Of Spark Connect, a session has an id of its own.
    session, digests = getattr(spark, "session_id", None) or spark.sparkContext.applicationId, {}
    for wheel in map(Path, wheels):
        _check_wheel(wheel)
        digests[wheel] = hashlib.sha256(wheel.read_bytes()).digest()
        if _uploaded.get((session, wheel.stem), digests[wheel]) != digests[wheel]:
            raise ConfigError(f"{wheel}: this session has another wheel of this name. Begin another session.")
    if not wheels:
        raise ConfigError("upload_wheels: there is no wheel to upload")
    directory = Path(tempfile.mkdtemp(prefix="msgstore-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)  # executors fetch from it during the whole session
    for wheel in digests:
        if (session, wheel.stem) in _uploaded:
            continue
        _uploaded[session, wheel.stem] = digests[wheel]
        # Spark puts a .zip on the import path. It accepts a .whl without an error, but does not make it importable.
        archive = shutil.copyfile(wheel, directory / f"{wheel.stem}.zip")
        if is_remote():
            spark.addArtifacts(str(archive), pyfile=True)
        else:
            spark.sparkContext.addPyFile(str(archive))
            register(spark)  # a registered source has the files of that moment


def _check_wheel(wheel: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
    except OSError as error:
        raise ConfigError(f"{wheel}: {error.strerror}") from None
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{wheel}: cannot be read as a wheel ({error}). Try: pip wheel --no-deps NAME") from None
    if not any(name.endswith(".dist-info/METADATA") for name in names):
        raise ConfigError(f"{wheel}: is no wheel: there is no .dist-info in it. Try: pip wheel --no-deps NAME")
    if compiled := [name for name in names if name.endswith((".so", ".pyd", ".dylib"))]:
        raise ConfigError(
            f"{wheel}: has compiled modules ({compiled[0]}), which cannot be imported from a zip. Install it on every host"
        )
    packages = {name.split("/")[0] for name in names if re.match(r"\w+/.*\.py$", name)}
    if bare := sorted(name for name in packages if f"{name}/__init__.py" not in names):
        raise ConfigError(f"{wheel}: {bare[0]}/ has no __init__.py, and cannot be imported from a zip. Add the file, empty")
