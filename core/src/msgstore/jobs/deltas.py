"""Changes of reference counts: files of ``id,count`` lines or Parquet, in shares that any process reads into record batches."""

from __future__ import annotations

import binascii
import codecs
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from msgstore.contract import ConfigError
from msgstore.jobs.columns.arrays import fixed_width, open_parquet
from msgstore.jobs.paths import visible_files
from msgstore.jobs.reading.count_files import MAX_COUNT, io_errors, is_parquet, read_lines

SCHEMA = pa.schema([pa.field("id", pa.binary(16), nullable=False), pa.field("count", pa.int64(), nullable=False)])
SHARE = 64 * 2**20
"""Bytes of a file that one task reads."""
BLOCK = 8 * 2**20
"""Bytes of lines that are parsed together."""
_HEX_DIGITS = 32
_GLANCE = 4096
_LINE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:id|[0-9a-fA-F]{32})\s*,")
"""Begin of a file of lines."""


@attrs.frozen
class DeltaShare:
    """Part of a file, small and picklable: the lines that begin in these bytes, or the Parquet row groups of these numbers."""

    path: str
    begin: int
    end: int
    size: int
    """Approximate number of bytes."""
    is_parquet: bool = False


def find_shares(paths: Iterable[Path | str], size: int = SHARE) -> list[DeltaShare]:
    """Return the shares of files, and of directories of Parquet files at any depth, by name. Each file counts once.

    Spark and pyarrow begin the names of unfinished files and markers with ``_`` or ``.``: these are ignored in directories.
    Raises ConfigError for other paths and for any other file in a directory, and StoreIOError.
    """
    files: dict[Path, Path] = {}
    for path in map(Path, paths):
        with io_errors(path):
            for file in _files(path):
                files.setdefault(file.resolve(), file)
    return [share for file in files.values() for share in _shares(file, size)]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        what = "is no plain file" if path.exists() else "there is no such file"
        raise ConfigError(f"{path}: {what}; counts are in lines 'id,count', or in Parquet with the columns id and count")
    found = [file for file in sorted(visible_files(path, ConfigError)) if _is_data(file)]
    if not found:
        raise ConfigError(f"{path}: there are no Parquet files in this directory")
    return found


def _is_data(file: Path) -> bool:
    """Return False for another file, such as a README. Raises ConfigError for one that probably has counts, in another form."""
    if not file.is_file():
        raise ConfigError(f"{file}: is no file that can be read, in a directory of counts")
    if is_parquet(file):
        return True
    with file.open("rb") as data:
        begin = data.read(_GLANCE)
    if begin and (file.name.startswith("part-") or ".csv" in file.suffixes or _LINE.match(begin)):
        raise ConfigError(
            f"{file}: is not Parquet, as the files of a directory of counts are; give files of lines by themselves"
        )
    return False


def _shares(path: Path, size: int) -> Iterator[DeltaShare]:
    if is_parquet(path):
        with _open_parquet(path) as file:
            groups = file.num_row_groups
            each = max(1, groups * size // max(1, path.stat().st_size))
        for begin in range(0, groups, each):
            end = min(begin + each, groups)
            yield DeltaShare(str(path), begin, end, path.stat().st_size * (end - begin) // groups, is_parquet=True)
    else:
        total = path.stat().st_size
        for begin in range(0, total, size):
            end = min(begin + size, total)
            yield DeltaShare(str(path), begin, end, end - begin)


def read_share(share: DeltaShare) -> Iterator[pa.RecordBatch]:
    """Yield batches of SCHEMA. Raises ConfigError for an invalid line or row, with file and place; StoreIOError."""
    with io_errors(share.path):
        yield from _rows(share) if share.is_parquet else _lines(share)


# -- lines --------------------------------------------------------------------------------------------------------------------


def _lines(share: DeltaShare) -> Iterator[pa.RecordBatch]:
    with Path(share.path).open("rb") as file:
        if share.begin:
            file.seek(share.begin - 1)
            file.readline()  # belongs to the share before
        else:  # only the first line may be a header, or begin with a mark
            yield _parse(share.path, 0, file.readline())
        while (offset := file.tell()) < share.end and (block := file.read(min(BLOCK, share.end - offset))):
            if not block.endswith(b"\n"):
                block += file.readline()
            yield _parse_fast(block) or _parse(share.path, offset, block)


def _parse_fast(block: bytes) -> pa.RecordBatch | None:
    """Parse lines of 32 hexadecimal digits, a comma and a number. Return None for a block with any other line."""
    if any(text in block for text in (b"x", b"X", codecs.BOM_UTF8)):
        return None  # pyarrow takes 0x10 for a number, and ignores the mark
    try:
        table = pa_csv.read_csv(
            pa.py_buffer(block),
            read_options=pa_csv.ReadOptions(autogenerate_column_names=True, block_size=len(block) + 1),
            parse_options=pa_csv.ParseOptions(quote_char=False),
            convert_options=pa_csv.ConvertOptions(
                column_types={"f0": pa.binary(), "f1": pa.int64()}, include_columns=["f0", "f1"], null_values=[]
            ),
        )
        (batch,) = table.combine_chunks().to_batches()
        if batch.column(1).null_count or batch.column(0).offset:
            return None
        if set(pc.min_max(pc.binary_length(batch.column(0))).as_py().values()) != {_HEX_DIGITS}:
            return None
        if pc.any(pc.greater(pc.abs(batch.column(1)), MAX_COUNT)).as_py():
            return None
        ids = binascii.unhexlify(batch.column(0).buffers()[2][: _HEX_DIGITS * batch.num_rows])
    except (pa.ArrowException, KeyError, ValueError):  # binascii.Error is one
        return None
    return pa.record_batch([fixed_width(ids), batch.column(1)], schema=SCHEMA)


def _parse(path: str, offset: int, block: bytes) -> pa.RecordBatch:
    """Parse a block line by line. Accepts the lines that ``read_counts`` accepts, and names the first other one."""
    lines = io.TextIOWrapper(io.BytesIO(block), encoding="utf-8", errors="replace")
    rows = list(read_lines(lines, path, 1 if not offset else _newlines(path, offset) + 1))
    counts = pa.array([count for _, count in rows], pa.int64())
    return pa.record_batch([fixed_width(b"".join(msg_id for msg_id, _ in rows)), counts], schema=SCHEMA)


def _newlines(path: str, end: int) -> int:
    """Return the number of line ends in the bytes before ``end``."""
    with Path(path).open("rb") as file:
        return sum(file.read(min(BLOCK, end - at)).count(b"\n") for at in range(0, end, BLOCK))


# -- Parquet ------------------------------------------------------------------------------------------------------------------


@contextmanager
def _open_parquet(path: Path | str) -> Iterator[pq.ParquetFile]:
    """Yield a Parquet file with the columns. Errors name the file, also those of the block. Raises ConfigError, OSError."""
    try:
        with open_parquet(path) as file:
            names = file.schema_arrow.names
            if not {"id", "count"} <= set(names):
                raise _no_counts(path, f"its columns are {', '.join(names)}")
            yield file
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise _no_counts(path, error) from error
    except OSError as error:
        if error.errno is None:  # pyarrow's, for a damaged page
            raise _no_counts(path, error) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _rows(share: DeltaShare) -> Iterator[pa.RecordBatch]:
    with _open_parquet(share.path) as file:
        for batch in file.iter_batches(row_groups=list(range(share.begin, share.end)), columns=["id", "count"]):
            ids, counts = pc.cast(batch.column("id"), pa.binary()), pc.cast(batch.column("count"), pa.int64())
            fits = pc.and_(pc.less_equal(counts, MAX_COUNT), pc.greater_equal(counts, -MAX_COUNT))
            good = pc.and_(pc.equal(pc.binary_length(ids), 16), fits)
            first = pc.index(pc.coalesce(good, pa.scalar(False)), False).as_py()
            if first >= 0:
                row = f"the id {ids[first].as_py()!r} and the count {counts[first].as_py()!r}"
                raise ConfigError(f"{share.path}: a row has {row}; an id is 16 bytes, and a count at most {MAX_COUNT}")
            yield pa.record_batch([pc.cast(ids, pa.binary(16)), counts], schema=SCHEMA)


def _no_counts(path: Path | str, why: object) -> ConfigError:
    reason = " ".join(str(why).split())
    return ConfigError(f"{path}: is not Parquet with the columns id (binary) and count (integer): {reason}")
