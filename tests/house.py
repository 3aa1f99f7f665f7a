"""Print the size of the code and the length of its two longest paths: ``python tests/house.py``.

The figures are those that a reader meets: lines of each part, modules of the fullest folder, frames between ``flush`` and
the write of a file, and modules that an opening after a crash passes.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import msgstore
from msgstore.config import StoreConfig
from msgstore.engine.opening import open_configured
from msgstore.files import Files

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core/src/msgstore"
RIDDLES = re.compile(r"(Who|What|Of|Those|Whether|Whose|Where|Somebody|Nobody|As)\b")
"""First words of docstrings that need a second reading."""


def sources(*patterns: str) -> list[Path]:
    """Return the Python files in version control that match one of the git patterns."""
    found = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in found.stdout.split() if name.endswith(".py")]


def lines(*patterns: str) -> int:
    return sum(len(path.read_text().splitlines()) for path in sources(*patterns))


def riddles() -> int:
    """Count docstrings of core that open with a word that names no subject."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    trees = (ast.parse(path.read_text()) for path in sources("core/src"))
    texts = (ast.get_docstring(node) or "" for tree in trees for node in ast.walk(tree) if isinstance(node, kinds))
    return sum(RIDDLES.match(text) is not None for text in texts)


def frames_of_flush(directory: Path) -> int:
    """Return the number of frames of msgstore from ``flush`` down to the call that writes a segment."""
    depths: list[int] = []

    class CountingFiles(Files):
        def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
            depths.append(sum(frame.filename.startswith(str(CORE)) for frame in traceback.extract_stack()))
            super().pwrite(fd, data, offset)

    with open_configured(StoreConfig(path=directory), msgstore.load_catalogue(), files=CountingFiles()) as store:
        store.client().write(bytes(16), b"body")
        depths.clear()
        store.flush()
        return max(depths)


def modules_of_opening(directory: Path) -> list[str]:
    """Return the modules of the engine with a function, constructors apart, that runs in an opening after a crash."""
    store = msgstore.open_store(directory, index="ets")
    client = store.client("c")
    client.write(bytes(16), b"body")
    store.flush()
    store.abandon()
    passed: set[str] = set()

    def note(frame, event, argument):
        if frame.f_code.co_filename.startswith(str(CORE / "engine")) and frame.f_code.co_name not in ("<module>", "__init__"):
            passed.add(str(Path(frame.f_code.co_filename).relative_to(CORE)))

    sys.setprofile(note)
    try:
        store = msgstore.open_store(directory, index="ets")
    finally:
        sys.setprofile(None)
    store.close()
    return sorted(passed)


def main() -> None:
    folders = Counter(path.parent for path in sources("core/src") if path.name != "__init__.py")
    folder, most = folders.most_common(1)[0]
    with tempfile.TemporaryDirectory() as directory:
        frames = frames_of_flush(Path(directory, "flush"))
        modules = modules_of_opening(Path(directory, "opening"))
    print(f"lines of core/src                        {lines('core/src'):>6}, {len(sources('core/src'))} modules")
    print(f"lines of msgstore.contract               {lines('core/src/msgstore/contract'):>6}")
    print(f"modules in the fullest folder            {most:>6}, {folder.relative_to(ROOT)}")
    print(f"frames from flush() to the write         {frames:>6}")
    print(f"modules that an opening passes           {len(modules):>6}")
    print(f"docstrings that open without a subject   {riddles():>6}")
    print(f"lines of the kit, its tests and mutants  {lines(*KIT):>6}")
    print(f"lines of all tests                       {lines(':(glob)**/tests/**'):>6}")
    if "--modules" in sys.argv:
        print("\n".join(modules))


KIT = ("core/src/msgstore/testing", "core/tests/test_kit*", "tests/mutants", "tests/test_mutants.py", "tests/test_kit*")

if __name__ == "__main__":
    main()
