"""Parse sizes and durations as configurations write them."""

from __future__ import annotations

import re
import reprlib

from msgstore.contract import Duration, Size

_SIZE_UNITS = {
    "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
MAX_SIZE = 2**40 - 1
"""Bytes. Segments of 1 TiB and more are not supported."""
MAX_DURATION = 365 * 86400.0
"""Seconds. Far below the longest timeout that a thread can wait."""
_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_size(value: object) -> Size:
    """Return the bytes of a number or of text such as ``16MiB``. Raises ValueError with the accepted forms."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        _refuse_above(MAX_SIZE, value, value, "a size is less than 1 TiB")
        return Size(value)
    number, unit = _split(value)
    if unit in _SIZE_UNITS:
        number *= _SIZE_UNITS[unit]
        _refuse_above(MAX_SIZE, number, value, "a size is less than 1 TiB")
    if unit not in _SIZE_UNITS or number != int(number):
        raise ValueError(
            f'{value!r} is not a size: write bytes as a number, or text such as "16MiB" ({", ".join(_SIZE_UNITS)})'
        )
    return Size(int(number))


def parse_duration(value: object) -> Duration:
    """Return the seconds of a number or of text such as ``200ms``. Raises ValueError with the accepted forms."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        _refuse_above(MAX_DURATION, value, value, "a time is at most 365d")
        return Duration(float(value))
    number, unit = _split(value)
    if unit not in _DURATION_UNITS:
        raise ValueError(
            f'{value!r} is not a time: write seconds as a number, or text such as "200ms" ({", ".join(_DURATION_UNITS)})'
        )
    _refuse_above(MAX_DURATION, number * _DURATION_UNITS[unit], value, "a time is at most 365d")
    return Duration(number * _DURATION_UNITS[unit])


def _refuse_above(limit: float, number: float, written: object, rule: str) -> None:
    if number > limit:
        raise ValueError(f"{reprlib.repr(written)} is too large: {rule}")


def _split(value: object) -> tuple[float, str]:
    match = _NUMBER_AND_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
    return (float(match[1]), match[2]) if match else (0.0, "")
