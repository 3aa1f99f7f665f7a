"""Intact records of one segment, as a salvage finds them: also after and inside damage, and every copy of an id."""

from __future__ import annotations

import attrs

from msgstore.contract import Buffer, Columns, Damage
from msgstore.jobs.inputs import SegmentInput
from msgstore.jobs.reading.chains import read_chains
from msgstore.jobs.reading.segment_check import UnreadableSegmentError, opening
from msgstore.scan import OpenFormat


@attrs.frozen
class IntactRecords:
    """Records of a segment that pass the checks of its format. Picklable: 33 bytes a record."""

    records: Columns = attrs.field(factory=Columns)
    """By offset. The types say nothing."""
    damage: tuple[Damage, ...] = ()


def read_intact(item: SegmentInput) -> IntactRecords:
    """Read a segment to its end. One that cannot be read is damage as a whole. Raises PluginError."""
    try:
        with opening(item) as (form, data):
            return intact_records(form, data)
    except UnreadableSegmentError as error:
        return IntactRecords(damage=(Damage(0, item.size, str(error)),))


def intact_records(form: OpenFormat, data: Buffer) -> IntactRecords:
    chains = read_chains(form.format, data)
    return IntactRecords(chains.columns(), tuple(chains.damage))
