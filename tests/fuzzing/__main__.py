"""``python -m fuzzing TARGET SEED``, or ``FIRST-LAST``, in ``tests/``: inputs again, with the traceback of a failure."""

import sys

from fuzzing.running import main

main(*sys.argv[1:])
