"""Body codec of a broker's directory, as an adoption would find it, for commands that only read."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice

from msgstore.cli.options import StoreTarget
from msgstore.directory import has_settings
from msgstore.jobs.inputs import find_inputs
from msgstore.jobs.reading.segment_check import UnreadableSegmentError, opening
from msgstore.option_values import Backend

_FIRST = 2
"""Bytes of a body by which its codec is recognised."""
_BODIES = 100
"""Bodies that are read, from as many segments as that takes."""


def brokers_codec(target: StoreTarget) -> Backend | None:
    """Return the codec of the first bodies in a broker's directory, which an adoption would choose too; None for a store."""
    bodies: list[bytes] = []
    for found in () if has_settings(target.path) else reversed(find_inputs(target.catalogue, [target.path]).inputs):
        if len(bodies) >= _BODIES:
            break
        with suppress(UnreadableSegmentError), opening(found) as (form, data):
            for _, offset, size, _ in islice(form.scan(data).records.rows(), _BODIES - len(bodies)):
                begin, end = form.format.body_span(data, offset, size)
                bodies.append(bytes(data[begin : min(end, begin + _FIRST)]))
    name = target.catalogue.brokers_codec(bodies)
    return None if name is None else Backend(name)
