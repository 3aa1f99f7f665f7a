"""The process that ``queue_soak.py`` starts and kills: a vhost, threads that publish, and threads that consume.

It reads commands from standard input, a line each: ``limit BYTES`` lets writes beyond this offset of a file fail, as on a full
disk; ``free`` ends that; ``drain`` ends the publishing, and the process when all queues are empty; ``stop`` closes the vhost.

It writes what happens to standard output, a line by one system call: ``c QUEUE PRODUCER NUMBER`` the message is confirmed,
``t`` likewise, taken and about to be acknowledged, ``b`` a consumer ends with this number of unacknowledged messages, ``e
TEXT`` an error. A number grows with each message of its producer in its queue.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import threading
import traceback
from functools import partial
from pathlib import Path
from queue import Empty

from msgstore.contract import MsgStoreError, StoreClosed, StoreIOError
from msgstore_queues import Consumer, Queue, Received, VHost, open_vhost

QUEUES, PRODUCERS, CONSUMERS = 4, 8, 8
MAX_LENGTH = 2000
"""Ready messages of a queue. Producers wait for room, so that memory and files do not grow."""
MEMORY = 100
"""Messages of a queue in memory, about: fewer than wait, so that some leave it."""
PREFETCH = 50
SIZES = (50, 50, 1000, 6000)
"""Bytes of bodies. The largest ones are in the message store, others in the queue index."""
ONE_IN = 200
"""A consumer ends without acknowledging after this number of messages, about."""
PAUSE = 0.1
"""Seconds between two lots of a producer."""
MOST_ABSENT = 4.0
"""Seconds before another consumer takes the place of one that ended, at most. Meanwhile messages wait."""


def say(*words: object) -> None:
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


class Order:
    """Checks the deliveries of one queue to one consumer."""

    def __init__(self) -> None:
        self.last: dict[int, tuple[int, int]] = {}
        """Producer to (position, number) of its last message."""
        self.position, self.returns = -1, -1

    def check(self, producer: int, number: int, received: Received, returns: tuple[int, int]) -> None:
        """Report a message that is out of order. ``returns``: a count that is even and the same, before and after the message
        was taken, if no other consumer has given messages back meanwhile."""
        position = received.position
        last_position, last_number = self.last.get(producer, (position, number))
        if (position > last_position) != (number > last_number) and position != last_position:
            say(
                "e",
                f"out of order: message {number} of producer {producer} at {position}, and {last_number} at {last_position}",
            )
        is_quiet = returns[0] == returns[1] == self.returns and not returns[0] % 2
        if position < self.position and (is_quiet or not received.is_redelivered):
            say("e", f"out of order: position {position} after {self.position}")
        self.last[producer] = position, number
        self.position, self.returns = position, returns[1]


class Server:
    def __init__(self, directory: Path, first: int, rate: float) -> None:
        self.vhost: VHost = open_vhost(directory, sync_interval="50ms", store={"file_size_limit": "4MiB"})
        options = {"max_length": MAX_LENGTH, "backing": {"use": "variable", "memory": MEMORY}}
        self.queues = [self.vhost.queue(f"queue-{number}", **options) for number in range(QUEUES)]
        self.first, self.rate = first, rate
        self.drains, self.ends = threading.Event(), threading.Event()
        self.returns = [0] * QUEUES
        """A number for each queue, raised before a consumer gives messages back, and after it."""
        self.returns_lock = threading.Lock()
        self.threads: set[threading.Thread] = set()

    def start(self, target: partial[None]) -> threading.Thread:
        thread = threading.Thread(target=target)
        self.threads.add(thread)
        thread.start()
        return thread

    def produce(self, producer: int) -> None:
        chance, numbers = random.Random(f"{self.first} {producer}"), [self.first] * QUEUES
        while not self.drains.wait(PAUSE):
            for _ in range(max(1, round(self.rate * PAUSE))):
                at = chance.randrange(QUEUES)
                numbers[at] += 1
                body = f"{producer} {numbers[at]} ".encode().ljust(chance.choice(SIZES), b"x")
                try:
                    self.queues[at].publish(body, on_confirm=partial(say, "c", at, producer, numbers[at]))
                except StoreIOError:
                    pass  # the disk is full: a confirm says whether the message is in the queue all the same
                except StoreClosed:
                    return

    def consume(self, slot: int) -> None:
        """Consume some messages, then end without acknowledging the last. Another consumer takes the place."""
        chance, at, order = random.Random(), slot % QUEUES, Order()
        queue, unacked = self.queues[at], list[Received]()
        self.drains.wait(chance.uniform(0, MOST_ABSENT))
        try:
            consumer = queue.consume(PREFETCH)
            while not self.ends.is_set():
                before = self.returns[at]
                try:
                    received = consumer.receive(timeout=PAUSE)
                except Empty:
                    received = None
                if received is not None:
                    producer, number = map(int, received.body.split()[:2])
                    order.check(producer, number, received, (before, self.returns[at]))
                    unacked.append(received)
                    if not self.drains.is_set() and chance.randrange(ONE_IN) == 0:
                        break
                if received is None or len(unacked) >= chance.randint(1, PREFETCH):
                    acknowledge(queue, at, unacked)
            self.give_back(consumer, at)
        except StoreClosed:
            return
        say("b", len(unacked))
        if not self.ends.is_set():
            self.start(partial(self.consume, slot))
        self.threads.discard(threading.current_thread())

    def give_back(self, consumer: Consumer, at: int) -> None:
        with self.returns_lock:
            self.returns[at] += 1
            consumer.close()
            self.returns[at] += 1

    def run(self) -> None:
        producers = [self.start(partial(self.produce, number)) for number in range(PRODUCERS)]
        for number in range(CONSUMERS):
            self.start(partial(self.consume, number))
        say("ready")
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        for line in sys.stdin:
            command, *words = line.split()
            if command == "limit":
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(words[0]), hard))
            elif command == "free":
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            else:
                self.drains.set()
                if command == "drain":
                    for producer in producers:
                        producer.join()
                    for queue in self.queues:
                        queue.join()
                break
        self.ends.set()
        self.vhost.close()
        for thread in list(self.threads):
            thread.join()


def acknowledge(queue: Queue, at: int, unacked: list[Received]) -> None:
    """Acknowledge messages, and empty the list. What is said first may not happen, but never the other way round."""
    for received in unacked:
        say("t", at, *received.body.decode().split()[:2])
    queue.ack(*unacked)
    unacked.clear()


def report_thread(arguments: threading.ExceptHookArgs) -> None:
    """Report the end of a thread by an exception, with all that leads to it."""
    say("e", repr("".join(traceback.format_exception(arguments.exc_value or Exception()))))


def main() -> None:
    threading.excepthook = report_thread
    directory, first, rate = sys.argv[1:]
    try:
        Server(Path(directory), int(first), float(rate)).run()
    except MsgStoreError as error:
        say("e", f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
