"""The ways in: a path with keywords, or a configuration file with names."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from msgstore.config import Config, StoreConfig, read_config, store_config
from msgstore.contract import ConfigError, MsgStoreError
from msgstore.engine.recovery import Progress
from msgstore.engine.startup import open_parts
from msgstore.engine.statistics import statistics_of
from msgstore.engine.store import Mode, Store
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue, load_catalogue


def open_store(
    path: str | Path,
    *,
    mode: Mode = "rw",
    refcounts: Iterable[tuple[bytes, int]] | None = None,
    progress: Progress | None = None,
    **keys: Any,
) -> Store:
    """Open the store in directory ``path``, which is made if need be. Other keywords are the keys of the configuration.

    ``refcounts``: (id, count) pairs, used where counts must be rebuilt: a dirty start with an index that is not persistent,
    or a directory that another program wrote. Ids that they do not name are garbage. Without them each id counts once.

    ``progress(done, total)`` is called, in bytes, while segments are read because the last stop was not a clean one.

    ``mode="r"`` writes nothing into the directory, not even a lock, and refuses changes.

    Raises ConfigError, PluginError, StoreLocked, StoreMismatch, StoreError.
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
    progress: Progress | None = None,
) -> Store:
    """Open what a checked configuration describes. ``files`` is the seam where tests count operations and inject faults."""
    if mode not in ("rw", "r"):
        raise ValueError(f"mode is 'rw' or 'r', not {mode!r}")
    parts = open_parts(config, catalogue, files or Files(), read_only=mode == "r", refcounts=refcounts, progress=progress)
    store = Store(config, parts, mode)
    parts.segments.happenings.opened(
        mode=mode,
        index=config.index.name,
        form=config.format.name,
        recovery=parts.recovery,
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
        progress: Progress | None = None,
    ) -> Store:
        """Open the store of the table ``[stores.NAME]``; see :func:`open_store`."""
        return open_configured(self.config.store(name), self.catalogue, mode=mode, refcounts=refcounts, progress=progress)


def load_config(path: str | Path) -> Stores:
    """Read and check a configuration file, and load the plugins that it does not disable. Raises ConfigError."""
    config = read_config(path)
    try:
        return Stores(config, load_catalogue(config.disabled))
    except ConfigError as error:
        raise ConfigError(f"{config.file}: {error}") from error
