"""Adoption: a directory of a broker is changed only if the caller adopts it, and keeps the body codec of its records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import attrs

from msgstore.config import Backend, StoreConfig, structure
from msgstore.contract import BodyCodec, MsgStoreError, NotAdopted, StoreMismatch
from msgstore.directory import DamagedSettings, Settings
from msgstore.engine.backends import Backends
from msgstore.engine.open.clean_shutdown import SAVED_INDEXES
from msgstore.engine.segment.segments import Segments
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue

_BROKERS_NAME = re.compile(
    r"msg_store_(persistent|transient|index\.ets)|file_summary\.ets|recovery\.dets|\.vhost|\.queue_name|journal\.jif"
    r"|\d+\.(idx|qi|qs)"
)
"""Names of files and directories in a broker's virtual host, message store or queue directory."""
_BODIES = 1000
"""Bodies that are checked to find their codec."""


def admit(
    config: StoreConfig, catalogue: Catalogue, backends: Backends, files: Files, remembered: Settings | None, segments: Segments
) -> StoreConfig:
    """Check that ``segments`` may be changed. Return the configuration, with the body codec of an adopted directory.

    Raises NotAdopted for segments without ``msgstore.json`` unless the configuration adopts them, StoreMismatch for a second
    body codec, and PluginError if the codec of the records is not installed.
    """
    if remembered is None and not config.adopt:
        names = files.list(config.path).keys() | files.non_regular_files(config.path).keys()
        if segments.by_number:
            raise NotAdopted(_refusal(config, backends, segments))
        if theirs := _of_a_broker(names):
            raise NotAdopted(
                f"{config.path}: belongs to a broker: there is {theirs}. A store in it would hide what the broker has there. "
                f"Choose another directory. To make a store here anyway: adopt=True, or --adopt."
            )
    if not segments.by_number:
        return config
    if remembered is None:
        return attrs.evolve(config, body=codec_of_records(config, catalogue, backends.codec, files, segments))
    if config.body.named and config.body.name != remembered.body:
        raise StoreMismatch(
            f"{config.path}: its bodies are stored by the codec {remembered.body!r}, and the configuration names "
            f'{config.body.name!r}; a directory has one codec. Write body = "{remembered.body}", or leave it out; to change '
            f"the codec, make a fresh store with 'msgstore export' and 'msgstore import'."
        )
    return config


def check_guess(config: StoreConfig, files: Files, error: DamagedSettings) -> None:
    """Raise NotAdopted for a directory with a damaged ``msgstore.json`` in which a broker has shut down cleanly."""
    theirs = next((name for name in SAVED_INDEXES if name in files.list(config.path)), None)
    if theirs is not None and not config.adopt:
        raise NotAdopted(
            f"{config.path}: seems to belong to a broker: there is {theirs}, which msgstore would have renamed, and "
            f"msgstore.json cannot be used ({error.reason}). To change the directory, copy it first, and adopt it: --adopt, or "
            "adopt=True."
        )


def _of_a_broker(names: Iterable[str]) -> str | None:
    """Return the first name that only a broker uses for a file or directory next to segments, or None."""
    return next((name for name in sorted(names) if _BROKERS_NAME.fullmatch(name)), None)


def _refusal(config: StoreConfig, backends: Backends, segments: Segments) -> str:
    first = segments.by_number[min(segments.by_number)].path.name
    extension = backends.write_format.descriptor.extension
    return (
        f"{config.path}: belongs to the broker that wrote it: there is {first}, and no msgstore.json. Released RabbitMQ reads "
        f"*.rdq only, and no released broker reads *.sqs; this store would write *{extension}. "
        f"Copy its messages into a fresh store: msgstore salvage {config.path} DEST. To change the directory itself, copy it "
        f"first, and adopt it: --adopt on the command line, adopt=True in Python, adopt = true in a configuration."
    )


@attrs.define
class _Sample:
    """Counts the codecs that the first bodies of a directory are valid for."""

    catalogue: Catalogue
    codec: BodyCodec
    """Codec of the configuration."""
    seen: int = 0
    valid: int = 0
    """Bodies that ``codec`` accepts."""
    known: Counter[str] = attrs.field(factory=Counter)
    """Bodies by the codec of a broker that they look like; if it is installed, those that it accepts."""
    others: Counter[str] = attrs.field(factory=Counter)
    """Bodies by each other installed codec that accepts them, but not the same bytes backwards."""
    _installed: dict[str, BodyCodec | None] = attrs.field(factory=dict)

    def add(self, msg_id: bytes, stored: bytes) -> bool:
        """Count one body. Return True: the scan that calls this must not report it as damaged."""
        if self.seen < _BODIES:
            self.seen += 1
            self.valid += _accepts(self.codec, msg_id, stored)
            name = self.catalogue.known_codec(stored)
            if name is not None:
                codec = self._codec(name)
                self.known[name] += codec is None or _accepts(codec, msg_id, stored)
            for other in self.catalogue.names("body"):
                codec = self._codec(other)
                if codec is not None:
                    self.others[other] += _accepts(codec, msg_id, stored) and not _accepts(codec, msg_id, stored[::-1])
        return True

    def _codec(self, name: str) -> BodyCodec | None:
        if name not in self._installed:
            try:
                descriptor = self.catalogue.body_codec(name)
                made = self.catalogue.make(descriptor, structure(descriptor.options, {}, f"the body codec {name}"))
            except MsgStoreError:
                made = None
            self._installed[name] = made
        return self._installed[name]

    def is_most(self, count: int) -> bool:
        """Return True for more than half of the bodies: a few damaged or ambiguous ones decide nothing."""
        return 2 * count > self.seen


def codec_of_records(config: StoreConfig, catalogue: Catalogue, codec: BodyCodec, files: Files, segments: Segments) -> Backend:
    """Return the body codec that the records of a directory have; that of the configuration if they do not tell."""
    sample = _Sample(catalogue, codec)
    for number in sorted(segments.by_number):
        if sample.seen >= _BODIES:
            break
        segment = segments.by_number[number]
        with files.view(segment.path) as data:
            segment.form.format.scan(data, check_body=sample.add)
    found = next((name for name, count in sample.known.items() if sample.is_most(count)), None)
    if found is not None:
        _check_installed(config, catalogue, found)
        if config.body.named and config.body.name != found:
            raise _contradiction(config, f"are stored by the codec {found!r}", f'Write body = "{found}"')
        return config.body if config.body.named else Backend(found)
    if config.body.named and sample.seen and not sample.is_most(sample.valid):
        raise _contradiction(config, "are none of its", "Name the codec that they were stored by")
    other = next((name for name, count in sample.others.items() if sample.is_most(count)), None)
    if other is not None and not config.body.named:
        raise StoreMismatch(
            f"{config.path}: bodies look as the codec {other!r} stores them, and no sound msgstore.json says so. "
            f'Name it: body = "{other}", or body = "{config.body.name}" if they are to be read as they are.'
        )
    return config.body


def _check_installed(config: StoreConfig, catalogue: Catalogue, name: str) -> None:
    try:
        catalogue.body_codec(name)
    except MsgStoreError as error:
        raise type(error)(f"{config.path}: its bodies are stored by the body codec {name!r}: {error}") from error


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
