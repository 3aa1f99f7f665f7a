"""Base of every class of the kit; finds tests of the kit that a subclass deletes or overrides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn, TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., object])
SUITE = "msgstore.testing.suite"
SKIPPED_FOR = "does not claim "
"""Begin of the reason of a skip that the summary lists by capability."""
_REASON = "__msgstore_replaces__"


class KitTests:
    """Tests of one kind of backend. A subclass inherits all of them, and may add more."""

    kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of subjects to test."""

    @pytest.fixture
    def subject(self) -> Any:
        """Backend under test. A subclass overrides this fixture; classes of the suite get subjects from the options."""
        pytest.fail(f"{type(self).__name__} has nothing to test: give it a fixture 'subject'")


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
    for base in cls.__mro__:
        if base.__module__.startswith("msgstore.testing.") and not base.__module__.startswith(SUITE):
            for name, test in vars(base).items():
                if name.startswith("test") and getattr(cls, name) is not test:
                    yield f"{cls.__name__}.{name}", getattr(getattr(cls, name), _REASON, "")


def skip_without(capability: str) -> NoReturn:
    """Skip the test; the summary of the run lists it under ``capability``."""
    pytest.skip(f"{SKIPPED_FOR}{capability}")
