"""Nodes that RabbitMQ left: what the source reads in them, and what the broker's own records say."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from msgstore.contract import SourceDamage
from msgstore_rabbitmq_source.opening import open_node

DATA = Path(__file__).parent / "data"
KILLED = DATA / "rabbitmq-3.10-killed"
NOW_MS = 1_795_424_000_000
"""Minutes after the nodes stopped."""


def unpack(directory: Path, packed: Path = KILLED / "node.tar.gz") -> Path:
    with tarfile.open(packed) as archive:
        archive.extraction_filter = lambda member, path: member  # the argument ``filter`` came with Python 3.11.4
        archive.extractall(directory)
    return next(directory.glob("*@localhost"))


def rows(path: Path, *queues: str) -> tuple[dict[tuple[str | None, str | None], list[dict]], list[SourceDamage]]:
    """Return the messages of each queue, or of the queues of these names, and the damage that was found on the way."""
    found, damage = defaultdict(list), []
    with open_node(path, NOW_MS) as source:
        infos = list(source.queues())
        damage += source.damage()
        for info in infos:
            if not info.read or (queues and info.name.queue not in queues):
                continue
            for item in source.messages(info.name, 0, None):
                if isinstance(item, SourceDamage):
                    damage.append(item)
                else:
                    found[info.name.vhost, info.name.queue] += batch_rows(item)
    return found, damage


def batch_rows(batch) -> Iterator[dict]:
    for row in range(len(batch)):
        yield {
            "sha256": hashlib.sha256(batch.bodies[row]).hexdigest(),
            "size": len(batch.bodies[row]),
            "exchange": batch.exchanges[row],
            "routing_key": batch.routing_keys[row][0],
            "state": batch.states[row],
            "certainty": batch.certainties[row],
            "raw_properties": batch.raw_properties[row],
            "properties": batch.properties[row],
            "headers": batch.headers[row],
            "position": batch.positions[row],
            "sequence": batch.sequences[row],
        }


def listed(found: list[dict]) -> list[dict]:
    return [row for row in found if row["state"] in ("ready", "expired")]


def facts(found: list[dict]) -> list[tuple]:
    return [(row["sha256"], row["exchange"], row["routing_key"]) for row in found]


def checksums(path: Path) -> dict[str, str]:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def truth(file: Path = KILLED / "broker-truth.jsonl.gz") -> dict[tuple[str, str], list[dict]]:
    """Return what the broker delivered from a copy of a node: by default, the killed one."""
    found = defaultdict(list)
    with gzip.open(file) as lines:
        for line in map(json.loads, lines):
            found[line["vhost"], line["queue"]].append(line | {"routing_key": line["rk"]})
    return found


def wanted() -> Counter[tuple[str, str, str]]:
    """Return the deliveries that must be there, by vhost, queue and sha256: confirmed, and never acknowledged."""
    found, confirmed, published = Counter(), set(), {}
    with gzip.open(KILLED / "journal.jsonl.gz") as lines:
        events = [json.loads(line) for line in lines]
    for event in events:
        if event["ev"] == "publish":
            published[event["uid"]] = event
        elif event["ev"] == "confirm":
            confirmed.add(event["uid"])
    acknowledged = Counter((event["vhost"], event["queue"], event["uid"]) for event in events if event["ev"] == "ack")
    for uid in confirmed:
        event = published[uid]
        for queue in event["queues"]:
            if (event["vhost"], queue, uid) not in acknowledged:
                found[event["vhost"], queue, event["sha256"]] += 1
    for (vhost, queue, uid), count in acknowledged.items():  # of messages that do not have it in their properties
        found[vhost, queue, uid.removeprefix("sha256:")] -= count if uid.startswith("sha256:") else 0
    return +found
