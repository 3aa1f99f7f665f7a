"""Bulk engines: who carries a job over many segments out, such as a salvage. ``local`` and ``spark`` are two.

The jobs, their reports and the interface are core's (:mod:`msgstore.jobs.runner`): an engine decides where and how many at a
time the segments are read, not what comes out. Two engines give the same rows and the same report.
"""

from __future__ import annotations

import attrs

from msgstore.contract.descriptors import Descriptor


@attrs.frozen(kw_only=True)
class JobRunnerDescriptor(Descriptor):
    """``factory(options) -> msgstore.jobs.runner.JobRunner``. Since contract 2.2."""

    min_input_bytes: int | None = None
    """Bytes of input from which this engine is faster than the processes of one machine; ``--engine auto`` takes it from there
    on. None: it is only taken if it is named."""
