"""Backends with one injected fault each, to test that the conformance kit finds it.

``python -m mutants``, in ``tests/``, runs the kit against each and prints which tests caught it. A mutant is a class of a
real backend in which a method is replaced. A replacement is called with the object, the method that it replaces, and the
arguments. It is a lambda, or a function that has the mutant's name and says in its docstring what is wrong::

    fault = Broken(V2, SegmentFormatV2)
    fault("decode-ignores-the-id", "a read does not compare ids", decode=lambda self, old, id, rec: old(rec[5:21], rec))

    @fault.of("encode")
    def sizes_one_short(self, old, ids, bodies):
        \"""The size of each record is one too small.\"""
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs

from msgstore.contract import Descriptor
from msgstore.testing.subjects import kind_of


@attrs.frozen
class Mutant:
    kind: str
    """As a configuration's key: format, record, index, gc or body."""
    name: str
    fault: str
    """What is wrong with it."""
    descriptor: Descriptor
    original: Descriptor
    """The descriptor of the backend without the fault; the kit must pass it."""
    options: Mapping[str, object]


MUTANTS: list[Mutant] = []


@attrs.frozen
class Broken:
    """Registers subclasses of ``base`` with other methods or attributes."""

    original: Descriptor
    base: type
    options: Mapping[str, object] = {}
    faulty: Mapping[str, Any] = {}
    """What the descriptor of a mutant says otherwise."""

    def __call__(self, name: str, fault: str, **members: Any) -> None:
        module = inspect.currentframe().f_back.f_globals["__name__"]  # type: ignore[union-attr]
        self._add(module, name, fault, members)

    def of(self, method: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a mutant in which the decorated function replaces a method."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            assert function.__doc__
            self._add(function.__module__, function.__name__.replace("_", "-"), function.__doc__, {method: function})
            return function

        return add

    def _add(self, module: str, name: str, fault: str, members: Mapping[str, Any]) -> None:
        found = {key: _replaced(self.base, key, value) if callable(value) else value for key, value in members.items()}
        cls = type(name.title().replace("-", ""), (self.base,), {**found, "__module__": module})
        setattr(sys.modules[module], cls.__name__, cls)
        faulty = attrs.evolve(self.original, name=name, factory=f"{module}:{cls.__name__}", **self.faulty)
        MUTANTS.append(Mutant(kind_of(faulty), name, fault, faulty, self.original, self.options))


def _replaced(base: type, name: str, replacement: Callable[..., object]) -> Callable[..., object]:
    old = getattr(base, name, None) or (lambda *_: None)
    return lambda self, *args, **kwargs: replacement(self, partial(old, self), *args, **kwargs)
