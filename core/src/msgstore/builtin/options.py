"""Options of the built-in backends. A separate module, because registration imports options but no implementation."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import ge, optional

from msgstore.contract import Duration, Size


def _check_fraction(_: object, __: object, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"garbage: {value!r} is not a fraction between 0 and 1, such as 0.5")


@attrs.frozen
class HalfEmptyOptions:
    """Options of the policy ``half-empty``."""

    garbage: float = attrs.field(default=0.5, validator=_check_fraction)
    """Fraction of garbage above which a segment is compacted."""


@attrs.frozen
class RetentionOptions:
    """Options of the policy ``retention``."""

    max_age: Duration | None = None
    """Segments whose newest message is older than this are dropped."""
    max_bytes: Size | None = None
    """The oldest segments are dropped until all files together are at most this size."""
    then: Literal["never", "half-empty"] = "never"
    """Policy for the remaining segments, with its default options."""

    def __attrs_post_init__(self) -> None:
        if self.max_age is None and self.max_bytes is None:
            raise ValueError('give max_age, max_bytes, or both, as in { use = "retention", max_age = "7d" }')


@attrs.frozen
class LocalOptions:
    """Options of the job runner ``local``."""

    processes: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Number of worker processes. None: one per processor."""
