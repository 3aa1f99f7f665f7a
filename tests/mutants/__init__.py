"""Backends with one seeded fault each, to see that the conformance kit finds it.

``python -m mutants``, in ``tests/``, runs the kit against each and prints which tests caught it. A mutant is a class of a
real backend with something broken in it::

    @mutant(V2, "sizes are one too small")
    class SizesOneShort(SegmentFormatV2): ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import attrs

from msgstore.contract import Descriptor
from msgstore.plugins.loader import HOOKS

C = TypeVar("C", bound=Callable[..., object])


@attrs.frozen
class Mutant:
    kind: str
    """As a configuration's key: format, record, index, gc or body."""
    name: str
    fault: str
    """What is wrong with it."""
    descriptor: Descriptor
    original: Descriptor
    """Of what it was made of; the kit has nothing against it."""
    options: Mapping[str, object] = attrs.field(factory=dict)


MUTANTS: list[Mutant] = []


def mutant(original: Descriptor, fault: str, **options: object) -> Callable[[C], C]:
    """Marks a faulty factory: a class, or a function that makes a faulty object. Its name is the mutant's."""

    def mark(factory: C) -> C:
        name = re.sub(r"(?<=.)(?=[A-Z])", "-", factory.__name__).lower().replace("_", "-")
        faulty = attrs.evolve(original, name=name, factory=f"{factory.__module__}:{factory.__name__}")
        MUTANTS.append(Mutant(kind_of(original), name, fault, faulty, original, options))
        return factory

    return mark


def kind_of(descriptor: Descriptor) -> str:
    return next(kind for kind, (_, made) in HOOKS.items() if isinstance(descriptor, made))
