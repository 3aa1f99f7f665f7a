"""Names in messages: of the kinds of backends, and of the backends that the project provides, installed or not."""

from __future__ import annotations

NOUNS = {
    "format": "segment format",
    "record": "record type",
    "index": "index",
    "gc": "GC policy",
    "body": "body codec",
    "source": "source",
    "sink": "sink",
    "runner": "job runner",
    "command": "command",
}
"""Kind of backend to its name in messages."""
KNOWN_DISTRIBUTIONS = {
    ("format", "v1"): "msgstore-format-v1",
    ("format", "v2"): "msgstore-format-v2",
    ("record", "message"): "msgstore-format-v2",
    ("record", "checksum"): "msgstore-checksum-record",
    ("index", "ets"): "msgstore-ets-index",
    ("index", "lmdb"): "msgstore-lmdb-index",
    ("body", "erlang"): "msgstore-erlang-body",
    ("source", "kestrel"): "msgstore-kestrel-journal",
    ("sink", "kestrel"): "msgstore-kestrel-journal",
    ("source", "rabbitmq"): "msgstore-rabbitmq-source",
    ("source", "rocketmq"): "msgstore-rocketmq-log",
    ("sink", "amqp"): "msgstore-amqp-sink",
    ("sink", "rocketmq"): "msgstore-rocketmq-log",
    ("runner", "spark"): "msgstore-spark",
}
"""Distribution of each backend of the project. Only used for hints in messages: installed plugins decide the selection."""
KNOWN_EXTENSIONS = {".rdq": "v1", ".rdt": "v1", ".sqs": "v2"}
"""File extension to the format of the project that reads it."""
KNOWN_BODIES = {b"\x83h": "erlang", b"\x83m": "erlang"}
"""First bytes of bodies that brokers store, to the body codec: an external term that is a tuple or a binary."""
OTHER_GROUPS = {"msgstore_queues"}
"""Groups of entry points that other distributions read."""
