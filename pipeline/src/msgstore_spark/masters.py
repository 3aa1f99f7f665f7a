"""Parsing of master URLs, and a connection test, because Spark itself waits minutes for an unreachable master."""

from __future__ import annotations

import contextlib
import os
import re
import socket

from msgstore_spark.errors import SparkUnavailable

CONNECT_TIMEOUT_SECONDS = 10.0
"""Timeout for connections to a master or a Connect server."""

_LOCAL = re.compile(r"local(?:\[(?P<slots>\d+|\*)(?:\s*,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(?P<workers>\d+)\s*,\s*(?P<cores>\d+)\s*,\s*\d+\s*\]")
_STANDALONE = re.compile(r"spark://(?P<hosts>[^,/:\s]+:\d+(?:,[^,/:\s]+:\d+)*)/?")
KINDS = "local[N], local[*], local-cluster[WORKERS,CORES,MEGABYTES], spark://HOST:PORT, yarn, k8s://URL, sc://HOST:PORT"


def check(master: str) -> None:
    """Raise SparkUnavailable if ``master`` is no valid URL, or if no master listens at a ``spark://`` address."""
    if not (local_slots(master) or _STANDALONE.fullmatch(master) or master == "yarn" or master.startswith("k8s://")):
        raise SparkUnavailable(f"master {master!r}: unknown kind of master. Use one of: {KINDS}")
    if masters := _addresses(master):
        refused = []
        for host, port in masters:
            try:
                socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_SECONDS).close()
            except OSError as error:
                refused.append(f"{host}:{port}: {error.strerror or error}")
            else:
                return
        raise SparkUnavailable(
            f"master {master!r} does not answer ({'; '.join(refused)}). Start one: "
            f"spark-class org.apache.spark.deploy.master.Master, or use local[*], which needs no master"
        )


def local_slots(master: str) -> int:
    """Return the number of concurrent tasks of a ``local`` or ``local-cluster`` master; 0 for other masters."""
    if match := _LOCAL.fullmatch(master):
        slots = match["slots"] or "1"
        return len(os.sched_getaffinity(0)) if slots == "*" else int(slots)
    match = _LOCAL_CLUSTER.fullmatch(master)
    return int(match["workers"]) * int(match["cores"]) if match else 0


def in_this_process(master: str) -> bool:
    """Return True if tasks run in the driver's own JVM."""
    return _LOCAL.fullmatch(master) is not None


def own_address(master: str) -> str | None:
    """Return this machine's address on the route to the master; None if it cannot be determined without Spark."""
    if local_slots(master):
        return "127.0.0.1"
    for address in _addresses(master):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    return None


def is_hostname_resolvable() -> bool:
    """Return True if this machine's hostname resolves. If not, Spark starts only with an explicit address."""
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
