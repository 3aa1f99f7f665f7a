"""The buffers that formats read: whole segments, or the part of one that a scan is given."""

from __future__ import annotations

import mmap
from typing import TypeAlias

Buffer: TypeAlias = bytes | mmap.mmap
"""Indexing gives an int, slicing gives bytes. Offsets are the file's: a segment is always handed over from its byte 0."""
