"""What core and its plugins agree on: descriptors, interfaces, capabilities, errors. Imports attrs and no more.

Each module describes one kind of backend and shows a complete, minimal one. Start with
:mod:`msgstore.contract.descriptors`.
"""

from msgstore.contract import events
from msgstore.contract.bodies import BodyCodec, BodyCodecDescriptor, BodyCodecWithFields, BodyCodecWithLimit, StoredBody
from msgstore.contract.buffers import Buffer
from msgstore.contract.descriptors import Capability, Descriptor, NoOptions
from msgstore.contract.errors import (
    BodyRefused,
    BrokenPlugin,
    ConfigError,
    CorruptRecord,
    DuplicatePlugin,
    IncompatiblePlugin,
    MessageNotFound,
    MessageTooLarge,
    MsgStoreError,
    NotAdopted,
    PluginError,
    RecordError,
    StoreClosed,
    StoreError,
    StoreIOError,
    StoreLocked,
    StoreMismatch,
    StoreReadOnly,
    UnknownPlugin,
)
from msgstore.contract.formats import (
    Columns,
    Damage,
    End,
    FormatContext,
    GapFill,
    SegmentFormat,
    SegmentFormatDescriptor,
    SegmentScan,
    TrailingFormat,
)
from msgstore.contract.indexes import RESCUED_KEY, FileOperations, Index, IndexContext, IndexDescriptor, ReleaseResult
from msgstore.contract.options import Duration, Size
from msgstore.contract.policies import Action, Combine, Compact, Drop, GcPolicy, GcPolicyDescriptor, Migrate, SegmentStats
from msgstore.contract.records import (
    BoundRecord,
    RecordContext,
    RecordField,
    RecordType,
    RecordTypeDescriptor,
    RecordTypeWithFields,
)
from msgstore.contract.runners import JobRunnerDescriptor
from msgstore.contract.version import CONTRACT_VERSION, is_compatible

__all__ = [
    "CONTRACT_VERSION",
    "RESCUED_KEY",
    "Action",
    "BodyCodec",
    "BodyCodecDescriptor",
    "BodyCodecWithFields",
    "BodyCodecWithLimit",
    "BodyRefused",
    "BoundRecord",
    "BrokenPlugin",
    "Buffer",
    "Capability",
    "Columns",
    "Combine",
    "Compact",
    "ConfigError",
    "CorruptRecord",
    "Damage",
    "Descriptor",
    "Drop",
    "DuplicatePlugin",
    "Duration",
    "End",
    "FileOperations",
    "FormatContext",
    "GapFill",
    "GcPolicy",
    "GcPolicyDescriptor",
    "IncompatiblePlugin",
    "Index",
    "IndexContext",
    "IndexDescriptor",
    "JobRunnerDescriptor",
    "MessageNotFound",
    "MessageTooLarge",
    "Migrate",
    "MsgStoreError",
    "NoOptions",
    "NotAdopted",
    "PluginError",
    "RecordContext",
    "RecordError",
    "RecordField",
    "RecordType",
    "RecordTypeDescriptor",
    "RecordTypeWithFields",
    "ReleaseResult",
    "SegmentFormat",
    "SegmentFormatDescriptor",
    "SegmentScan",
    "SegmentStats",
    "Size",
    "StoreClosed",
    "StoreError",
    "StoreIOError",
    "StoreLocked",
    "StoreMismatch",
    "StoreReadOnly",
    "StoredBody",
    "TrailingFormat",
    "UnknownPlugin",
    "events",
    "is_compatible",
]
