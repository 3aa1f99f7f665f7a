"""Reading segments without an index, a lock, or a store: what tools, recovery and the pipeline stand on."""

from msgstore.scan.formats import FormatSet, OpenFormat
from msgstore.scan.segment import SegmentReport, scan_file

__all__ = ["FormatSet", "OpenFormat", "SegmentReport", "scan_file"]
