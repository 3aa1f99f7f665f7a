"""Properties of a message in the commit log: ``name 0x01 value 0x02``, repeated, in UTF-8."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NAME_END, VALUE_END = "\x01", "\x02"
CRC_NAME = "__CRC32#"
CRC_BYTES = 20
"""Bytes of the property that has the checksum of a record, at its end."""

TAGS, KEYS, UNIQ_KEY, DELAY = "TAGS", "KEYS", "UNIQ_KEY", "DELAY"
_WHOLE = re.compile(r"-?[0-9]{1,19}")
REAL_TOPIC, REAL_QUEUE_ID = "REAL_TOPIC", "REAL_QID"
SYSTEM = frozenset({
    "ARRIVE_TIME", "BORN_HOST", "BORN_TIMESTAMP", "BUYER_ID", "CHECK_IMMUNITY_TIME_IN_SECONDS", "CLUSTER",
    "CONSUME_START_TIME", "CORRECTION_FLAG", "CORRELATION_ID", "DELAY", "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC",
    "DUP_INFO", "EXTEND_UNIQ_INFO", "FIRST_POP_TIME", "INNER_BASE", "INNER_NUM", "INSTANCE_ID", "KEYS", "MAX_OFFSET",
    "MAX_RECONSUME_TIMES", "MIN_OFFSET", "MQ2_FLAG", "MSG_REGION", "MSG_TYPE", "ORIGIN_MESSAGE_ID", "PGROUP", "POP_CK",
    "POP_CK_OFFSET", "PUSH_REPLY_TIME", "REAL_QID", "REAL_TOPIC", "RECONSUME_TIME", "REPLY_TO_CLIENT", "RETRY_TOPIC",
    "TAGS", "TIMER_DELAY_LEVEL", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY",
    "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TRACE_CONTEXT", "TRACE_ON",
    "TRANSACTION_CHECK_TIMES", "TRANSFER_FLAG", "TRAN_MSG", "TRAN_PREPARED_QUEUE_OFFSET", "TTL", "UNIQ_KEY", "WAIT",
    "__CRC32#", "__SHARDINGKEY", "__transactionId__",
})  # fmt: skip
"""Names that the broker and its clients use. Any other is a user's."""


def parse(text: str) -> dict[str, str]:
    """Return names and values as the broker reads them.

    The last separator may be missing. A pair of fewer than three characters, with an empty name or value, or without a
    separator is skipped; the first 0x01 splits; of one name the last pair counts.
    """
    found: dict[str, str] = {}
    for pair in text.split(VALUE_END):
        if len(pair) >= 3:
            name, separator, value = pair.partition(NAME_END)
            if name and separator and value:
                found[name] = value
    return found


def whole_number(text: str | None, default: int = 0, *, bits: int = 64) -> int:
    """Return a number in the digits of a property; ``default`` for anything else, and for more than ``bits``."""
    if text is None or _WHOLE.fullmatch(text) is None or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        return default
    return int(text)


def split(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return what :func:`parse` does, the system's properties and the user's apart."""
    system: dict[str, str] = {}
    user: dict[str, str] = {}
    for pair in text.split(VALUE_END):
        if len(pair) >= 3:
            name, _, value = pair.partition(NAME_END)
            if name and value:
                (system if name in SYSTEM else user)[name] = value
    return system, user


def by_owner(found: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the system's properties and the user's apart."""
    system = {name: value for name, value in found.items() if name in SYSTEM}
    return system, {name: value for name, value in found.items() if name not in SYSTEM}


def real_queue(found: Mapping[str, str], topic: str, queue_id: int) -> tuple[str, int]:
    """Return topic and queue id of a message that waits in one of the broker's own topics, at ``topic`` and ``queue_id``."""
    return found.get(REAL_TOPIC, topic), whole_number(found.get(REAL_QUEUE_ID), queue_id, bits=32)


def encode(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the string of these pairs."""
    return "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in pairs)


def without(stored: bytes, name: str) -> bytes:
    """Return a string of properties without the pairs of this name. The rest does not change."""
    end = VALUE_END.encode()
    return end.join(pair for pair in stored.split(end) if not pair.startswith(f"{name}{NAME_END}".encode()))


def extend(stored: bytes, more: bytes) -> bytes:
    """Return two strings of properties as one. The last separator of the first may be missing."""
    end = VALUE_END.encode()
    return stored + end + more if stored and more and not stored.endswith(end) else stored + more


def make_room(stored: bytes) -> tuple[bytes, bool]:
    """Return a string of properties with zeros at its end for the checksum of the new record, and True, if it had one."""
    kept = without(stored, CRC_NAME)
    return (stored, False) if kept == stored else (extend(kept, bytes(CRC_BYTES)), True)


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, as a signed number of 32 bits."""
    found = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        found = (31 * found + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return found - 2**32 if found >= 2**31 else found
