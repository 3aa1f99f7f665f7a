"""A user's mistake, or a call that fails halfway, costs nobody else a message."""

from __future__ import annotations

import errno
import json

import pytest

from msgstore.contract import ConfigError, StoreClosed, StoreError, StoreIOError
from msgstore_queues.directories import QUEUE_FILE, VHOST_FILE
from queues_support import open_on
from support import HookedFiles, failing

INFINITE, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("index", ["v1", "v2"])
def test_messages_of_a_failed_flush_stay_in_memory(index, tmp_path):
    """They are called indexed, and are not on disk: a requeue must not take them out of memory."""
    files = HookedFiles()
    vhost = open_on(tmp_path, files)
    jobs = vhost.queue("jobs", index=index, backing={"use": "variable", "memory": 2})
    for number in range(10):
        jobs.publish(b"%d" % number)
    files.before("pwrite", failing(errno.ENOSPC), times=None)
    with pytest.raises(StoreIOError):
        jobs.flush()
    jobs.receive().nack()
    files.hooks.clear()
    assert [jobs.receive(block=False).body for _ in range(10)] == [b"%d" % number for number in range(10)]
    vhost.close()


@pytest.mark.parametrize(
    "wrong", [{"ttl": 1e14}, {"ttl": -1e12}, {"ttl": float("nan")}, {"delay": 1e14}, {"delay": float("inf")}]
)
def test_time_that_no_index_has_is_refused(wrong, vhost):
    jobs, confirmed = vhost.queue("jobs"), []
    jobs.publish(b"good", on_confirm=lambda: confirmed.append(1))
    with pytest.raises(ValueError, match="the time must be after 1970, and before 2112"):
        jobs.publish(b"bad", **wrong)
    with pytest.raises(ValueError, match="delay is inf seconds"):
        jobs.receive().nack(delay=INFINITE)
    jobs.flush()
    assert (confirmed, jobs.unacked, jobs.generation) == ([1], 1, 0)


def test_deleted_queue_tells_that_its_messages_are_lost(vhost):
    jobs, lost = vhost.queue("jobs"), []
    jobs.publish(b"1", on_confirm=lambda: lost.append("confirmed"), on_lost=lost.append)
    vhost.delete("jobs")
    assert [type(error) for error in lost] == [StoreClosed]
    with pytest.raises(StoreClosed, match="was deleted"):
        jobs.publish(b"2", delay=5)
    assert vhost.queues() == []


def test_rejected_message_of_a_deleted_target_is_ready_again(vhost):
    jobs = vhost.queue("jobs", dead_letter="lost")
    jobs.publish(b"1")
    jobs.receive().nack(requeue=False)
    vhost.delete("lost")
    assert jobs.take().body == b"1"


@pytest.mark.parametrize("index", ["v1", "v2"])
@pytest.mark.parametrize("terms", [5, {"index": 5}, {"index": {}}, {"next": "x"}])
def test_terms_that_make_no_sense_are_not_used(terms, index, opened, caplog):
    vhost = opened()
    vhost.queue("jobs", index=index).publish(b"1")
    vhost.close()
    path = vhost.directory / VHOST_FILE
    table = json.loads(path.read_text())
    table["queues"] = dict.fromkeys(table["queues"], terms)
    path.write_text(json.dumps(table))
    assert opened().queue("jobs").take().body == b"1"


@pytest.mark.parametrize("wrong", [{"name": 5}, {"backing": []}, {"index": 5}, {"base": 5}, {"name": "\udcff"}, {"durable": 1}])
def test_wrong_file_of_a_queue_is_named(wrong, opened):
    vhost = opened()
    vhost.queue("jobs")
    vhost.close()
    (path,) = vhost.directory.glob(f"queues/*/{QUEUE_FILE}")
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    with pytest.raises(StoreError, match="is missing or wrong"):
        opened()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_lenght": 5}, r"queue 'jobs'.*max_lenght.*max_length"),
        ({"expires": 0}, "expires"),
        ({"backing": {"use": "priority", "levels": 0}}, "levels"),
        ({"backing": {"use": "priority", "levels": 257}}, "levels"),
        ({"backing": "mirror"}, "the key 'directory' is missing"),
    ],
)
def test_queue_with_wrong_options_is_not_made(options, message, vhost):
    with pytest.raises(ConfigError, match=message):
        vhost.queue("jobs", **options)
    assert vhost.queues() == []
    assert list((vhost.directory / "queues").iterdir()) == []


def test_publish_of_what_is_no_message_is_refused(vhost):
    with pytest.raises(TypeError, match="a body is bytes, not str"):
        vhost.queue("jobs").publish("text")
    with pytest.raises(TypeError, match="a key is a str, not int"):
        vhost.queue("jobs").publish(b"1", key=17)
    with pytest.raises(ValueError, match="to one queue at least"):
        vhost.publish(b"1", to=[])
