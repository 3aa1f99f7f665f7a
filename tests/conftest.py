"""Cells of the matrix: which index, format and record type a test runs with.

``--cells ets-v2`` restricts a run to one cell, as tox does in an environment where nothing else is installed; without it
every combination runs.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from support import ACME_CELLS, CELLS, FOREIGN_CELLS, Cell, catalogue

STRANGERS = {
    "foreign_backends": "tests/foreign",
    "acme_audit_record": "examples/acme_audit_record",
    "acme_zstd_body": "examples/acme_zstd_body",
}
EVERY_CELL = CELLS | ACME_CELLS | FOREIGN_CELLS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cells", default=",".join(CELLS), help=f"comma-separated, of {', '.join(EVERY_CELL)}")
    parser.addoption("--everything-installed", action="store_true", help="every plugin of this repository is installed")
    parser.addoption("--spark-installed", action="store_true", help="so is the pipeline")
    parser.addoption("--fuzz", type=int, default=50_000, help="mutated inputs that test_fuzz.py tries, over all parsers")
    parser.addoption("--fuzz-from", type=int, default=0, help="the first seed; another one tries other inputs")
    parser.addoption("--examples", type=int, default=60, help="random histories for each cell of the model test")
    parser.addoption(
        "--every",
        type=int,
        default=1,
        help="of the crash harness's states, failures and flips, and of the stops of a compaction, only every so-manieth",
    )
    parser.addoption("--stress", type=int, default=60_000, help="messages of the stress test, for each cell")
    parser.addoption(
        "--collector", choices=["thread", "background"], default="thread",
        help="of the stress test: a thread that calls store.compact(), or the store's own",
    )  # fmt: skip
    parser.addoption("--needs-browser", action="store_true", help="fail, do not skip, where there is no Chromium")
    parser.addoption("--pictures", action="store_true", help="draw the pictures in docs/pictures anew")
    parser.addoption("--map-records", type=int, default=200_000, help="of the large store that test_map_browser.py looks at")
    parser.addoption("--kills", type=int, default=60, help="kill -9 for each cell of the crash harness")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--everything-installed"):
        for module, path in STRANGERS.items():
            if find_spec(module) is None:
                raise pytest.UsageError(f"--everything-installed: {module} is not; python -m pip install -e ./{path}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = metafunc.config.getoption("--cells").split(",")
    cells = [EVERY_CELL[name] for name in names]
    if "cell" in metafunc.fixturenames:
        metafunc.parametrize("cell", cells, ids=str)
    if "index" in metafunc.fixturenames:
        metafunc.parametrize("index", sorted({cell.index for cell in cells}))


FUZZED = pytest.StashKey[list[str]]()
"""Lines of test_fuzz.py for the end of the run: what was tried is part of the result."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash.get(FUZZED, None):
        terminalreporter.section("fuzzing")
        for line in lines:
            terminalreporter.write_line(line)
    loaded = sorted(f"{provider.distribution} {provider.version}" for provider in catalogue().providers)
    terminalreporter.section(f"loaded: {', '.join(loaded)}", sep="-")


@pytest.fixture
def fuzzed(request: pytest.FixtureRequest) -> list[str]:
    return request.config.stash.setdefault(FUZZED, [])


@pytest.fixture
def cells(request: pytest.FixtureRequest) -> list[Cell]:
    return [EVERY_CELL[name] for name in request.config.getoption("--cells").split(",")]
