"""Cells of the matrix: which index, format and record type a test runs with.

``--cells ets-v2`` restricts a run to one cell, as tox does in an environment where nothing else is installed. Without it a
spread of them runs, or all with ``--every-cell``, and every distribution of ``tests/requirements.txt`` must be installed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import ACME_CELLS, CELLS, FOREIGN_CELLS, Cell, HookedFiles, Sample, catalogue, opening

EVERY_CELL = CELLS | ACME_CELLS | FOREIGN_CELLS
SPREAD = ["ets-v1", "lmdb-v2", "ets-v2-checksum"]
"""Every index, format and record type once: the fast suite. The environments of the cells have each combination."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The numbers are those of the fast suite; tox.ini has larger ones for ``.ci/run`` and ``deep``."""
    add = parser.addoption
    add("--cells", help=f"comma-separated, of {', '.join(EVERY_CELL)}: nothing else is installed; without it everything is")
    add("--every-cell", action="store_true", help="where everything is installed: all six combinations, not a spread of three")
    add("--every", type=int, default=24, help="sweeps over crash points, failures and flips try one in EVERY")
    add("--seed", type=int, default=None, help="which of these; a random number without it, printed at the start")
    add("--examples", type=int, default=4, help="random histories of the model test, for each cell")
    add("--fuzz", type=int, default=10_000, help="mutated inputs of test_fuzz.py, over all parsers")
    add("--fuzz-each", type=int, help="mutated inputs for each parser, instead of --fuzz")
    add("--fuzz-from", type=int, default=0, help="the first seed; another one tries other inputs")
    add("--fault-seeds", default="0-1", help="stores in which every file operation fails: a number, or FIRST-LAST")
    add("--only-fault", help="the failure to repeat, such as 42:EIO: the operation's number and the kind")
    add("--kills", type=int, default=10, help="kill -9 for each cell of the crash harness")
    add("--stress", type=int, default=30_000, help="messages of the stress test, for each cell")
    add("--needs-browser", action="store_true", help="fail, do not skip, where there is no Chromium")
    add("--pictures", action="store_true", help="draw the pictures in docs/pictures anew")
    add("--map-records", type=int, default=200_000, help="of the large store that test_map_browser.py looks at")


SEED = "MSGSTORE_TESTS_SEED"
"""Environment variable: the seed, for the worker processes of one run."""


def pytest_configure(config: pytest.Config) -> None:
    seed = config.getoption("--seed")
    os.environ[SEED] = str(os.environ.get(SEED, random.randrange(10_000)) if seed is None else seed)


def pytest_report_header() -> str:
    return f"sweeps: --seed {os.environ[SEED]}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cells = chosen(metafunc.config)
    if "cell" in metafunc.fixturenames:
        metafunc.parametrize("cell", cells, ids=str)
    if "index" in metafunc.fixturenames:
        metafunc.parametrize("index", sorted({cell.index for cell in cells}))
    if "fault_seed" in metafunc.fixturenames:
        first, _, last = metafunc.config.getoption("--fault-seeds").partition("-")
        metafunc.parametrize("fault_seed", range(int(first), int(last or first) + 1))


def chosen(config: pytest.Config) -> list[Cell]:
    names = config.getoption("--cells")
    if names is None:
        return list(CELLS.values()) if config.getoption("--every-cell") else [CELLS[name] for name in SPREAD]
    return [EVERY_CELL[name] for name in names.split(",")]


REPORT = pytest.StashKey[dict[str, list[str]]]()
"""Lines for the end of the run, by section: what a harness tried is part of the result."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for section, lines in config.stash.get(REPORT, {}).items():
        terminalreporter.section(section)
        for line in lines:
            terminalreporter.write_line(line)
    loaded = sorted(f"{provider.distribution} {provider.version}" for provider in catalogue().providers)
    terminalreporter.section(f"loaded: {', '.join(loaded)}", sep="-")


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function that adds a line to a section at the end of the run."""
    return lambda section, line: request.config.stash.setdefault(REPORT, {}).setdefault(section, []).append(line)


@pytest.fixture
def cells(request: pytest.FixtureRequest) -> list[Cell]:
    return chosen(request.config)


@pytest.fixture
def opened(request: pytest.FixtureRequest, cell: Cell, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``opened(files=None, **keys)`` opens the store of the test with ``KEYS`` of its module; at the end all are abandoned."""
    with opening(tmp_path / "store", cell, **getattr(request.module, "KEYS", {})) as open_it:
        yield open_it


@pytest.fixture
def files() -> HookedFiles:
    """A file layer to which a test adds hooks."""
    return HookedFiles()


@pytest.fixture
def store(opened: Callable[..., Any], files: HookedFiles) -> Any:
    """The store of the test, opened with ``KEYS`` of its module, on ``files``."""
    return opened(files)


@pytest.fixture
def client(store: Any) -> Any:
    return store.client()


@pytest.fixture(params=["ets", "lmdb"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each index, whatever cells were chosen."""
    name: str = request.param
    return name


@pytest.fixture
def sample(request: pytest.FixtureRequest) -> Sample:
    """The crash points, failures or flips that a sweep tries in this run."""
    return Sample(request.config.getoption("--every"), int(os.environ[SEED]))


@pytest.fixture
def examples(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--examples")
