"""Whole stores with the subject in them; the index ``ets`` and the format ``v2`` take the other places."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

import msgstore
from msgstore.config import store_config
from msgstore.contract import Capability, RecordTypeDescriptor
from msgstore.engine.opening import open_configured
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue
from msgstore.testing.faults import UnsyncedFiles, copy_of
from msgstore.testing.subjects import Subject

INDEX, FORMAT = "ets", "v2"


def open_with(
    path: Path,
    catalogue: Catalogue,
    files: Files | None = None,
    *,
    mode: Any = "rw",
    refcounts: Iterable[tuple[bytes, int]] | None = None,
    **keys: Any,
) -> msgstore.Store:
    """Open a store with the file layer of a test."""
    config = store_config({"path": path, **keys}, "test", Path())
    return open_configured(config, catalogue, mode=mode, refcounts=refcounts, files=files)


@attrs.define
class StoreFactory:
    """Opens stores in one directory."""

    subject: Subject
    path: Path
    observed: bool = False
    in_place: bool = True
    """False for a FORMAT that claims nothing: its segments are compacted by copying them, and hold no removals."""

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of a configuration that selects the subject."""
        subject = self.subject
        keys: dict[str, Any] = {"index": INDEX, "format": FORMAT, "sync_interval": "1h", "gc_interval": 0}
        if isinstance(subject.descriptor, RecordTypeDescriptor):
            byte = subject.descriptor.assigned_byte
            bound = {subject.name: 128 if byte is None else byte}
            keys |= {"format": {"use": subject.descriptor.format, "records": bound}, "record": subject.name}
        elif subject.descriptor is not None:
            keys[subject.kind] = {"use": subject.name, **subject.options}
        return keys

    @property
    def catalogue(self) -> Catalogue:
        found = self.subject.catalogue
        registrations = [
            attrs.evolve(one, descriptor=attrs.evolve(one.descriptor, capabilities=[Capability.TYPED_RECORDS]))
            if (one.kind, one.descriptor.name) == ("format", FORMAT) and not self.in_place
            else one
            for one in found.registrations
        ]
        observers = self.subject.observers if self.observed else ()
        return attrs.evolve(found, registrations=tuple(registrations), observers=observers)

    def open(self, files: Files | None = None, **keys: Any) -> msgstore.Store:
        return open_with(self.path, self.catalogue, files or UnsyncedFiles(), **{**self.keys, **keys})

    def copied(self, target: Path) -> StoreFactory:
        """Return the same for a copy of the directory: what a process would leave that is killed now."""
        shutil.rmtree(target, ignore_errors=True)
        return attrs.evolve(self, path=copy_of(self.path, target))
