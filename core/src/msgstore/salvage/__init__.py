"""Every good record of any directory of segments, copied into a fresh store, and every damaged span reported."""

from msgstore.salvage.copying import SETTINGS_DAMAGED, salvage
from msgstore.salvage.report import InputReport, SalvageReport, SpanReport

__all__ = ["SETTINGS_DAMAGED", "InputReport", "SalvageReport", "SpanReport", "salvage"]
