"""Every mutant: importing the modules that list them fills the list."""

from __future__ import annotations

from mutants import MUTANTS, bodies, formats, indexes, policies, records

__all__ = ["MUTANTS", "bodies", "formats", "indexes", "policies", "records"]
