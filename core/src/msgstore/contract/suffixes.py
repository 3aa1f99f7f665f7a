"""Endings of the files that core and its tools keep in stores and beside them.

No segment format can have one of them: its segments would be taken for such a file, or such a file for a segment.
"""

from __future__ import annotations

UNFINISHED = ".tmp"
"""Behind the name of a file that is not complete yet. No start reads it."""
ERASE_SUFFIX = ".erase"
"""Behind the name of a deleted segment whose bytes still have to be overwritten."""
HINT = ".hint"
"""Of the file that says which records stand in a segment."""

RESERVED = (
    UNFINISHED, ERASE_SUFFIX, HINT,
    ".damaged", ".dot", ".ets", ".json", ".lock", ".mdb", ".snapshot", ".toml",  # of a directory, and of its index
    ".csv", ".jsonl", ".ndjson", ".parquet",  # what jobs read and write
)  # fmt: skip
"""All of them, in lower case. Some file systems do not tell capital letters from small ones."""
