"""Files of reference counts, or of changes to them: lines ``id,count``, or Parquet with the columns ``id`` and ``count``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgstore.contract import ConfigError
from msgstore.engine.open.recovery import sum_counts
from msgstore.jobs.reading.count_files import io_errors, is_parquet, read_lines
from msgstore.jobs.workers import check_pyarrow


def read_counts(path: Path | str) -> Iterator[tuple[bytes, int]]:
    """Yield (id, count) of each line or row, in the order of the file. Raises ConfigError for any other content, and OSError.

    In lines, further fields, empty lines and a first line of names are ignored. Parquet is a file or a directory of files
    (:mod:`msgstore.jobs.deltas`), with a binary column ``id``.
    """
    path = Path(path)
    if not (path.is_dir() or is_parquet(path)):
        with path.open(encoding="utf-8", errors="replace") as lines:
            yield from read_lines(lines, path)
        return
    check_pyarrow(f"{path}: Parquet is read")
    from msgstore.jobs.deltas import find_shares, read_share

    for share in find_shares([path]):
        for batch in read_share(share):
            yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def sums_of(path: Path | str) -> dict[bytes, int]:
    """Return the sum of the counts of each id in a file. Raises ConfigError, also for too large sums, and StoreIOError."""
    try:
        with io_errors(path):
            return sum_counts(read_counts(path))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
