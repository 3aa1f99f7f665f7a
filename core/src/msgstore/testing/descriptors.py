"""Tests of descriptors: light values, each selected by its name."""

from __future__ import annotations

import pickle
import subprocess
import sys

from msgstore.contract import CONTRACT_VERSION, Descriptor, RecordTypeDescriptor
from msgstore.plugins.catalogue import is_compatible
from msgstore.plugins.loader import HOOKS
from msgstore.testing.guard import KitTests
from msgstore.testing.subjects import Subject

_LOOK_UP = {"format": "format", "index": "index", "gc": "gc_policy", "body": "body_codec", "runner": "job_runner"}
"""Kind to the method of the catalogue."""


class DescriptorTests(KitTests):
    kinds = tuple(HOOKS)

    def test_its_name_gives_it(self, subject: Subject) -> None:
        """A failure means that another installed distribution registers the same name, or that the contract version is one
        that this core does not serve: what users select by the name is not this."""
        if isinstance(subject.descriptor, RecordTypeDescriptor):
            assert subject.catalogue.record(subject.descriptor.format, subject.name) is subject.descriptor
        else:
            assert getattr(subject.catalogue, _LOOK_UP[subject.kind])(subject.name) is subject.descriptor

    def test_the_contract_version_is_one_that_this_core_serves(self, subject: Subject) -> None:
        """A failure means that ``contract`` is newer than the core installed here: give ``dependencies`` a lower bound."""
        descriptor = _descriptor(subject)
        assert is_compatible(descriptor.contract), f"contract {descriptor.contract}, this core serves {CONTRACT_VERSION}"

    def test_it_is_a_value(self, subject: Subject) -> None:
        """A failure means that the descriptor, or its class of options, is made inside a function, or holds something that
        cannot be pickled: workers of a cluster are sent descriptors."""
        descriptor = _descriptor(subject)
        copy = pickle.loads(pickle.dumps(descriptor))
        assert copy == descriptor
        assert hash(copy) == hash(descriptor)

    def test_it_has_a_summary_of_one_line(self, subject: Subject) -> None:
        """A failure means that ``msgstore plugins`` has nothing to say of it, or breaks its table."""
        summary = _descriptor(subject).summary
        assert summary.strip(), "summary is empty"
        assert len(summary.splitlines()) == 1

    def test_registering_it_imports_no_work(self, subject: Subject) -> None:
        """A failure means that the module of the entry point imports the module of the factory. Every program that opens any
        store would pay for it: name the factory by its string, and import what it needs where it is."""
        descriptor = _descriptor(subject)
        module = descriptor.factory.partition(":")[0]
        assert module != subject.provider.value, f"{module} is the module of the entry point itself"
        code = f"import msgstore, sys; msgstore.load_catalogue(); sys.exit({module!r} in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr or f"{subject.provider.value} imports {module}"

    def test_each_example_is_a_valid_configuration(self, subject: Subject) -> None:
        """A failure means that users who write the example into their configuration get an error; or that an option is needed,
        and ``examples`` does not give it."""
        assert isinstance(subject.made_options, _descriptor(subject).options)


def _descriptor(subject: Subject) -> Descriptor:
    assert subject.descriptor is not None
    return subject.descriptor
