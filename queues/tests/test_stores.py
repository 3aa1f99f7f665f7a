"""The message stores of a vhost, which are opened when they are first used."""

from __future__ import annotations

from threading import Event, Thread
from unittest.mock import Mock

from msgstore_queues.stores import Bodies


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
