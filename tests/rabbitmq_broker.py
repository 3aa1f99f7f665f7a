"""Nodes of Debian's rabbitmq-server on the loopback interface, for tests. Each has its own directory, ports, name and cookie.

Tests that use one have the marker ``broker``, and skip by :func:`needs_broker` where the package is not installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

NEEDED = "MSGSTORE_NEEDS_BROKER"
"""Environment variable: if it is set, a broker that is not installed is a failure."""
_PROGRAMS = Path("/usr/lib/rabbitmq/bin")
"""Programs of the package. Those in /usr/sbin change the user."""
_START_SECONDS = 120


def find_broker() -> Path | None:
    """Return the directory of the programs, or None if rabbitmq-server is not installed."""
    is_there = (_PROGRAMS / "rabbitmq-server").exists() and shutil.which("erl") and shutil.which("epmd")
    return _PROGRAMS if is_there else None


def needs_broker() -> None:
    """Skip the test, or fail, if rabbitmq-server is not installed."""
    if find_broker() is None:
        if os.environ.get(NEEDED):
            pytest.fail("rabbitmq-server is not installed: apt-get install rabbitmq-server")
        pytest.skip(f"rabbitmq-server is not installed; {NEEDED}=1 makes this a failure")


class Broker:
    """A node. ``base`` is a directory for all that it writes. A node on a copy of another one's data needs the name of that."""

    def __init__(
        self,
        base: Path,
        *,
        name: str = "rabbit@localhost",
        settings: Sequence[str] = (),
        plugins: Sequence[str] = (),
        segment_size: int = 2**24,
    ) -> None:
        """``settings``: lines of rabbitmq.conf. ``segment_size``: of message stores, in bytes. ``plugins``: such as
        ``rabbitmq_management``, which listens on ``management_port``. Starts nothing."""
        self.base, self.name = base, name
        self.data = base / "mnesia" / name
        """The data directory, which exists after the first start."""
        self.port, self._dist_port, self._epmd_port, self.management_port = _free_ports(4)
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}"
        self._server: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        base.mkdir(parents=True, exist_ok=True)
        if "rabbitmq_management" in plugins:
            settings = [*settings, f"management.tcp.port = {self.management_port}", "management.tcp.ip = 127.0.0.1"]
        (base / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in settings))
        (base / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        (base / "env.conf").write_text("")
        self._environment = os.environ | {
            "HOME": str(base), "ERL_EPMD_PORT": str(self._epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": name, "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port), "RABBITMQ_MNESIA_BASE": str(base / "mnesia"),
            "RABBITMQ_LOG_BASE": str(base / "log"), "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "enabled_plugins"), "RABBITMQ_CONF_ENV_FILE": str(base / "env.conf"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(base / "config"), "LANG": "C.UTF-8",
            "RUNNING_UNDER_SYSTEMD": "true",  # no shell between this process and the node
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1} "
            f"-rabbit msg_store_file_size_limit {segment_size}",
        }  # fmt: skip

    def start(self) -> Broker:
        """Start the node, and wait until it takes connections."""
        log = (self.base / "output").open("ab")
        with log:
            epmd = ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._epmd = subprocess.Popen(epmd, env=self._environment, stdout=log, stderr=log)
            self._server = subprocess.Popen(
                [_PROGRAMS / "rabbitmq-server"], cwd=self.base, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        give_up = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            if self._server.poll() is not None or time.monotonic() > give_up:
                self.kill()
                raise AssertionError(f"the node did not start:\n{(self.base / 'output').read_text()[-4000:]}")
            time.sleep(0.1)
        return self

    def _is_ready(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as link:
            link.sendall(b"AMQP\0\0\x09\x01")
            return link.recv(1) == b"\x01"
        return False

    def stop(self) -> None:
        """End the node cleanly."""
        if self._server is not None:
            self._server.terminate()
            self._end()

    def kill(self) -> None:
        """End the node with SIGKILL."""
        if self._server is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._end()

    def _end(self) -> None:
        assert self._server is not None
        assert self._epmd is not None
        try:
            self._server.wait(_START_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._epmd.kill()
            self._epmd.wait()
            self._server = self._epmd = None

    def rabbitmqctl(self, *arguments: str) -> str:
        """Run the program and return its output. Takes seconds, for it starts a node of its own."""
        command = [_PROGRAMS / "rabbitmqctl", "--quiet", *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def __enter__(self) -> Broker:
        return self if self._server is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]
