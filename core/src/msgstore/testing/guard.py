"""Base of every class of the kit; detects tests that a subclass deletes or overrides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn, TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., object])
SKIPPED_FOR = "does not claim "
"""Begin of the reason of a skip that the summary lists by capability."""
_REASON = "__msgstore_replaces__"
_kits: dict[type[Any], dict[str, object]] = {}
"""Tests of each class of the kit when it was defined. Finds also those that are deleted from the class itself."""


class KitTests:
    """Tests of one kind of backend. A subclass inherits all of them, and may add more."""

    kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of subjects to test."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.startswith("msgstore.testing.") and not cls.__module__.startswith("msgstore.testing.suite."):
            _kits[cls] = {name: test for name, test in vars(cls).items() if name.startswith("test")}


def replaces(reason: str) -> Callable[[F], F]:
    """Mark a test that replaces one of the kit. The reason is printed at the end of the run."""
    if not reason.strip():
        raise ValueError("say why the kit's own test does not do")

    def mark(test: F) -> F:
        setattr(test, _REASON, reason)
        return test

    return mark


def replaced(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield (test, reason) of each test of the kit that ``cls`` deletes or overrides; the reason is empty if there is none."""
    own = [base for base in cls.__mro__ if base in _kits]
    for name in dict.fromkeys(name for base in own for name in _kits[base]):
        kits = next(_kits[base][name] for base in own if name in _kits[base])
        found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
        if found is not kits:
            yield f"{cls.__name__}.{name}", getattr(found, _REASON, "")


def skip_without(capability: str) -> NoReturn:
    """Skip the test; the summary of the run lists it under ``capability``."""
    pytest.skip(f"{SKIPPED_FOR}{capability}")
