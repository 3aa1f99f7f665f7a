"""Units of configuration values. Both are plain numbers at run time."""

from __future__ import annotations

from typing import NewType

Size = NewType("Size", int)
"""Bytes. In a configuration: an integer, or text such as ``"16MiB"``, ``"4000000B"``, ``"1 GiB"``."""
Duration = NewType("Duration", float)
"""Seconds. In a configuration: a number, or text such as ``"200ms"``, ``"1.5s"``, ``"2min"``."""
