"""``python -m mutants [NAME ...]``, in ``tests/``: which test of the kit catches which fault.

The exit status is 1 if a mutant survives, or if the kit has something against a backend without a fault.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from mutants.everything import MUTANTS
from mutants.running import Outcome, run

SHOWN = 3
"""Tests that are printed for each mutant; a crude fault is noticed by nearly all."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    originals = {mutant.original.name for mutant in MUTANTS}
    known = sorted({mutant.name for mutant in MUTANTS} | originals)
    parser.add_argument(
        "names", nargs="*", choices=[*known, []], metavar="NAME", help="mutants, or what they were made of; without, all"
    )
    outcomes = run(parser.parse_args().names, enough=SHOWN)
    tried = [mutant for mutant in MUTANTS if mutant.name in outcomes]
    table = Table("mutant", "kind", "what is wrong", "caught by", box=None)
    for mutant in tried:
        table.add_row(mutant.name, mutant.kind, mutant.fault, _said(outcomes[mutant.name]))
    Console(width=160, highlight=False).print(table)
    unsound = [outcomes[name] for name in sorted(originals & set(outcomes)) if not outcomes[name].is_sound]
    for outcome in unsound:
        print(f"{outcome.name} has no fault, and fails: {', '.join((*outcome.failed, *outcome.not_run))}")
    caught = sum(outcomes[mutant.name].is_caught for mutant in tried)
    print(f"{caught} of {len(tried)} mutants are caught; {len(originals & set(outcomes)) - len(unsound)} originals pass")
    return 0 if caught == len(tried) and not unsound else 1


def _said(outcome: Outcome) -> str:
    if outcome.not_run:
        return f"COULD NOT BE RUN: {', '.join(outcome.not_run[:3])}"
    return "\n".join(outcome.failed) or "NOTHING"


if __name__ == "__main__":
    sys.exit(main())
