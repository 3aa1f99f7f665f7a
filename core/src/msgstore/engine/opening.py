"""Opening: a path with keywords, or a configuration file with names. Stores that are read while other processes write them.

Next to a writer nothing is recovered, because the writer keeps the index right. Without a writer the store is opened as any
other, and follows the next one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs

from msgstore.config import Config, StoreConfig, read_config, store_config
from msgstore.contract import BrokenPlugin, ConfigError, MsgStoreError, RecordTypeDescriptor, StoreError, StoreLocked
from msgstore.contract.events import StoreOpenedEvent
from msgstore.directory import known_settings
from msgstore.engine.backends import can_be_read_live
from msgstore.engine.events import Telemetry, statistics_of
from msgstore.engine.live_store import LiveStore, other_writer
from msgstore.engine.open.recovery_plan import RecoveryProgress
from msgstore.engine.open.startup import OpenDirectory, Resources, look_beside, open_directory
from msgstore.engine.read.live_reader import ReadView, WriterTracker
from msgstore.engine.store import Mode, Store
from msgstore.files import Files
from msgstore.option_values import Backend, nearest
from msgstore.plugins.blame import blame
from msgstore.plugins.catalogue import Catalogue, load_catalogue

log = logging.getLogger("msgstore.store")
S = TypeVar("S", bound=Store)
LiveMode = Literal["follow", "beside", "never"]

_MAX_ATTEMPTS = 20
"""Writers that may come and go while the store is being opened."""


def open_store(
    path: str | Path,
    *,
    mode: Mode = "rw",
    refcounts: Iterable[tuple[bytes, int]] | None = None,
    progress: RecoveryProgress | None = None,
    **keys: Any,
) -> Store:
    """Open the store in directory ``path``, which is made if need be. Other keywords are the keys of the configuration.

    If ``index``, ``format`` or ``body`` is left out, the one of the last opening is used; ``record``, if ``format`` is left out
    too. Options are not remembered. Any other key that is left out has its default. A configuration file differs: there, every
    key but ``body`` that is left out has its default.

    A directory that a broker wrote is opened for writing with ``adopt=True`` only: see :class:`NotAdopted`.

    ``refcounts``: (id, count) pairs, used where counts must be rebuilt: after a dirty shutdown with an index that is not
    persistent, or in a directory that another program wrote. Ids that they do not name are garbage. Without them each id
    counts once.

    ``progress(done, total)`` is called, in bytes, while segments are read after a dirty shutdown.

    ``mode="r"`` refuses changes, and writes nothing into the directory, not even a lock. With an index that can be read beside
    its writer (capability LIVE_READS) another process may have the store open for writing, or open it so later: each call
    then sees everything that was confirmed before it began, or with ``fsync_every`` up to the last sync. Such an index may note
    its readers in files of its own.

    Raises ConfigError, PluginError, StoreLocked, StoreMismatch, NotAdopted, StoreError.
    """
    config, catalogue = store_config({"path": path, **keys}, "open_store()", Path()), load_catalogue()
    with suppress(OSError, StoreError):  # the opening itself says what is wrong with the directory
        last = _remembered(config, keys)
        if refcounts is None or last.index.name in catalogue.names("index"):  # counts replace an index that is missing
            config = last
    return open_configured(config, catalogue, mode=mode, refcounts=refcounts, progress=progress)


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
    """Read a configuration file, and load the plugins that it does not disable. Raises ConfigError for the file as a whole; a
    wrong table of a store only when that store is opened."""
    config = read_config(path)
    try:
        return Stores(config, load_catalogue(config.disabled))
    except ConfigError as error:
        raise ConfigError(f"{config.file}: {error}") from error


def remembered_config(directory: Path) -> StoreConfig:
    """With the backends of a directory's last opening, else the defaults. Raises StoreError if ``msgstore.json`` cannot be
    used."""
    return _remembered(store_config({"path": directory}, str(directory), Path()), ())


def _remembered(config: StoreConfig, named: Container[str]) -> StoreConfig:
    """Return the configuration with the backends of the last opening, except for those that are ``named``."""
    last = known_settings(Files(), config.path, warns=False)
    if last is None:
        return config
    found = {"index": Backend(last.index), "format": Backend(last.format), "body": Backend(last.body, named=False)}
    changes: dict[str, Any] = {name: backend for name, backend in found.items() if name not in named}
    if "format" not in named and "record" not in named:
        changes["record"] = last.record
    return attrs.evolve(config, **changes, last_opened=frozenset(changes))


def open_configured(
    config: StoreConfig,
    catalogue: Catalogue,
    *,
    mode: Mode = "rw",
    refcounts: Iterable[tuple[bytes, int]] | None = None,
    files: Files | None = None,
    progress: RecoveryProgress | None = None,
    live: LiveMode = "follow",
) -> Store:
    """Open what a checked configuration describes. ``files`` is the seam where tests count operations and inject faults.

    ``live``, of an index that can be read beside its writer: ``beside`` reads beside a writer that is there, and otherwise
    leaves no trace and ends when one comes; ``never`` is for checks of what must not change meanwhile.
    """
    if mode not in ("rw", "r"):
        raise ValueError(f"mode is 'rw' or 'r', not {mode!r}")
    counts, files = None if refcounts is None else list(refcounts), files or Files()
    open_it = partial(open_directory, config, catalogue, files, refcounts=counts, progress=progress)
    try:
        if mode == "r" and live != "never" and can_be_read_live(config.index.name, catalogue):
            return _open_live(config, catalogue, files, open_it, follow=live == "follow")
        begin = partial(open_it, read_only=mode == "r")
        return _assemble(_telemetry(config, catalogue), begin, partial(Store, mode=mode))
    except OSError as error:
        raise StoreError(f"{error.filename or config.path}: the store cannot be opened: {error.strerror or error}") from error
    except StoreLocked as error:
        able = [name for name in catalogue.names("index") if can_be_read_live(name, catalogue)]
        if not able or error.pid == os.getpid() or mode == "rw" or live == "never" or config.index.name in able:
            raise
        listed = " or ".join(f'index = "{name}"' for name in able)
        more = f"A store with {listed} can be read while another process writes it."
        raise StoreLocked(f"{error} {more}", error.pid) from error.__cause__
    except Exception as error:
        if (broken := blame(error)) is not None:
            raise BrokenPlugin(f"{config.path}: {broken}") from error
        raise


def check_observers(config: StoreConfig, catalogue: Catalogue) -> None:
    """Raise ConfigError for options of an observer that is neither installed nor disabled."""
    known = sorted({observer.provider.entry_point for observer in catalogue.observers})
    disabled = {name.partition(":")[2] or name for name in catalogue.disabled}
    for name in config.observers.keys() - {*known, *disabled}:
        raise ConfigError(
            f"{config.where or config.path} observers: no installed plugin has the observer entry point {name!r}"
            + (nearest(name, known) or f". Installed: {', '.join(known) or 'none'}")
        )


def _telemetry(config: StoreConfig, catalogue: Catalogue) -> Telemetry:
    """Return the telemetry of a store. Raises ConfigError."""
    check_observers(config, catalogue)
    return Telemetry(config.path, catalogue.observers, config.observers)


def _assemble(
    telemetry: Telemetry,
    begin: Callable[[Resources, Telemetry], OpenDirectory],
    make: Callable[[OpenDirectory], S],
) -> S:
    """Return a store with its threads. If this call fails or is interrupted, no lock and no thread stays."""
    resources, store = Resources(), None
    try:
        telemetry.start()
        opened = begin(resources, telemetry)
        store = make(opened)
        store.start()
        _use(opened, store)
    except BaseException:
        try:
            if store is not None:
                with suppress(MsgStoreError):
                    store.close()  # nothing has changed yet: counts are saved
                store.abandon()
                store.stop_threads()
            resources.close()
        finally:
            telemetry.stop()  # last, when nothing is held any more
        raise
    else:
        return store  # without a call in between, at which an interrupt could come


def _use(opened: OpenDirectory, store: Store) -> None:
    """Publish the opening, and migrate older segments if the configuration says so."""
    config = opened.config
    opened.accounting.segments.telemetry.note(
        StoreOpenedEvent,
        mode=store.mode,
        index=config.index.name,
        format=config.format.name,
        recovery=attrs.asdict(opened.recovery),
        statistics=statistics_of(store),
    )
    if store.mode == "rw" and "record" in config.last_opened:
        _warn_of_key(config, opened.backends.formats.catalogue)
    if store.mode == "rw" and config.on_legacy == "migrate":
        try:
            store.migrate()
        except BaseException:
            with suppress(MsgStoreError):
                store.close()  # what was migrated so far is kept, and the counts with it
            raise


def _warn_of_key(config: StoreConfig, catalogue: Catalogue) -> None:
    """Warn if the record type that the directory remembers has secret options: a directory does not remember these."""
    types = catalogue.descriptors(RecordTypeDescriptor)
    found = [one for one in types if (one.format, one.name) == (config.format.name, config.record)]
    if names := [field.name for one in found for field in attrs.fields(one.options) if field.repr is False]:
        what = "%s: new records of the type %r are written without %s, which no directory keeps: give record and format with it"
        log.warning(what, config.path, config.record, ", ".join(names))


def _open_live(config: StoreConfig, catalogue: Catalogue, files: Files, open_it: Any, *, follow: bool) -> LiveStore:
    """Open a store for reading. Without ``follow`` nothing is written, and it can be read until a writer comes."""
    if not config.path.is_dir():
        raise StoreError(f"{config.path}: there is no such directory")
    for _ in range(_MAX_ATTEMPTS):
        store = _try_live(config, catalogue, files, open_it, follow=follow)
        if store is not None:
            return store
    raise StoreError(f"{config.path}: writers came and went {_MAX_ATTEMPTS} times while the store was being opened; try again")


def _try_live(config: StoreConfig, catalogue: Catalogue, files: Files, open_it: Any, *, follow: bool) -> LiveStore | None:
    """Return None if a writer came or went meanwhile."""
    with ExitStack() as undo:
        tracker = WriterTracker(config.path)
        undo.callback(tracker.close)
        text, writer = tracker.text(), other_writer(config.path)
        obstacle = None if follow else "it was opened without being noted anywhere. Open it again"

        def make(opened: OpenDirectory) -> LiveStore:
            view = ReadView(text, opened.backends, live=False) if writer is None else None
            store = LiveStore(opened, tracker, view, obstacle)
            undo.callback(store.close)
            return store

        try:
            if writer is not None:
                obstacle = None
                store = _assemble(Telemetry(config.path), partial(look_beside, config, catalogue, files), make)
            else:
                observed = partial(_telemetry, config, catalogue)
                try:
                    store = _assemble(observed(), partial(open_it, read_only=True, live=follow), make)
                except (StoreError, OSError) as error:
                    if not (follow and isinstance(error.__cause__ or error, PermissionError)):
                        raise
                    obstacle = str(error)  # without a writer all can be read, but no writer would know of this reader
                    store = _assemble(observed(), partial(open_it, read_only=True), make)
        except (StoreError, OSError):
            if writer is not None or tracker.text() == text:
                raise
            return None
        if writer is not None or tracker.text() == text:
            undo.pop_all()
            return store
        return None
