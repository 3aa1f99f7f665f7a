"""Resolve paths to segments that can be read without an index, a lock or a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from msgstore.contract import PluginError, StoreError
from msgstore.directory import SETTINGS, DamagedSettings, Settings, list_segments, read_settings
from msgstore.engine.open.clean_shutdown import CLEAN
from msgstore.files import Files
from msgstore.jobs.inputs import no_segments, stores_beneath
from msgstore.jobs.not_read import NotRead, find_not_read
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import FormatSet, OpenFormat


@attrs.frozen
class InputArgument:
    """One segment to read."""

    path: Path
    form: OpenFormat
    size: int
    listed: bool = False
    """True if found in a directory instead of named. A collector may delete such a segment before it is read."""


class Inputs:
    """Segments, each with the record types of its directory."""

    def __init__(self, catalogue: Catalogue, records: Mapping[str, int] | None = None) -> None:
        """``records`` are bound in addition to the remembered bindings of a directory, and override them."""
        self.catalogue = catalogue
        self.damaged_settings: list[str] = []
        """Errors of unreadable ``msgstore.json`` files. Their directories have only the types 1-3."""
        self.not_read: list[NotRead] = []
        """Files in broker directories that were recognised and are not read."""
        self._records = dict(records or {})
        self._found: dict[Path, tuple[FormatSet, Settings | None]] = {}
        self._files = Files()

    def find(self, paths: Iterable[Path]) -> Iterator[InputArgument]:
        """Yield the segments of each path; those of a directory in number order. Raises StoreError for any other path."""
        for path in paths:
            yield from self._directory(path) if path.is_dir() else [self._file(path)]

    def _file(self, path: Path) -> InputArgument:
        if not path.exists():
            raise StoreError(f"{path}: there is no such file or directory")
        if not path.is_file():
            raise StoreError(f"{path}: is neither a regular file nor a directory. Copy its content into a file.")
        formats = self.formats(path.parent)
        if path.suffix not in formats.extensions:
            known = ", ".join(f"*{extension} ({name})" for extension, name in sorted(formats.extensions.items()))
            raise StoreError(f"{path}: no installed format reads such files. Known: {known or 'none'}")
        return InputArgument(path, _form(path, formats, path.suffix), path.stat().st_size)

    def _directory(self, path: Path) -> list[InputArgument]:
        formats, settings = self._formats_and_settings(path)
        segments = list_segments(self._files, path, formats.extensions)
        formats.check_all_read(path, self._files.list(path), settings)
        if not segments and not any((path / name).exists() for name in (SETTINGS, CLEAN)):
            return self._tree(path, formats)
        return [InputArgument(one.path, _form(path, formats, one.extension), one.size, listed=True) for one in segments]

    def _tree(self, top: Path, formats: FormatSet) -> list[InputArgument]:
        """Return the segments in a broker's directory, store by store. Raises StoreError for any other tree, and names its
        stores."""
        found = find_not_read(top)
        stores = stores_beneath(top, formats) if found else []
        if not stores:
            raise StoreError(no_segments(top, formats))
        self.not_read += found
        return [segment for store in stores for segment in self._directory(store)]

    def formats(self, directory: Path) -> FormatSet:
        """Return the formats of the segments of a directory."""
        return self._formats_and_settings(directory)[0]

    def _formats_and_settings(self, directory: Path) -> tuple[FormatSet, Settings | None]:
        if directory not in self._found:
            try:
                settings = read_settings(self._files, directory)
            except StoreError as error:
                self.damaged_settings.append(str(error))
                settings = error.copy if isinstance(error, DamagedSettings) else None
            known = settings or Settings()
            given = self._records
            bindings = {name: byte for name, byte in known.records.items() if byte not in given.values()} | given
            catalogue = attrs.evolve(self.catalogue, remembered=known.distributions)
            self._found[directory] = FormatSet(catalogue, bindings, where=str(directory)), settings
        return self._found[directory]


def _form(path: Path, formats: FormatSet, extension: str) -> OpenFormat:
    """Return the format of a segment. Raises PluginError if the directory has record types without a provider."""
    try:
        return formats.by_extension(extension)
    except PluginError as error:
        raise type(error)(f"{path}: {error}") from error
