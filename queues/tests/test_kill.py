"""``kill -9`` of a process that publishes and consumes, again and again on one directory.

The process tells what happens in a pipe, a line each, by one system call: ``+ N`` message N is about to be published, ``! N``
it is confirmed, ``- N`` it is about to be acknowledged, ``= N`` a flush after its acknowledgement has returned.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict

import pytest

from msgstore_queues import open_vhost

pytestmark = pytest.mark.crash

QUEUES = ("a", "b", "c")
PRODUCERS = 2
STEP = 10**6
"""Message ``producer * STEP + n`` is the nth of its producer."""

PROGRAM = """
import os, random, sys, threading
from msgstore_queues import open_vhost

path, seed, durability, index, first = sys.argv[1:]
vhost = open_vhost(path, sync_interval="2ms", durability=durability, embed_below=64, defaults={"index": index})
say = lambda *words: os.write(1, " ".join(map(str, words)).encode() + b"\\n")

def produce(number):
    chance, plain = random.Random(f"{seed} {number}"), {name: [] for name in "abc"}
    for n in range(int(first), 10**6):
        message = number * 10**6 + n
        queue = chance.choice("abc")
        body = b"%012d" % message + bytes(chance.choice([0, 30, 200, 5000]))
        say("+", message, queue)
        plain[queue].append(message)
        if chance.random() < 0.5:
            vhost.queue(queue).publish(body)
        else:  # its confirm confirms those before it, too
            confirmed, plain[queue] = plain[queue], []
            vhost.queue(queue).publish(body, on_confirm=lambda confirmed=confirmed: [say("!", one) for one in confirmed])

def consume(name):
    queue, chance = vhost.queue(name), random.Random(f"{seed} {name}")
    while True:
        batch = [queue.receive() for _ in range(chance.randint(1, 20))]
        done = [one for one in batch if chance.random() < 0.8]
        numbers = [int(one.body[:12]) for one in done]
        for number in numbers:
            say("-", number)
        queue.ack(*done)
        queue.nack(*[one for one in batch if one not in done])
        vhost.flush()
        for number in numbers:
            say("=", number)

threads = [threading.Thread(target=produce, args=(n,)) for n in range(2)]
threads += [threading.Thread(target=consume, args=(q,)) for q in "abc"]
for thread in threads:
    thread.daemon = True
    thread.start()
say("ready")
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("index", ["v1", "v2"])
def test_killed_process_loses_nothing(durability, index, tmp_path, request):
    chance = random.Random(7)
    sent, confirmed, begun, gone = defaultdict(dict), set(), set(), set()
    for kill in range(request.config.getoption("--kills", default=10)):
        arguments = [str(tmp_path), str(kill), durability, index, str(kill * 10_000)]
        with subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, text=True) as process:
            said = [process.stdout.readline() for _ in range(chance.randint(100, 3000))]
            process.kill()
            said += process.stdout.readlines()
        for line in said:
            letter, *words = line.split()
            if letter == "+":
                sent[words[1]][int(words[0])] = True
            elif letter in "!-=":
                {"!": confirmed, "-": begun, "=": gone}[letter].add(int(words[0]))
        with open_vhost(tmp_path, embed_below=64) as vhost:
            for name in QUEUES:
                check_queue(vhost.queue(name, index=index), sent[name], confirmed - begun, gone)
    assert len(confirmed) > 100


def check_queue(queue, sent, owed, gone):
    taken = []
    while (received := queue.take()) is not None:
        taken.append(received)
    numbers = [int(received.body[:12]) for received in taken]
    assert set(numbers) <= sent.keys(), "never published here"
    assert not gone & set(numbers), "acknowledged, and back"
    assert (owed & sent.keys()) <= set(numbers), "confirmed, and lost"
    assert len(numbers) == len(set(numbers))
    for producer in range(PRODUCERS):
        own = [number for number in numbers if number // STEP == producer]
        assert own == sorted(own), "out of order"
    queue.nack(*taken)


def test_lock_of_a_killed_process_is_free(tmp_path):
    program = "import os, sys, msgstore_queues as q; q.open_vhost(sys.argv[1]).queue('a').publish(b'1'); os._exit(1)"
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 1
    with open_vhost(tmp_path) as vhost:
        assert vhost.queues() == ["a"]
