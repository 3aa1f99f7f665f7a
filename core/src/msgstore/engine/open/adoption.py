"""Adoption: a directory of a broker is changed only if the caller adopts it, and keeps the body codec of its records."""

from __future__ import annotations

import re
from collections import Counter

import attrs

from msgstore.config import Backend, StoreConfig, structure
from msgstore.contract import BodyCodec, MsgStoreError, NotAdopted, StoreMismatch
from msgstore.directory import Settings
from msgstore.engine.backends import Backends
from msgstore.engine.segment.segments import Segments
from msgstore.plugins.catalogue import Catalogue

_BROKERS_NAME = re.compile(
    r"msg_store_(persistent|transient|index\.ets)|file_summary\.ets|recovery\.dets|\.vhost|\.queue_name|journal\.jif"
    r"|\d+\.(idx|qi|qs)"
)
"""Names of files and directories in a broker's virtual host, message store or queue directory."""
_BODIES = 1000
"""Bodies that are checked to find their codec."""
_BODY_BYTES = 2**26
"""Bytes of these bodies, about."""


def admit(
    config: StoreConfig, catalogue: Catalogue, backends: Backends, remembered: Settings | None, segments: Segments
) -> StoreConfig:
    """Check that ``segments`` may be changed. Return the configuration, with the body codec of an adopted directory.

    Raises NotAdopted for segments without ``msgstore.json`` unless the configuration adopts them, StoreMismatch for a second
    body codec, and PluginError if the codec of the records is not installed.
    """
    if remembered is None and not config.adopt:
        names = segments.files.list(config.path).keys() | segments.files.non_regular_files(config.path).keys()
        theirs = next(filter(_BROKERS_NAME.fullmatch, sorted(names)), None)
        if segments.by_number:
            first, extension = next(iter(segments)).path.name, backends.write_format.descriptor.extension
            raise NotAdopted(
                f"{config.path}: belongs to the broker that wrote it: there is {first}, and no msgstore.json. Released "
                f"RabbitMQ reads *.rdq only, and no released broker reads *.sqs; this store would write *{extension}. "
                f"Copy its messages into a fresh store: msgstore salvage {config.path} DEST. To change the directory itself, "
                f"copy it first, and adopt it: --adopt on the command line, adopt=True in Python, adopt = true in a "
                f"configuration."
            )
        if theirs is not None:
            raise NotAdopted(
                f"{config.path}: belongs to a broker: there is {theirs}. A store in it would hide what the broker has there. "
                f"Choose another directory. To make a store here anyway: adopt=True, or --adopt."
            )
    if segments.by_number and remembered is None:
        return attrs.evolve(config, body=_codec_of_records(config, catalogue, backends.codec, segments))
    if segments.by_number and remembered is not None and config.body.named and config.body.name != remembered.body:
        raise StoreMismatch(
            f"{config.path}: its bodies are stored by the codec {remembered.body!r}, and the configuration names "
            f'{config.body.name!r}; a directory has one codec. Write body = "{remembered.body}", or leave it out; to change '
            f"the codec, make a fresh store with 'msgstore export' and 'msgstore import'."
        )
    return config


def _codec_of_records(config: StoreConfig, catalogue: Catalogue, codec: BodyCodec, segments: Segments) -> Backend:
    """Return the codec of a broker if the records have it, otherwise the configured one.

    More than half of the first bodies decide: a few damaged or ambiguous ones decide nothing.
    """
    bodies = _first_bodies(segments)

    def fits(codec: BodyCodec) -> bool:
        return 2 * sum(_accepts(codec, *body) for body in bodies) > len(bodies)

    for name, count in Counter(catalogue.known_codec(stored) for _, stored in bodies).items():
        if name is not None and 2 * count > len(bodies):
            try:
                descriptor = catalogue.body_codec(name)
                theirs = catalogue.make(descriptor, structure(descriptor.options, {}, f"{config.path}: the body codec {name}"))
            except MsgStoreError as error:
                raise type(error)(f"{config.path}: its bodies are stored by the body codec {name!r}: {error}") from error
            if fits(theirs):
                if config.body.named and config.body.name != name:
                    raise _contradiction(config, f"are stored by the codec {name!r}", f'Write body = "{name}"')
                return config.body if config.body.named else Backend(name)
    if config.body.named and bodies and not fits(codec):
        raise _contradiction(config, "are none of its", "Name the codec that they were stored by")
    return config.body


def _first_bodies(segments: Segments) -> list[tuple[bytes, bytes]]:
    bodies: list[tuple[bytes, bytes]] = []

    def is_missing() -> bool:
        return len(bodies) < _BODIES and sum(len(stored) for _, stored in bodies) < _BODY_BYTES

    def add(msg_id: bytes, stored: bytes) -> bool:
        if is_missing():
            bodies.append((msg_id, stored))
        return True  # the scan must not report it as damaged

    for segment in segments:
        if is_missing():
            with segments.files.view(segment.path) as data:
                segment.form.format.scan(data, check_body=add)
    return bodies


def _contradiction(config: StoreConfig, what: str, action: str) -> StoreMismatch:
    return StoreMismatch(
        f"{config.path}: the configuration names the body codec {config.body.name!r}, and the bodies that are there {what}. "
        f"{action}, or leave it out."
    )


def _accepts(codec: BodyCodec, msg_id: bytes, stored: bytes) -> bool:
    try:
        return bool(codec.is_valid(msg_id, stored))
    except Exception:  # third-party code may raise anything
        return False
