"""Files of reference counts, or of changes to them: lines ``id,count``, or Parquet with the columns ``id`` and ``count``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgstore.contract import ConfigError
from msgstore.engine.recovery import sum_counts


def read_counts(path: Path | str) -> Iterator[tuple[bytes, int]]:
    """(id, count) of each line or row, in the order of the file. Raises ConfigError for what is neither; OSError.

    Lines: further fields, empty lines and a first line of names are ignored. Parquet: a file that ends in ``.parquet``, or a
    directory of them; the column ``id`` is binary.
    """
    path = Path(path)
    yield from _rows(path) if path.is_dir() or path.suffix == ".parquet" else _lines(path)


def sums_of(path: Path | str) -> dict[bytes, int]:
    """What the file says of each id, added up. Raises ConfigError, also for more references than are counted; OSError."""
    try:
        return sum_counts(read_counts(path))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _lines(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        yield from read_lines(lines, path)


def read_lines(lines: Iterable[str], path: Path | str, first: int = 1) -> Iterator[tuple[bytes, int]]:
    """(id, count) of each line of ``path``; the number of the first is ``first``. Raises ConfigError."""
    for number, line in enumerate(lines, first):
        fields = [field.strip() for field in line.split(",")]
        if fields == [""] or (number == 1 and fields[0] == "id"):
            continue
        try:
            msg_id, count = bytes.fromhex(fields[0]), int(fields[1])
        except (ValueError, IndexError):
            msg_id, count = b"", 0
        if len(msg_id) != 16:
            raise ConfigError(f"{path}: line {number} is not 'id,count' with an id of 32 hexadecimal digits")
        yield msg_id, count


def _rows(path: Path) -> Iterator[tuple[bytes, int]]:
    try:
        import pyarrow as pa
        import pyarrow.dataset as ds
    except ImportError as error:
        raise ConfigError(
            f"{path}: Parquet is read with pyarrow, which is not installed. Try: pip install 'msgstore[parquet]'"
        ) from error
    try:
        table = ds.dataset(path, format="parquet")
        batches = table.to_batches(columns=["id", "count"])
        for batch in batches:
            ids, counts = batch.column(0).cast(pa.binary()).to_pylist(), batch.column(1).cast(pa.int64()).to_pylist()
            for msg_id, count in zip(ids, counts, strict=True):
                if msg_id is None or len(msg_id) != 16 or count is None:
                    raise ConfigError(f"{path}: a row has the id {msg_id!r} and the count {count!r}; an id is 16 bytes")
                yield msg_id, count
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, KeyError) as error:
        raise ConfigError(f"{path}: is not Parquet with the columns id (binary) and count (integer): {error}") from error
