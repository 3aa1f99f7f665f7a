"""Forecast: the actions that each installed GC policy would plan for the segments of a directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from msgstore.contract import Action, Drop, GcPolicyDescriptor, MsgStoreError, PluginError, SegmentStats, StoreError
from msgstore.directory import find_segments
from msgstore.engine.backends import may_drop
from msgstore.engine.compact.policy_actions import numbers_of, plan_of, validate_actions
from msgstore.engine.open.startup import can_resume
from msgstore.engine.opening import remembered_config
from msgstore.engine.segment.segment import Segment
from msgstore.files import Files
from msgstore.option_values import Backend, structure
from msgstore.plugins.catalogue import Catalogue
from msgstore.scan import FormatSet


@attrs.frozen
class Step:
    """One action of a policy, or the deletion of an empty segment. Sizes in bytes."""

    what: str
    """compact, combine, drop or migrate; delete for a segment without a live record, which every store deletes."""
    files: tuple[str, ...]
    gives_back: int
    """Estimate: records of another format have other sizes, and compaction cannot fill every gap to the last byte."""
    messages_lost: int = 0
    why: str = ""


@attrs.frozen
class PolicyPlan:
    """A policy with one set of options."""

    name: str
    provider: str
    summary: str = ""
    options: str = ""
    """As a configuration has them; "" for none."""
    steps: tuple[Step, ...] = ()
    passed_over: tuple[str, ...] = ()
    """Actions that no store would carry out, and why not."""
    error: str = ""
    """Reason why the policy has no plan."""


@attrs.frozen
class PolicyInput:
    """Segments as a store that is opened for writing shows them to a policy."""

    stats: list[SegmentStats]
    by_number: dict[int, Segment]
    generation: int
    """Generation of the format that the store writes."""
    size_limit: int
    """Bytes of a segment by default. A directory does not remember another value."""
    not_shown: int
    """Number of segments of the directory that the policies do not see."""


def make_policy_input(directory: Path, catalogue: Catalogue, formats: FormatSet, segments: Sequence[Segment]) -> PolicyInput:
    """Return the segments as a policy sees them, and set their numbers and times.

    Raises MsgStoreError or OSError if no store could be opened on the directory.
    """
    config = remembered_config(directory)
    found = {s.path.name: s for s in find_segments(Files(), directory, formats.extensions, formats.leftovers)}
    for segment in segments:
        file = found.get(segment.path.name)
        if file is None:
            raise StoreError(f"{segment.path}: no store would read it: it was deleted, or its name is no segment's")
        segment.number, segment.sealed_mtime_ns = file.number, file.mtime_ns
    by_number = {segment.number: segment for segment in sorted(segments, key=lambda segment: segment.number)}
    current = by_number.get(max((file.number for file in found.values()), default=0))
    if current and not can_resume(current, config.format.name, config.file_size_limit):
        current = None
    if current:
        current.sealed_mtime_ns = None
    stats = [s.stats(current=s is current, size_limit=config.file_size_limit) for s in by_number.values()]
    generation = catalogue.format(config.format.name).generation
    return PolicyInput(stats, by_number, generation, config.file_size_limit, len(found) - len(by_number))


def forecast(
    catalogue: Catalogue, picture: PolicyInput, now: float, configured: Iterable[Backend] = ()
) -> Iterator[PolicyPlan]:
    """Return the plans of the ``configured`` policies, and of every installed one with each set of options in the examples of
    its descriptor."""
    configured = list(configured)
    for name in dict.fromkeys([*catalogue.names("gc"), *(one.name for one in configured)]):
        named = [found for found in catalogue.registrations if found.kind == "gc" and found.descriptor.name == name]
        plan = PolicyPlan(name, ", ".join(str(found.provider.distribution) for found in named))
        try:
            descriptor = catalogue.gc_policy(name)
        except PluginError as error:
            yield attrs.evolve(plan, error=str(error))
            continue
        chosen = [one for one in configured if one.name == name]
        given = [one.options for one in chosen]
        chosen += [Backend(name, example) for example in descriptor.examples if dict(example) not in given]
        for one in chosen:
            items = one.options.items()
            shown = ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}" for key, value in items)
            plan = attrs.evolve(plan, summary=descriptor.summary, options=shown)
            try:
                options = structure(descriptor.options, one.options, f"the GC policy {name!r}", one.base)
                actions = plan_of(catalogue.make(descriptor, options), picture.stats, now)
            except Exception as error:  # a plugin may raise anything
                reason = str(error) if isinstance(error, MsgStoreError) else f"{type(error).__name__}: {error}"
                yield attrs.evolve(plan, error=reason)
            else:
                yield _judged(plan, descriptor, actions, picture)


def _judged(plan: PolicyPlan, descriptor: GcPolicyDescriptor, actions: Sequence[Action], picture: PolicyInput) -> PolicyPlan:
    by_number = {s.number: s for s in picture.stats}
    empty = [s for s in picture.stats if not (s.live_count or s.current or s.quarantined)]
    steps = [Step("delete", (s.file,), s.size, why="no message in it is alive") for s in empty]
    gone = {s.number for s in empty}
    passed_over = []
    verdicts = validate_actions(actions, picture.stats, picture.by_number, picture.generation, may_drop=may_drop(descriptor))
    for action, refusal in verdicts:
        if refusal:
            passed_over.append(f"{action!r}: {refusal}")
        elif refusal is None and not gone.issuperset(numbers_of(action)):
            steps.append(_step(action, [by_number[number] for number in numbers_of(action)]))
    return attrs.evolve(plan, steps=tuple(steps), passed_over=tuple(passed_over))


def _step(action: Action, touched: Sequence[SegmentStats]) -> Step:
    files, size = tuple(s.file for s in touched), sum(s.size for s in touched)
    if isinstance(action, Drop):
        return Step("drop", files, size, touched[0].live_count, action.reason)
    kept = max(s.header_bytes for s in touched) + sum(s.live_bytes for s in touched)
    return Step(type(action).__name__.lower(), files, max(0, size - kept))
