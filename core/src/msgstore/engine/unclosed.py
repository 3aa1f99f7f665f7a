"""A warning for a store that is never closed: what it has not confirmed is lost, and nobody else would say so."""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Mapping, Sized
from pathlib import Path

log = logging.getLogger("msgstore.store")


def watch_for_close(
    store: object, path: Path, pending: Sized, unconfirmed: Mapping[int, Sized]
) -> weakref.finalize[..., object]:
    """Warn when ``store`` is collected, or the interpreter exits, unless the result is detached first. Takes no lock.

    ``pending`` is what is in memory only, ``unconfirmed`` what each client waits for. Neither may refer to the store, which
    would live for ever."""
    return weakref.finalize(store, _warn, path, pending, unconfirmed)


def _warn(path: Path, pending: Sized, unconfirmed: Mapping[int, Sized]) -> None:
    count = max(len(pending), sum(map(len, list(unconfirmed.values()))))
    if count:
        lost = f"at least {count} writes are not confirmed: they may be lost"
        text = f"{path}: the store was never closed, and {lost}. Call close()."
        log.warning("%s", text)
        warnings.warn(text, ResourceWarning, stacklevel=2)
