"""Recognise count files: lines ``id,count``, or Parquet. Needs no pyarrow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgstore.contract import ConfigError, StoreIOError
from msgstore.contract.indexes import MAX_REFERENCES

MAX_COUNT = MAX_REFERENCES
"""Largest count, positive or negative, of a line or a row."""
_PARQUET = b"PAR1"
_MARK = "\ufeff"
"""Byte order mark that some programs write at the start of UTF-8."""


def is_parquet(path: Path) -> bool:
    """Return True by the extension or the first bytes. Files of Hive and Trino have no extension; no line begins so."""
    if path.suffix == ".parquet":
        return True
    if not path.is_file():  # a pipe can be read only once
        return False
    with path.open("rb") as file:
        return file.read(len(_PARQUET)) == _PARQUET


def read_lines(lines: Iterable[str], path: Path | str, first: int = 1) -> Iterator[tuple[bytes, int]]:
    """Yield (id, count) of each line of ``path``, whose first line has the number ``first``. Raises ConfigError."""
    for number, line in enumerate(lines, first):
        fields = [field.strip() for field in (line.removeprefix(_MARK) if number == 1 else line).split(",")]
        if fields == [""] or (number == 1 and fields[0] == "id"):
            continue
        try:
            msg_id, count = bytes.fromhex(fields[0]), int(fields[1])
        except (ValueError, IndexError):
            msg_id, count = b"", 0
        if len(msg_id) != 16:
            raise ConfigError(f"{path}: line {number} is not 'id,count' with an id of 32 hexadecimal digits")
        if abs(count) > MAX_COUNT:
            raise ConfigError(f"{path}: line {number} has the count {count}; a count is at most {MAX_COUNT}")
        yield msg_id, count


@contextmanager
def io_errors(path: Path | str) -> Iterator[None]:
    """Turn an OSError about a count file into StoreIOError."""
    try:
        yield
    except OSError as error:
        raise StoreIOError(f"{error.filename or path}: {error.strerror or error}") from error


def named_counts(path: Path | None) -> str | None:
    """Return the path of a count file for a job. Raises ConfigError if it is missing."""
    if path is not None and not os.path.exists(path):  # noqa: PTH110 - a Path's raises, in some versions
        raise ConfigError(f"{path}: there is no such file of counts")
    return None if path is None else str(path)
