"""What holds for every test of the repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["pytester"]

# Tables are as wide as the terminal: names of temporary directories, which they show, would wrap at 80 columns.
os.environ["COLUMNS"] = "200"

# What runs in the background of a shell ignores SIGINT, and so would each program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Temporary directories are in memory where there is room: some tests create thousands of files. No test needs a real disk,
# because power losses are simulated.
MEMORY, ROOM = Path("/dev/shm"), 4 << 30


def has_room(path: Path) -> bool:
    """Return True if tests can write files to this directory and execute them."""
    if not (path.is_dir() and os.access(path, os.W_OK) and shutil.disk_usage(path).free >= ROOM):
        return False
    return not os.statvfs(path).f_flag & getattr(os, "ST_NOEXEC", 0)


if has_room(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Where others want the processor, an example may wait for it. The parent: that of tests/mutants, where it is loaded.
hypothesis.settings.register_profile(
    "untimed",
    parent=hypothesis.settings.default,
    deadline=None,
    max_examples=int(os.environ.get("MSGSTORE_TESTS_EXAMPLES", "25")),  # tox.ini asks for more before a merge
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _fast_hashes_of_options() -> Iterator[None]:
    """Hash the options of conversions with the least work. They cost 10 ms each, so that nobody guesses secrets from them."""
    scrypt = hashlib.scrypt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashlib, "scrypt", lambda *given, **options: scrypt(*given, **options | {"n": 2}))
        yield


@pytest.hookimpl(optionalhook=True)  # tests/wheels.py runs without xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return one more than there are processors: tests wait for other processes and threads."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape names of files that are no text in what a test has printed: xdist ends a worker that reports them."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
