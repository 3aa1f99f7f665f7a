"""Parquet files, opened by Python: pyarrow, which is needed, takes only names that are UTF-8, and not all file names are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from msgstore.files import Files


@contextmanager
def open_parquet(path: Path | str) -> Iterator[pq.ParquetFile]:
    """Raises OSError, and what pyarrow raises."""
    with os.fdopen(Files().open_read(Path(path)), "rb") as source, pq.ParquetFile(source) as file:
        yield file
