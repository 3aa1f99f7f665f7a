"""From paths to segments that can be read without an index, a lock, or a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from msgstore.contract import RecordTypeDescriptor, StoreError
from msgstore.directory import SETTINGS, list_segments, read_settings
from msgstore.engine.shutdown import CLEAN
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue
from msgstore.salvage.copying import no_segments
from msgstore.scan import FormatSet, OpenFormat
from msgstore.scan.formats import check_bindings


@attrs.frozen
class Input:
    path: Path
    form: OpenFormat


class Inputs:
    """Segments, each with the record types of its directory."""

    def __init__(self, catalogue: Catalogue, records: Mapping[str, int] | None = None) -> None:
        """``records`` are bound beside what a directory remembers, and instead of it where the two contradict."""
        self.catalogue = catalogue
        self.damaged_settings: list[str] = []
        """What is wrong with the ``msgstore.json`` that could not be read; its directory's types are then 1-3."""
        self._records = dict(records or {})
        self._formats: dict[Path, FormatSet] = {}
        self._files = Files()

    def find(self, paths: Iterable[Path]) -> Iterator[Input]:
        """The segments of each path, a directory's in number order. Raises StoreError for what is none of ours."""
        for path in paths:
            yield from self._directory(path) if path.is_dir() else [self._file(path)]

    def _file(self, path: Path) -> Input:
        if not path.exists():
            raise StoreError(f"{path}: there is no such file or directory")
        if not path.is_file():
            raise StoreError(f"{path}: is neither a regular file nor a directory; copy what it holds into a file")
        formats = self.formats(path.parent)
        if path.suffix not in formats.extensions:
            known = ", ".join(f"*{extension} ({name})" for extension, name in sorted(formats.extensions.items()))
            raise StoreError(f"{path}: no installed format reads such files; known are {known or 'none'}")
        return Input(path, formats.by_extension(path.suffix))

    def _directory(self, path: Path) -> list[Input]:
        formats = self.formats(path)
        segments = list_segments(self._files, path, formats.extensions)
        if not segments and not any((path / name).exists() for name in (SETTINGS, CLEAN)):
            raise StoreError(no_segments(path, formats))
        return [Input(segment.path, formats.by_extension(segment.extension)) for segment in segments]

    def formats(self, directory: Path) -> FormatSet:
        """The formats of a directory's segments."""
        if directory not in self._formats:
            self._formats[directory] = FormatSet(self.catalogue, self._bindings(directory), where=str(directory))
        return self._formats[directory]

    def _bindings(self, directory: Path) -> dict[str, int]:
        try:
            settings = read_settings(self._files, directory)
        except StoreError as error:
            self.damaged_settings.append(str(error))
            settings = None
        remembered = settings.records if settings else {}
        given = self._records
        return {name: byte for name, byte in remembered.items() if byte not in given.values()} | given


def bind_records(catalogue: Catalogue, bindings: Iterable[tuple[str, int]], option: str) -> dict[str, int]:
    """What the NAME=BYTE options say, checked. Raises ConfigError, or PluginError for a name that nobody provides."""
    checked: dict[str, int] = {}
    for name, byte in bindings:
        formats = [
            found.descriptor.format
            for found in catalogue.registrations
            if isinstance(found.descriptor, RecordTypeDescriptor) and found.descriptor.name == name
        ]
        form = formats[0] if formats else "v2"
        checked |= check_bindings(catalogue, form, {**checked, name: byte}, option)
    return checked
