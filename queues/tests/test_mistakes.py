"""A user's mistake, or a call that fails halfway, costs nobody else a message."""

from __future__ import annotations

import errno
import json
import shutil

import pytest

from msgstore.contract import ConfigError, StoreClosed, StoreError, StoreIOError
from msgstore_queues.directories import QUEUE_FILE, VHOST_FILE, queue_path
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


@pytest.mark.parametrize("name", ["", None, 5, "\udcff"])
def test_name_that_no_queue_has_is_refused(name, vhost, tmp_path):
    jobs = vhost.queue("jobs")
    with pytest.raises(ConfigError, match="a name of a queue is text"):
        vhost.queue(name)
    for target in (name or "", "others.delayed"):
        with pytest.raises(ConfigError, match="queue 'others'"):
            vhost.queue("others", dead_letter=target)
    with pytest.raises(ConfigError, match="the name of a vhost is text, not int"):
        open_on(tmp_path, name=5)
    assert (vhost.queues(), jobs.closed) == (["jobs"], None)


def test_name_of_delayed_messages_is_no_name_of_another_queue(opened, tmp_path):
    vhost = opened()
    with pytest.raises(ConfigError, match="delayed messages of another queue"):
        vhost.queue("mail.delayed")
    vhost.queue("mail").publish(b"1", delay=1000)
    assert len(vhost.queue("mail.delayed")) == 0
    assert opened().queues() == ["mail", "mail.delayed"]


@pytest.mark.parametrize("layout", ["own", "rabbitmq-3.10"])
def test_brokers_queue_is_not_taken_for_delayed_messages(layout, opened):
    """Its directory has no file of msgstore, or is one of priorities, which gets one."""
    vhost = opened(layout=layout)
    if layout == "own":
        vhost.queue("mail").publish(b"1", delay=1000)
    else:
        vhost._use("mail.delayed", {"backing": {"use": "priority", "levels": 2}}, "a test", is_declared=True).publish(b"1")
    vhost.close()
    path = queue_path(vhost.directory, "/", "mail.delayed")
    (path / QUEUE_FILE).unlink()
    vhost = opened(layout=layout)
    mail = vhost.queue("mail")
    with pytest.raises(ConfigError, match=r"'mail\.delayed' is a queue of the broker"):
        mail.publish(b"2", delay=1)
    assert len(vhost.queue("mail.delayed")) == 1


@pytest.mark.parametrize("call", ["ack", "nack"])
def test_message_of_another_queue_is_refused(call, vhost):
    jobs, others = vhost.queue("jobs"), vhost.queue("others")
    for one in (jobs, others):
        one.publish(b"1")
    received, _ = jobs.receive(), others.receive()
    with pytest.raises(ValueError, match="taken from the queue 'jobs'"):
        getattr(others, call)(received)
    with pytest.raises(TypeError, match="each is an argument"):
        getattr(jobs, call)([received])
    assert (jobs.unacked, others.unacked, jobs.generation) == (1, 1, 0)


def test_wrong_argument_costs_nobody_a_message(vhost):
    """An error of the backing queue would read the queue again from disk."""
    jobs = vhost.queue("jobs")
    jobs.publish(b"1")
    with pytest.raises(TypeError, match="int or None"):
        jobs.set_memory_target("x")
    with pytest.raises(TypeError, match="make_message"):
        jobs.transact([b"2"], [])
    with pytest.raises(TypeError, match="no message"):
        jobs.transact([], [b"2"])
    assert (len(jobs), jobs.generation) == (1, 0)


def test_closed_vhost_deletes_nothing(opened):
    vhost = opened()
    vhost.queue("jobs").publish(b"1")
    vhost.close()
    with pytest.raises(StoreClosed):
        vhost.delete("jobs")
    assert len(opened().queue("jobs")) == 1


def test_start_in_a_callback_is_refused(vhost):
    jobs, raised = vhost.queue("jobs"), []

    def start():
        with pytest.raises(RuntimeError, match="in a callback") as info:
            vhost.start()
        raised.append(info)

    jobs.publish(b"1", on_confirm=start)
    vhost.flush()
    assert len(raised) == 1


def test_queue_that_has_dead_letters_keeps_its_options(vhost):
    jobs = vhost.queue("jobs", dead_letter="failed")
    jobs.publish(b"1")
    jobs.receive().nack(requeue=False)
    for options in ({"backing": {"use": "priority", "levels": 3}}, {"durable": False}, {"index": "v1"}):
        with pytest.raises(ConfigError, match="the directory has"):
            vhost.queue("failed", **options)
    with pytest.raises(ConfigError, match="is in use with other options"):
        vhost.queue("failed", backing={"use": "variable", "memory": 5})
    assert vhost.queue("failed", max_length=5).take().body == b"1"


def test_queue_named_before_it_is_declared_has_its_options(vhost):
    vhost.queue("jobs", dead_letter="failed")
    failed = vhost.queue("failed", backing={"use": "priority", "levels": 3})
    failed.publish(b"usual")
    failed.publish(b"urgent", properties={"priority": 2})
    assert failed.take().body == b"urgent"


def test_dead_letter_has_the_time_to_live_of_its_queue(vhost, clock):
    jobs = vhost.queue("jobs", dead_letter="failed")
    failed = vhost.queue("failed", message_ttl=10)
    jobs.publish(b"1")
    jobs.receive().nack(requeue=False)
    clock.passes(vhost, 11)
    assert failed.take() is None


def test_other_directories_are_left_alone(opened, caplog):
    """Not read as queues, and not deleted as those whose making a crash has ended."""
    vhost = opened()
    vhost.queue("jobs").publish(b"old")
    vhost.close()
    path = queue_path(vhost.directory, "/", "jobs")
    for copy in (path.with_name(path.name + ".bak"), path.with_name("ABC")):
        shutil.copytree(path, copy)
    (path.parent / "notes").mkdir()
    (path.parent / "notes.txt").write_text("x")
    (path.parent / "XYZ").mkdir()
    shutil.copytree(path, path.with_name("OLD") / path.name)
    vhost = opened()
    jobs = vhost.queue("jobs")
    jobs.publish(b"new")
    vhost.close()
    assert sorted(one.name for one in path.parent.iterdir()) == sorted(
        [path.name, path.name + ".bak", "ABC", "OLD", "notes", "notes.txt"]
    )
    assert caplog.text.count("is left alone") == 5
    assert [message.body for message in opened().queue("jobs").browse()] == [b"old", b"new"]


def test_queue_is_declared_again_in_another_directory(opened, tmp_path, monkeypatch):
    vhost = opened()
    options = {"backing": {"use": "variable", "memory": 5}}
    jobs = vhost.queue("jobs", **options)
    monkeypatch.chdir(tmp_path)
    assert vhost.queue("jobs", **options) is jobs
