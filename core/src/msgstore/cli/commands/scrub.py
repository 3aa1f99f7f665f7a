"""Command ``scrub``: read and check a whole store at a limited rate. A stopped scrub can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import click

from msgstore.cli import options, output
from msgstore.cli.commands.scan import show_damage
from msgstore.cli.scrub_state import STATE, DamagedSpan, ScrubState, read_state, remove_state, write_state
from msgstore.cli.scrubbing import Scrubber, Throttle
from msgstore.cli.stores import StoreTarget, find_store
from msgstore.contract import Damage
from msgstore.directory import SETTINGS
from msgstore.engine.backends import resolve
from msgstore.engine.open.settings import known_settings
from msgstore.engine.store import Store
from msgstore.files import Files

SAVE_INTERVAL_SECONDS = 1.0
"""Time between two writes of the state. A killed scrub repeats at most this much."""


@click.command()
@options.store
@click.option("--rate", type=options.size, metavar="SIZE", help="Read at most this many bytes per second, such as 20MiB.")
@click.option("--restart", is_flag=True, help="Start at the first segment, even if a stopped scrub could be resumed.")
@options.config_file
@options.refcounts
@options.as_json
def scrub(
    store: str, rate: int | None, restart: bool, config_file: Path | None, refcounts_file: Path | None, as_json: bool
) -> None:
    """Read every segment and check every live record: its frame, id and checksum, and that the index agrees.

    A scrub that was stopped, for example with Ctrl-C, resumes at its position when it is called again. The position is in
    msgstore-scrub.json in the store's directory. Nothing else is written, and nothing at all to a broker's directory.

    \b
    Examples:
      msgstore scrub data/orders --rate 20MiB
      msgstore scrub data/orders --restart --json
    """
    target = find_store(store, config_file)
    state_file = _StateFile(Files(), target.path)
    state = ScrubState() if restart else state_file.read()
    resumed = state.behind if state.behind >= 0 else None
    if resumed is not None:
        output.note(f"{target.path}: resumed after segment {resumed}. Use --restart to start at the first segment.")
    begin, before = time.monotonic(), state.bytes
    with target.open("r", options.read_refcounts(refcounts_file)) as opened:
        try:
            with output.progress("scrubbing", quiet=as_json) as progress:
                _Scrub(target, opened, state, Throttle(rate)).run(state_file.write, progress, _emit if as_json else _ignore)
        except BaseException:
            state_file.write(state, now=True)
            raise
    state_file.remove()
    seconds = time.monotonic() - begin
    if as_json:
        output.emit(_summary(target.path, state, resumed, seconds))
    else:
        _show(target.path, state, state.bytes - before, seconds)
    if state.spots:
        click.get_current_context().exit(1)


class _StateFile:
    """State of the scrub on disk. If it cannot be written, the scrub prints that once and continues."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._written = time.monotonic()
        self._writes = (directory / SETTINGS).exists()  # nothing is written to a broker's directory

    def read(self) -> ScrubState:
        """Return the saved state, or a new one if it is missing or damaged."""
        try:
            return read_state(self._files, self._directory) or ScrubState()
        except ValueError as error:
            output.note(f"{self._directory / STATE}: cannot be used: {error}. Starting at the first segment.")
            return ScrubState()

    def write(self, state: ScrubState, *, now: bool = False) -> None:
        """Write the state, at most once per SAVE_INTERVAL_SECONDS unless ``now`` is set."""
        if not self._writes or (not now and time.monotonic() - self._written < SAVE_INTERVAL_SECONDS):
            return
        try:
            write_state(self._files, self._directory, state)
        except OSError as error:
            self._writes = False
            output.note(f"{self._directory / STATE}: cannot be written: {error.strerror}. If stopped, this scrub starts again.")
        self._written = time.monotonic()

    def remove(self) -> None:
        if self._writes:
            remove_state(self._files, self._directory)


@attrs.frozen
class _Scrub:
    """One run through the remaining segments."""

    target: StoreTarget
    store: Store
    state: ScrubState
    throttle: Throttle

    def run(
        self,
        write: Callable[[ScrubState], object],
        progress: Callable[[int, int], object] | None,
        report: Callable[[Path, DamagedSpan], object],
    ) -> None:
        """Check the remaining segments. ``state`` always describes a whole number of segments."""
        files, directory, state = Files(), self.target.path, self.state
        formats = resolve(
            self.target.config, self.target.catalogue, known_settings(files, self.target.config, self.target.catalogue)
        ).formats
        by_number = {number: list(group) for number, group in groupby(self.store.entries(), key=lambda entry: entry.number)}
        segments = {segment.number: segment for segment in self.store.segments()}
        left = sorted(number for number in segments.keys() | by_number.keys() if number > state.behind)
        total = sum(segment.size for segment in segments.values())
        done = total - sum(segments[number].size for number in left if number in segments)
        for span in state.spots:
            report(directory, span)
        with self.store.client() as client:
            scrubber = Scrubber(files, self.throttle, client.read)
            for number in left:
                entries = by_number.pop(number, [])
                segment = segments.get(number)
                if segment is None:
                    spans, size = scrubber.check_gone(directory / str(number), entries), 0
                else:
                    spans, size = scrubber.check(directory / segment.file, formats.by_name(segment.format), entries)
                    done += segment.size
                state.segments += 1
                state.records += len(entries)
                state.bytes += size
                state.spots += spans
                state.behind = number  # last: after an interrupt here, spans are reported twice rather than never
                write(state)
                for span in spans:
                    report(directory, span)
                if progress:
                    progress(done, total)


def _ignore(_: Path, __: DamagedSpan) -> None:
    """Print nothing: people get all spans in one table at the end."""


def _emit(directory: Path, span: DamagedSpan) -> None:
    output.emit(
        {
            "kind": "damage",
            "path": str(directory / span.file),
            "offset": span.offset,
            "size": span.size,
            "reason": span.reason,
            "id": span.msg_id,
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
        "resumed_after": resumed,
        "seconds": round(seconds, 3),
        "ok": not state.spots,
    }


def _show(directory: Path, state: ScrubState, size: int, seconds: float) -> None:
    console = output.Terminal()
    show_damage(console, [(directory / span.file, Damage(span.offset, span.size, _describe(span))) for span in state.spots])
    pace = f", {output.size(int(size / seconds))}/s" if seconds > 0.1 else ""
    read = f"{output.plural(state.records, 'live record')} in {output.plural(state.segments, 'segment')} checked"
    console.print(f"{read}, {output.size(state.bytes)}{pace}", style="bold red" if state.spots else "green")


def _describe(span: DamagedSpan) -> str:
    """Return the reason of a span, with the message id if it is a live record."""
    return span.reason if span.msg_id is None else f"{span.reason}: message {span.msg_id}"
