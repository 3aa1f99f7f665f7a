"""Messages that the body codec failed for when they were to be written.

They were taken, and nobody was told that they are safe. Kept, they would be tried again by every flush for ever, and each would
fail for everybody; so they are dropped, are never confirmed, and the next flush or ``close`` of a client says so, once.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

from msgstore.config import StoreConfig
from msgstore.contract import BodyRefused
from msgstore.engine.write.write_buffer import Entry

log = logging.getLogger("msgstore.writer")

_SHOWN = 5
"""Ids that a message names."""
_DO = "Write it in another form, or mend the codec."


class RejectedMessages:
    """Of one open store. All of it with ``LiveAccounting.flushing``, but for ``raise_once``."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._unsaid: deque[tuple[bytes, Exception]] = deque()
        self._never: Counter[tuple[int, bytes]] = Counter()
        """(number of a client, id): so often the client's list of what is to be confirmed has what is not."""

    def add(self, refused: Iterable[tuple[bytes, Entry, Exception]]) -> None:
        for msg_id, entry, error in refused:
            owners = entry[1] if isinstance(entry[1], dict) else {entry[1]: 1}
            for number, count in owners.items():
                self._never[number, msg_id] += count
            self._unsaid.append((msg_id, error))
            log.error("%s", self._text([(msg_id, error)]), exc_info=error)

    def confirmable(self, number: int, ids: list[bytes]) -> list[bytes]:
        """Of what a client is about to be told, the ids of what is safe. The first of an id is the one that was dropped: what
        was written behind that stands behind it."""
        return [msg_id for msg_id in ids if not self._takes(number, msg_id)] if self._never else ids

    def _takes(self, number: int, msg_id: bytes) -> bool:
        if not self._never[number, msg_id]:
            del self._never[number, msg_id]  # which asking has made
            return False
        self._never[number, msg_id] -= 1
        return True

    def raise_once(self) -> None:
        """Raises BodyRefused for what nobody was told yet."""
        unsaid = []
        with suppress(IndexError):  # several may be asking
            while self._unsaid:
                unsaid.append(self._unsaid.popleft())
        if unsaid:
            raise BodyRefused(self._text(unsaid), [msg_id for msg_id, _ in unsaid]) from unsaid[0][1]

    def not_taken(self, msg_id: bytes, error: Exception) -> BodyRefused:
        """Of a message that was looked at before it was taken."""
        return BodyRefused(f"{self._failed} this body, which is not taken: {_told(msg_id, error)}. {_DO}", [msg_id])

    @property
    def _failed(self) -> str:
        return f"{self._config.path}: the body codec {self._config.body.name!r} failed for"

    def _text(self, refused: Sequence[tuple[bytes, Exception]]) -> str:
        shown = "; ".join(_told(msg_id, error) for msg_id, error in refused[:_SHOWN])
        more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        return f"{self._failed} what was written, which is dropped, not confirmed: {shown}{more}. All else is written. {_DO}"


def _told(msg_id: bytes, error: Exception) -> str:
    return f"{msg_id.hex()}: {type(error).__name__}: {error}"
