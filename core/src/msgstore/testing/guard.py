"""The base of every class of the kit, and the watch over what subclasses make of its tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

F = TypeVar("F", bound=Callable[..., object])
_REASON = "__msgstore_replaces__"


class KitTests:
    """Tests of one kind of backend. A subclass has all of them, and may add some."""

    kinds: ClassVar[tuple[str, ...]] = ()
    """Of the subjects that the tests are for."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if _is_of_kit(cls):
            _kits[cls] = {name: test for name, test in vars(cls).items() if name.startswith("test")}


_kits: dict[type[Any], dict[str, object]] = {}
"""The tests of each class of the kit as it was made: what somebody takes from the class itself is missed, too."""


def replaces(reason: str) -> Callable[[F], F]:
    """Marks a test that takes the place of one of the kit's, and says why. The reason is printed at the end of the run."""
    if not reason.strip():
        raise ValueError("say why the kit's own test does not do")

    def mark(test: F) -> F:
        setattr(test, _REASON, reason)
        return test

    return mark


def replaced(cls: type[Any]) -> Iterator[tuple[str, str | None]]:
    """(test, reason) of each test of the kit that ``cls`` has otherwise than the kit; None if nobody said why."""
    own = [base for base in cls.__mro__ if base in _kits]
    for name in dict.fromkeys(name for base in own for name in _kits[base]):
        kits = next(_kits[base][name] for base in own if name in _kits[base])
        found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
        if found is not kits:
            yield f"{cls.__name__}.{name}", getattr(found, _REASON, None)


def _is_of_kit(cls: type[Any]) -> bool:
    return cls.__module__.startswith("msgstore.testing.") and not cls.__module__.startswith("msgstore.testing.suite.")
