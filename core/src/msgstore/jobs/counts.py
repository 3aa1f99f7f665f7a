"""Reference counts, or changes of them, in files: lines ``id,count``, or Parquet with the columns ``id`` and ``count``.

Any process reads a split of a file into record batches. Lines alone are also read without pyarrow, the extra
``msgstore[parquet]``.
"""

from __future__ import annotations

import binascii
import codecs
import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgstore.contract import ConfigError
from msgstore.contract.indexes import MAX_REFERENCES
from msgstore.engine.open.recovery import sum_counts
from msgstore.jobs.paths import find_files
from msgstore.jobs.reading.splits import (
    SPLIT_SIZE,
    FileSplit,
    io_errors,
    is_parquet,
    line_number,
    open_parquet,
    read_blocks,
    splits_of,
)
from msgstore.jobs.workers import check_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

MAX_COUNT = MAX_REFERENCES
"""Largest count, positive or negative, of a line or a row."""
MAX_WEIGHT = 2.0**62
"""Sum of all counts without their signs from which on sums by id, of 64 bits, might overflow."""
_HEX_DIGITS = 32
_LINE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:id|[0-9a-fA-F]{32})\s*,")
"""Begin of a file of lines."""


def named_counts(path: Path | None) -> str | None:
    """Return the path of a count file for a job. Raises ConfigError if it is missing."""
    if path is not None and not os.path.exists(path):  # noqa: PTH110 - a Path's raises, in some versions
        raise ConfigError(f"{path}: there is no such file of counts")
    return None if path is None else str(path)


def sums_of(path: Path | str) -> dict[bytes, int]:
    """Return the sum of the counts of each id in a file. Raises ConfigError, also for too large sums, and StoreIOError."""
    try:
        return sum_counts(read_counts(path))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_counts(path: Path | str) -> Iterator[tuple[bytes, int]]:
    """Yield (id, count) of each line or row, in the order of the file. Raises ConfigError for other content, StoreIOError.

    Parquet is a file or a directory of files (:func:`find_splits`). Lines may come from a pipe.
    """
    path = Path(path)
    with io_errors(path):
        if not (path.is_dir() or is_parquet(path)):
            with path.open(encoding="utf-8", errors="replace") as lines:
                yield from _read_lines(lines, path)
            return
    check_pyarrow(f"{path}: Parquet is read")
    for split in find_splits([path]):
        for batch in read_split(split):
            yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def weight_of(batch: pa.RecordBatch) -> float:
    """Return the sum of the counts of a batch without their signs, for ``check_weights``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return float(pc.sum(pc.abs(pc.cast(batch.column(1), pa.float64(), safe=False))).as_py() or 0)


def check_weights(weights: Iterable[tuple[FileSplit, float]]) -> None:
    """Check the weights of all splits of a job. Raises ConfigError if a sum by id might not be exact."""
    total = 0.0
    for split, weight in weights:
        total += weight
        if total > MAX_WEIGHT:
            raise ConfigError(f"{split.path}: up to here the counts add up to {total:.0f}, without signs; sums have 64 bits")


def find_splits(paths: Iterable[Path | str], size: int = SPLIT_SIZE) -> list[FileSplit]:
    """Return the splits of files, and of directories of Parquet files, as :func:`find_files` finds them.

    Raises its errors, and ConfigError for a file in a directory that probably has counts in another form.
    """
    paths = list(map(Path, paths))
    files = find_files(paths, lambda file: file in paths or _is_data(file), "of counts, which are Parquet in a directory")
    splits: list[FileSplit] = []
    for file in files:
        found, schema = splits_of(file, size)
        if schema is not None:
            from msgstore.jobs.columns.schemas import COUNTS, check_columns

            check_columns(schema, str(file), COUNTS, ignore_others=True)
        splits += found
    return splits


def _is_data(file: Path) -> bool:
    """Return False for another file in a directory, such as a README. Raises ConfigError for one that probably has counts."""
    if not file.is_file() or is_parquet(file):
        return True
    with file.open("rb") as data:
        begin = data.read(4096)
    if begin and (file.name.startswith("part-") or ".csv" in file.suffixes or _LINE.match(begin)):
        raise ConfigError(
            f"{file}: is not Parquet, as the files of a directory of counts are; give files of lines by themselves"
        )
    return False


def read_split(split: FileSplit) -> Iterator[pa.RecordBatch]:
    """Yield batches of ids, ``binary(16)``, and counts. Raises ConfigError for an invalid line or row, with file and place;
    StoreIOError."""
    if split.is_parquet:
        yield from _rows(split)
        return
    for offset, block in read_blocks(split):
        yield (_parse_fast(block) if offset else None) or _parse(split.path, offset, block)


def _read_lines(lines: Iterable[str], path: Path | str, first: int = 1) -> Iterator[tuple[bytes, int]]:
    """Yield (id, count) of each line of ``path``, whose first line has the number ``first``. Raises ConfigError.

    Further fields, empty lines, a first line of names and a byte order mark are ignored.
    """
    for number, line in enumerate(lines, first):
        fields = [field.strip() for field in (line.removeprefix("\ufeff") if number == 1 else line).split(",")]
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


def _parse_fast(block: bytes) -> pa.RecordBatch | None:
    """Parse lines of 32 hexadecimal digits, a comma and a number. Return None for a block with any other line."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv

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
        digits, counts = batch.columns
        if counts.null_count or digits.offset or max(map(abs, pc.min_max(counts).as_py().values())) > MAX_COUNT:
            return None
        if set(pc.min_max(pc.binary_length(digits)).as_py().values()) != {_HEX_DIGITS}:
            return None
        return _batch(binascii.unhexlify(digits.buffers()[2][: _HEX_DIGITS * batch.num_rows]), counts)
    except (pa.ArrowException, KeyError, ValueError):  # binascii.Error is one
        return None


def _parse(path: str, offset: int, block: bytes) -> pa.RecordBatch:
    """Parse a block line by line, and name the first invalid line."""
    import pyarrow as pa

    lines = io.TextIOWrapper(io.BytesIO(block), encoding="utf-8", errors="replace")
    rows = list(_read_lines(lines, path, line_number(path, offset)))
    return _batch(b"".join(msg_id for msg_id, _ in rows), pa.array([count for _, count in rows], pa.int64()))


def _batch(ids: bytes, counts: pa.Array) -> pa.RecordBatch:
    import pyarrow as pa

    from msgstore.jobs.columns.sums import fixed_width

    return pa.record_batch([fixed_width(ids), counts], ["id", "count"])


def _rows(split: FileSplit) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    with open_parquet(split.path) as file:
        for batch in file.iter_batches(row_groups=list(range(split.begin, split.end)), columns=["id", "count"]):
            ids, counts = pc.cast(batch.column("id"), pa.binary()), pc.cast(batch.column("count"), pa.int64())
            fits = pc.and_(pc.less_equal(counts, MAX_COUNT), pc.greater_equal(counts, -MAX_COUNT))
            good = pc.and_(pc.equal(pc.binary_length(ids), 16), fits)
            first = pc.index(pc.coalesce(good, pa.scalar(False)), False).as_py()
            if first >= 0:
                row = f"the id {ids[first].as_py()!r} and the count {counts[first].as_py()!r}"
                raise ConfigError(f"{split.path}: a row has {row}; an id is 16 bytes, and a count at most {MAX_COUNT}")
            yield pa.record_batch([pc.cast(ids, pa.binary(16)), counts], ["id", "count"])
