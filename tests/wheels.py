"""Build a wheel of every distribution, install nothing else, run the demo and the conformance kit: ``python wheels.py DIR``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ["pytest", "hypothesis"]


def distributions() -> list[str]:
    """Paths, with extras, of what requirements-dev.txt installs; the plugins that only tests have are left out."""
    text = (ROOT / "requirements-dev.txt").read_text() + (ROOT / "tests/requirements.txt").read_text()
    return [path for path in re.findall(r"^-e (\S+)$", text, re.MULTILINE) if path != "./tests/foreign"]


def run(*command: str) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, check=True)


def main(directory: str) -> None:
    wheels = Path(directory)
    shutil.rmtree(wheels, ignore_errors=True)
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "--quiet", "--wheel-dir", str(wheels), *distributions(), *TOOLS)
    names = [path.name.partition("-")[0].replace("_", "-") for path in wheels.glob("*.whl")]
    ours = [name for name in names if name.startswith(("msgstore", "acme"))]
    run(*pip, "install", "--quiet", "--no-index", "--find-links", str(wheels), "--force-reinstall", *ours, *TOOLS)
    run(*pip, "check")
    run("msgstore", "plugins", "--check")
    run("msgstore", "demo")
    chosen = [argument for name in ours for argument in ("--msgstore-dist", name)]
    # Without the options of this repository.
    alone = ["-c", os.devnull, "--rootdir", str(wheels), "-W", "error", "-p", "no:cacheprovider"]
    run(sys.executable, "-m", "pytest", *alone, "--pyargs", "msgstore.testing.suite", *chosen)


if __name__ == "__main__":
    main(sys.argv[1])
