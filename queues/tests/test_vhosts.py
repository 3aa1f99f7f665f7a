"""Vhosts of a directory from outside: found, stopped, started, deleted, also when the machine stops in between."""

from __future__ import annotations

import logging
import shutil
from functools import partial
from pathlib import Path

import pytest

from msgstore.contract import StoreError, StoreLocked
from msgstore.testing.faults import Crash, RecordingFiles, StoppingFiles, crash_points
from msgstore_queues import open_vhost
from msgstore_queues.catalogue import load_catalogue
from msgstore_queues.options import VHostOptions
from msgstore_queues.vhost import VHost
from msgstore_queues.vhosts import delete_vhost, find_vhost, find_vhosts, queue_names, start_vhost, stop_vhost


def filled(path: Path, name: str = "/") -> Path:
    with open_vhost(path, name) as vhost:
        vhost.queue("jobs").put(b"small")
        vhost.queue("jobs").publish(b"later", delay=3600)
        vhost.queue("other").put(b"large" * 5000)
    return path


def test_vhost_state_follows_its_life(tmp_path):
    filled(tmp_path)
    assert find_vhost(tmp_path, "/").state == "closed"
    vhost = open_vhost(tmp_path)
    found = find_vhost(tmp_path, "/")
    assert (found.state, found.is_stopped) == ("open", False)
    stop_vhost(found)
    assert (find_vhost(tmp_path, "/").state, find_vhost(tmp_path, "/").is_stopped) == ("open", True)
    vhost.abandon()
    assert find_vhost(tmp_path, "/").state == "stopped"
    start_vhost(found)
    assert find_vhost(tmp_path, "/").state == "crashed"
    open_vhost(tmp_path).close()
    assert find_vhost(tmp_path, "/").state == "closed"


def test_vhost_without_queues_is_closed(tmp_path):
    open_vhost(tmp_path, "empty").abandon()
    assert [(one.name, one.state) for one in find_vhosts(tmp_path)] == [("empty", "closed")]


def test_stopped_vhost_is_not_opened(tmp_path):
    filled(tmp_path)
    stop_vhost(find_vhost(tmp_path, "/"))
    with pytest.raises(StoreError, match=f"the vhost '/' is stopped. Start it: msgstore vhost start {tmp_path} /"):
        open_vhost(tmp_path)
    start_vhost(find_vhost(tmp_path, "/"))
    with open_vhost(tmp_path) as vhost:
        assert vhost.queue("jobs").get() == b"small"


def test_other_vhosts_are_found_and_untouched(tmp_path):
    filled(filled(tmp_path), "second")
    delete_vhost(find_vhost(tmp_path, "/"))
    assert [one.name for one in find_vhosts(tmp_path)] == ["second"]
    assert queue_names(find_vhost(tmp_path, "second")) == ["jobs", "other"]
    with pytest.raises(StoreError, match=r"there is no vhost 'secnd'. Vhosts: 'second'. Did you mean 'second'"):
        find_vhost(tmp_path, "secnd")
    with open_vhost(tmp_path, "second") as vhost:
        assert vhost.queue("other").get() == b"large" * 5000


def test_open_vhost_is_not_deleted(tmp_path):
    with open_vhost(filled(tmp_path)) as vhost:
        with pytest.raises(StoreLocked):
            delete_vhost(find_vhost(tmp_path, "/"))
        assert vhost.queue("jobs").get() == b"small"


def test_crash_in_deletion_is_completed_by_another(tmp_path):
    """After a crash at any point the vhost is as before, or stopped, or without queues; and can be deleted."""
    whole = RecordingFiles()
    shutil.copytree(filled(tmp_path / "vhost"), tmp_path / "whole")
    delete_vhost(find_vhost(tmp_path / "whole", "/"), whole)
    states = set()
    for number, (stop, torn) in enumerate(crash_points(whole)):
        path = shutil.copytree(tmp_path / "vhost", tmp_path / str(number))
        with pytest.raises(Crash):
            delete_vhost(find_vhost(path, "/"), StoppingFiles(stop, torn))
        for found in find_vhosts(path):
            states.add((found.state, bool(queue_names(found))))
            delete_vhost(found)
        assert find_vhosts(path) == []
        with open_vhost(path) as vhost:
            assert vhost.queues() == []
    assert states <= {("closed", True), ("stopped", True), ("stopped", False), ("closed", False)}
    assert ("stopped", True) in states


def test_progress_counts_queues_after_a_crash(tmp_path):
    seen: list[tuple[int, int]] = []
    make = partial(VHost, filled(tmp_path), "/", VHostOptions(), load_catalogue(), where="a test")
    make(progress=lambda done, total: seen.append((done, total))).abandon()
    assert seen == []
    make(progress=lambda done, total: seen.append((done, total))).close()
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_terms_of_an_older_version_open_as_before(tmp_path, caplog):
    """A file of a clean stop without counts is used, and the vhost opens without reading its queues."""
    path = find_vhost(filled(tmp_path), "/").directory / "msgstore-vhost.json"
    text = path.read_text()
    path.write_text(text[: text.index(',"counts"')] + "}")
    with caplog.at_level(logging.WARNING), open_vhost(tmp_path) as vhost:
        assert vhost.queue("jobs").get() == b"small"
    assert not caplog.records
