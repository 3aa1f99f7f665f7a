"""Reading of segments without an index, a lock or a store: the base of tools, recovery and the pipeline.

``FormatSet`` makes the objects of formats and record types, for reading here and for writing in the engine.
"""

from msgstore.scan.bindings import bind_records
from msgstore.scan.fields import Described, Values, WholeRecord, describe
from msgstore.scan.formats import FormatSet, OpenFormat
from msgstore.scan.segment import SegmentReport, damaged_spans, scan_file

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
