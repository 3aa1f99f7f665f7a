"""Splits of files of rows: the lines that begin in some bytes of a file, or some row groups of Parquet. Any process reads one.

The rows are counts of references. Lines are read without pyarrow, the extra ``msgstore[parquet]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from msgstore.contract import ConfigError, StoreIOError
from msgstore.files import Files
from msgstore.jobs.workers import check_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SPLIT_SIZE = 64 * 2**20
"""Bytes that one task reads: of lines, or of row groups without their compression."""
BLOCK = 8 * 2**20
"""Bytes of lines that are parsed together."""
LONGEST = 2**29
"""Bytes of a line."""


@attrs.frozen
class FileSplit:
    """Input of one task. Small and picklable."""

    path: str
    begin: int
    """Offset, or number of a row group."""
    end: int
    size: int
    """Bytes of the lines, or of the row groups without their compression."""
    is_parquet: bool = False


def is_parquet(path: Path) -> bool:
    """Return True by the extension or the first bytes. Files of Hive and Trino have no extension; no line begins so."""
    if (is_named_so := path.suffix.lower() == ".parquet") or not path.is_file():  # a pipe can be read only once
        return is_named_so
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def splits_of(path: Path, size: int) -> tuple[list[FileSplit], pa.Schema | None]:
    """Return the splits of a file, and the columns of Parquet. Raises ConfigError, StoreIOError."""
    with io_errors(path):
        if not is_parquet(path):
            total = path.stat().st_size
            return [
                FileSplit(str(path), at, min(at + size, total), min(size, total - at)) for at in range(0, total or 1, size)
            ], None
    splits, begin, held = [], 0, 0
    with open_parquet(path) as file:
        for number in range(file.num_row_groups):
            held += file.metadata.row_group(number).total_byte_size
            if held >= size or number == file.num_row_groups - 1:
                splits.append(FileSplit(str(path), begin, number + 1, held, is_parquet=True))
                begin, held = number + 1, 0
        return splits, file.schema_arrow


def read_blocks(split: FileSplit) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the bytes of some MiB of whole lines; the first line of a file by itself, as it may be a header.

    Raises ConfigError for a line of more than LONGEST bytes, StoreIOError.
    """
    with io_errors(split.path), Path(split.path).open("rb") as file:
        if split.begin:
            file.seek(split.begin - 1)
            file.readline(LONGEST)  # belongs to the split before
        while (offset := file.tell()) < split.end:
            block = file.read(min(BLOCK, split.end - offset)) if offset else b""
            if not block.endswith(b"\n"):
                block += (rest := file.readline(LONGEST))
                if len(rest) == LONGEST:
                    raise ConfigError(f"{split.path}: the line at offset {offset} is longer than {LONGEST} bytes")
            if not block:
                return  # the file was cut
            yield offset, block


def line_number(path: str, offset: int) -> int:
    """Return the number of the line that begins at ``offset``."""
    with io_errors(path), Path(path).open("rb") as file:
        return 1 + sum(file.read(min(BLOCK, offset - at)).count(b"\n") for at in range(0, offset, BLOCK))


@contextmanager
def open_parquet(path: Path | str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file. Errors name it, also those of the block. Raises ConfigError for its content, StoreIOError."""
    check_pyarrow(f"{path}: Parquet is read")
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = Files()
    try:
        # By its descriptor, as pyarrow takes only names that are UTF-8. A Python file would be read by pyarrow's threads, which
        # can abort the process when the interpreter ends.
        with (
            io_errors(path),
            files.closing(files.open_read(Path(path))) as fd,
            pa.OSFile(f"/dev/fd/{fd}") as source,
            pq.ParquetFile(source) as file,
        ):
            yield file
    except (pa.ArrowException, KeyError, ValueError, EOFError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read as Parquet: {' '.join(str(error).split())}") from error


@contextmanager
def io_errors(path: Path | str) -> Iterator[None]:
    """Turn an error of the operating system about a file into StoreIOError. pyarrow's, for a damaged page, have no number."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise StoreIOError(f"{error.filename or path}: {error.strerror or error}") from error
