"""Hooks of msgstore, called through pluggy: they register backends and publish events. No message passes through a hook.

A plugin is a module (or any object) that an entry point of the group ``msgstore`` names. It implements any of these functions
and marks each with ``msgstore.hookimpl``.

*Registration hooks* are called once, without arguments, when the catalogue is built. They return descriptors. A plugin whose
hook raises or returns anything else is recorded as broken. That is an error when one of its names is selected, and in
``msgstore plugins --check``.

*Event hooks* are called with one event (:mod:`msgstore.contract.events`) per segment or per store. They run on a thread of the
store, which holds none of the store's locks. Return values are ignored. An exception is logged and counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from msgstore.contract import (
    BodyCodecDescriptor,
    CommandDescriptor,
    GcPolicyDescriptor,
    IndexDescriptor,
    JobRunnerDescriptor,
    RecordTypeDescriptor,
    SegmentFormatDescriptor,
    SinkDescriptor,
    SourceDescriptor,
    events,
)

GROUP = "msgstore"
"""Project name of the hooks, and name of the entry-point group."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def msgstore_segment_formats() -> Iterable[SegmentFormatDescriptor]:  # type: ignore[empty-body]
    """Segment formats, selected by ``format`` and by the extension of existing files."""


@hookspec
def msgstore_record_types() -> Iterable[RecordTypeDescriptor]:  # type: ignore[empty-body]
    """Record types of a segment format, selected by ``record`` and bound to type bytes by the format's ``records``."""


@hookspec
def msgstore_indexes() -> Iterable[IndexDescriptor]:  # type: ignore[empty-body]
    """Indexes, selected by ``index``."""


@hookspec
def msgstore_gc_policies() -> Iterable[GcPolicyDescriptor]:  # type: ignore[empty-body]
    """GC policies, selected by ``gc``."""


@hookspec
def msgstore_body_codecs() -> Iterable[BodyCodecDescriptor]:  # type: ignore[empty-body]
    """Body codecs, selected by ``body``."""


@hookspec
def msgstore_sources() -> Iterable[SourceDescriptor]:  # type: ignore[empty-body]
    """Sources of messages, selected by ``--source`` or by what is in a path."""


@hookspec
def msgstore_sinks() -> Iterable[SinkDescriptor]:  # type: ignore[empty-body]
    """Sinks of messages, selected by ``--sink``, or by the ending or scheme of the destination."""


@hookspec
def msgstore_job_runners() -> Iterable[JobRunnerDescriptor]:  # type: ignore[empty-body]
    """Runners for jobs over many segments, selected by ``--runner``."""


@hookspec
def msgstore_commands() -> Iterable[CommandDescriptor]:  # type: ignore[empty-body]
    """Commands of the program ``msgstore``, beside its own."""


@hookspec
def msgstore_store_opened(event: events.StoreOpenedEvent) -> None:
    """The store is open and accepts calls."""


@hookspec
def msgstore_store_closed(event: events.StoreClosedEvent) -> None:
    """The store was closed or abandoned. No event of this store follows."""


@hookspec
def msgstore_segment_rolled(event: events.SegmentRolledEvent) -> None:
    """A segment was started."""


@hookspec
def msgstore_segment_deleted(event: events.SegmentDeletedEvent) -> None:
    """A segment was unlinked."""


@hookspec
def msgstore_recovery_finished(event: events.RecoveryFinishedEvent) -> None:
    """The opening had to read segments, and has finished."""


@hookspec
def msgstore_corruption_found(event: events.CorruptionFoundEvent) -> None:
    """Damaged bytes were found. Published once per file and offset."""


@hookspec
def msgstore_collection_finished(event: events.CollectionFinishedEvent) -> None:
    """One segment was collected or skipped."""


@hookspec
def msgstore_messages_dropped(event: events.MessagesDroppedEvent) -> None:
    """Retention deleted live messages."""
