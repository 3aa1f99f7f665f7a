"""FlatBuffers of the v2 layout: a verifying reader, and a writer by the ``flatbuffers`` package.

The schema is that of docs/spec/message_v2.fbs, as data. Nothing that the bytes say is trusted: each offset, length and vtable
is compared with the bytes that are there, and values that share bytes are read a bounded number of times.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    import flatbuffers

IDENTIFIER = b"MQV2"
_SHARING = 8
"""Limit of the bytes of all values, as a multiple of those of the buffer."""
_U16, _U32, _I32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")
_SCALARS = {
    "ubyte": struct.Struct("<B"), "bool": struct.Struct("<?"), "int": struct.Struct("<i"), "uint": struct.Struct("<I"),
    "long": struct.Struct("<q"), "ulong": struct.Struct("<Q"),
}  # fmt: skip
_ENDPOINT = struct.Struct("<QQIB3x")
_FAMILIES = {0: "None", 4: "IPv4", 6: "IPv6"}


@attrs.frozen
class Field:
    """A field of a table. Its id is its place in the table."""

    name: str
    kind: str
    """A scalar, ``string``, ``bytes``, ``endpoint``, ``[string]``, ``table:NAME`` or ``[table:NAME]``."""
    default: int = 0
    required: bool = False


TABLES: dict[str, tuple[Field, ...]] = {
    "Property": (Field("name", "string", required=True), Field("value", "bytes", required=True)),
    "SystemProperties": (
        Field("unique_key", "string"),
        Field("tags", "string"),
        Field("keys", "[string]"),
        Field("producer_group", "string"),
        Field("real_topic", "string"),
        Field("real_topic_incarnation", "ulong"),
        Field("real_queue_id", "int", -1),
        Field("delay_level", "int"),
        Field("deliver_at_ms", "long"),
        Field("sharding_key", "string"),
        Field("retry_topic", "string"),
        Field("max_reconsume_times", "int", -1),
        Field("wait_store_ok", "bool", 1),
        Field("trace_context", "string"),
        Field("dlq_origin_topic", "string"),
        Field("dlq_origin_message_id", "string"),
        Field("transaction_id", "string"),
        Field("prepared_queue_offset", "long", -1),
        Field("check_immunity_seconds", "int", -1),
        Field("inner_batch_base", "long", -1),
        Field("inner_batch_count", "int"),
        Field("untyped", "[table:Property]"),
    ),
    "MessageHeader": (
        Field("topic", "string", required=True),
        Field("topic_incarnation", "ulong"),
        Field("queue_id", "int"),
        Field("flag", "int"),
        Field("sys_flag", "int"),
        Field("born_timestamp", "long"),
        Field("born_host", "endpoint"),
        Field("store_host", "endpoint"),
        Field("body_crc", "uint"),
        Field("reconsume_times", "int"),
        Field("prepared_transaction_offset", "long"),
        Field("system", "table:SystemProperties"),
        Field("user_properties", "[table:Property]"),
    ),
}
UNKNOWN = "unknown_fields"
"""Member with the ids of fields that a newer writer has added, as far as they are set."""


class InvalidError(Exception):
    """Raised for bytes that are no valid header."""


def read_header(data: bytes) -> dict[str, Any]:
    """Return the fields of a header that are there. Raises InvalidError."""
    if data[4:8] != IDENTIFIER:
        raise InvalidError("the identifier is not MQV2")
    return _Reader(data).table("MessageHeader", _Reader(data).offset(0))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _SHARING * len(data) + 64

    def offset(self, at: int) -> int:
        """Return the place that the offset at ``at`` leads to."""
        return at + int(self._scalar(_U32, at))

    def table(self, name: str, at: int) -> dict[str, Any]:
        self._spend(4)
        vtable = at - self._scalar(_I32, at)
        size, table_size = self._scalar(_U16, vtable), self._scalar(_U16, vtable + 2)
        if size < 4 or size % 2 or vtable + size > len(self._data) or at + table_size > len(self._data):
            raise InvalidError(f"the table {name} does not fit into the header")
        found: dict[str, Any] = {}
        fields = TABLES[name]
        unknown = []
        for number in range((size - 4) // 2):
            place = self._scalar(_U16, vtable + 4 + 2 * number)
            if place and place >= table_size:
                raise InvalidError(f"field {number} of {name} is outside of its table")
            if place and number >= len(fields):
                unknown.append(number)
            elif place:
                found[fields[number].name] = self._value(fields[number].kind, at + place)
        for field in fields:
            if field.required and field.name not in found:
                raise InvalidError(f"{name} has no {field.name}")
        return found | ({UNKNOWN: unknown} if unknown else {})

    def _value(self, kind: str, at: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind], at)
        if kind == "endpoint":
            high, low, port, family = self._unpack(_ENDPOINT, at)
            if family not in _FAMILIES:
                raise InvalidError(f"there is no address family {family}")
            return {"hi": high, "lo": low, "port": port, "family": _FAMILIES[family]}
        if kind == "string":
            return self._text(self.offset(at))
        if kind == "bytes":
            return list(self._block(self.offset(at)))
        if kind.startswith("table:"):
            return self.table(kind[6:], self.offset(at))
        vector = self.offset(at)
        count = self._scalar(_U32, vector)
        if vector + 4 + 4 * count > len(self._data):
            raise InvalidError("a vector ends behind the header")
        inner = kind[1:-1]
        return [self._value(inner, vector + 4 + 4 * number) for number in range(count)]

    def _text(self, at: int) -> str:
        data = self._block(at)
        if self._data[at + 4 + len(data) : at + 5 + len(data)] != b"\0":
            raise InvalidError("a text has no end")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise InvalidError("a text is not UTF-8") from None

    def _block(self, at: int) -> bytes:
        size = self._scalar(_U32, at)
        if at + 4 + size > len(self._data):
            raise InvalidError("a value ends behind the header")
        self._spend(size + 4)
        return self._data[at + 4 : at + 4 + size]

    def _scalar(self, layout: struct.Struct, at: int) -> Any:
        return self._unpack(layout, at)[0]

    def _unpack(self, layout: struct.Struct, at: int) -> tuple[Any, ...]:
        if at < 0 or at + layout.size > len(self._data):
            raise InvalidError("an offset leads out of the header")
        return layout.unpack_from(self._data, at)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise InvalidError("values share bytes too often")


def encode_header(header: Mapping[str, Any]) -> bytes:
    """Return a header. Fields that are not there, or have their default, take no bytes."""
    import flatbuffers  # imports numpy: a tenth of a second for each program that loads the plugin

    builder = flatbuffers.Builder(256)
    builder.Finish(_add_table(builder, "MessageHeader", header), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def _add_table(builder: flatbuffers.Builder, name: str, values: Mapping[str, Any]) -> int:
    fields = TABLES[name]
    places: dict[int, int] = {}
    for number, field in enumerate(fields):
        value = values.get(field.name)
        if value is not None and field.kind not in _SCALARS and field.kind != "endpoint":
            places[number] = _add_value(builder, field.kind, value)
    builder.StartObject(len(fields))
    for number, field in enumerate(fields):
        value = values.get(field.name)
        if number in places:
            builder.PrependUOffsetTRelativeSlot(number, places[number], 0)
        elif value is not None and field.kind == "endpoint":
            builder.PrependStructSlot(number, _add_endpoint(builder, value), 0)
        elif value is not None:
            _SLOTS[field.kind](builder, number, value, field.default)
    return int(builder.EndObject())


_SLOTS: dict[str, Any] = {
    "bool": lambda builder, number, value, default: builder.PrependBoolSlot(number, bool(value), bool(default)),
    "int": lambda builder, number, value, default: builder.PrependInt32Slot(number, value, default),
    "uint": lambda builder, number, value, default: builder.PrependUint32Slot(number, value, default),
    "long": lambda builder, number, value, default: builder.PrependInt64Slot(number, value, default),
    "ulong": lambda builder, number, value, default: builder.PrependUint64Slot(number, value, default),
}


def _add_value(builder: flatbuffers.Builder, kind: str, value: Any) -> int:
    if kind == "string":
        return int(builder.CreateString(value))
    if kind == "bytes":
        return int(builder.CreateByteVector(bytes(value)))
    if kind.startswith("table:"):
        return _add_table(builder, kind[6:], value)
    places = [_add_value(builder, kind[1:-1], one) for one in value]
    builder.StartVector(4, len(places), 4)
    for place in reversed(places):
        builder.PrependUOffsetTRelative(place)
    return int(builder.EndVector())


def _add_endpoint(builder: flatbuffers.Builder, value: Mapping[str, Any]) -> int:
    families = {name: number for number, name in _FAMILIES.items()}
    builder.Prep(8, 24)
    builder.Pad(3)
    builder.PrependUint8(families[value["family"]])
    builder.PrependUint32(value["port"])
    builder.PrependUint64(value["lo"])
    builder.PrependUint64(value["hi"])
    return int(builder.Offset())
