"""The message stores of a vhost, which are opened when they are first used."""

from __future__ import annotations

from base64 import b64decode
from queue import Empty
from threading import Event, Thread
from unittest.mock import Mock

import pytest

from msgstore.contract import CorruptRecord
from msgstore.jobs.workers import worker_catalogue
from msgstore_queues.stores import Bodies
from support import command, flip, json_of


@pytest.mark.parametrize("at", [0, 1, 4])
def test_queue_stops_at_damaged_body_or_skips_it(opened, tmp_path, at):
    """The messages before it are delivered. With ``skip``, the damaged one is lost, and no other."""
    options = {"store": {"record": "checksum"}, "embed_below": 0}
    jobs = opened(**options).queue("jobs")
    for number in range(5):
        jobs.publish(b"body %d" % number)
    opened(**options).close()
    [segment] = (tmp_path / "msg_stores").rglob("0.sqs")
    flip(segment, segment.read_bytes().index(b"body %d" % at))
    jobs = opened(**options).queue("jobs")
    taken = [jobs.receive(block=False) for _ in range(at)]
    for _ in range(2):
        with pytest.raises(CorruptRecord, match=f"queue jobs stops at position {at}: .* is damaged .checksum_mismatch.*skip"):
            jobs.receive(block=False)
    assert [one.body for one in taken] == [b"body %d" % number for number in range(at)]
    jobs = opened(**options, damaged="skip").queue("jobs")
    found = [jobs.receive(block=False) for _ in range(4)]
    assert [one.body for one in found] == [b"body %d" % number for number in range(5) if number != at]
    with pytest.raises(Empty):
        jobs.receive(block=False)
    jobs.ack(*found)
    assert not len(opened(**options).queue("jobs"))


def test_two_first_users_open_store_once(tmp_path):
    """Two queues have locks of their own, so both may need the store first. The second call of an opening finds it locked."""
    opened, second = [], Event()

    def open_store(path, **keys):
        opened.append(path)
        if len(opened) == 1:
            other.start()
            assert not second.wait(0.2), "the other thread has opened it, too"
        else:
            second.set()
        return Mock()

    bodies = Bodies(tmp_path, open_store, {})
    other = Thread(target=bodies.read_many, args=([],))
    bodies.read_many([])
    other.join()
    assert len(opened) == 1


def test_what_reads_queues_is_named(opened, tmp_path, monkeypatch):
    opened().queue("jobs").publish(b"body")
    opened().close()
    monkeypatch.setenv("_MSGSTORE_DISABLED", "rabbitmq-source")
    worker_catalogue.cache_clear()
    done = command("detect", tmp_path, code=None)
    worker_catalogue.cache_clear()
    assert "queues. What reads their messages: pip install msgstore-rabbitmq-source" in done.output.replace("\n", "")


def test_messages_of_store_with_another_record_type_are_listed(opened, tmp_path):
    """By the tools, which need no options of the vhost: the directory remembers the type."""
    jobs = opened(store={"record": "checksum"}, embed_below=0).queue("jobs")
    for number in range(3):
        jobs.publish(b"body %d" % number)
    jobs.vhost.close()
    rows = json_of("messages", tmp_path, "--source", "rabbitmq")
    assert [b64decode(row["body"]) for row in rows] == [b"body 0", b"body 1", b"body 2"]
