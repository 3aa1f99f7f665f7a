"""Registration of the segment format ``stamped``. The format is imported when a store, or a file of it, needs it."""

from __future__ import annotations

from msgstore import hookimpl
from msgstore.contract import Capability, RecordField, SegmentFormatDescriptor


@hookimpl
def msgstore_segment_formats() -> list[SegmentFormatDescriptor]:
    return [
        SegmentFormatDescriptor(
            name="stamped",
            contract=(1, 0),
            factory="acme_stamped_format.format:Stamped",
            extension=".stamped",
            generation=10,
            capabilities=[Capability.FRAMED, Capability.VERBATIM, Capability.FIELDS],
            fields=(RecordField("written", "time", "time at which the message was written"),),
            summary="records with their time of writing",
        )
    ]
