"""On the PYTHONPATH of the tests: a Python worker of Spark takes PySpark from where it is installed.

Spark puts its own copy first, a zip. Python compiles a zip anew in each process, which costs every worker more than a second;
of what is installed it keeps the bytecode. A Python that has no PySpark of its own is left the zip.
"""

import importlib.util
import sys

_usual = list(sys.path)
sys.path[:] = [entry for entry in _usual if not entry.endswith("pyspark.zip")]
if sys.path != _usual and importlib.util.find_spec("pyspark") is None:
    sys.path[:] = _usual
