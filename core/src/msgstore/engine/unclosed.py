"""Warning for a store that is never closed: its unconfirmed messages are lost, and no other message would say so."""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Mapping, Sized
from pathlib import Path

log = logging.getLogger("msgstore.store")


def warn_if_unclosed(
    store: object, path: Path, pending: Sized, unconfirmed: Mapping[int, Sized]
) -> weakref.finalize[..., object]:
    """Warn when ``store`` is collected, or the interpreter exits, unless the result is detached first. Takes no lock.

    ``pending`` holds the messages in memory, ``unconfirmed`` the ids that each client waits for. Neither may refer to the store,
    which would then never be collected.
    """
    return weakref.finalize(store, _warn, path, pending, unconfirmed)


def _warn(path: Path, pending: Sized, unconfirmed: Mapping[int, Sized]) -> None:
    count = max(len(pending), sum(map(len, list(unconfirmed.values()))))
    if count:
        lost = f"at least {count} writes are not confirmed: they may be lost"
        text = f"{path}: the store was never closed, and {lost}. Call close()."
        log.warning("%s", text)
        warnings.warn(text, ResourceWarning, stacklevel=2)
