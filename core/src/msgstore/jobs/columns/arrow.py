"""What the jobs that work in columns share; whether pyarrow is there is asked before a job begins."""

from __future__ import annotations

from importlib.util import find_spec

from msgstore.contract import ConfigError


def check_pyarrow(what: str) -> None:
    """Raises ConfigError with the line that helps."""
    if find_spec("pyarrow") is None:
        raise ConfigError(f"{what} is done with pyarrow, which is not installed. Try: pip install 'msgstore[parquet]'")
