"""Backends: resolve every name of a store's configuration to the object that the store uses, once per opening."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import attrs

from msgstore.config import StoreConfig
from msgstore.contract import (
    BodyCodec,
    BodyCodecDescriptor,
    BodyRefused,
    Capability,
    ConfigError,
    GcPolicy,
    GcPolicyDescriptor,
    Index,
    IndexContext,
    IndexDescriptor,
    MessageTooLarge,
    PluginError,
    RecordError,
    StoredBody,
    StoreIOError,
    StoreMismatch,
)
from msgstore.directory import Settings
from msgstore.files import Files
from msgstore.option_values import Backend, refuse_unknown, structure
from msgstore.plugins.catalogue import Catalogue
from msgstore.plugins.frames import place_of
from msgstore.plugins.loader import comes_from_outside
from msgstore.scan import FormatSet, OpenFormat
from msgstore.scan.formats import OWN_RECORD, assigned_byte, check_bindings


@attrs.frozen
class Backends:
    """Backends of one store, and what follows from them."""

    formats: FormatSet
    write_format: OpenFormat
    codec: BodyCodec
    decode_body: Callable[[bytes, bytes], bytes]
    """Convert (id, stored body) to the client's body. Raises RecordError, and BrokenPlugin if the codec raises another."""
    plain_bodies: bool
    """True if the codec changes nothing."""
    codec_has_options: bool
    """True if the codec has options, such as a key: with other ones it cannot read what it wrote."""
    encode_body: Callable[[bytes, bytes], StoredBody] | None
    """Convert (id, client's body) to the stored body; None if the codec is PLAIN. Raises BodyRefused, MessageTooLarge."""
    policy: GcPolicy
    may_drop: bool
    """True if the policy may delete live messages."""
    settings: Settings
    """Settings to save in the directory, without those that depend on its segments."""


def resolve(config: StoreConfig, catalogue: Catalogue, remembered: Settings | None) -> Backends:
    """Return everything that a configuration selects, except the index, which needs the lock of the directory.

    Touches no file. Raises ConfigError, PluginError and StoreMismatch, naming the table and the key.
    """
    if remembered:
        catalogue = attrs.evolve(catalogue, remembered=remembered.distributions)
    formats, bound = _formats(config, catalogue, remembered)
    body = config.body if config.body.named or remembered is None else Backend(remembered.body, named=False)
    with _selected(config.at("body")):
        codec = catalogue.body_codec(body.name)
        made_codec = _make_codec(config, catalogue, codec, body)
    with _selected(config.at("gc")):
        policy = catalogue.gc_policy(config.gc.name)
        made_policy = catalogue.make(policy, structure(policy.options, config.gc.options, config.at("gc"), config.gc.base))
    index, _ = _index_options(config, catalogue)
    with _of_records(config.path, bound), _selected(config.at("format")):  # records of a missing type would be unreadable
        write_format = formats.by_name(config.format.name)
    third_party = catalogue.third_party_providers(
        [
            ("index", index),
            ("format", write_format.descriptor),
            ("body", codec),
            *(("record", catalogue.record(write_format.name, name)) for name in bound if write_format.typed),
        ]
    )
    return Backends(
        formats,
        write_format,
        made_codec,
        _decoder(catalogue, codec, made_codec),
        Capability.PLAIN in codec.capabilities,
        bool(attrs.fields(codec.options)),
        None if Capability.PLAIN in codec.capabilities else _encoder(config, catalogue, codec, made_codec, write_format),
        made_policy,
        may_drop(policy),
        Settings(config.index.name, config.format.name, config.record, body.name, bound, third_party),
    )


def _make_codec(config: StoreConfig, catalogue: Catalogue, codec: BodyCodecDescriptor, body: Backend) -> BodyCodec:
    """Return a codec. One that a directory remembers may lack options: then its first use raises ConfigError, because much can
    be done without it."""
    try:
        options = structure(codec.options, body.options, config.at("body"), body.base)
    except ConfigError as error:
        if body.named:
            raise
        return _Unconfigured(
            f"{config.path}: was written with the body codec {body.name!r}, which has options: {error}. Give them in a "
            f"configuration (--config FILE), in Python as body={{'use': {body.name!r}, ...}}, or as JSON with --body or "
            "--source-option body=JSON, where a command has it."
        )
    made: BodyCodec = catalogue.make(codec, options)
    return made


@attrs.frozen
class _Unconfigured:
    """Codec without the options that it needs."""

    error: str

    def encode(self, *_: bytes) -> NoReturn:
        raise ConfigError(self.error)

    decode = is_valid = encode


def _encoder(
    config: StoreConfig, catalogue: Catalogue, descriptor: BodyCodecDescriptor, codec: BodyCodec, form: OpenFormat
) -> Callable[[bytes, bytes], StoredBody]:
    encode, max_body = codec.encode, form.format.max_body

    def encode_body(msg_id: bytes, body: bytes) -> StoredBody:
        try:
            stored = encode(msg_id, body)
            if not isinstance(stored, bytes):
                raise TypeError(f"a stored body is bytes, not {type(stored).__name__}")
        except MessageTooLarge as error:
            raise MessageTooLarge(f"{config.path}: {error}") from error.__cause__
        except (MemoryError, StoreIOError, ConfigError):
            raise
        except Exception as error:  # third-party code may raise anything
            if comes_from_outside(error):
                raise
            named = f"{descriptor.name!r} of {catalogue.provider(descriptor).distribution}"
            raise BodyRefused(
                f"{config.path}: the body codec {named} refused the body of {msg_id.hex()}, and the message was not taken: "
                f"{type(error).__name__}: {error}{place_of(descriptor, error)}. Change the body, or fix the codec."
            ) from error
        if len(stored) > max_body:
            raise too_large(config.path, len(stored), form)
        return StoredBody(stored)

    return encode_body


def too_large(path: Path, size: int, form: OpenFormat) -> MessageTooLarge:
    """Return the error for a stored body that no record can hold."""
    return MessageTooLarge(
        f"{path}: a body of {size} bytes does not fit into a record of format {form.name!r} (at most {form.format.max_body}); "
        "split the message"
    )


def _decoder(catalogue: Catalogue, descriptor: BodyCodecDescriptor, codec: BodyCodec) -> Callable[[bytes, bytes], bytes]:
    decode = codec.decode

    def decode_body(msg_id: bytes, stored: bytes) -> bytes:
        try:
            body = decode(msg_id, stored)
            if not isinstance(body, bytes):
                raise TypeError(f"a body is bytes, not {type(body).__name__}")
        except (RecordError, MemoryError, ConfigError):
            raise
        except Exception as error:  # third-party code may raise anything
            if comes_from_outside(error):
                raise
            raise catalogue.broken(descriptor, f"failed in decode of {msg_id.hex()}", error) from error
        return body

    return decode_body


def may_drop(policy: GcPolicyDescriptor) -> bool:
    """Return True if the policy may delete live messages."""
    return Capability.DROPS_MESSAGES in policy.capabilities


def make_index(config: StoreConfig, catalogue: Catalogue, files: Files, *, read_only: bool, live: bool) -> Index:
    """Return the configured index."""
    descriptor, options = _index_options(config, catalogue)
    context = IndexContext(options, config.path, files, sync=config.durability != "os", read_only=read_only, live=live)
    with _selected(config.at("index")):
        made: Index = catalogue.make(descriptor, context)
        return made


def can_be_read_live(name: str, catalogue: Catalogue) -> bool:
    """Return True if the index is installed, and can be read while another process writes it."""
    try:
        return Capability.LIVE_READS in catalogue.index(name).capabilities
    except PluginError:
        return False


def load_entries(index: Index) -> dict[bytes, bytes]:
    """Let an index restore its entries. Return the state that was saved with them. TypeError for another result."""
    state = index.load()
    if not isinstance(state, dict | None):
        raise TypeError(f"load gives {type(state).__name__}, not a dict")
    return state or {}


@contextmanager
def of_index(name: str, config: StoreConfig, catalogue: Catalogue, what: str) -> Iterator[None]:
    """Enclose a call of an index during an opening: its exceptions get the names of plugin and store."""
    with _selected(config.at("index")), catalogue.attribute_errors(catalogue.index(name), f"cannot {what} {config.path}"):
        yield


@contextmanager
def _selected(where: str) -> Iterator[None]:
    """Begin the text of a PluginError with ``where``: the table and the key that selected the plugin."""
    try:
        yield
    except PluginError as error:
        raise type(error)(f"{where}: {error}") from error.__cause__  # the text of the error is in the new one


def _of_records(directory: Path, bound: Mapping[str, int]) -> AbstractContextManager[None]:
    """Begin the text of a PluginError with the record types of the directory: one of them may be the missing plugin."""
    listed = ", ".join(f"{record} = {byte}" for record, byte in bound.items())
    return _selected(f"{directory}: the store uses the record types {listed}") if bound else nullcontext()


def _index_options(config: StoreConfig, catalogue: Catalogue) -> tuple[IndexDescriptor, Any]:
    with _selected(config.at("index")):
        descriptor = catalogue.index(config.index.name)
    return descriptor, structure(descriptor.options, config.index.options, config.at("index"), config.index.base)


def _formats(config: StoreConfig, catalogue: Catalogue, remembered: Settings | None) -> tuple[FormatSet, dict[str, int]]:
    """Return the formats of the store, and the type byte of each record type, remembered ones included."""
    with _selected(config.at("format")):
        descriptor = catalogue.format(config.format.name)
    options = dict(config.format.options)
    bound: dict[str, int] = dict(remembered.records) if remembered else {}
    record_options: dict[str, Mapping[str, Any]] = {}
    if Capability.TYPED_RECORDS in descriptor.capabilities:
        # A misspelt ``records`` gets a hint here; the format would only look among its own options.
        refuse_unknown(options, ["records", *attrs.fields_dict(descriptor.options)], config.at("format"))
        given = options.pop("records", {})
        if not isinstance(given, dict):
            raise ConfigError(f"{config.at('format')} records: {given!r} is not a table of record types and bytes")
        known = {name: bound[name] for name in given if name in bound}
        with _of_records(config.path, known), _selected(config.at("format")):
            bindings = check_bindings(catalogue, descriptor.name, given, config.at("format"), bound, config.format.base)
        asked = {name: binding.byte for name, binding in bindings.items()}
        record_options = {name: binding.options for name, binding in bindings.items()}
        if config.record != OWN_RECORD and config.record not in asked and config.record not in bound:
            with _selected(config.at("record")):
                asked[config.record] = assigned_byte(
                    catalogue, descriptor.name, config.record, config.at("record").removesuffix(" record")
                )
        bound = _merged(bound, asked, config.path)
    elif config.record != OWN_RECORD:
        raise ConfigError(
            f"{config.at('record')}: format {descriptor.name!r} has no record types, so it cannot hold {config.record!r}. "
            'Write record = "message", choose another format, or copy the messages: msgstore migrate STORE DEST --to FORMAT'
        )
    formats = FormatSet(
        catalogue,
        bound,
        record=config.record,
        record_options=record_options,
        options=options,
        write_format=descriptor.name,
        where=config.where,
        base=config.format.base,
    )
    return formats, bound


def _merged(bound: dict[str, int], asked: dict[str, int], directory: Path) -> dict[str, int]:
    for name, byte in asked.items():
        if bound.get(name, byte) != byte:
            raise StoreMismatch(
                f"{directory}: the record type {name!r} is bound to byte {bound[name]} here, for ever; the configuration binds "
                f"it to {byte}. Write {name} = {bound[name]}, or leave it out."
            )
        other = next((known for known, taken in bound.items() if taken == byte and known != name), None)
        if other is not None:
            raise StoreMismatch(
                f"{directory}: byte {byte} belongs to the record type {other!r} here, for ever; the configuration binds it to "
                f"{name!r}. Choose another byte for {name}."
            )
    return bound | asked
