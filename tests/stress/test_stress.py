"""Eight threads write, read and remove on one store while it is collected: nothing is lost, nothing returns, no byte is wrong.

``--stress N`` sets the number of messages; with two million a run takes minutes a cell. Formats and record types other than the
default's are run with the ordinary number at most: they do not differ in what threads can do to each other.
"""

from __future__ import annotations

import pytest

from msgstore.contract import Capability
from stress.running import Options, run
from support import CELLS, catalogue

pytestmark = pytest.mark.crash

ORDINARY = 60_000
FULL = ("ets-v2", "lmdb-v2")
VARIANTS = [
    ("ets-v2", {"reads": "mmap"}),
    ("ets-v2", {"durability": "fsync"}),
    ("lmdb-v2", {"durability": "fsync"}),
    ("lmdb-v2", {"sync_interval": "1h"}),
]


@pytest.fixture
def messages(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--stress")


def check(outcome, cell, messages):
    assert not outcome.findings, str(outcome.findings)
    counts = outcome.counts
    assert counts["messages"] >= messages
    assert counts["reads"] > messages, "too little was read to say anything"
    assert counts["writes"] == counts["confirmed"] > counts["messages"]
    assert counts["removes"] > counts["messages"] // 2
    in_place = Capability.SELF_DESCRIBING in catalogue().format(cell.format).capabilities
    assert outcome.cuts > 2 or not in_place, "the collector had too little to do to say anything"
    assert outcome.cuts + outcome.deletions > 20


def test_threads_write_read_remove_and_collect(cell, messages, tmp_path, report):
    if str(cell) not in FULL:
        messages = min(messages, ORDINARY)
    outcome = run(tmp_path / "store", Options(messages, cell.keys))
    report("stress", f"{cell}: {outcome}")
    check(outcome, cell, messages)
    if messages >= ORDINARY:
        assert outcome.segments > 200


@pytest.mark.parametrize(("name", "keys"), VARIANTS, ids=lambda value: value if isinstance(value, str) else "-".join(value))
def test_with_other_keys_of_the_configuration(name, keys, need_cell, messages, tmp_path, report):
    need_cell(CELLS[name])
    messages = min(messages, ORDINARY) // 3
    outcome = run(tmp_path / "store", Options(messages, CELLS[name].keys | keys))
    report("stress", f"{name} {keys}: {outcome}")
    check(outcome, CELLS[name], messages)
