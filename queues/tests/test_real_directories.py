"""Directories that RabbitMQ wrote: each queue delivers what the rescue reads in it, in order, with its properties."""

from __future__ import annotations

import hashlib
import shutil

import pytest

from msgstore_queues import open_vhost
from rabbitmq_nodes import DATA, rows, unpack


@pytest.fixture(params=["3.10", "3.10-killed"])
def node(request, tmp_path):
    if request.param == "3.10-killed":
        return unpack(tmp_path)
    return shutil.copytree(DATA / "rabbitmq-3.10" / "clean", tmp_path / "node")


def test_queues_deliver_what_the_rescue_reads(node):
    found, _ = rows(node)
    for vhost_name in ("/", "orders"):
        compared = 0
        with open_vhost(node, vhost_name, layout="rabbitmq-3.10") as vhost:
            for name in vhost.queues():
                wanted = [row for row in found.get((vhost_name, name.partition("\0")[0]), []) if row["state"] == "ready"]
                queue = vhost.queue(name)
                ours = []
                while (received := queue.take()) is not None:
                    ours.append((hashlib.sha256(received.body).hexdigest(), received.message.raw_properties))
                assert ours == [(row["sha256"], row["raw_properties"]) for row in wanted], (vhost_name, name)
                compared += len(ours)
        assert compared > 20
