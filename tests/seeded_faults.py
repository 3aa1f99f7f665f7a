"""``python tests/seeded_faults.py [--only NAME]``: which of the faults in ``tests/seeded`` the tests catch.

Each fault is an edit of one function. It is applied to a copy of the package, and the test that catches it runs against the
copy. Exit code 1 if a fault survives, or a test fails without any fault.
"""

from __future__ import annotations

import argparse
import sys

from seeded.everything import FAULTS
from seeded.running import failing_without_faults, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="seeded_faults", description="Put faults into the code, and see which tests fail.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this fault; may be given several times")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    if unknown := {*options.only} - {fault.name for fault in faults}:
        print(f"there is no fault {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if text := failing_without_faults(faults):
        print(text, "a test fails without any fault: what it says of faults is worth nothing", sep="\n")
        return 1
    wrong = 0
    for fault in faults:
        outcome = run(fault)
        print(f"{outcome.result:9} {fault.name}: {fault.caught_by}", flush=True)
        if outcome.result != "caught":
            wrong += 1
            print(f"          {fault.symptom}\n{outcome.text}")
    print(f"{len(faults)} faults, {len(faults) - wrong} caught")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
