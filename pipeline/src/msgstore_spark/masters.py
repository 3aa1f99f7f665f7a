"""What a master's URL says, and whether anybody answers there before Spark waits minutes for it."""

from __future__ import annotations

import contextlib
import os
import re
import socket

from msgstore_spark.errors import SparkUnavailable

PATIENCE = 10.0
"""Seconds for a master or a Connect server to answer."""

_LOCAL = re.compile(r"local(?:\[(?P<slots>\d+|\*)(?:\s*,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(?P<workers>\d+)\s*,\s*(?P<cores>\d+)\s*,\s*\d+\s*\]")
_STANDALONE = re.compile(r"spark://(?P<hosts>[^,/:\s]+:\d+(?:,[^,/:\s]+:\d+)*)/?")
KINDS = "local[N], local[*], local-cluster[WORKERS,CORES,MEGABYTES], spark://HOST:PORT, yarn, k8s://URL, sc://HOST:PORT"


def check(master: str) -> None:
    """Raises SparkUnavailable if ``master`` is none that Spark knows, or nobody listens at a ``spark://``."""
    if not (local_slots(master) or _STANDALONE.fullmatch(master) or master == "yarn" or master.startswith("k8s://")):
        raise SparkUnavailable(f"master {master!r}: there is no such kind of master. There are: {KINDS}")
    if masters := _addresses(master):
        refused = []
        for host, port in masters:
            try:
                socket.create_connection((host, port), timeout=PATIENCE).close()
            except OSError as error:
                refused.append(f"{host}:{port}: {error.strerror or error}")
            else:
                return
        raise SparkUnavailable(
            f"master {master!r} does not answer ({'; '.join(refused)}). Start one: "
            f"spark-class org.apache.spark.deploy.master.Master, or take local[*], which needs none"
        )


def local_slots(master: str) -> int:
    """How many tasks run at once under a master that this machine is alone with; 0 for others."""
    if match := _LOCAL.fullmatch(master):
        slots = match["slots"] or "1"
        return len(os.sched_getaffinity(0)) if slots == "*" else int(slots)
    match = _LOCAL_CLUSTER.fullmatch(master)
    return int(match["workers"]) * int(match["cores"]) if match else 0


def in_this_process(master: str) -> bool:
    """True if tasks run in the driver's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def own_address(master: str) -> str | None:
    """Of this machine, as the others see it: where the way to the master begins. None if only Spark can know."""
    if local_slots(master):
        return "127.0.0.1"
    for address in _addresses(master):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    return None


def has_a_name() -> bool:
    """True if this machine's name leads to an address. Without one Spark does not start, unless it is told an address."""
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return False
    return True


def _addresses(master: str) -> list[tuple[str, int]]:
    match = _STANDALONE.fullmatch(master)
    if match is None:
        return []
    return [(host, int(port)) for host, _, port in (part.rpartition(":") for part in match["hosts"].split(","))]
