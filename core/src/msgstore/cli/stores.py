"""Resolve STORE and --config to a store: a name in a configuration, or a directory with the settings that it remembers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import attrs

from msgstore.cli import output
from msgstore.config import StoreConfig, read_config
from msgstore.contract import Duration, StoreError
from msgstore.directory import SETTINGS, list_segments
from msgstore.engine.backends import resolve
from msgstore.engine.open.clean_shutdown import CLEAN
from msgstore.engine.opening import Live, open_configured, remembered_config
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.jobs.inputs import no_segments, stores_beneath
from msgstore.jobs.not_read import NotRead, find_not_read
from msgstore.plugins.catalogue import Catalogue, load_catalogue


@attrs.frozen
class StoreTarget:
    """A store that is not open yet: its configuration and its plugins."""

    config: StoreConfig
    catalogue: Catalogue

    @property
    def path(self) -> Path:
        return self.config.path

    def open(
        self, mode: Literal["rw", "r"], refcounts: Iterable[tuple[bytes, int]] | None = None, *, live: Live = "beside"
    ) -> Store:
        """Open the store without background collection, and show the progress of a recovery."""
        with output.progress("recovering", quiet=False) as progress:
            config = attrs.evolve(self.config, gc_interval=Duration(0))  # commands collect only on request
            return open_configured(config, self.catalogue, mode=mode, refcounts=refcounts, progress=progress, live=live)


def find_store(store: str, config_file: Path | None, *, adopt: bool = False) -> StoreTarget:
    """Return an existing store. Raises ConfigError, PluginError, and StoreError for a directory without a store.

    Without that check, every unrelated directory would be reported as a store without damage.
    """
    target = resolve_store(store, config_file, adopt=adopt)
    directory = target.path
    if directory.is_dir() and not any((directory / name).exists() for name in (SETTINGS, CLEAN)):
        formats = resolve(target.config, target.catalogue, None).formats
        if not list_segments(Files(), directory, formats.extensions):
            raise StoreError(no_segments(directory, formats))
    return target


def find_stores(store: str, config_file: Path | None) -> tuple[list[StoreTarget], tuple[NotRead, ...]]:
    """Return the store, or the stores in a broker's directory and what else was recognised there. Raises as ``find_store``."""
    target = resolve_store(store, config_file)
    top = target.path
    if top.is_dir() and not any((top / name).exists() for name in (SETTINGS, CLEAN)):
        formats = resolve(target.config, target.catalogue, None).formats
        not_read = () if list_segments(Files(), top, formats.extensions) else find_not_read(top)
        stores = stores_beneath(top, formats) if not_read else []
        if stores:
            return [attrs.evolve(target, config=_in_tree(target.config, path)) for path in stores], not_read
    return [find_store(store, config_file)], ()


def _in_tree(config: StoreConfig, path: Path) -> StoreConfig:
    """Return the configuration of a store in a tree. An adopted store keeps the settings that it remembers."""
    return remembered_config(path) if (path / SETTINGS).exists() else attrs.evolve(config, path=path)


def resolve_store(store: str, config_file: Path | None, *, adopt: bool = False) -> StoreTarget:
    """Resolve STORE to a directory that holds or may get a store. ``adopt``: a broker's directory may be changed.

    Raises ConfigError, PluginError, and StoreError for a directory that does not exist.
    """
    if config_file is not None:
        config = read_config(config_file)
        target = StoreTarget(config.store(store), load_catalogue(config.disabled))
    else:
        target = bare_store(Path(store), load_catalogue())
    return attrs.evolve(target, config=attrs.evolve(target.config, adopt=target.config.adopt or adopt))


def bare_store(directory: Path, catalogue: Catalogue) -> StoreTarget:
    """Return a directory with the backends of its last opening, or with the defaults."""
    check_directory(directory)
    return StoreTarget(remembered_config(directory), catalogue)


def check_directory(directory: Path) -> None:
    """Raise StoreError unless ``directory`` is a directory."""
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "there is no such directory"
        raise StoreError(f"{directory}: {what}. STORE is a directory, or with --config FILE the name of a store in it.")
