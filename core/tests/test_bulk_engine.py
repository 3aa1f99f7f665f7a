"""Which engine ``auto`` takes."""

from __future__ import annotations

import attrs

import msgstore
from msgstore.contract import JobRunnerDescriptor
from msgstore.jobs.runner import choose_runner
from msgstore.plugins.catalogue import Catalogue, Registration


def catalogue_of(**pays: int) -> Catalogue:
    """Engines by name, with the bytes of input from which on each pays."""
    catalogue = msgstore.load_catalogue()
    (local,) = (found for found in catalogue.registrations if found.descriptor.name == "local")
    assert isinstance(local.descriptor, JobRunnerDescriptor)
    engines: list[Registration] = [
        attrs.evolve(local, descriptor=attrs.evolve(local.descriptor, name=name, min_input_bytes=size))
        for name, size in pays.items()
    ]
    return attrs.evolve(catalogue, registrations=tuple(engines))


def test_the_one_that_needs_the_most_of_those_that_pay() -> None:
    catalogue = catalogue_of(small=0, middle=100, large=1000)
    assert [choose_runner(catalogue, "auto", size)[0] for size in (5, 100, 999, 1000)] == ["small", "middle", "middle", "large"]


def test_the_one_that_needs_the_least_if_none_pays() -> None:
    assert choose_runner(catalogue_of(a=1000, b=100), "auto", 5)[0] == "b"
