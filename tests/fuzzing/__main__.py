"""``python -m fuzzing TARGET SEED`` (or the bytes in hexadecimal), in ``tests/``: one input again, with its traceback."""

import sys

from fuzzing.running import main

main(*sys.argv[1:])
