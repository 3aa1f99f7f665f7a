"""Parse sizes and durations as configurations write them."""

from __future__ import annotations

import math
import re
import reprlib
from typing import Any

from msgstore.contract import Duration, Size

_SIZE_UNITS = {
    "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
MAX_SIZE = 2**40 - 1
"""Bytes. Segments of 1 TiB and more are not supported."""
MAX_DURATION = 36_500 * 86400.0
"""Seconds. Far below the longest timeout that a thread can wait."""
_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_size(value: object) -> Size:
    """Return the bytes of a number or of text such as ``16MiB``. Raises ValueError with the accepted forms."""
    number = None if isinstance(value, float) else _parse(value, _SIZE_UNITS, MAX_SIZE, "a size is less than 1 TiB")
    if number is None or number != int(number):
        forms = ", ".join(_SIZE_UNITS)
        raise ValueError(f'{value!r} is not a size: write bytes as a number, or text such as "16MiB" ({forms})')
    return Size(int(number))


def parse_duration(value: object) -> Duration:
    """Return the seconds of a number or of text such as ``200ms``. Raises ValueError with the accepted forms."""
    number = _parse(value, _DURATION_UNITS, MAX_DURATION, "a time is at most 36500d")
    if number is None:
        forms = ", ".join(_DURATION_UNITS)
        raise ValueError(f'{value!r} is not a time: write seconds as a number, or text such as "200ms" or "2d" ({forms})')
    return Duration(float(number))


def _parse(value: object, units: dict[str, Any], limit: float, rule: str) -> float | None:
    """Return a number as it is, and text in units; None for anything else. Raises ValueError above the limit."""
    number = None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        number = value
    elif isinstance(value, str) and value.strip() == "0":
        number = 0
    elif isinstance(value, str) and (match := _NUMBER_AND_UNIT.fullmatch(value.strip())) and match[2] in units:
        number = float(match[1]) * units[match[2]]
    if number is not None and number > limit:
        raise ValueError(f"{reprlib.repr(value)} is too large: {rule}")
    return number
