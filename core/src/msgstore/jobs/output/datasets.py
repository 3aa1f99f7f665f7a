"""Directory of Parquet files that any number of tasks write, and that is published by one rename.

Each attempt of a task writes into its own directory below the staging directory. The driver moves the files of one attempt per
task, and deletes all others. Folders are named ``column=value``, as Spark and Hive name them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from msgstore.files import Files
from msgstore.jobs.output.staging_directory import PARTS, StagingDirectory, errors

FILE_SIZE = 2**26
"""Bytes of rows that a task keeps in memory, and then writes as one file in each folder."""


@attrs.frozen
class DatasetPart:
    """Output of one attempt of a task. Picklable, small."""

    directory: str
    files: tuple[tuple[str, int], ...]
    """(name relative to the directory, bytes)."""


class DatasetWriter:
    """Writer of one attempt of a task. What is not finished is deleted when the job ends. Raises StoreIOError."""

    def __init__(self, staging: str, task: int, schema: pa.Schema) -> None:
        self._directory = Path(staging, PARTS, f"{task}-{secrets.token_hex(8)}")
        self._task = task
        self._schema = schema
        self._waiting: dict[str, list[pa.Table]] = {}
        """Rows by folder that are not written yet."""
        self._held = 0
        self._written: list[tuple[str, int]] = []
        with errors(self._directory):
            Files().create_directory(self._directory)

    def write(self, where: str, rows: pa.Table) -> None:
        """Add rows to a folder, such as ``class=live``."""
        self._waiting.setdefault(where, []).append(rows)
        self._held += rows.nbytes
        if self._held >= FILE_SIZE:
            self._write_files()

    def finish(self) -> DatasetPart:
        """Write everything, and return the files."""
        self._write_files()
        return DatasetPart(str(self._directory), tuple(self._written))

    def _write_files(self) -> None:
        waiting, self._waiting, self._held = self._waiting, {}, 0
        with errors(self._directory):
            for where, tables in waiting.items():
                path = self._directory / where
                with suppress(FileExistsError):  # without parents: if the driver has deleted the attempt, nothing may come back
                    Files().create_directory(path)
                path /= f"part-{self._task:05}-{len(self._written)}.parquet"
                content = pa.BufferOutputStream()  # in memory: if the disk is full, pyarrow does not try again
                pq.write_table(pa.concat_tables(tables).cast(self._schema), content, compression="zstd")
                data = content.getvalue()
                Files().write_file(path, [data], sync=False)
                self._written.append((path.relative_to(self._directory).as_posix(), data.size))


def dataset(destination: str, sources: Iterable[str | Path]) -> DatasetStaging:
    """Begin a new directory of files. Raises the errors of :meth:`StagingDirectory.create_locked`."""
    return DatasetStaging.create_locked(Path(os.path.abspath(destination)), sources)  # noqa: PTH100 - absolute() keeps ".."


class DatasetStaging(StagingDirectory):
    """One job that creates a directory of Parquet files."""

    def commit(self, written: Iterable[DatasetPart], schema: pa.Schema, always: str) -> list[tuple[str, int]]:
        """Publish the files, and return their (name, bytes). Raises StoreError if a file is missing, StoreIOError.

        The folder ``always`` gets a file in any case, if need be without rows, so that readers find the columns of ``schema``.
        """
        attempts = list(written)
        with self.publishing() as content:
            if not any(name.startswith(always) for attempt in attempts for name, _ in attempt.files):
                writer = DatasetWriter(self.path, len(attempts), schema)
                writer.write(always, schema.empty_table())
                attempts.append(writer.finish())
            for attempt in attempts:
                for name, size in attempt.files:
                    self._files.make_directory((content / name).parent)
                    self.take(Path(attempt.directory, name), size, content / name)
        return [file for attempt in attempts for file in attempt.files]
