"""The copying: segment by segment, the highest number first, into a store that appears under its name when it is whole."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from msgstore.config import store_config
from msgstore.contract import Buffer, MessageTooLarge, RecordError, RecordTypeDescriptor, StoredBody, StoreError
from msgstore.directory import SETTINGS, Settings, read_settings
from msgstore.engine.client import Client
from msgstore.engine.lock import check_no_writer
from msgstore.engine.opening import open_configured
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue
from msgstore.salvage.chains import read_chains
from msgstore.salvage.report import InputReport, SalvageReport, SpanReport
from msgstore.scan import FormatSet, OpenFormat
from msgstore.scan.formats import OWN_RECORD

Progress = Callable[[int, int], object]
"""Called with (done, total) of the source's bytes."""
SETTINGS_DAMAGED = "settings_damaged"
"""The reason of a ``msgstore.json`` that cannot be read; record types of assigned bytes are then tried as well."""
TOO_LARGE = "message_too_large"
"""The reason of a record whose body does not fit into one of the new store's format."""


def salvage(
    source: Path,
    destination: Path,
    *,
    catalogue: Catalogue,
    index: str = "ets",
    format: str = "v2",  # noqa: A002 - the key of the configuration
    record: str = OWN_RECORD,
    body: str | None = None,
    records: Mapping[str, int] | None = None,
    check_body: Callable[[bytes], bool] | None = None,
    progress: Progress | None = None,
) -> SalvageReport:
    """Copy every good record in ``source`` into a fresh store at ``destination``, each with one reference.

    Files of several formats, and several of one number, may stand side by side. Of copies of an id in several files the
    highest-numbered file's good one is taken, in one file the first. ``records`` binds record types of the source to type
    bytes beside those that it remembers; ``body`` is the codec that the new store remembers (that of the source, else ``raw``):
    bodies are copied as they are stored. A body that fails ``check_body`` is damage.

    Nothing is written into ``source``. The store is built beside ``destination`` and renamed when it is complete and synced; if
    anything fails, nothing is left. Memory: one segment, what is damaged in it some times over, and the new store's index.

    Raises StoreError (no segments, destination in use), StoreLocked, ConfigError, PluginError, StoreIOError.
    """
    files = Files()
    report = SalvageReport(source, destination)
    settings = _source_settings(files, source, catalogue, report)
    bindings = {**(settings.records if settings else {}), **(records or {})}
    formats = FormatSet(catalogue, bindings, where=str(source))
    inputs = _inputs(files, source, formats, report)
    _check_destination(source, destination)
    temporary = destination.parent / f".{destination.name}.salvage-{secrets.token_hex(4)}"
    keys = {"path": temporary, "index": index, "format": format, "record": record, "body": body or _codec(settings)}
    if record in bindings:
        keys["format"] = {"use": format, "records": {record: bindings[record]}}
    config = attrs.evolve(store_config(keys, "salvage", Path()), durability="os")  # synced once, at the end
    try:
        temporary.mkdir()
        store = open_configured(config, catalogue)
        try:
            copy = _Copy(files, store.client(), report, check_body)
            done, total = 0, sum(size for _, _, size in inputs)
            for path, form, size in inputs:
                copy.segment(path, form, size)
                done += size
                if progress:
                    progress(done, total)
            store.close()
        finally:
            store.abandon()  # nothing to do if it is closed
        _publish(files, temporary, destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return report


@attrs.define
class _Copy:
    files: Files
    client: Client
    report: SalvageReport
    check_body: Callable[[bytes], bool] | None

    def segment(self, path: Path, form: OpenFormat, size: int) -> None:
        found = InputReport(path, form.name, size)
        self.report.inputs.append(found)
        try:
            with self.files.view(path) as data:
                found.size = len(data)
                self._records(found, form, data)
        except OSError as error:  # of this file: errors of the new store are StoreIOError
            self._damage(found, 0, size, f"unreadable: {error.strerror or error}")

    def _records(self, found: InputReport, form: OpenFormat, data: Buffer) -> None:
        chains = read_chains(form.format, data)
        found.header, found.holes = chains.header, chains.holes
        for spot in chains.damage:
            self._damage(found, spot.offset, spot.size, spot.reason)
        for offset, size, msg_id, recovered in chains.rows():
            if self.client.contains(msg_id):
                found.duplicates += size
                continue
            reason = self._take(form, data, offset, size, msg_id)
            if reason is not None:
                self._damage(found, offset, size, reason)
                continue
            found.good += size
            found.records += 1
            if recovered:
                found.recovered.add(msg_id, offset, size)

    def _take(self, form: OpenFormat, data: Buffer, offset: int, size: int, msg_id: bytes) -> str | None:
        """Copy one record; why not, if it is not good."""
        try:
            body = form.format.decode(msg_id, data[offset : offset + size])
        except RecordError as error:
            return error.reason
        if self.check_body is not None and not self.check_body(body):
            return "invalid_message_body"
        try:
            self.client.write(msg_id, StoredBody(body))
        except MessageTooLarge:
            return TOO_LARGE
        return None

    def _damage(self, found: InputReport, offset: int, size: int, reason: str) -> None:
        found.damaged += size
        self.report.damage.append(SpanReport(found.path, offset, size, reason))


def _source_settings(files: Files, source: Path, catalogue: Catalogue, report: SalvageReport) -> Settings | None:
    if not source.is_dir():
        raise StoreError(f"{source}: there is no such directory")
    check_no_writer(source)
    try:
        return read_settings(files, source)
    except StoreError:
        path = source / SETTINGS
        report.damage.append(SpanReport(path, 0, path.stat().st_size, SETTINGS_DAMAGED))
        return Settings(records=_assigned_records(catalogue))


def _assigned_records(catalogue: Catalogue) -> dict[str, int]:
    """Every installed record type that a format's specification assigns a byte to."""
    descriptors = [found.descriptor for found in catalogue.registrations]
    return {
        descriptor.name: descriptor.assigned_byte
        for descriptor in descriptors
        if isinstance(descriptor, RecordTypeDescriptor) and descriptor.assigned_byte is not None
    }


def _codec(settings: Settings | None) -> str:
    return settings.body if settings else "raw"


def _inputs(files: Files, source: Path, formats: FormatSet, report: SalvageReport) -> list[tuple[Path, OpenFormat, int]]:
    """(path, format, size) of every file of an installed format, the highest number first, those without one last."""
    found = []
    for name, (size, _) in files.list(source).items():
        path = source / name
        if path.suffix in formats.extensions:
            number = int(path.stem) if path.stem.isascii() and path.stem.isdigit() else -1
            found.append((number, path.suffix, name, size))
        else:
            report.ignored.append(name)
    if not found:
        raise StoreError(no_segments(source, formats))
    report.ignored.sort()
    return [(source / name, formats.by_extension(suffix), size) for _, suffix, name, size in sorted(found, reverse=True)]


def no_segments(directory: Path, formats: FormatSet) -> str:
    """The message for a directory without segments; names those beneath it that have some."""
    beneath = [
        Path(path).relative_to(directory).as_posix()
        for path, _, names in sorted(os.walk(directory))
        if any(Path(name).suffix in formats.extensions for name in names)
    ]
    known = ", ".join(f"*{extension}" for extension in sorted(formats.extensions)) or "no format is installed"
    message = f"{directory}: there are no segments in this directory ({known})"
    if beneath:
        more = f" and {len(beneath) - 10} more" if len(beneath) > 10 else ""
        message += f"; directories beneath it that have some: {', '.join(beneath[:10])}{more}"
    return message


def _check_destination(source: Path, destination: Path) -> None:
    if destination.resolve().is_relative_to(source.resolve()):
        raise StoreError(f"{destination}: lies inside {source}, into which nothing is written; choose another place")
    if not destination.resolve().parent.is_dir():
        raise StoreError(f"{destination.parent}: there is no such directory")
    if destination.is_symlink() or (destination.exists() and not (destination.is_dir() and not any(destination.iterdir()))):
        raise StoreError(f"{destination}: is there already, and is not an empty directory; choose a new name")


def _publish(files: Files, temporary: Path, destination: Path) -> None:
    """Everything on disk first, then the name."""
    for directory, _, names in os.walk(temporary):
        for name in names:
            fd = files.open_write(Path(directory, name))
            try:
                files.sync(fd)
            finally:
                files.close(fd)
        files.sync_directory(Path(directory))
    if destination.exists():
        destination.rmdir()
    temporary.rename(destination)
    files.sync_directory(destination.parent)
