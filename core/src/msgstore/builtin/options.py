"""Options of core's own policies: apart from these, because whoever registers a policy imports its options and no more."""

from __future__ import annotations

from typing import Literal

import attrs

from msgstore.contract import Duration, Size


def _check_share(_: object, __: object, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"garbage: {value!r} is not a share between 0 and 1, such as 0.5")


@attrs.frozen
class HalfEmptyOptions:
    garbage: float = attrs.field(default=0.5, validator=_check_share)
    """The share of a segment above which it is compacted."""


@attrs.frozen
class RetentionOptions:
    max_age: Duration | None = None
    """Segments whose newest message is older than this are dropped."""
    max_bytes: Size | None = None
    """Segments are dropped, the oldest first, until all files together are no larger than this."""
    then: Literal["never", "half-empty"] = "never"
    """What is done with the others."""

    def __attrs_post_init__(self) -> None:
        if self.max_age is None and self.max_bytes is None:
            raise ValueError('give max_age, max_bytes, or both, as in { use = "retention", max_age = "7d" }')


def _check_processes(_: object, __: object, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"processes: {value!r} is not a number of processes, such as 2")


@attrs.frozen
class LocalOptions:
    processes: int | None = attrs.field(default=None, validator=_check_processes)
    """How many segments are read at a time; None: one for each processor."""
