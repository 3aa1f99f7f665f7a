"""Options of the engine, apart from it: whoever registers it imports its options and no more."""

from __future__ import annotations

import attrs


@attrs.frozen
class SparkOptions:
    master: str | None = None
    """Where Spark runs, such as ``local[4]``, ``spark://host:7077``, ``sc://host:15002``; None: the session that is active,
    else all processors of this machine."""
