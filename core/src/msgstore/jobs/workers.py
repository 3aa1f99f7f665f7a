"""What a process that does part of a job makes once and keeps: its own catalogue of plugins, and codecs, by name.

Jobs carry names, never plugin objects; each process resolves them through its own entry points.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from msgstore.config import structure
from msgstore.contract import BodyCodec, MsgStoreError
from msgstore.plugins.catalogue import Catalogue, load_catalogue


@cache
def installed() -> Catalogue:
    """What is installed where this runs."""
    return load_catalogue()


@cache
def body_codec(name: str) -> BodyCodec:
    """With the options of its defaults. Raises PluginError."""
    descriptor = installed().body_codec(name)
    codec: BodyCodec = installed().make(descriptor, structure(descriptor.options, {}, f"the body codec {name}"))
    return codec


def body_check(name: str | None) -> Callable[[bytes], bool] | None:
    """The test of a stored body that a codec makes; None for none. Raises PluginError."""
    return None if name is None else partial(is_valid, body_codec(name))


def is_valid(codec: BodyCodec, body: bytes) -> bool:
    """Whether it is a stored body of the codec. One for which the codec raises is not: no other is lost for it."""
    try:
        return codec.is_valid(body)
    except (MemoryError, MsgStoreError):
        raise
    except Exception:  # of a stranger's code
        return False
