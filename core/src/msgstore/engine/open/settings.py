"""Settings of a directory with a damaged ``msgstore.json``: those of its copy, otherwise rebuilt from the other files.

The index is the one with the newest files, the format that of the newest segment. Record types with assigned bytes are bound if
there are records of them. The rest comes from the configuration. If a record has a type byte that is bound to no type, the
settings are not rebuilt: the record would look damaged.
"""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

from msgstore.config import StoreConfig
from msgstore.contract import RecordTypeDescriptor, StoreError
from msgstore.directory import SETTINGS, DamagedSettings, Settings, list_segments, read_settings
from msgstore.engine.backends import resolve
from msgstore.files import Files, stat_regular_file
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import FormatSet
from msgstore.scan.bindings import OWN_RECORD, THIRD_PARTY_BYTES

log = logging.getLogger("msgstore.store")

_PART = 2**20
"""Bytes of a damaged ``msgstore.json`` that are copied at once."""


def known_settings(files: Files, config: StoreConfig, catalogue: Catalogue) -> Settings | None:
    """Return the settings of the directory, or None if msgstore has never opened it. Raises StoreError if they are damaged and
    cannot be rebuilt."""
    try:
        return read_settings(files, config.path)
    except DamagedSettings as error:
        return rebuild_settings(files, config, catalogue, error)


def rebuild_settings(files: Files, config: StoreConfig, catalogue: Catalogue, error: DamagedSettings) -> Settings:
    """Return the settings of the copy, otherwise rebuilt ones. Raises StoreError, with the text of ``error``."""
    directory = config.path
    if error.copy is not None:
        log.warning("%s: is damaged (%s). Its copy is used.", directory / SETTINGS, error.reason)
        return error.copy
    formats = resolve(config, catalogue, None).formats
    segments = list_segments(files, directory, formats.extensions)
    newest = formats.extensions[segments[-1].extension] if segments else config.format.name
    bound = dict(formats.bindings)
    for segment in segments:
        bound |= _used(files, segment.path, formats, catalogue, error)
    settings = Settings(_index(directory, config, catalogue), newest, config.record, config.body.name, bound)
    log.warning(
        "%s: is damaged (%s). It is rebuilt from the directory: index %r, format %r, record types %r.",
        directory / SETTINGS, error.reason, settings.index, settings.format, settings.records,
    )  # fmt: skip
    return settings


def keep_damaged(files: Files, directory: Path) -> None:
    """Keep a copy of a damaged ``msgstore.json``, which is replaced next."""
    there = files.list(directory)
    name = next(name for n in itertools.count(1) if (name := f"{SETTINGS}.damaged-{n}") not in there)
    with files.view(directory / SETTINGS) as data:
        parts = (data[at : at + _PART] for at in range(0, len(data), _PART))  # it may be of any size
        files.write_file(directory / name, parts, sync=True)


def _index(directory: Path, config: StoreConfig, catalogue: Catalogue) -> str:
    """Return the name of the index with the newest files in the directory. Files of an index are named ``msgstore-INDEX``."""
    found: dict[str, int] = {}
    for name in catalogue.names("index"):
        own = [path for path in directory.glob(f"msgstore-{name}*") if path.name.partition(".")[0] == f"msgstore-{name}"]
        below = [file for path in own if path.is_dir() for file in path.iterdir()]
        times = [stat_regular_file(path)[1] for path in own + below if path.is_file()]
        if times:
            found[name] = max(times)
    return max(found, key=lambda name: found[name], default=config.index.name)


def _used(files: Files, path: Path, formats: FormatSet, catalogue: Catalogue, error: DamagedSettings) -> dict[str, int]:
    """Return the assigned type byte of each record type that the segment has records of."""
    descriptors = (found.descriptor for found in catalogue.registrations if isinstance(found.descriptor, RecordTypeDescriptor))
    assigned = {
        descriptor.name: descriptor.assigned_byte
        for descriptor in descriptors
        if descriptor.format == formats.extensions[path.suffix]
        and descriptor.assigned_byte is not None
        and descriptor.name not in (OWN_RECORD, *formats.bindings)
    }
    form = FormatSet(catalogue, assigned | formats.bindings).by_extension(path.suffix)
    if not form.typed:
        return {}
    with files.view(path) as data:
        scan = form.format.scan(data)
        stray = data[scan.end.offset] if scan.end.state == "corrupt" and scan.end.offset < len(data) else 0
    if stray in THIRD_PARTY_BYTES and stray not in form.type_names:
        raise StoreError(
            f"{error} At offset {scan.end.offset} of {path.name} there may be a record of a type bound to byte {stray}. "
            f"Bind it in the configuration (format records), and open the store again."
        )
    return {name: byte for name, byte in assigned.items() if byte in scan.records.types}
