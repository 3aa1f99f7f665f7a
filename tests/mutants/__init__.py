"""Backends with one injected fault each, to test that the conformance kit finds it.

``python -m mutants``, in ``tests/``, runs the kit against each and prints which tests caught it. A mutant is a class of a
real backend in which a method is replaced. A replacement is called with the object, the method that it replaces, and the
arguments::

    fault = partial(broken, __name__, V2, SegmentFormatV2)
    fault("decode-ignores-the-id", "a read does not compare ids", decode=lambda self, old, id, rec: old(rec[5:21], rec))
"""

from __future__ import annotations

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
    options: Mapping[str, object] = attrs.field(factory=dict)


MUTANTS: list[Mutant] = []


def broken(
    module: str,
    original: Descriptor,
    base: type,
    name: str,
    fault: str,
    *,
    options: Mapping[str, object] | None = None,
    **members: Any,
) -> None:
    """Register a subclass of ``base`` with other methods or attributes. ``module``: where it is imported from."""
    found = {key: _replaced(base, key, value) if callable(value) else value for key, value in members.items()}
    cls = type(name.title().replace("-", ""), (base,), {**found, "__module__": module})
    setattr(sys.modules[module], cls.__name__, cls)
    faulty = attrs.evolve(original, name=name, factory=f"{module}:{cls.__name__}")
    MUTANTS.append(Mutant(kind_of(original), name, fault, faulty, original, options or {}))


def _replaced(base: type, name: str, replacement: Callable[..., object]) -> Callable[..., object]:
    return lambda self, *args, **kwargs: replacement(self, partial(getattr(base, name), self), *args, **kwargs)
