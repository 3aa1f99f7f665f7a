"""``scrub``: read a whole store again, at a given rate, and go on where the last one was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import click

from msgstore.cli import options, output
from msgstore.cli.scan import show_damage
from msgstore.cli.scrub_state import STATE, DamagedSpan, ScrubState, read_state, remove_state, write_state
from msgstore.cli.scrubbing import Scrubber, Throttle
from msgstore.cli.stores import StoreTarget, find_store
from msgstore.contract import Damage
from msgstore.directory import SETTINGS
from msgstore.engine.backends import resolve
from msgstore.engine.open.settings import known_settings
from msgstore.engine.store import Store
from msgstore.files import Files

EVERY = 1.0
"""Seconds between two writes of the state: what a scrub that is killed does again."""


@click.command()
@options.store
@click.option("--rate", type=options.size, metavar="SIZE", help="Read at most this much a second, such as 20MiB.")
@click.option("--restart", is_flag=True, help="Begin at the first segment, whatever a scrub that was stopped has done.")
@options.config_file
@options.refcounts
@options.as_json
def scrub(
    store: str, rate: int | None, restart: bool, config_file: Path | None, refcounts_file: Path | None, as_json: bool
) -> None:
    """Read every segment again and check every live record: its frame, its id, its checksum, and that the index agrees.

    A scrub that is stopped, with Ctrl-C for one, goes on where it was when it is called again: msgstore-scrub.json in the
    store's directory says where. Nothing else is written, and nothing at all into a directory that a broker wrote.

    \b
    Examples:
      msgstore scrub data/orders --rate 20MiB
      msgstore scrub data/orders --restart --json
    """
    target = find_store(store, config_file)
    progress_of = _Progress(Files(), target.path)
    state = ScrubState() if restart else progress_of.read()
    resumed = state.behind if state.behind >= 0 else None
    if resumed is not None:
        output.note(f"{target.path}: going on behind segment {resumed}; --restart begins anew")
    begin, before = time.monotonic(), state.bytes
    with target.open("r", options.read_refcounts(refcounts_file)) as opened:
        try:
            with output.progress("scrubbing", quiet=as_json) as progress:
                _Scrub(target, opened, state, Throttle(rate)).run(progress_of.write, progress, _emit if as_json else _keep)
        except BaseException:
            progress_of.write(state, now=True)
            raise
    progress_of.remove()
    seconds = time.monotonic() - begin
    if as_json:
        output.emit(_summary(target.path, state, resumed, seconds))
    else:
        _show(target.path, state, state.bytes - before, seconds)
    if state.spots:
        click.get_current_context().exit(1)


class _Progress:
    """The state on disk. Where it cannot be written the scrub goes on, and says so once."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._written = time.monotonic()
        self._writes = (directory / SETTINGS).exists()  # in a broker's directory nothing is written

    def read(self) -> ScrubState:
        try:
            return read_state(self._files, self._directory) or ScrubState()
        except ValueError as error:
            output.note(f"{self._directory / STATE}: cannot be used: {error}. Beginning at the first segment.")
            return ScrubState()

    def write(self, state: ScrubState, *, now: bool = False) -> None:
        if not self._writes or (not now and time.monotonic() - self._written < EVERY):
            return
        try:
            write_state(self._files, self._directory, state)
        except OSError as error:
            self._writes = False
            output.note(f"{self._directory / STATE}: cannot be written: {error.strerror}. If stopped, this scrub begins anew.")
        self._written = time.monotonic()

    def remove(self) -> None:
        if self._writes:
            remove_state(self._files, self._directory)


@attrs.frozen
class _Scrub:
    """One run through the segments that are left."""

    target: StoreTarget
    store: Store
    state: ScrubState
    throttle: Throttle

    def run(
        self,
        write: Callable[[ScrubState], object],
        progress: Callable[[int, int], object] | None,
        tell: Callable[[Path, DamagedSpan], object],
    ) -> None:
        """``state`` is always that of a whole number of segments."""
        files, directory, state = Files(), self.target.path, self.state
        formats = resolve(
            self.target.config, self.target.catalogue, known_settings(files, self.target.config, self.target.catalogue)
        ).formats
        by_number = {number: list(group) for number, group in groupby(self.store.entries(), key=lambda entry: entry.number)}
        segments = {segment.number: segment for segment in self.store.segments()}
        left = sorted(number for number in segments.keys() | by_number.keys() if number > state.behind)
        total = sum(segment.size for segment in segments.values())
        done = total - sum(segments[number].size for number in left if number in segments)
        for spot in state.spots:
            tell(directory, spot)
        with self.store.client() as client:
            scrubber = Scrubber(files, self.throttle, client.read)
            for number in left:
                entries = by_number.pop(number, [])
                segment = segments.get(number)
                if segment is None:
                    spots, size = scrubber.check_gone(directory / str(number), entries), 0
                else:
                    spots, size = scrubber.check(directory / segment.file, formats.by_name(segment.format), entries)
                    done += segment.size
                state.segments += 1
                state.records += len(entries)
                state.bytes += size
                state.spots += spots
                state.behind = number  # last: if it is interrupted here, something is told twice rather than never
                write(state)
                for spot in spots:
                    tell(directory, spot)
                if progress:
                    progress(done, total)


def _keep(_: Path, __: DamagedSpan) -> None:
    """People are told at the end, in one table."""


def _emit(directory: Path, spot: DamagedSpan) -> None:
    output.emit(
        {
            "kind": "damage",
            "path": str(directory / spot.file),
            "offset": spot.offset,
            "size": spot.size,
            "reason": spot.reason,
            "id": spot.msg_id,
        }
    )


def _summary(directory: Path, state: ScrubState, resumed: int | None, seconds: float) -> dict[str, Any]:
    return {
        "kind": "summary",
        "path": str(directory),
        "segments": state.segments,
        "records": state.records,
        "bytes": state.bytes,
        "damaged_spans": len(state.spots),
        "resumed_behind": resumed,
        "seconds": round(seconds, 3),
        "ok": not state.spots,
    }


def _show(directory: Path, state: ScrubState, size: int, seconds: float) -> None:
    console = output.Terminal()
    show_damage(console, [(directory / spot.file, Damage(spot.offset, spot.size, _describe(spot))) for spot in state.spots])
    pace = f", {output.size(int(size / seconds))}/s" if seconds > 0.1 else ""
    read = f"{output.plural(state.records, 'live record')} in {output.plural(state.segments, 'segment')} checked"
    console.print(f"{read}, {output.size(state.bytes)}{pace}", style="bold red" if state.spots else "green")


def _describe(spot: DamagedSpan) -> str:
    return spot.reason if spot.msg_id is None else f"{spot.reason}: message {spot.msg_id}"
