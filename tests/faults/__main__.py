"""``python -m faults --seeds 0-199 --phase opening,flush --index ets,lmdb --durability os,fsync``, in ``tests``."""

from __future__ import annotations

import argparse
import sys
from itertools import product

from faults.history import INDEXES
from faults.injection import KINDS, Fault
from faults.model import Cell
from faults.phases import PHASES
from faults.runs import run_cell


def main() -> int:
    options = _parser().parse_args()
    operations, runs, failures = 0, 0, 0
    for cell in (Cell(*names) for names in product(options.seeds, options.phase, options.index, options.durability)):
        outcome = run_cell(cell, only=options.only, kinds=options.kinds, every=options.every)
        print(outcome, *outcome.failures[: options.show], sep="\n", flush=True)
        operations, runs, failures = operations + outcome.operations, runs + outcome.runs, failures + len(outcome.failures)
    print(f"\n{operations} operations, {runs} runs, {failures} failed")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="faults", description="Fail in every file operation, and compare what is there then.")
    parser.add_argument("--seeds", type=_seeds, default=[0], help="17, or 0-199")
    parser.add_argument("--phase", type=_names(PHASES), default=PHASES, help=",".join(PHASES))
    parser.add_argument("--index", type=_names(tuple(INDEXES)), default=tuple(INDEXES), help=",".join(INDEXES))
    parser.add_argument("--durability", type=_names(("os", "fsync")), default=("os", "fsync"), help="os,fsync")
    parser.add_argument("--kinds", type=_names(KINDS), default=KINDS, help=",".join(KINDS))
    parser.add_argument("--only", type=Fault.parse, help="one failure, such as 42:EIO: the operation's number and the kind")
    parser.add_argument("--every", type=int, default=1, help="only every so-manieth failure")
    parser.add_argument("--show", type=int, default=3, help="failures of each cell that are printed at once")
    return parser


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _names(known: tuple[str, ...]):
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
