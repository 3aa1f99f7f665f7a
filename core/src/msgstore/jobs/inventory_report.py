"""Report of an inventory: per segment, per store, and in total. The same with every runner. Sizes in bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from msgstore.jobs.reports import Findings, SegmentStock


@attrs.define
class PolicyStock:
    """Forecast of one policy with one set of options."""

    name: str
    options: str
    """As a configuration has them; "" for none."""
    steps: Counter[str] = attrs.field(factory=Counter)
    """How often it would do what: delete, compact, combine, drop, migrate."""
    gives_back: int = 0
    """About."""
    messages_lost: int = 0
    passed_over: int = 0
    """Actions that no store would carry out."""
    errors: list[str] = attrs.field(factory=list)
    """Why it says nothing."""

    def add(self, other: PolicyStock) -> None:
        self.steps += other.steps
        self.gives_back += other.gives_back
        self.messages_lost += other.messages_lost
        self.passed_over += other.passed_over
        self.errors += other.errors


@attrs.define
class StoreStock:
    """One directory."""

    path: str
    segments: list[SegmentStock]
    """By rank: the youngest first."""
    counts: str = ""
    """Where it is known from what is alive: ``given`` counts, the store's ``own``, or "" if it is not."""
    policies: list[PolicyStock] = attrs.field(factory=list)
    unasked: str = ""
    """Why no policy was asked."""

    def as_json(self) -> dict[str, Any]:
        return {"kind": "store", "path": self.path, "counts": self.counts, **totals(self.segments), "unasked": self.unasked,
                "policies": [attrs.asdict(policy) for policy in self.policies]}  # fmt: skip


@attrs.define
class InventoryReport(Findings):
    sources: tuple[str, ...]
    stores: list[StoreStock] = attrs.field(factory=list)
    gone: int = 0
    """Segments that a collector deleted between being listed and being read."""

    def segments(self) -> Iterator[SegmentStock]:
        for store in self.stores:
            yield from store.segments

    def policies(self) -> list[PolicyStock]:
        """Return the forecasts of all stores together, in the order of the first store."""
        found: dict[tuple[str, str], PolicyStock] = {}
        for store in self.stores:
            for policy in store.policies:
                found.setdefault((policy.name, policy.options), PolicyStock(policy.name, policy.options)).add(policy)
        return list(found.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "summary",
            "sources": list(self.sources),
            "stores": len(self.stores),
            **totals(self.segments()),
            "damaged_spans": len(self.damage),
            "policies": [attrs.asdict(policy) for policy in self.policies()],
            "ignored": self.ignored,
            "gone": self.gone,
        }


def totals(segments: Iterable[SegmentStock]) -> dict[str, Any]:
    """Sums. ``live`` and ``live_bytes`` are None if they are not known of every segment; ``fragmentation`` is the share of what
    is used that is known to be garbage."""
    found = list(segments)
    sums: dict[str, Any] = {"segments": len(found)}
    for name in ("size", "records", "record_bytes"):
        sums[name] = sum(getattr(one, name) for one in found)
    types: Counter[str] = Counter()
    for one in found:
        types.update(one.types)
    sums["types"] = dict(sorted(types.items()))
    known = all(one.live is not None for one in found)
    for name in ("live", "live_bytes"):
        sums[name] = sum(getattr(one, name) for one in found) if known else None
    for name in ("holes", "hole_bytes", "duplicates", "duplicate_bytes", "damaged", "garbage"):
        sums[name] = sum(getattr(one, name) for one in found)
    used = sum(one.used for one in found)
    sums["fragmentation"] = round(sums["garbage"] / used, 4) if used else 0.0
    sums["formats"] = dict(sorted(Counter(one.format for one in found).items()))
    sums["states"] = dict(sorted(Counter(one.state for one in found).items()))
    return sums
