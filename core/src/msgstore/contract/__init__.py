"""Contract between core and its plugins: descriptors, protocols, capabilities, events, errors. Imports attrs only.

Start with :mod:`msgstore.contract.descriptors`, then read the module of your kind of backend. Each shows a complete one.
"""

# ruff: isort: off
# fmt: off
from msgstore.contract import events
from msgstore.contract.bodies import BodyCodec, BodyCodecDescriptor, BodyCodecWithFields, StoredBody
from msgstore.contract.descriptors import (
    CONTRACT_VERSION, Capability, CommandDescriptor, Descriptor, Duration, JobRunnerDescriptor, NoOptions, RecordField, Size,
)
from msgstore.contract.errors import (
    BodyRefused, BrokenPlugin, ConfigError, CorruptRecord, MessageNotFound, MessageTooLarge, MsgStoreError, NotAdopted,
    PluginError, RecordError, StoreClosed, StoreError, StoreIOError, StoreLocked, StoreMismatch, StoreReadOnly,
)
from msgstore.contract.formats import (
    CheckBody, Columns, CompactableFormat, Damage, FormatContext, GapFill, ScanEnd, SegmentFormat, SegmentFormatDescriptor,
    SegmentScan,
)
from msgstore.contract.indexes import RESCUED_KEY, FileOperations, Index, IndexContext, IndexDescriptor, ReleaseResult
from msgstore.contract.messages import (
    LISTED, STATES, Candidate, MessageBatch, QueueInfo, QueueName, SourceDamage, json_value,
)
from msgstore.contract.policies import Action, Combine, Compact, Drop, GcPolicy, GcPolicyDescriptor, Migrate, SegmentStats
from msgstore.contract.records import BoundRecord, Buffer, RecordContext, RecordFields, RecordType, RecordTypeDescriptor
from msgstore.contract.sinks import JoiningSink, Sink, SinkContext, SinkDescriptor
from msgstore.contract.sources import RandomAccessSource, SharedBodiesSource, Source, SourceContext, SourceDescriptor

__all__ = [
    "CONTRACT_VERSION", "LISTED", "RESCUED_KEY", "STATES", "Action", "BodyCodec", "BodyCodecDescriptor",
    "BodyCodecWithFields", "BodyRefused", "BoundRecord", "BrokenPlugin", "Buffer", "Candidate", "Capability", "CheckBody",
    "Columns", "Combine", "CommandDescriptor", "Compact", "CompactableFormat", "ConfigError", "CorruptRecord", "Damage",
    "Descriptor", "Drop", "Duration", "FileOperations", "FormatContext", "GapFill", "GcPolicy", "GcPolicyDescriptor",
    "Index", "IndexContext", "IndexDescriptor", "JobRunnerDescriptor", "JoiningSink", "MessageBatch", "MessageNotFound",
    "MessageTooLarge", "Migrate", "MsgStoreError", "NoOptions", "NotAdopted", "PluginError", "QueueInfo", "QueueName",
    "RandomAccessSource", "RecordContext", "RecordError", "RecordField", "RecordFields", "RecordType",
    "RecordTypeDescriptor", "ReleaseResult", "ScanEnd", "SegmentFormat", "SegmentFormatDescriptor", "SegmentScan",
    "SegmentStats", "SharedBodiesSource", "Sink", "SinkContext", "SinkDescriptor", "Size", "Source", "SourceContext",
    "SourceDamage", "SourceDescriptor", "StoreClosed", "StoreError", "StoreIOError", "StoreLocked", "StoreMismatch",
    "StoreReadOnly", "StoredBody", "events", "json_value",
]
