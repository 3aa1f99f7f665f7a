"""Changes of reference counts: files of ``id,count`` lines or Parquet, in shares that any process reads into record batches."""

from __future__ import annotations

import binascii
import codecs
import io
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
from msgstore.jobs.reading.count_files import io_errors, is_parquet, read_lines

SCHEMA = pa.schema([pa.field("id", pa.binary(16), nullable=False), pa.field("count", pa.int64(), nullable=False)])
SHARE = 64 * 2**20
"""Bytes of a file that one task reads."""
BLOCK = 8 * 2**20
"""Bytes of lines that are parsed together."""
MOST = 2**63 - 1
_HEX_DIGITS = 32
_GLANCE = 4096
"""Bytes of a file that are looked at to see what it is."""


@attrs.frozen
class DeltaShare:
    """Part of a file, small and picklable: its lines that begin in these bytes, or its Parquet row groups of these numbers."""

    path: str
    begin: int
    end: int
    size: int
    """Bytes, about."""
    is_parquet: bool = False


def find_shares(paths: Iterable[Path | str], size: int = SHARE) -> list[DeltaShare]:
    """Return the shares of files, and of directories of Parquet files. A file that is found twice counts once.

    Raises ConfigError for other paths, StoreIOError.

    A directory stands for its Parquet files at any depth, by name; nothing that might hold counts is passed over. Names that
    begin with ``_`` or ``.`` do not count, as Spark and pyarrow see it: what is being written, and marks of what has been.
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
    found = sorted(file for file in visible_files(path, ConfigError) if _is_data(file))
    if not found:
        raise ConfigError(f"{path}: there are no Parquet files in this directory")
    return found


def _is_data(file: Path) -> bool:
    """Other files may stand beside, such as a README; what is named, or begins, as counts do has to be Parquet."""
    if not file.is_file():
        raise ConfigError(f"{file}: is no file that can be read, in a directory of counts")
    if is_parquet(file):
        return True
    if file.stat().st_size and (file.name.startswith("part-") or ".csv" in file.suffixes or _begins_with_counts(file)):
        raise ConfigError(
            f"{file}: is not Parquet, as the files of a directory of counts are; give files of lines by themselves"
        )
    return False


def _begins_with_counts(file: Path) -> bool:
    with file.open("rb") as data:
        line = next((line for line in data.read(_GLANCE).splitlines() if line.strip()), b"")
    try:
        list(read_lines([line.decode(errors="replace")], file))
    except ConfigError:
        return False
    return bool(line)


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


def sum_absolute(batch: pa.RecordBatch) -> int:
    """The sum of its counts without their signs."""
    return int(pc.sum(pc.abs(pc.cast(batch.column(1), pa.decimal128(38)))).as_py() or 0)


def count_changes(read: Iterable[tuple[DeltaShare, int, int]]) -> int:
    """How many there are, of (share, changes, :func:`sum_absolute`) in order. Raises ConfigError if sums might not be exact."""
    changes = total = 0
    for share, rows, heavy in read:
        changes += rows
        total += heavy
        if total > MOST:
            raise ConfigError(f"{share.path}: up to here the counts add up to {total}, without their signs; sums have 64 bits")
    return changes


# -- lines --------------------------------------------------------------------------------------------------------------------


def _lines(share: DeltaShare) -> Iterator[pa.RecordBatch]:
    with Path(share.path).open("rb") as file:
        if share.begin:
            file.seek(share.begin - 1)
            file.readline()  # it began in the share before
        while (offset := file.tell()) < share.end and (block := file.read(min(BLOCK, share.end - offset))):
            if not block.endswith(b"\n"):
                block += file.readline()
            yield _parse_fast(block, is_first=not offset) or _parse(share.path, offset, block)


def _parse_fast(block: bytes, *, is_first: bool) -> pa.RecordBatch | None:
    """Parse a block in the usual form: hexadecimal digits, a comma, a number. Return None for any other."""
    if b"x" in block or b"X" in block:
        return None  # pyarrow takes 0x10 for a number
    if is_first:
        block = block.removeprefix(codecs.BOM_UTF8)
    if block.startswith(codecs.BOM_UTF8):
        return None  # pyarrow takes it anywhere
    skip = 1 if is_first and block[:3] in (b"id,", b"id\n", b"id\r") else 0
    try:
        table = pa_csv.read_csv(
            pa.py_buffer(block),
            read_options=pa_csv.ReadOptions(autogenerate_column_names=True, skip_rows=skip, block_size=len(block) + 1),
            parse_options=pa_csv.ParseOptions(quote_char=False),
            convert_options=pa_csv.ConvertOptions(
                column_types={"f0": pa.binary(), "f1": pa.int64()}, include_columns=["f0", "f1"], null_values=[]
            ),
        )
        (batch,) = table.combine_chunks().to_batches() or [None]
    except (pa.ArrowException, KeyError, ValueError):
        return None
    if batch is None or batch.column(1).null_count or batch.column(0).offset:
        return None
    if set(pc.min_max(pc.binary_length(batch.column(0))).as_py().values()) != {_HEX_DIGITS}:
        return None
    digits = batch.column(0).buffers()[2]
    try:
        ids = binascii.unhexlify(digits[: _HEX_DIGITS * batch.num_rows])
    except binascii.Error:
        return None
    return pa.record_batch([fixed_width(ids), batch.column(1)], schema=SCHEMA)


def _parse(path: str, offset: int, block: bytes) -> pa.RecordBatch:
    """Line by line: as many kinds of lines as :func:`read_counts` takes, and the place of one that is none."""
    lines = io.TextIOWrapper(io.BytesIO(block), encoding="utf-8", errors="replace")
    rows = list(read_lines(lines, path, 1 if not offset else _newlines(path, offset) + 1))
    counts = pa.array([count for _, count in rows], pa.int64())
    return pa.record_batch([fixed_width(b"".join(msg_id for msg_id, _ in rows)), counts], schema=SCHEMA)


def _newlines(path: str, end: int) -> int:
    """In the bytes before ``end``."""
    with Path(path).open("rb") as file:
        return sum(file.read(min(BLOCK, end - at)).count(b"\n") for at in range(0, end, BLOCK))


# -- Parquet ------------------------------------------------------------------------------------------------------------------


@contextmanager
def _open_parquet(path: Path | str) -> Iterator[pq.ParquetFile]:
    """One with these columns. Whatever turns out to be wrong with it, while it is read too, names it. ConfigError, OSError."""
    try:
        with open_parquet(path) as file:
            names = file.schema_arrow.names
            if not {"id", "count"} <= set(names):
                raise _no_counts(path, f"its columns are {', '.join(names)}")
            yield file
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise _no_counts(path, error) from error
    except OSError as error:
        if error.errno is None:  # pyarrow's own, of a page that is damaged
            raise _no_counts(path, error) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _rows(share: DeltaShare) -> Iterator[pa.RecordBatch]:
    with _open_parquet(share.path) as file:
        for batch in file.iter_batches(row_groups=list(range(share.begin, share.end)), columns=["id", "count"]):
            ids, counts = pc.cast(batch.column("id"), pa.binary()), pc.cast(batch.column("count"), pa.int64())
            bad = pc.or_kleene(pc.is_null(counts), pc.coalesce(pc.not_equal(pc.binary_length(ids), 16), pa.scalar(True)))
            first = pc.index(bad, True).as_py()
            if first >= 0:
                row = f"the id {ids[first].as_py()!r} and the count {counts[first].as_py()!r}"
                raise ConfigError(f"{share.path}: a row has {row}; an id is 16 bytes")
            yield pa.record_batch([pc.cast(ids, pa.binary(16)), counts], schema=SCHEMA)


def _no_counts(path: Path | str, why: object) -> ConfigError:
    reason = " ".join(str(why).split())
    return ConfigError(f"{path}: is not Parquet with the columns id (binary) and count (integer): {reason}")
