"""The good records of one segment, found as a salvage finds them: behind and inside damage too, every copy of an id."""

from __future__ import annotations

import attrs

from msgstore.contract import Buffer, Columns, Damage
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.reading.chains import read_chains
from msgstore.jobs.reading.segment_check import UnreadableSegmentError, opening
from msgstore.scan import OpenFormat


@attrs.frozen
class Good:
    """Picklable: 33 bytes a record."""

    size: int
    """Bytes of the segment."""
    records: Columns = attrs.field(factory=Columns)
    """By offset. The types say nothing."""
    damage: tuple[Damage, ...] = ()


def read_intact(item: SegmentInput) -> Good:
    """Read a segment to its end. One that cannot be read is damage as a whole. Raises PluginError."""
    try:
        with opening(item) as (form, data):
            return good_of(form, data)
    except UnreadableSegmentError as error:
        return Good(item.size, damage=(Damage(0, item.size, str(error)),))


def good_of(form: OpenFormat, data: Buffer) -> Good:
    chains = read_chains(form.format, data)
    return Good(len(data), chains.columns(), tuple(chains.damage))
