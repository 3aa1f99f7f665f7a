"""Check that pyarrow, an optional dependency, is installed."""

from __future__ import annotations

from importlib.util import find_spec

from msgstore.contract import ConfigError


def check_pyarrow(what: str) -> None:
    """Raise ConfigError if pyarrow is missing. ``what`` is the beginning of its message, such as "export is done"."""
    if find_spec("pyarrow") is None:
        raise ConfigError(f"{what} with pyarrow, which is not installed. Try: pip install 'msgstore[parquet]'")
