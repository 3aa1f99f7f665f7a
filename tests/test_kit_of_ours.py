"""The conformance kit passes every distribution of this repository, run as its author would, and finds every injected fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kit

OURS = {
    "msgstore": ["body:raw", "gc:half-empty", "gc:retention[max_age=7d]", "source:parquet", "sink:store"],
    "msgstore-format-v1": ["format:v1"],
    "msgstore-format-v2": ["format:v2", "record:message"],
    "msgstore-checksum-record": ["record:checksum"],
    "msgstore-erlang-body": ["body:erlang"],
    "msgstore-ets-index": ["index:ets"],
    "msgstore-lmdb-index": ["index:lmdb"],
    "msgstore-kestrel-journal": ["source:kestrel", "sink:kestrel"],
    "msgstore-amqp-sink": ["sink:amqp"],
    "msgstore-rabbitmq-source": ["source:rabbitmq", "command:rabbitmq"],
    "msgstore-queues": ["command:queue", "command:vhost"],
    "msgstore-rocketmq-log": ["source:rocketmq", "sink:rocketmq"],
    "msgstore-prometheus-observer": ["observer:msgstore-prometheus-observer"],
    "acme-aes-body": ["body:aes-gcm[key=" + 32 * "0" + "]"],
    "acme-audit-record": ["record:audit"],
    "acme-find-command": ["command:find"],
    "acme-sqlite-index": ["index:sqlite"],
    "acme-stamped-format": ["format:stamped"],
    "acme-zstd-body": ["body:zstd"],
    "foreign-backends": ["format:ledger"],
}
"""Distribution to what it is tested for, among others."""


def run_kit(directory: Path, *more: str) -> None:
    """Run the kit on OURS and ``more``, without the options of this repository. In one run: it imports everything once."""
    chosen = [f"--msgstore-dist={name}" for name in (*OURS, *more)]
    alone = ["-q", "-c", os.devnull, "--rootdir", str(directory), "-W", "error", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *alone, "--pyargs", "msgstore.testing.suite", *chosen]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for distribution, subjects in OURS.items():
        for subject in subjects:
            assert f"tested: {subject} of {distribution} " in done.stdout, subject


def test_kit_passes_each_distribution(tmp_path):
    run_kit(tmp_path)


def test_kit_catches_each_mutant_and_passes_originals():
    # Not measured: the signal that ends a mutant which hangs may come while coverage holds its own lock.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    command = [sys.executable, "-m", "mutants", "--enough", "1"]
    done = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
