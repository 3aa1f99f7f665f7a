"""Tests of the kit that a run leaves out in any of pytest's ways; such a run needs a reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

import msgstore.testing
from msgstore.testing.guard import KitTests
from msgstore.testing.subjects import Subject

_NAMES = [name for name in msgstore.testing.__all__ if name.endswith("Tests")]
_USES = re.compile(rf"\b(?:{'|'.join(_NAMES)})\b")
_SHOWN = 5


def not_collected(subjects: Sequence[Subject], collected: Iterable[pytest.Item]) -> Iterator[str]:
    """Yield the tests of the subjects that pytest never saw: a file was ignored, or only other tests were named."""
    if not subjects:
        return
    kits: list[type[KitTests]] = [getattr(msgstore.testing, name) for name in _NAMES]
    seen = set()
    for item in collected:
        cls, name = getattr(item, "cls", None), getattr(item, "originalname", None)
        of = getattr(getattr(item, "callspec", None), "params", {}).get("subject")
        seen |= {(kit, name, str(of)) for kit in kits if cls is not None and issubclass(cls, kit)}
    for subject in subjects:
        for kit in kits:
            if subject.kind in kit.kinds:
                tests = (name for name in dir(kit) if name.startswith("test"))
                yield from (f"{kit.__name__}.{name}[{subject}]" for name in tests if (kit, name, str(subject)) not in seen)


def modules_of_kit(ignored: Iterable[Path], config: pytest.Config) -> Iterator[str]:
    """Yield the ignored test modules that name a class of the kit, also those in ignored directories."""
    patterns, never = config.getini("python_files"), config.getini("norecursedirs")
    for path in ignored:
        if path.is_dir() and (any(fnmatch(path.name, name) for name in never) or (path / "pyvenv.cfg").exists()):
            continue
        for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if any(fnmatch(module.name, pattern) for pattern in patterns) and _USES.search(module.read_text(errors="replace")):
                yield str(module)


def summary(left_out: Sequence[str], reason: str | None) -> Iterator[str]:
    """The lines at the end of the run."""
    names = ", ".join(left_out[:_SHOWN]) + (f" and {len(left_out) - _SHOWN:,} more" if len(left_out) > _SHOWN else "")
    if reason is None:
        yield f"left out, so the run has failed: {names}"
        yield "Run them, or say why not: --msgstore-partial REASON"
    else:
        yield f"left out: {names}: {reason}"
