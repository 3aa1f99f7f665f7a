"""Do the executors have what the driver has? Asked before a job, instead of read out of the stack of a failed task.

Plugins are not pickled: each executor finds them by its own entry points. So all must have the same ones, in the same versions.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.utils import is_remote

import msgstore
from msgstore.contract import RecordTypeDescriptor
from msgstore_spark import masters
from msgstore_spark.errors import ExecutorMismatch, SparkUnavailable

PATIENCE = 60.0
"""Seconds for the first executor of a cluster to come."""
ROUNDS = 5
OLDEST_ARROW = 18
"""As pyproject.toml says."""
SHOWN = 3
"""Paths that an executor does not see, of which a message speaks."""

log = logging.getLogger("msgstore.spark")


@attrs.frozen
class Answer:
    """Of one executor."""

    host: str
    process: int
    """The executor's Python, out of which its workers are forked."""
    fingerprint: Mapping[str, str]
    """Empty if msgstore-spark cannot be imported there; then ``problem`` says why."""
    problem: str
    unseen: Mapping[str, str]
    """Of the paths that were asked for, those that cannot be seen there, and why."""


def fingerprint() -> dict[str, str]:
    """What must be equal on driver and executors: by its name, what is installed. Also what cannot be loaded, and why."""
    catalogue = msgstore.load_catalogue()
    found: defaultdict[str, list[str]] = defaultdict(list)
    found["Python"] = [".".join(platform.python_version_tuple()[:2])]
    for distribution in ("msgstore", "msgstore-spark"):
        found[distribution] = [f"{distribution} {metadata.version(distribution)}"]
    if arrow := _arrow():
        found["pyarrow"] = [arrow]
    for one in catalogue.registrations:
        descriptor = one.descriptor
        of_format = f" of {descriptor.format}" if isinstance(descriptor, RecordTypeDescriptor) else ""
        contract = ".".join(map(str, descriptor.contract))
        provider = f"{one.provider.distribution} {one.provider.version}"
        found[f"{one.kind} {descriptor.name}{of_format}"].append(f"{provider} (contract {contract})")
    for failure in catalogue.failures:
        found[f"plugin {failure.provider.distribution}"].append(failure.what)
    return {key: "; ".join(sorted(values)) for key, values in sorted(found.items())}


def _arrow() -> str | None:
    """Which pyarrow is on a host is its own affair, if it is new enough."""
    try:
        version = metadata.version("pyarrow")
    except metadata.PackageNotFoundError:
        return None
    return f"pyarrow {OLDEST_ARROW} or newer" if int(version.split(".")[0]) >= OLDEST_ARROW else f"pyarrow {version}"


def check_executors(spark: SparkSession, paths: Iterable[str | Path] = ()) -> int:
    """Ask every executor that is there now, and return how many answered. An executor that comes later is not asked.

    ``paths`` are files that executors are to read: each must be there, under the same path as here; one that is not here, or
    no longer, is passed over. A job of one tiny task for each slot. Raises ExecutorMismatch, which names host, difference and
    what to do about it, such as the ``pip`` line, or SparkUnavailable if a cluster gives no executor within a minute.
    """
    asked = list(map(os.path.abspath, paths))
    if not is_remote():
        _wait_for_one(spark)
    answers: dict[tuple[str, int], Answer] = {}
    for _ in range(ROUNDS):
        answers |= {(answer.host, answer.process): answer for answer in _ask(spark, asked)}
        known = len(answers) if is_remote() else _known(spark)
        if len(answers) >= known:
            break
    else:
        log.warning("only %d of %d executors were free to say what they have", len(answers), known)
    here = fingerprint()
    by_host: defaultdict[str, set[str]] = defaultdict(set)
    for answer in answers.values():
        by_host[answer.host].update(_complaints(here, answer))
    if complaints := [f"on {host}: {line}" for host, lines in sorted(by_host.items()) for line in sorted(lines)]:
        raise ExecutorMismatch("\n".join(["the executors have not what the driver has", *complaints]))
    return len(answers)


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """What the driver has and an executor has not, or has otherwise: its name, and both sides. What only an executor has is
    not used: names are chosen by the driver."""
    return {
        key: (value, there.get(key, "nothing"))
        for key, value in here.items()
        if there.get(key) != value and not key.startswith("plugin ")
    }


def _complaints(here: Mapping[str, str], answer: Answer) -> list[str]:
    if answer.problem:
        install = " ".join(dict.fromkeys(_pinned(here[name]) for name in here if name not in ("Python", "pyarrow")))
        return [f"msgstore-spark cannot be used ({answer.problem}). Try there: pip install {install}"]
    lines = [
        f"{path}: {why}. Executors need it under this path, and the right to read it"
        for path, why in answer.unseen.items()
        if os.path.exists(path)  # noqa: PTH110 - here; a segment that was collected meanwhile is nobody's fault
    ]
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"... and {len(lines) - SHOWN} more such files"]
    for key, (ours, theirs) in differences(here, answer.fingerprint).items():
        if key == "Python":
            lines.append(f"Python {theirs}, here {ours}. Set PYSPARK_PYTHON to a Python {ours} that is on every host")
            continue
        why = answer.fingerprint.get(f"plugin {ours.split()[0]}")
        because = f", because {ours.split()[0]} {why}" if why else ""
        lines.append(f"{key}: {theirs}{because}; here {ours}. Try there: pip install {_pinned(ours)}")
    return lines


def _pinned(provider: str) -> str:
    name, version, *rest = provider.split()
    return f"'{name}>={version}'" if rest[:1] == ["or"] else f"{name}=={version}"


def _question(paths: Sequence[str]) -> Callable[[int], str]:
    """A function without a module: it is pickled whole, and can say what is missing where this module is missing."""

    def answer(_: int) -> str:
        import json
        import os
        import socket

        found: dict[str, Any] = {"host": socket.gethostname(), "process": os.getppid(), "fingerprint": {}, "problem": ""}
        found["unseen"] = {}
        for path in paths:
            try:
                os.stat(path)  # noqa: PTH116 - a pathlib.Path is not sent
            except OSError as error:
                found["unseen"][path] = error.strerror
        try:
            from msgstore_spark.fingerprint import fingerprint

            found["fingerprint"] = fingerprint()
        except Exception as error:
            found["problem"] = f"{type(error).__name__}: {error}"
        return json.dumps(found)

    return answer


def _ask(spark: SparkSession, paths: Sequence[str]) -> list[Answer]:
    # A plain function needs nothing of an executor but Python: neither pyarrow nor pandas.
    ask = sf.udf(_question(paths), "string", useArrow=False).asNondeterministic()
    slots = _slots(spark)
    try:
        rows = spark.range(0, slots, 1, slots).select(ask("id")).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise ExecutorMismatch(f"the executors cannot run Python: {_reason(str(error))}") from None
    return [Answer(**json.loads(row[0])) for row in rows]


def _reason(stack: str) -> str:
    """What a stack of Java, with one of Python in it, says about why a worker did not start."""
    for pattern in (r"\[PYTHON_VERSION_MISMATCH\].*", r'Cannot run program ".*', r"^(?:ModuleNotFound|Import)Error: .*"):
        if found := re.search(pattern, stack, re.MULTILINE):
            return found[0]
    return stack.strip().splitlines()[0]


def _slots(spark: SparkSession) -> int:
    """Tasks that run at once: each has a partition, so that the scheduler gives every executor one."""
    if not is_remote():
        return spark.sparkContext.defaultParallelism
    return spark.range(0, 10_000).select(sf.spark_partition_id()).distinct().count()


def _known(spark: SparkSession) -> int:
    """Executors of a classic session; in ``local`` the driver is the one."""
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return 1 if masters.in_this_process(str(spark.sparkContext.master)) else len(infos) - 1


def _wait_for_one(spark: SparkSession) -> None:
    deadline = time.monotonic() + PATIENCE
    while not _known(spark):
        if time.monotonic() > deadline:
            raise SparkUnavailable(
                f"{spark.sparkContext.master} gave no executor within {PATIENCE:g} s. Has it workers, and have they the cores "
                "and the memory that are asked for (spark.cores.max, spark.executor.cores, spark.executor.memory)?"
            )
        time.sleep(0.2)  # Spark has no call that waits for executors
