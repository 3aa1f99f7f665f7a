"""What a run found and counted."""

from __future__ import annotations

import threading
import traceback
from collections import Counter

import attrs

ENOUGH = 20
"""So many findings end a run."""


class Findings:
    """What was not as it should be, by kind. Any thread adds to it; one that looks at ``stop`` now and then ends early."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def add(self, kind: str, text: str) -> None:
        with self._lock:
            self.kinds[kind] += 1
            self.texts.append(f"{kind}: {text}")
            if len(self.texts) >= ENOUGH:
                self.stop.set()

    def error(self, where: str) -> None:
        """An exception that nobody expected, being handled. It ends the run."""
        self.add("error", f"{where}\n{traceback.format_exc()}")
        self.stop.set()

    def __bool__(self) -> bool:
        return bool(self.texts)

    def __str__(self) -> str:
        return "\n".join([f"{sum(self.kinds.values())} findings: {dict(self.kinds)}", *self.texts[:ENOUGH]])


@attrs.define
class Counts:
    """Of one thread, or of all."""

    messages: int = 0
    """Ids written; each thread's own quota."""
    writes: int = 0
    """Calls of ``write``: second references and other clients' writes of the same id too."""
    confirmed: int = 0
    reads: int = 0
    """Answers that were verified: right bytes, or rightly absent."""
    excused: int = 0
    """Reads of another thread's message that found nothing, while that thread was removing it."""
    removes: int = 0
    flushes: int = 0
    descriptors: int = 0
    """The most that the process had open."""

    def add(self, other: Counts) -> None:
        for name in attrs.fields_dict(Counts):
            both = getattr(self, name), getattr(other, name)
            setattr(self, name, max(both) if name == "descriptors" else sum(both))
