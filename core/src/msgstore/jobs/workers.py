"""Objects that a worker process makes once: its catalogue of plugins, and codecs by name.

Jobs carry names, never plugin objects; each process resolves them through its own entry points.
"""

from __future__ import annotations

from functools import cache, partial

from msgstore.config import structure
from msgstore.contract import BodyCodec, CheckBody, MsgStoreError
from msgstore.plugins.catalogue import Catalogue, load_catalogue


@cache
def installed() -> Catalogue:
    """Return the catalogue of the plugins that this process has installed."""
    return load_catalogue()


@cache
def body_codec(name: str) -> BodyCodec:
    """With the options of its defaults. Raises PluginError."""
    descriptor = installed().body_codec(name)
    codec: BodyCodec = installed().make(descriptor, structure(descriptor.options, {}, f"the body codec {name}"))
    return codec


def body_check(name: str | None) -> CheckBody | None:
    """The test of a stored body that a codec makes; None for none. Raises PluginError."""
    return None if name is None else partial(is_valid, body_codec(name))


def is_valid(codec: BodyCodec, msg_id: bytes, body: bytes) -> bool:
    """Return True for a stored body of the codec; False also if the codec raises, so that no other body is lost for it."""
    try:
        return codec.is_valid(msg_id, body)
    except (MemoryError, MsgStoreError):
        raise
    except Exception:  # of a stranger's code
        return False
