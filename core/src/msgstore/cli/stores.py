"""Resolve STORE and --config to a store: a name in a configuration, or a directory with the settings that it remembers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import attrs

from msgstore.cli import options, output
from msgstore.config import StoreConfig, read_config
from msgstore.contract import ConfigError, Duration, StoreError
from msgstore.directory import SETTINGS, Settings, known_settings, list_segments
from msgstore.engine.backends import Backends, resolve
from msgstore.engine.open.clean_shutdown import CLEAN
from msgstore.engine.opening import Live, open_configured, remembered_config
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.jobs.counts import sums_of
from msgstore.jobs.inputs import no_segments, stores_beneath
from msgstore.jobs.reports import NotRead, find_not_read
from msgstore.plugins.catalogue import Catalogue, load_catalogue


@attrs.frozen
class StoreTarget:
    """A store that is not open yet: its configuration, its plugins, and the counts to use if they must be rebuilt."""

    config: StoreConfig
    catalogue: Catalogue
    refcounts_file: Path | None = None

    @property
    def path(self) -> Path:
        return self.config.path

    def settings(self) -> Settings | None:
        """Return what the directory remembers, or None if msgstore has never opened it."""
        return known_settings(Files(), self.path)

    def backends(self) -> Backends:
        """Return the backends of the store, with the settings that its directory remembers."""
        return resolve(self.config, self.catalogue, self.settings())

    def open(
        self, mode: Literal["rw", "r"], refcounts: Iterable[tuple[bytes, int]] | None = None, *, live: Live = "beside"
    ) -> Store:
        """Open the store without background collection, and show the progress of a recovery."""
        if refcounts is None and self.refcounts_file is not None:
            refcounts = list(sums_of(self.refcounts_file).items())
        with output.progress("recovering") as progress:
            config = attrs.evolve(self.config, gc_interval=Duration(0))  # commands collect only on request
            return open_configured(config, self.catalogue, mode=mode, refcounts=refcounts, progress=progress, live=live)


@attrs.frozen
class StoreArgument:
    """STORE as it was given, and the options that say how to open it."""

    store: str
    config_file: Path | None = None
    refcounts_file: Path | None = None
    adopt: bool = False

    def resolve(self) -> StoreTarget:
        """Return a directory that holds or may get a store. With ``adopt``, a broker's directory may be changed.

        Raises ConfigError, PluginError, and StoreError for a directory that does not exist.
        """
        if self.config_file is not None:
            config = read_config(self.config_file)
            target = StoreTarget(config.store(self.store), load_catalogue(config.disabled))
        else:
            target = bare_store(Path(self.store), load_catalogue())
        config_of_store = attrs.evolve(target.config, adopt=target.config.adopt or self.adopt)
        return attrs.evolve(target, config=config_of_store, refcounts_file=self.refcounts_file)

    def find(self) -> StoreTarget:
        """Return an existing store. Raises as ``resolve``, and StoreError for a directory without a store.

        Without that check, every unrelated directory would be reported as a store without damage.
        """
        target = self.resolve()
        if not _has_store(target):
            raise StoreError(no_segments(target.path, resolve(target.config, target.catalogue, None).formats))
        return target

    def find_all(self) -> tuple[list[StoreTarget], tuple[NotRead, ...]]:
        """Return the store, or the stores in a broker's directory and what else was recognised there. Raises as ``find``."""
        top = self.resolve()
        not_read = () if _has_store(top) else find_not_read(top.path)
        paths = stores_beneath(top.path, resolve(top.config, top.catalogue, None).formats) if not_read else []
        if not paths:
            return [self.find()], ()
        if self.refcounts_file is not None:
            stores = ", ".join(map(str, paths))
            raise ConfigError(f"{self.store}: has several stores, but --refcounts has the counts of one. Name one of {stores}.")
        return [attrs.evolve(top, config=_in_tree(top.config, path)) for path in paths], not_read


def _has_store(target: StoreTarget) -> bool:
    """Return False for a directory without segments that msgstore has not opened. The opening reports a missing directory."""
    directory = target.path
    if not directory.is_dir() or any((directory / name).exists() for name in (SETTINGS, CLEAN)):
        return True
    return bool(list_segments(Files(), directory, resolve(target.config, target.catalogue, None).formats.extensions))


def _in_tree(config: StoreConfig, path: Path) -> StoreConfig:
    """Return the configuration of a store in a tree. An adopted store keeps the settings that it remembers."""
    return remembered_config(path) if (path / SETTINGS).exists() else attrs.evolve(config, path=path)


def bare_store(directory: Path, catalogue: Catalogue) -> StoreTarget:
    """Return a directory with the backends of its last opening, or with the defaults."""
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "there is no such directory"
        raise StoreError(f"{directory}: {what}. STORE is a directory, or with --config FILE the name of a store in it.")
    return StoreTarget(remembered_config(directory), catalogue)


_where = {"store": options.store, "config_file": options.config_file}
watched = options.bundle("store", StoreArgument, **_where)
"""Adds STORE and ``--config``. The command gets them as ``store``."""
read = options.bundle("store", StoreArgument, **_where, refcounts_file=options.refcounts)
"""Also adds ``--refcounts``."""
changed = options.bundle("store", StoreArgument, **_where, adopt=options.adopt, refcounts_file=options.refcounts)
"""Also adds ``--refcounts`` and ``--adopt``."""
