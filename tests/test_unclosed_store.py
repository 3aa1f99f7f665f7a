"""A store that is never closed says what is lost: at the end of the interpreter, and when it is collected."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import weakref

import pytest

import msgstore
from support import FullDisk, open_with

PROGRAM = """
import os, sys, msgstore
kept = [msgstore.open_store(sys.argv[1] + name, sync_interval="1h") for name in ("/left", "/closed", "/abandoned", "/flushed")]
for store in kept:
    client = store.client(on_confirm=lambda ids: None)
    client.write_many([(number.to_bytes(16), b"body") for number in range(5000)])
kept[1].close()
kept[2].abandon()
kept[3].flush()
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    print("the child ends", file=sys.stderr)
"""


def test_exit_without_close_warns_of_unconfirmed_writes(tmp_path):
    """Once, in the process that wrote, of the one store that has any."""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0
    text = f"{tmp_path / 'left'}: the store was never closed, and at least 5000 writes are not confirmed"
    assert "the child ends" in done.stderr
    assert done.stderr.count("never closed") == done.stderr.count(text) == 2, done.stderr
    assert f"ResourceWarning: {text}" in done.stderr


def test_collected_store_warns_of_unconfirmed_writes(tmp_path, caplog):
    """One without threads, which would keep it alive, and confirm its writes."""
    files = FullDisk()
    store = open_with(tmp_path, files, sync_interval=0, gc_interval=0)
    files.full = True
    with pytest.raises(msgstore.StoreIOError):
        store.client().write(bytes(16), b"body")
    alive = weakref.ref(store)
    caplog.clear()
    del store
    with pytest.warns(ResourceWarning) as caught:
        gc.collect()
    assert alive() is None, "the warning keeps the store alive"
    text = f"{tmp_path}: the store was never closed, and at least 1 writes are not confirmed"
    assert any(str(warning.message).startswith(text) for warning in caught)
    assert any(row.levelno == logging.WARNING and row.getMessage().startswith(text) for row in caplog.records)
