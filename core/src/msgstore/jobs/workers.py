"""Installed plugins of a process: its catalogue, its codecs by name, and a check for pyarrow.

Jobs carry names, never plugin objects; each process resolves them through its own entry points.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from typing import NoReturn

import attrs

from msgstore.contract import (
    BodyCodec,
    BrokenPlugin,
    Capability,
    CheckBody,
    ConfigError,
    PluginError,
    RecordError,
    RecordField,
)
from msgstore.option_values import Backend, backend_of, structure
from msgstore.plugins.catalogue import Catalogue, load_catalogue
from msgstore.plugins.loader import comes_from_outside, find_entry_points
from msgstore.scan import Values
from msgstore.scan.segment import check_values

PAYLOAD = RecordField("payload", "bytes", "what a client reads")
"""Column for codecs that do not store plain bytes, unless they have a field of this name."""
DISABLED = "_MSGSTORE_DISABLED"
"""Environment variable with the disabled plugins, one a line. Worker processes inherit it."""


def check_pyarrow(what: str) -> None:
    """Raise ConfigError if pyarrow is missing. ``what`` is the beginning of its message, such as "Parquet is read"."""
    if find_spec("pyarrow") is None:
        raise ConfigError(f"{what} with pyarrow, which is not installed. Try: pip install 'pyarrow>=18'")


@contextlib.contextmanager
def disable_plugins(names: Iterable[str]) -> Iterator[None]:
    """Omit plugins in this process and in the worker processes that it starts during the block."""
    os.environ[DISABLED] = "\n".join(names)
    try:
        _forget_plugins()
        yield
    finally:
        os.environ.pop(DISABLED, None)
        _forget_plugins()


def _forget_plugins() -> None:
    worker_catalogue.cache_clear()
    body_codec.cache_clear()


def disabled_plugins() -> tuple[str, ...]:
    """Return the names of the plugins that this process omits. One that it does not have is left out: the process that has read
    the configuration has checked the names, and an executor need not have the plugin."""
    names = os.environ.get(DISABLED, "").splitlines()
    installed = {known for provider, _ in find_entry_points() if names for known in provider.names}
    return tuple(name for name in names if name in installed)


@cache
def worker_catalogue() -> Catalogue:
    """Return the catalogue of the plugins that this process has installed, without the disabled ones."""
    return load_catalogue(disabled_plugins())


@cache
def body_codec(body: Backend) -> BodyCodec:
    """Return a body codec. Raises PluginError, and ConfigError for wrong options."""
    descriptor = worker_catalogue().body_codec(body.name)
    options = structure(descriptor.options, body.options, f"the body codec {body.name}", body.base)
    codec: BodyCodec = worker_catalogue().make(descriptor, options)
    return codec


def body_check(body: Backend | None) -> CheckBody | None:
    """Return the check that a codec makes of a stored body; None without a codec. Raises PluginError, ConfigError."""
    return None if body is None else partial(is_valid, body.name, body_codec(body))


def is_valid(name: str, codec: BodyCodec, msg_id: bytes, body: bytes) -> bool:
    """Return True for a valid stored body. Raises BrokenPlugin if the codec raises: then the body may be valid."""
    try:
        valid = codec.is_valid(msg_id, body)
        if not isinstance(valid, bool):
            raise TypeError(f"it returns {type(valid).__name__}, not bool")
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        _blame(name, "is_valid", error)
    return valid


def _blame(name: str, method: str, error: BaseException) -> NoReturn:
    """Raise BrokenPlugin, which names a codec, or ``error`` itself if that is no fault of the codec."""
    if isinstance(error, MemoryError | ConfigError | PluginError) or comes_from_outside(error):
        raise error
    raise worker_catalogue().broken(worker_catalogue().body_codec(name), f"failed in {method}", error) from error


@attrs.frozen
class OpenCodec:
    """A body codec for tools, which show the values in stored bodies."""

    name: str
    fields: tuple[RecordField, ...]
    read: Callable[[bytes, bytes], Values | None]
    """Returns the values of one stored body, in the order of ``fields``; None if the body is invalid. Raises BrokenPlugin."""


def open_codec(body: str | Backend) -> OpenCodec:
    """Return a body codec for tools. Raises PluginError, and ConfigError for wrong options."""
    backend = backend_of(body)
    name = backend.name
    codec, descriptor = body_codec(backend), worker_catalogue().body_codec(name)
    fields = descriptor.fields
    if fields and not callable(getattr(codec, "fields", None)):
        raise BrokenPlugin(
            f"the body codec {name!r} says that its bodies have fields, and has no method 'fields'. "
            f"Try: pip install --upgrade {worker_catalogue().provider(descriptor).distribution}"
        )
    with_payload = Capability.PLAIN not in descriptor.capabilities and PAYLOAD.name not in {field.name for field in fields}

    def read(msg_id: bytes, stored: bytes) -> Values | None:
        method = "fields"
        try:
            values = codec.fields(stored) if fields else ()  # type: ignore[attr-defined]  # of a BodyCodecWithFields
            if values is None:
                return None
            values = check_values(fields, values)
            method = "decode"
            payload = codec.decode(msg_id, stored) if with_payload else b""
            if not isinstance(payload, bytes):
                raise TypeError(f"a body is bytes, not {type(payload).__name__}")
            return (*values, bytes(payload)) if with_payload else values
        except RecordError:
            return None
        except (Exception, SystemExit) as error:
            _blame(name, method, error)

    return OpenCodec(name, (*fields, PAYLOAD) if with_payload else fields, read)
