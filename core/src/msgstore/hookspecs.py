"""The hooks of msgstore, called through pluggy. They register backends and announce events; no message ever passes one.

A plugin is a module (or any object) that an entry point of the group ``msgstore`` names; it implements any of these with
``msgstore.hookimpl``. Each is called once, when the catalogue is built, without arguments, and returns descriptors. A plugin
whose hook raises, or returns something else, is remembered as broken: an error when one of its names is selected, and in
``msgstore plugins --check``.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from msgstore.contract import (
    BodyCodecDescriptor,
    GcPolicyDescriptor,
    IndexDescriptor,
    RecordTypeDescriptor,
    SegmentFormatDescriptor,
)

GROUP = "msgstore"
"""The project name of the hooks and the entry-point group."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def msgstore_segment_formats() -> Iterable[SegmentFormatDescriptor]:  # type: ignore[empty-body]
    """Segment formats: selected by ``format``, and by the extension of the files that are found."""


@hookspec
def msgstore_record_types() -> Iterable[RecordTypeDescriptor]:  # type: ignore[empty-body]
    """Record types of a segment format: selected by ``record``, bound to bytes by the format's ``records``."""


@hookspec
def msgstore_indexes() -> Iterable[IndexDescriptor]:  # type: ignore[empty-body]
    """Indexes: selected by ``index``."""


@hookspec
def msgstore_gc_policies() -> Iterable[GcPolicyDescriptor]:  # type: ignore[empty-body]
    """GC policies: selected by ``gc``."""


@hookspec
def msgstore_body_codecs() -> Iterable[BodyCodecDescriptor]:  # type: ignore[empty-body]
    """Body codecs: selected by ``body``."""
