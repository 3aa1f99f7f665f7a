"""A cell tests what it says: exactly these plugins were loaded, and none of them is broken."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support import catalogue

DISTRIBUTIONS = {
    "ets": "msgstore-ets-index",
    "lmdb": "msgstore-lmdb-index",
    "v1": "msgstore-format-v1",
    "v2": "msgstore-format-v2",
    "checksum": "msgstore-checksum-record",
    "audit": "acme-audit-record",
    "ledger": "foreign-backends",
    "sqlite": "acme-sqlite-index",
}


OTHERS = {
    "acme-aes-body",
    "acme-find-command",
    "acme-stamped-format",
    "acme-zstd-body",
    "msgstore-amqp-sink",
    "msgstore-erlang-body",
    "msgstore-kestrel-journal",
    "msgstore-prometheus-observer",
    "msgstore-queues",
    "msgstore-rabbitmq-source",
    "msgstore-rocketmq-log",
}
"""Of no cell: installed where everything is."""


def test_loaded_plugins_are_those_of_the_cells(request, cells):
    loaded = {provider.distribution for provider in catalogue().providers}
    if request.config.getoption("--cells"):
        names = {name for cell in cells for name in (cell.index, cell.format, cell.record)}
        expected = {"msgstore", "msgstore-erlang-body"} | {DISTRIBUTIONS[name] for name in names & DISTRIBUTIONS.keys()}
    else:
        loaded -= {"msgstore-spark"}  # not part of tests/requirements.txt
        expected = {"msgstore", *DISTRIBUTIONS.values(), *OTHERS}
    assert loaded == expected
    assert list(catalogue().problems()) == []


@pytest.mark.parametrize("kind", ["format", "index", "gc", "body", "source", "sink", "runner"])
def test_every_kind_has_a_backend(kind):
    assert catalogue().names(kind)


def test_loading_imports_no_large_library():
    """Each program that opens a store loads all plugins."""
    code = "import sys, msgstore; msgstore.load_catalogue(); print({'numpy', 'pandas', 'pyarrow'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
