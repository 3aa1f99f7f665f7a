"""Queues in a server on this machine, with which ``queues.py`` compares msgstore's. The server is started and stopped with the
queue."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

from queue_peer import QueuePeer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

START_SECONDS = 60
BATCH = 100
"""Publishes in a pipeline of Redis, or in a transaction of RabbitMQ."""


class RedisList(QueuePeer):
    """A list with the append-only file, synced once a second; a socket file; pipelines of 100 publishes. A message is moved to
    a second list, and deleted there to acknowledge it. Synced: ``appendfsync always``, and no pipelines."""

    name = "Redis list"
    needs = ("redis",)
    is_server = True

    def __init__(self, directory: Path, *, is_synced: bool) -> None:
        import redis

        socket = directory / "redis.sock"
        with (directory / "output").open("ab") as log:
            command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(directory), "--save", ""]
            command += ["--appendonly", "yes", "--appendfsync", "always" if is_synced else "everysec"]
            self.server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.client = redis.Redis(unix_socket_path=str(socket))
        self.batch = 1 if is_synced else BATCH
        self.pipe = self.client.pipeline(transaction=False)
        give_up = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self.server.poll() is not None or time.monotonic() > give_up:
                self.kill_server()
                raise RuntimeError(f"redis-server did not start:\n{(directory / 'output').read_text()}")
            time.sleep(0.005)

    def _is_ready(self) -> bool:
        """Return False until the server listens and has read its file."""
        import redis

        with contextlib.suppress(redis.RedisError):
            return bool(self.client.ping())
        return False

    @classmethod
    def is_installed(cls) -> bool:
        return shutil.which("redis-server") is not None

    def publish(self, body: bytes) -> None:
        self.pipe.rpush("queue", body)
        if len(self.pipe) >= self.batch:
            self.pipe.execute()

    def take(self) -> bytes | None:
        body: bytes | None = self.client.lmove("queue", "taken", "LEFT", "RIGHT")
        if body is not None:
            self.client.lrem("taken", 1, body)
        return body

    def finish(self) -> None:
        self.pipe.execute()

    def close(self) -> None:
        self.client.close()
        self.server.terminate()
        self.server.wait(START_SECONDS)

    def kill_server(self) -> None:
        self.server.kill()
        self.server.wait()


class RabbitMQ(QueuePeer):
    """A classic durable queue of a node on the loopback interface; persistent messages; transactions of 100 publishes, which
    it syncs together; a consumer with acknowledgements and a prefetch of 1,000. Synced: waits for the confirm of each publish.
    """

    name = "RabbitMQ"
    needs = ("pika", "pytest")
    is_server = True
    syncs = ("publish",)

    def __init__(self, directory: Path, *, is_synced: bool) -> None:
        import pika

        from rabbitmq_broker import Broker

        self.broker = Broker(directory).start()
        try:
            self.connection = pika.BlockingConnection(pika.URLParameters(self.broker.url))
            self.out = self.connection.channel()
            self.out.queue_declare("bench", durable=True)
            self.into = self.connection.channel()
            self.into.basic_qos(prefetch_count=1000)
            self.deliveries = self.into.consume("bench", inactivity_timeout=10)
            self.properties = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent.value)
            self.is_synced, self.uncommitted = is_synced, 0
            if is_synced:
                self.out.confirm_delivery()
            else:
                self.out.tx_select()
        except BaseException:
            self.broker.kill()
            raise

    @classmethod
    def is_installed(cls) -> bool:
        from rabbitmq_broker import find_broker

        return find_broker() is not None

    def publish(self, body: bytes) -> None:
        self.out.basic_publish("", "bench", body, self.properties)
        if not self.is_synced:
            self.uncommitted += 1
            if self.uncommitted == BATCH:
                self.finish()

    def take(self) -> bytes | None:
        method, _, body = next(self.deliveries)
        if method is not None:
            self.into.basic_ack(method.delivery_tag)
        return body

    def finish(self) -> None:
        if self.uncommitted:
            self.out.tx_commit()
            self.uncommitted = 0

    def close(self) -> None:
        self.connection.close()
        self.broker.stop()

    def kill_server(self) -> None:
        self.broker.kill()
