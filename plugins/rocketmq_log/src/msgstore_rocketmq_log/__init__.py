"""RocketMQ's commit log and the files beside it, and a v2 layout after RIP-47, for msgstore."""

from msgstore_rocketmq_log.files import read_checkpoint, read_index
from msgstore_rocketmq_log.frame import decode_v2
from msgstore_rocketmq_log.records import check, consume_queue_entry, decode, scan_file

__all__ = ["check", "consume_queue_entry", "decode", "decode_v2", "read_checkpoint", "read_index", "scan_file"]
