"""Installations as users have them: ``python wheels.py DIR``.

Wheels of every distribution, and nothing else, run the demo and the conformance kits. The line by which the page about Spark
installs a checkout gives a session that reads a store, without a Java on the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ["pytest", "hypothesis"]
COUNT = """
import sys
from msgstore_spark import session
spark = session()
assert spark.read.format("msgstore").load(sys.argv[1]).count() > 0
spark.stop()
"""


def distributions() -> list[str]:
    """Paths, with extras, of what requirements-dev.txt installs."""
    text = (ROOT / "requirements-dev.txt").read_text() + (ROOT / "tests/requirements.txt").read_text()
    return re.findall(r"^-e (\S+)$", text, re.MULTILINE)


def run(*command: str, environment: dict[str, str] | None = None) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, check=True, env=environment)


def main(directory: str) -> None:
    wheels = Path(directory)
    shutil.rmtree(wheels, ignore_errors=True)
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "--quiet", "--wheel-dir", str(wheels), *distributions(), *TOOLS)
    names = [path.name.partition("-")[0].replace("_", "-") for path in wheels.glob("*.whl")]
    ours = [name for name in names if name.startswith(("msgstore", "acme", "foreign"))]
    run(*pip, "install", "--quiet", "--no-index", "--find-links", str(wheels), "--force-reinstall", *ours, *TOOLS)
    run(*pip, "check")
    run("msgstore", "plugins", "--check")
    run("msgstore", "demo")
    from test_kit_of_ours import OURS, run_kit  # it needs pytest

    plugins = {point.dist.name for point in entry_points(group="msgstore") if point.dist is not None}
    assert plugins <= OURS.keys() | {"msgstore-spark"}, plugins
    run_kit(wheels, "msgstore-spark")
    alone = ["-c", os.devnull, "--rootdir", str(wheels), "-W", "error", "-p", "no:cacheprovider"]
    run(sys.executable, "-m", "pytest", *alone, "--pyargs", "msgstore_queues.testing.suite")
    install_spark(wheels / "laptop")


def install_spark(directory: Path) -> None:
    page = (ROOT / "docs/how-to/spark-on-a-laptop.md").read_text(encoding="utf-8")
    found = re.search(r"^pip (install \./core .+)$", page, re.MULTILINE)
    assert found, "the page has no line for a checkout"
    venv.create(directory, with_pip=True)
    python = str(directory / "bin/python")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": "/usr/bin:/bin"}
    run("bash", "-c", f"cd '{ROOT}' && '{python}' -m pip --quiet {found[1]}", environment=environment)
    run(python, "-c", COUNT, str(ROOT / "tests/data/msg-store/v2_clean/store"), environment=environment)


if __name__ == "__main__":
    main(sys.argv[1])
