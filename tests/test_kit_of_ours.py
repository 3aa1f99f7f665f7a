"""The conformance kit on every distribution of this repository, as its author would run it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.kit

OURS = {
    "msgstore": ["body:raw", "gc:half-empty", "gc:retention[max_age=7d]"],
    "msgstore-format-v1": ["format:v1"],
    "msgstore-format-v2": ["format:v2", "record:message"],
    "msgstore-checksum-record": ["record:checksum"],
    "msgstore-erlang-body": ["body:erlang"],
    "msgstore-ets-index": ["index:ets"],
    "msgstore-lmdb-index": ["index:lmdb"],
    "msgstore-prometheus-observer": ["observer:msgstore-prometheus-observer"],
    "acme-audit-record": ["record:audit", "record:audit[actor=billing]"],
    "acme-zstd-body": ["body:zstd"],
    "foreign-backends": ["format:ledger", "index:sqlite"],
}
"""Distribution to what it is tested for, among others."""


@pytest.mark.parametrize("distribution", OURS)
def test_it_passes(distribution, tmp_path):
    options = ["-q", "-n0", "-m", "", "-p", "no:cacheprovider", "--pyargs", "msgstore.testing.suite", "--msgstore-dist"]
    command = [sys.executable, "-m", "pytest", *options, distribution]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for subject in OURS[distribution]:
        assert f"tested: {subject} of {distribution} " in done.stdout
