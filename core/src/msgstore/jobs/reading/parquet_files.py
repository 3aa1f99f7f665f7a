"""Parquet files, opened by Python: pyarrow, which is needed, takes only names that are UTF-8, and not all file names are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from msgstore.files import Files


@contextmanager
def open_parquet(path: Path | str) -> Iterator[pq.ParquetFile]:
    """Raises OSError, and what pyarrow raises."""
    with os.fdopen(Files().open_read(Path(path)), "rb") as source, pq.ParquetFile(source) as file:
        yield file


class ParquetWriter(pq.ParquetWriter):  # type: ignore[misc] # pyarrow has no types
    """Writes a new Parquet file. Raises OSError, FileExistsError if the name is taken."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._to = os.fdopen(Files().create(path), "wb")
        try:
            super().__init__(self._to, schema, compression="zstd")
        except BaseException:
            self._to.close()
            raise

    def close(self) -> None:
        """Whatever happens, the file is closed, and nobody tries again."""
        try:
            super().close()
        finally:
            self.is_open = False
            self._to.close()
