"""Subjects of the kit: a descriptor, and options to test it with."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import attrs
import pytest

import msgstore
from msgstore.config import store_config
from msgstore.engine.opening import open_configured
from msgstore.files import Files
from msgstore.option_values import Backend, structure
from msgstore_queues.catalogue import Catalogue, load_catalogue
from msgstore_queues.contract import BackingQueueDescriptor, Capability, QueueIndexContext, QueueIndexDescriptor
from msgstore_queues.options import VHostOptions
from msgstore_queues.vhost import VHost

SEGMENT_ENTRIES = 8
"""Positions of a segment of each queue index, so that short histories fill several."""
EMBED_BELOW = 64
"""Messages from this size on are in a message store."""


_all_stores, _all_queues = cache(msgstore.load_catalogue), cache(load_catalogue)
"""Loading what is installed takes longer than a test."""


@attrs.frozen(kw_only=True)
class _SmallSegments(QueueIndexDescriptor):
    def load_factory(self) -> Callable[..., Any]:
        factory = QueueIndexDescriptor.load_factory(self)

        def make(context: QueueIndexContext) -> Any:
            return factory(attrs.evolve(context, segment_entries=SEGMENT_ENTRIES))

        return make


@attrs.frozen
class Subject:
    """A backing queue or a queue index under test."""

    descriptor: BackingQueueDescriptor | QueueIndexDescriptor
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """One of the descriptor's ``examples``. Paths are relative to the directory of a test."""

    def __str__(self) -> str:
        given = ",".join(f"{key}={value}" for key, value in self.options.items())
        return self.descriptor.name + (f"[{given}]" if given else "")

    def has(self, capability: Capability) -> bool:
        """Return True if the backing queue claims a capability. What survives is what a proxy and the one below it keep; an
        order by priority is that of either. The tests of a queue index use the backing queue ``variable``."""
        if isinstance(self.descriptor, QueueIndexDescriptor):
            return capability in (Capability.PERSISTENT, Capability.PROPERTIES)
        is_claimed = capability in self.descriptor.capabilities
        below = getattr(structure(self.descriptor.options, self.options, str(self), Path()), "over", None)
        if below is None or capability in (Capability.BROWSE, Capability.TRANSACTIONS):
            return is_claimed
        is_below = Subject(self.catalogue.backing(below.name, str(self)), below.options).has(capability)
        return is_claimed or is_below if capability is Capability.PRIORITIES else is_claimed and is_below

    def needs(self, capability: Capability) -> None:
        """Skip the test if the descriptor does not claim a capability."""
        if not self.has(capability):
            pytest.skip(f"does not claim {capability.value}")

    @property
    def catalogue(self) -> Catalogue:
        """All that is installed, and the subject. Segments of indexes are small."""
        installed, one = _all_queues(), self.descriptor
        backings, indexes = dict(installed.backings), dict(installed.indexes)
        if isinstance(one, BackingQueueDescriptor):
            backings[one.name] = one
        else:
            indexes[one.name] = one
        small = {name: _SmallSegments(**_fields(index)) for name, index in indexes.items()}
        return Catalogue(small, backings, installed.broken)

    def queue_options(self, path: Path) -> dict[str, Any]:
        """Return options of a queue, in a vhost in ``path``, that select the subject."""
        backend = Backend(self.descriptor.name, self.options, base=path)
        if isinstance(self.descriptor, BackingQueueDescriptor):
            return {"backing": backend}
        return {"index": backend, "backing": Backend("variable", {"memory": 2})}

    def open(self, path: Path, files: Files | None = None, **options: Any) -> VHost:
        """Open a vhost for tests, which nothing flushes by the clock."""
        files = files or Files()
        table = {"sync_interval": "365d", "embed_below": EMBED_BELOW, **options}
        values = structure(VHostOptions, table, "a test")
        return VHost(path, "/", values, self.catalogue, where="a test", files=files, open_store=partial(_open_store, files))

    def check_descriptor(self) -> None:
        """Check what every descriptor must have: a name that is found, a summary of one line, values that can be pickled,
        examples that are valid, and a factory whose module no registration imports."""
        one = self.descriptor
        installed = _all_queues()
        found = {**installed.backings, **installed.indexes}.get(one.name)
        assert found in (None, one), f"another distribution registers {one.name!r}, too"
        assert not installed.broken, f"plugins that are not loaded: {installed.broken}"
        assert pickle.loads(pickle.dumps(one)) == one
        assert len(one.summary.splitlines()) == 1 <= len(one.summary.strip()), "the summary is not one line of text"
        assert isinstance(structure(one.options, self.options, str(self), Path()), one.options)
        module = one.factory.partition(":")[0]
        code = "import sys; from msgstore_queues.catalogue import load_catalogue; load_catalogue(); "
        code += f"sys.exit({module!r} in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr or f"the module of the entry point imports {module}"


def installed_backing_queues() -> list[Subject]:
    """Return each with each of its examples."""
    return [Subject(one, options) for one in _all_queues().backings.values() for options in one.examples]


def installed_queue_indexes() -> list[Subject]:
    """Return each with each of its examples."""
    return [Subject(one, options) for one in _all_queues().indexes.values() for options in one.examples]


def _fields(descriptor: QueueIndexDescriptor) -> dict[str, Any]:
    return {field.name: getattr(descriptor, field.name) for field in attrs.fields(QueueIndexDescriptor)}


def _open_store(files: Files, path: Path, *, refcounts: Any = None, **keys: Any) -> msgstore.Store:
    config = store_config({"path": path, **keys, "gc_interval": 0, "file_size_limit": 2000}, "a test", Path())
    return open_configured(config, _all_stores(), refcounts=refcounts, files=files)
