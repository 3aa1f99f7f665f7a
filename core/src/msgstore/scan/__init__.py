"""Reading of segments without an index, a lock or a store: the base of tools, recovery and the pipeline.

``FormatSet`` makes the objects of formats and record types, for reading here and for writing in the engine.
"""

from msgstore.scan.formats import FormatSet, OpenFormat, bind_records
from msgstore.scan.segment import Described, SegmentReport, Values, WholeRecord, damaged_spans, describe, scan_file

__all__ = [
    "Described",
    "FormatSet",
    "OpenFormat",
    "SegmentReport",
    "Values",
    "WholeRecord",
    "bind_records",
    "damaged_spans",
    "describe",
    "scan_file",
]
