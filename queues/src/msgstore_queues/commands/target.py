"""Argument WHERE of the commands: a directory, or with ``--config`` the name of a table ``[vhosts.NAME]``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

import msgstore
from msgstore.cli import options, output
from msgstore.contract import StoreLocked
from msgstore.option_values import nearest
from msgstore_queues.catalogue import load_catalogue
from msgstore_queues.config import Config, load_config
from msgstore_queues.options import VHostOptions
from msgstore_queues.queue import Queue
from msgstore_queues.vhost import VHost
from msgstore_queues.vhosts import FoundVHost, find_vhost, find_vhosts

DEFAULT_VHOST = "/"


@attrs.frozen
class Target:
    """A vhost that is not open yet."""

    path: Path
    vhost: str
    config: Config | None
    table: str

    def find(self) -> FoundVHost:
        """Return the vhost. Raises StoreError if it is not there."""
        add = f"{self.table} --config {self.config.file}" if self.config else f"{self.path} {self.vhost}"
        return find_vhost(self.path, self.vhost, add)

    @contextmanager
    def open(self, out: output.Output) -> Iterator[VHost]:
        """Open the vhost, and show the progress of a recovery. What is done in the block is on disk at its end.

        Raises StoreLocked while another process has it open, ConfigError, PluginError, StoreError.
        """
        try:
            with out.progress("recovering") as progress:
                vhost = self._open(progress)
        except StoreLocked as error:
            holder = f"process {error.pid}" if error.pid else "another process"
            raise StoreLocked(
                f"{self.path}: {holder} has the vhost {self.vhost!r} open. End it first. 'msgstore queue ls' and 'msgstore "
                f"messages' read beside it.",
                error.pid,
            ) from error
        with vhost:
            yield vhost

    def _open(self, progress: output.Bar | None) -> VHost:
        if self.config is not None:
            return self.config.open(self.table, progress=progress)
        open_store = partial(msgstore.open_store, progress=progress)
        return VHost(
            self.path, self.vhost, VHostOptions(durability="fsync"), load_catalogue(), where=str(self.path),
            open_store=open_store, progress=progress,
        )  # fmt: skip


def queue_of(vhost: VHost, name: str) -> Queue:
    """Return a queue that is there. Raises ConfigError if it is not."""
    if name not in (known := vhost.queues()):
        listed = ", ".join(map(repr, known)) or "none"
        raise msgstore.StoreError(f"{vhost.directory}: there is no queue {name!r}. Queues: {listed}{nearest(name, known)}")
    return vhost.queue(name)


@attrs.frozen
class Where:
    """WHERE as it was given, with its options."""

    where: str
    config_file: Path | None = None
    vhost: str | None = None

    def target(self, name: str | None = None) -> Target:
        """Return the vhost. ``name``: its name in a directory. Raises ConfigError."""
        name = name or self.vhost
        if self.config_file is None:
            return Target(Path(self.where), name or DEFAULT_VHOST, None, "")
        if name is not None:
            raise click.UsageError("with --config, WHERE is the name of a table, which says which vhost it is: name no other")
        config = load_config(self.config_file)
        found = config.vhost(self.where)
        return Target(found.path, found.name, config, self.where)

    def find_all(self) -> list[FoundVHost]:
        """Return the vhosts of the directory, or the one that is named. Raises StoreError, ConfigError."""
        if self.config_file is None and self.vhost is None:
            return find_vhosts(Path(self.where))
        return [self.target().find()]


_PARTS: dict[str, options.Decorator[Any]] = {
    "where": click.argument("where", metavar="WHERE"),
    "config_file": options.configuration("Configuration in which WHERE is the name of a table [vhosts.NAME]."),
}
in_directory = options.bundle("where", Where, **_PARTS)
"""Adds WHERE and ``--config``. The command gets them as ``where``."""
in_vhost = options.bundle(
    "where",
    Where,
    **_PARTS,
    vhost=click.option("--vhost", metavar="NAME", help=f"The vhost of a directory. Default: {DEFAULT_VHOST}; ls and top: all."),
)
"""Also adds ``--vhost``."""
