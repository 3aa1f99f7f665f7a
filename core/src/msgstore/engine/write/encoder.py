"""Stored bodies: what the body codec makes of a batch, and which bodies it fails for.

A codec is a plugin, and a body that one fails for must not hold up the others of its batch, or every later flush of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgstore.contract import BodyCodec, MessageTooLarge, StoredBody, StoreIOError
from msgstore.engine.backends import Backends

_LATER = (OSError, MemoryError, StoreIOError)
"""No fault of a body: the same batch may succeed when it is tried again."""


class Refused(Exception):
    """``errors``: what the codec raised, by position in the batch."""

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        super().__init__(errors)
        self.errors = errors


class Encoder:
    """Of one open store."""

    def __init__(self, backends: Backends) -> None:
        self._codec: BodyCodec = backends.codec
        self._form = backends.write_format
        self._most = backends.most_body
        half = self._form.format.max_body // 2
        self.threshold = half if self._most is None else min(half, self._most + 1)
        """Bodies of so many bytes and more have to be passed to ``check`` before they are taken. Half of what a record holds
        leaves room for what a codec adds."""

    def check(self, body: bytes) -> None:
        """Raises MessageTooLarge, or Refused, for a body that cannot be written."""
        if self._most is not None and len(body) > self._most and not isinstance(body, StoredBody):
            raise MessageTooLarge(f"a body of {len(body)} bytes; the body codec takes {self._most} at most; split the message")
        if len(body) > self._form.format.max_body // 2:
            try:
                self._encoded([body])
            except (MessageTooLarge, *_LATER):
                raise
            except Exception as error:
                raise Refused({0: error}) from error

    def encode(self, bodies: Sequence[bytes]) -> Sequence[bytes]:
        """Raises Refused if the codec fails for some of them when they come one by one, and what may pass."""
        try:
            return self._encoded(bodies)
        except _LATER:
            raise
        except Exception:
            pass
        stored: list[bytes] = []
        errors: dict[int, Exception] = {}
        for at, body in enumerate(bodies):
            try:
                stored += self._encoded([body])
            except _LATER:
                raise
            except Exception as error:
                errors[at] = error
        if errors:
            raise Refused(errors)
        return stored

    def _encoded(self, bodies: Sequence[bytes]) -> Sequence[bytes]:
        """What the codec gives, if it is what a format can store."""
        stored = self._codec.encode(bodies)
        if len(stored) != len(bodies):
            raise ValueError(f"{len(stored)} stored bodies for {len(bodies)}")
        if stored is bodies and len(bodies) > 1:
            return stored  # unchanged, and none is larger than what was looked at alone
        wrong = next((kind for kind in set(map(type, stored)) if not issubclass(kind, bytes)), None)
        if wrong is not None:
            raise TypeError(f"a stored body is bytes, not {wrong.__name__}")
        largest, most = max(map(len, stored)), self._form.format.max_body
        if largest > most:
            raise MessageTooLarge(
                f"a body of {largest} bytes does not fit into a record of format {self._form.name!r} (at most {most}); "
                "split the message"
            )
        return stored
