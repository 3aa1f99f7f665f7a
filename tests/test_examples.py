"""What third parties ship, as their users get it: wheels in a new virtual environment, a few lines of TOML, the command line.

Each README of ``examples`` is run from its first line to its last in such an environment, with nothing but what it installs
itself; then the example's own tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from docs.reading import ROOT, PageReader, blocks

pytestmark = pytest.mark.slow

EXAMPLES = [f"acme_{it}" for it in ("audit_record", "aes_body", "zstd_body", "stamped_format", "find_command", "sqlite_index")]
DISTRIBUTIONS = ["./core[testing]", "./plugins/format_v2", "./plugins/ets_index", *(f"./examples/{name}" for name in EXAMPLES)]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel of each distribution, and of everything that they need."""
    work = tmp_path_factory.mktemp("wheels")
    venv.create(work / "build", with_pip=True)
    pip = [str(work / "build" / "bin" / Path(sys.executable).name), "-m", "pip"]
    build = [*pip, "wheel", "--quiet", "--no-build-isolation", "--wheel-dir", str(work / "wheels"), *DISTRIBUTIONS]
    for command in ([*pip, "install", "--quiet", "hatchling>=1.25"], build):
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return work / "wheels"


@pytest.mark.parametrize("name", EXAMPLES)
def test_readme_of_example_works_and_tests_pass(name: str, wheels: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    user = PageReader(tmp_path, programs=tmp_path / "venv" / "bin", environment={
        "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": "",
        "PYTHONPATH": "",
    })  # fmt: skip
    for language, text in blocks(ROOT / "examples" / name / "README.md"):
        user.block(language, text)
    check = user.shell("pip check && msgstore plugins --check --json")
    assert check.returncode == 0, check.stdout
    providers = {json.loads(line)["distribution"] for line in check.stdout.splitlines() if line.startswith("{")}
    (example,) = (provider for provider in providers if provider.startswith("acme-"))
    assert providers == {"msgstore", "msgstore-format-v2", "msgstore-ets-index", example}
    tests = ROOT / "examples" / name / "tests"
    options = f"-c {os.devnull} --rootdir {tmp_path} --confcutdir '{tests.parent}'"
    done = user.shell(f"pytest --quiet -p no:cacheprovider {options} '{tests}'")
    assert done.returncode == 0, done.stdout
