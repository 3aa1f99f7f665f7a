"""The ways in: a path with keywords, or a configuration file with names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import attrs

from msgstore.config import Backend, Config, StoreConfig, read_config, store_config
from msgstore.contract import ConfigError, MsgStoreError, StoreLocked
from msgstore.contract.events import StoreOpenedEvent
from msgstore.directory import known_settings
from msgstore.engine.backends import can_be_read_live
from msgstore.engine.events import statistics_of
from msgstore.engine.live_store import open_live
from msgstore.engine.open.recovery_plan import RecoveryProgress
from msgstore.engine.open.startup import open_directory
from msgstore.engine.store import Mode, Store
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue, load_catalogue

Live = Literal["follow", "beside", "never"]


def open_store(
    path: str | Path,
    *,
    mode: Mode = "rw",
    refcounts: Iterable[tuple[bytes, int]] | None = None,
    progress: RecoveryProgress | None = None,
    **keys: Any,
) -> Store:
    """Open the store in directory ``path``, which is made if need be. Other keywords are the keys of the configuration.

    A directory that a broker wrote is opened for writing with ``adopt=True`` only: see :class:`NotAdopted`.

    ``refcounts``: (id, count) pairs, used where counts must be rebuilt: after a dirty shutdown with an index that is not
    persistent, or in a directory that another program wrote. Ids that they do not name are garbage. Without them each id
    counts once.

    ``progress(done, total)`` is called, in bytes, while segments are read after a dirty shutdown.

    ``mode="r"`` refuses changes, and writes nothing into the directory, not even a lock. With an index that can be read beside
    its writer (capability LIVE_READS) another process may have the store open for writing, or open it so later: each call
    then sees everything that was confirmed before it began. Such an index may note its readers in files of its own.

    Raises ConfigError, PluginError, StoreLocked, StoreMismatch, NotAdopted, StoreError.
    """
    config = store_config({"path": path, **keys}, "open_store()", Path())
    return open_configured(config, load_catalogue(), mode=mode, refcounts=refcounts, progress=progress)


def open_configured(
    config: StoreConfig,
    catalogue: Catalogue,
    *,
    mode: Mode = "rw",
    refcounts: Iterable[tuple[bytes, int]] | None = None,
    files: Files | None = None,
    progress: RecoveryProgress | None = None,
    live: Live = "follow",
) -> Store:
    """Open what a checked configuration describes. ``files`` is the seam where tests count operations and inject faults.

    ``live``, of an index that can be read beside its writer: ``beside`` reads beside a writer that is there, and otherwise
    leaves no trace and ends when one comes; ``never`` is for checks of what must not change meanwhile.
    """
    if mode not in ("rw", "r"):
        raise ValueError(f"mode is 'rw' or 'r', not {mode!r}")
    files = files or Files()
    if mode == "r" and live != "never" and can_be_read_live(config.index.name, catalogue):
        return open_live(config, catalogue, files, refcounts=refcounts, progress=progress, follow=live == "follow")
    try:
        opened = open_directory(config, catalogue, files, read_only=mode == "r", refcounts=refcounts, progress=progress)
    except StoreLocked as error:
        raise (_with_a_hint(error, catalogue) if mode == "r" and live != "never" else error) from error.__cause__
    store = Store(opened, mode)
    opened.accounting.segments.telemetry.note(
        StoreOpenedEvent,
        mode=mode,
        index=config.index.name,
        format=config.format.name,
        recovery=attrs.asdict(opened.recovery),
        statistics=statistics_of(store),
    )
    if mode == "rw" and config.on_legacy == "migrate":
        try:
            store.migrate()
        except BaseException:
            with suppress(MsgStoreError):
                store.close()  # what was migrated so far is kept, and the counts with it
            store.abandon()
            raise
    return store


def remembered_config(directory: Path) -> StoreConfig:
    """With the backends of a directory's last opening, else the defaults. Raises StoreError if ``msgstore.json`` cannot be
    used."""
    config = store_config({"path": directory}, str(directory), Path())
    remembered = known_settings(Files(), directory, warns=False)
    if remembered is None:
        return config
    index, form, body = Backend(remembered.index), Backend(remembered.format), Backend(remembered.body)
    return attrs.evolve(config, index=index, format=form, record=remembered.record, body=body)


def _with_a_hint(error: StoreLocked, catalogue: Catalogue) -> StoreLocked:
    able = [name for name in catalogue.names("index") if can_be_read_live(name, catalogue)]
    if not able or error.pid == os.getpid():
        return error
    listed = " or ".join(f'index = "{name}"' for name in able)
    return StoreLocked(f"{error} A store with {listed} can be read while another process writes it.", error.pid)


@attrs.frozen
class Stores:
    """The stores of one configuration file."""

    config: Config
    catalogue: Catalogue

    def open(
        self,
        name: str,
        *,
        mode: Mode = "rw",
        refcounts: Iterable[tuple[bytes, int]] | None = None,
        progress: RecoveryProgress | None = None,
        adopt: bool = False,
    ) -> Store:
        """Open the store of the table ``[stores.NAME]``; see :func:`open_store`. ``adopt``: as if the table said so."""
        config = self.config.store(name)
        config = attrs.evolve(config, adopt=config.adopt or adopt)
        return open_configured(config, self.catalogue, mode=mode, refcounts=refcounts, progress=progress)


def load_config(path: str | Path) -> Stores:
    """Read and check a configuration file, and load the plugins that it does not disable. Raises ConfigError."""
    config = read_config(path)
    try:
        return Stores(config, load_catalogue(config.disabled))
    except ConfigError as error:
        raise ConfigError(f"{config.file}: {error}") from error
