"""``python -m faults --seeds 0-199 --phase opening,flush --index ets,lmdb --durability os,fsync``, in ``tests``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from itertools import product

from faults.injection import KINDS, Fault
from faults.phases import PHASES, Cell, run_cell


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults", description="Fail in every file operation, and compare what is there then.")
    parser.add_argument("--seeds", type=_seeds, default=[0], help="17, or 0-199")
    for name, known in {"phase": PHASES, "index": ("ets", "lmdb"), "durability": ("os", "fsync"), "kinds": KINDS}.items():
        parser.add_argument(f"--{name}", type=_names(known), default=list(known), help=",".join(known))
    parser.add_argument("--only", type=Fault.parse, help="one failure, such as 42:EIO: the operation's number and the kind")
    parser.add_argument("--every", type=int, default=1, help="only every Nth failure")
    options = parser.parse_args()
    operations, runs, failures = 0, 0, 0
    for cell in (Cell(*names) for names in product(options.seeds, options.phase, options.index, options.durability)):
        outcome = run_cell(cell, only=options.only, kinds=options.kinds, every=options.every)
        print(outcome, *outcome.failures[:3], sep="\n", flush=True)
        operations, runs, failures = operations + outcome.operations, runs + outcome.runs, failures + len(outcome.failures)
    print(f"\n{operations} operations, {runs} runs, {failures} failed")
    return 1 if failures else 0


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(known)}")
        return text.split(",")

    return parse


if __name__ == "__main__":
    sys.exit(main())
