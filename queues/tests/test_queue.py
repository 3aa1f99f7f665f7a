"""What a queue promises its users: confirms, order, limits, expiry, dead letters, retries, delays, consumers."""

from __future__ import annotations

import queue
import threading
import time
from unittest import mock

import pytest

from msgstore.contract import ConfigError, PluginError, StoreClosed, StoreIOError, StoreLocked
from msgstore_queues import open_vhost
from msgstore_queues.message import ATTEMPTS, DEATHS
from queues_support import bodies, publish

# -- publishing and taking ------------------------------------------------------------------------------------------------


def test_message_is_delivered_as_it_was_published(vhost):
    jobs = vhost.queue("jobs")
    jobs.publish(b"resize 17", headers={"tries": 3}, properties={"content_type": "text/plain"})
    received = jobs.receive()
    assert (received.body, received.headers, received.properties) == (
        b"resize 17",
        {"tries": 3},
        {"content_type": "text/plain"},
    )
    assert (received.is_redelivered, received.attempts) == (False, 1)


def test_confirm_comes_with_the_flush_and_in_order(vhost):
    jobs, confirmed = vhost.queue("jobs"), []
    for number in range(3):
        jobs.publish(b"", on_confirm=lambda number=number: confirmed.append(number))
    assert confirmed == []
    jobs.flush()
    assert confirmed == [0, 1, 2]


def test_confirm_of_a_message_that_was_acknowledged_before_comes(vhost):
    jobs, confirmed = vhost.queue("jobs"), []
    jobs.publish(b"", on_confirm=lambda: confirmed.append(1))
    jobs.receive().ack()
    jobs.flush()
    assert confirmed == [1]


def test_callback_may_publish_and_may_not_flush(vhost):
    jobs, said = vhost.queue("jobs"), []

    def answer():
        jobs.publish(b"answer")
        with pytest.raises(RuntimeError, match=r"flush\(\) was called in a callback"):
            jobs.flush()
        said.append(1)

    jobs.publish(b"question", on_confirm=answer)
    jobs.flush()
    assert said == [1]
    assert bodies(jobs) == [b"question", b"answer"]


def test_callback_that_raises_is_logged_and_others_are_called(vhost, caplog):
    jobs, confirmed = vhost.queue("jobs"), []
    jobs.publish(b"", on_confirm=lambda: 1 / 0)
    jobs.publish(b"", on_confirm=lambda: confirmed.append(1))
    jobs.flush()
    assert confirmed == [1]
    assert "division by zero" in caplog.text


def test_flush_by_the_clock_confirms(opened):
    jobs, confirmed = opened(sync_interval="1ms").queue("jobs"), threading.Event()
    jobs.publish(b"", on_confirm=confirmed.set)
    assert confirmed.wait(30)


def test_without_an_interval_each_call_flushes(opened):
    jobs, confirmed = opened(sync_interval=0).queue("jobs"), []
    jobs.publish(b"", on_confirm=lambda: confirmed.append(1))
    assert confirmed == [1]


def test_many_unwritten_bytes_make_a_publish_flush(opened):
    jobs, confirmed = opened(max_unconfirmed="64KiB").queue("jobs"), []
    for _ in range(30):
        jobs.publish(bytes(3000), on_confirm=lambda: confirmed.append(1))
    assert len(confirmed) > 10


@pytest.mark.parametrize("size", [0, 4095, 4096, 100_000])
def test_messages_of_any_size_survive(size, opened):
    opened().queue("jobs").publish(bytes(size))
    received = opened().queue("jobs").receive()
    assert received.body == bytes(size)


def test_what_was_not_acknowledged_is_back_and_marked(opened):
    jobs = opened().queue("jobs")
    publish(jobs, b"1", b"2", b"3")
    jobs.receive()
    jobs.receive().ack()
    jobs = opened().queue("jobs")
    found = [jobs.receive(), jobs.receive()]
    assert [(one.body, one.is_redelivered) for one in found] == [(b"1", True), (b"3", False)]


def test_fanout_keeps_one_body(opened):
    vhost = opened()
    body = bytes(10_000)
    queues = [vhost.queue(name) for name in "abc"]
    vhost.publish(body, to=["a", "b", "c"])
    vhost.flush()
    assert len(vhost.persistent) == 1
    queues[0].receive().ack()
    vhost.flush()
    vhost = opened()
    assert [vhost.queue(name).take() is not None for name in "abc"] == [False, True, True]


# -- acknowledging --------------------------------------------------------------------------------------------------------


def test_second_acknowledgement_does_nothing(vhost):
    """Nor one after a rejection, which drops the message of a queue without a target."""
    jobs = vhost.queue("jobs")
    publish(jobs, b"1", b"2")
    first, second = jobs.receive(), jobs.receive()
    first.ack()
    second.nack(requeue=False)
    assert (len(jobs), jobs.unacked) == (0, 0)
    for received in (first, second):
        received.ack()
        received.nack()
    assert (len(jobs), jobs.unacked) == (0, 0)


def test_nack_returns_messages_to_their_places(vhost):
    jobs = vhost.queue("jobs")
    publish(jobs, b"1", b"2", b"3", b"4")
    first, second, third = jobs.receive(), jobs.receive(), jobs.receive()
    third.nack()
    first.nack()
    second.ack()
    assert [jobs.receive().attempts, *bodies(jobs)] == [2, b"3", b"4"]


def test_purge_drops_ready_messages_only(opened):
    jobs = opened().queue("jobs")
    publish(jobs, b"1", b"2", b"3")
    jobs.receive()
    assert jobs.purge() == 2
    assert bodies(opened().queue("jobs")) == [b"1"]


# -- limits ---------------------------------------------------------------------------------------------------------------


def test_full_queue_refuses_or_waits(vhost):
    jobs = vhost.queue("jobs", max_length=1)
    jobs.put(b"1")
    with pytest.raises(queue.Full):
        jobs.put_nowait(b"2")
    with pytest.raises(queue.Full):
        jobs.put(b"2", timeout=0.001)
    thread = threading.Thread(target=jobs.put, args=(b"2",))
    thread.start()
    assert jobs.get() == b"1"
    thread.join(30)
    assert jobs.get() == b"2"


def test_overflow_reject_never_waits(vhost):
    jobs = vhost.queue("jobs", max_bytes="10B", overflow="reject")
    jobs.publish(bytes(6))
    with pytest.raises(queue.Full):
        jobs.publish(bytes(6))
    jobs.publish(bytes(4))


def test_overflow_drop_head_dead_letters_the_first(vhost):
    jobs = vhost.queue("jobs", max_length=2, overflow="drop-head", dead_letter="lost")
    publish(jobs, b"1", b"2", b"3")
    assert bodies(jobs) == [b"2", b"3"]
    letter = vhost.queue("lost").receive()
    assert (letter.body, letter.headers[DEATHS][0]["reason"]) == (b"1", "maxlen")


# -- expiry, dead letters, retries, delays --------------------------------------------------------------------------------


def test_expired_messages_are_not_delivered(vhost, clock):
    jobs = vhost.queue("jobs", message_ttl="10s", dead_letter="lost")
    jobs.publish(b"short", ttl=1)
    jobs.publish(b"usual", ttl=100)
    clock.now += 5
    assert jobs.take().body == b"usual"
    jobs.publish(b"late")
    clock.now += 20
    assert jobs.take() is None
    assert bodies(vhost.queue("lost")) == [b"short", b"late"]


def test_rejected_message_is_in_exactly_one_queue_after_each_flush(opened):
    vhost = opened()
    jobs = vhost.queue("jobs", dead_letter="lost")
    jobs.publish(b"1", headers={"kept": True})
    jobs.receive().nack(requeue=False)
    vhost = opened()
    assert vhost.queue("jobs", dead_letter="lost").take() is None
    letter = vhost.queue("lost").receive()
    death = letter.headers[DEATHS][0]
    assert (letter.body, letter.headers["kept"], death["queue"], death["reason"]) == (b"1", True, "jobs", "rejected")


def test_second_death_is_added_before_the_first(vhost):
    vhost.queue("a", dead_letter="b").publish(b"1")
    vhost.queue("b", dead_letter="c")
    vhost.queue("a", dead_letter="b").receive().nack(requeue=False)
    vhost.queue("b").receive().nack(requeue=False)
    assert [death["queue"] for death in vhost.queue("c").receive().headers[DEATHS]] == ["b", "a"]


@pytest.mark.parametrize("headers", [None, {ATTEMPTS: "abc"}])
def test_message_that_fails_too_often_is_dead_lettered(headers, vhost):
    """A foreign value in a header of ours counts nothing."""
    jobs = vhost.queue("jobs", max_attempts=3, dead_letter="lost")
    jobs.publish(b"1", headers=headers)
    attempts = []
    while (received := jobs.take()) is not None:
        attempts.append(received.attempts)
        received.nack()
    assert attempts == [1, 2, 3]
    lost = vhost.queue("lost").receive()
    assert (lost.body, lost.headers[DEATHS][0]["reason"]) == (b"1", "delivery_limit")


def test_retry_comes_after_a_delay_that_doubles_and_survives(opened, clock):
    options = {"retry_delay": "10s", "max_attempts": 3, "dead_letter": "lost"}
    vhost = opened()
    jobs = vhost.queue("jobs", **options)
    jobs.publish(b"1")
    jobs.receive().nack()
    vhost = opened()
    jobs = vhost.queue("jobs", **options)
    clock.passes(vhost, 9)
    assert jobs.take() is None
    clock.passes(vhost, 2)
    received = jobs.take()
    assert (received.body, received.attempts) == (b"1", 2)
    received.nack()
    vhost.flush()
    clock.passes(vhost, 19)
    assert jobs.take() is None
    clock.passes(vhost, 2)
    jobs.take().nack()
    assert vhost.queue("lost").take().body == b"1"


def test_delayed_messages_come_by_their_time(opened, clock):
    vhost = opened()
    jobs = vhost.queue("jobs")
    for body, delay in ((b"late", 20), (b"soon", 5), (b"now", 0)):
        jobs.publish(body, delay=delay)
    assert bodies(jobs) == [b"now"]
    clock.passes(vhost, 6)
    assert bodies(jobs) == [b"soon"]
    clock.passes(vhost, 20)
    assert bodies(jobs) == [b"late"]


def test_delayed_message_wakes_a_consumer(opened):
    jobs = opened(sync_interval="10ms").queue("jobs")
    jobs.publish(b"1", delay=0.02)
    assert jobs.get(timeout=30) == b"1"


def test_ttl_of_a_delayed_message_counts_from_its_publish(vhost, clock):
    jobs = vhost.queue("jobs")
    jobs.publish(b"1", delay=5, ttl=3)
    jobs.publish(b"2", delay=5, ttl=30)
    clock.passes(vhost, 6)
    assert bodies(jobs) == [b"2"]


# -- consumers ------------------------------------------------------------------------------------------------------------


def test_consumer_holds_at_most_its_prefetch(vhost):
    jobs = vhost.queue("jobs")
    for number in range(3):
        jobs.publish(b"%d" % number)
    with jobs.consume(prefetch=2) as consumer:
        first = next(consumer)
        next(consumer)
        with pytest.raises(queue.Empty):
            consumer.receive(block=False)
        first.ack()
        assert consumer.receive(block=False).body == b"2"
    assert bodies(jobs) == [b"1", b"2"]


def test_exclusive_consumer_is_the_only_one(vhost):
    jobs = vhost.queue("jobs")
    with jobs.consume(exclusive=True), pytest.raises(RuntimeError, match="exclusive"):
        jobs.consume()
    with jobs.consume(), pytest.raises(RuntimeError, match="exclusive"):
        jobs.consume(exclusive=True)


def test_waiting_consumer_ends_when_the_vhost_closes(vhost):
    jobs, ended = vhost.queue("jobs"), []

    def work():
        try:
            jobs.receive()
        except StoreClosed as error:
            ended.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    while not jobs._waiting:
        time.sleep(0.001)
    vhost.close()
    thread.join(30)
    assert "the vhost is closed" in ended[0]


# -- vhosts ---------------------------------------------------------------------------------------------------------------


def test_queue_is_made_once_and_other_options_are_refused(vhost):
    jobs = vhost.queue("jobs", max_length=5)
    assert vhost.queue("jobs") is jobs
    with pytest.raises(ConfigError, match="is in use with other options"):
        vhost.queue("jobs", max_length=6)


def test_durability_of_a_queue_is_remembered(opened):
    opened().queue("jobs")
    with pytest.raises(ConfigError, match="durable: is False, and the directory has True"):
        opened().queue("jobs", durable=False)


def test_queue_that_is_not_durable_ends_with_the_process(opened):
    opened().queue("jobs", durable=False).publish(b"1")
    vhost = opened()
    assert vhost.queues() == []
    assert vhost.queue("jobs").take() is None


def test_deleted_queue_is_gone_and_its_name_free(opened):
    vhost = opened()
    jobs = vhost.queue("jobs")
    jobs.publish(bytes(5000))
    vhost.flush()
    vhost.delete("jobs")
    with pytest.raises(StoreClosed, match="was deleted"):
        jobs.publish(b"1")
    assert vhost.queue("jobs").take() is None
    vhost = opened()
    assert len(vhost.persistent) == 0


def test_unknown_index_names_what_is_installed(vhost, opened):
    with pytest.raises(PluginError, match="no queue index 'v3' is installed"):
        vhost.queue("jobs", index="v3")
    assert vhost.queues() == opened().queues() == []


def test_queue_that_cannot_be_made_leaves_nothing(vhost, opened, monkeypatch):
    """Otherwise the vhost could not be opened again."""
    backing = vhost._catalogue.backing("variable", "here").load_factory()
    with monkeypatch.context() as patch:
        patch.setattr(backing, "__init__", mock.Mock(side_effect=OSError("no room")))
        with pytest.raises(StoreIOError, match="'jobs' cannot be opened: no room"):
            vhost.queue("jobs", backing="variable")
    assert opened().queues() == []


def test_second_process_is_refused(vhost, tmp_path):
    with pytest.raises(StoreLocked, match="open for writing"):
        open_vhost(tmp_path)


def test_two_vhosts_share_a_directory(tmp_path):
    with open_vhost(tmp_path, "one") as one, open_vhost(tmp_path, "two") as two:
        one.queue("jobs").publish(b"1")
        assert two.queue("jobs").take() is None


@pytest.mark.parametrize(("durability", "index"), [("os", "v2"), ("fsync", "v1")])
def test_queue_without_a_named_index_has_the_usual_one_and_keeps_it(durability, index, opened):
    jobs = opened(durability=durability).queue("jobs", max_length=5)
    assert jobs.vhost.queue("jobs", max_length=5) is jobs
    assert jobs.options.index.name == index
    assert opened(durability="os").queue("jobs", max_length=5).options.index.name == index
