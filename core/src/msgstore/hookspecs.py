"""The hooks of msgstore, called through pluggy. They register backends and publish events; no message ever passes one.

A plugin is a module (or any object) that an entry point of the group ``msgstore`` names; it implements any of these with
``msgstore.hookimpl``.

*Registration hooks* are called once, when the catalogue is built, without arguments, and return descriptors. A plugin whose
hook raises, or returns something else, is remembered as broken: an error when one of its names is selected, and in
``msgstore plugins --check``.

*Event hooks* are called with one event (:mod:`msgstore.contract.events`) per segment or per store, on a thread of the store's
own, without any of its locks; what they return is ignored. One that raises is logged and counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from msgstore.contract import (
    BodyCodecDescriptor,
    GcPolicyDescriptor,
    IndexDescriptor,
    JobRunnerDescriptor,
    RecordTypeDescriptor,
    SegmentFormatDescriptor,
    events,
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


@hookspec
def msgstore_job_runners() -> Iterable[JobRunnerDescriptor]:  # type: ignore[empty-body]
    """Engines for jobs over many segments: selected by ``--engine``."""


@hookspec
def msgstore_store_opened(event: events.StoreOpenedEvent) -> None:
    """The store serves."""


@hookspec
def msgstore_store_closed(event: events.StoreClosedEvent) -> None:
    """The store was closed, or abandoned. Its last event."""


@hookspec
def msgstore_segment_rolled(event: events.SegmentRolledEvent) -> None:
    """A segment was begun."""


@hookspec
def msgstore_segment_deleted(event: events.SegmentDeletedEvent) -> None:
    """A segment was unlinked."""


@hookspec
def msgstore_recovery_finished(event: events.RecoveryFinishedEvent) -> None:
    """Segments had to be read for the opening, and were."""


@hookspec
def msgstore_corruption_found(event: events.CorruptionFoundEvent) -> None:
    """Bytes that nobody wrote: once a spot."""


@hookspec
def msgstore_collection_finished(event: events.CollectionFinishedEvent) -> None:
    """The collector is done with a segment, or has left it as it is."""


@hookspec
def msgstore_messages_dropped(event: events.MessagesDroppedEvent) -> None:
    """Retention gave live messages up."""
