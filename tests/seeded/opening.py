"""Faults of openings and stops: recovery, adoption, locks, files, readers."""

from __future__ import annotations

FAULTS = []
