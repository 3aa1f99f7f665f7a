"""What strangers ship, as their users get it: wheels in a fresh virtual environment, a few lines of TOML, the command line.

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

from docs.reading import ROOT, Reader, blocks

pytestmark = pytest.mark.slow

EXAMPLES = ["acme_audit_record", "acme_zstd_body"]
DISTRIBUTIONS = ["./core[testing]", "./plugins/format_v2", "./plugins/ets_index", *(f"./examples/{name}" for name in EXAMPLES)]


def run(*arguments: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        [str(argument) for argument in arguments], cwd=cwd, env={**os.environ, **environment}, encoding="utf-8",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def programs(environment: Path) -> Path:
    """Makes a virtual environment with pip and nothing else."""
    venv.create(environment, with_pip=True)
    return environment / ("Scripts" if os.name == "nt" else "bin")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel of each distribution, and of everything that they need."""
    work = tmp_path_factory.mktemp("wheels")
    python = programs(work / "build") / Path(sys.executable).name
    run(python, "-m", "pip", "install", "--quiet", "hatchling>=1.25")
    found = work / "wheels"
    run(python, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--wheel-dir", found, *DISTRIBUTIONS)
    return found


@pytest.fixture(scope="module", params=EXAMPLES)
def walked(request: pytest.FixtureRequest, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """The user of an example, who has done everything that its README says."""
    directory = tmp_path_factory.mktemp(request.param)
    user = Reader(directory, programs=programs(directory / "venv"), environment={
        "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": "",
        "PYTHONPATH": "",
    })  # fmt: skip
    for language, text in blocks(ROOT / "examples" / request.param / "README.md"):
        user.block(language, text)
    return user


def test_the_readme_is_what_happens(walked: Reader):
    """All of it was run by the fixture; these are the distributions that it was run with."""
    user = walked
    check = user.shell("pip check && msgstore plugins --check --json")
    assert check.returncode == 0, check.stdout
    providers = {json.loads(line)["distribution"] for line in check.stdout.splitlines() if line.startswith("{")}
    (example,) = (name for name in providers if name.startswith("acme-"))
    assert providers == {"msgstore", "msgstore-format-v2", "msgstore-ets-index", example}


def test_the_examples_own_tests_pass(walked: Reader):
    user = walked
    (tests,) = [ROOT / "examples" / name / "tests" for name in EXAMPLES if user.directory.name.startswith(name)]
    done = user.shell(
        f"pytest --quiet -p no:cacheprovider -c {os.devnull} --rootdir {user.directory} --confcutdir '{tests.parent}' '{tests}'"
    )
    assert done.returncode == 0, done.stdout
