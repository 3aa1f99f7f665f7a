"""Options of the job runner ``spark``. In their own module, because the plugin must not import PySpark."""

from __future__ import annotations

import attrs


@attrs.frozen
class SparkOptions:
    master: str | None = None
    """URL of the master, such as ``local[4]``, ``spark://host:7077`` or ``sc://host:15002``. None: the active session, or all
    CPUs of this machine."""
