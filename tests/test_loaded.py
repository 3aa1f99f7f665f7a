"""A cell tests what it says: exactly these plugins were loaded, and none of them is broken."""

from __future__ import annotations

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
    "sqlite": "foreign-backends",
}


def test_exactly_the_plugins_of_the_cell_are_loaded(request, cells):
    loaded = {provider.distribution for provider in catalogue().providers}
    expected = {"msgstore"}
    for cell in cells:
        expected |= {DISTRIBUTIONS[name] for name in (cell.index, cell.format, cell.record) if name in DISTRIBUTIONS}
        if cell.format == "v1":  # such cells open what brokers left
            expected.add("msgstore-erlang-body")
    if request.config.getoption("--everything-installed"):
        expected |= {*DISTRIBUTIONS.values(), "acme-zstd-body", "msgstore-erlang-body", "msgstore-prometheus-observer"}
    if request.config.getoption("--spark-installed"):
        expected.add("msgstore-spark")
    assert loaded == expected
    assert list(catalogue().problems()) == []


@pytest.mark.parametrize("kind", ["format", "index", "gc", "body", "engine"])
def test_every_kind_has_a_backend(kind):
    assert catalogue().names(kind)
