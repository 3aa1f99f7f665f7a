"""Choice of when the files of an open journal are rotated, packed, or rewritten."""

from __future__ import annotations

from collections.abc import Callable

from msgstore_kestrel_journal.item_queue import ItemQueue
from msgstore_kestrel_journal.options import JournalOptions
from msgstore_kestrel_journal.packing import JournalFiles


class FileReplacement:
    """Thresholds of one journal, and what its last rewrite left. Methods raise OSError."""

    def __init__(self, options: JournalOptions, files: JournalFiles, items: ItemQueue, clock_ms: Callable[[], int]) -> None:
        self._options, self._files, self._items, self._clock = options, files, items, clock_ms
        self._rewritten_ms: int | None = None
        self._left_by_rewrite = 0

    def run(self) -> None:
        """Rewrite, rotate or pack the files if a threshold is reached."""
        options, files, items = self._options, self._files, self._items
        if (files.live_size >= options.default_journal_size and not items.length and self._may_rewrite_empty()) or (
            options.rewrite_in_memory
            and files.size > options.max_journal_size
            and items.is_all_in_memory
            and items.size < options.max_memory_size
            and self._is_delayed()
        ):
            self.rewrite()
        elif files.live_size > options.max_memory_size:
            if not items.length and options.disable_aggressive_rewrites:
                self.rewrite()
            else:
                files.rotate()
                if files.size > options.max_journal_size and items.checkpoint is None:
                    items.set_checkpoint()
        if items.checkpoint is not None and items.is_read_up_to(items.checkpoint.number):
            self._pack()

    def rewrite(self) -> None:
        """Replace all files by one with the items. All are in memory."""
        self._files.rotate()
        self._items.set_checkpoint()
        self._pack()
        self._rewritten_ms, self._left_by_rewrite = self._clock(), self._files.size

    def _may_rewrite_empty(self) -> bool:
        half = self._options.default_journal_size // 2
        return not self._options.disable_aggressive_rewrites or self._left_by_rewrite <= half or self._is_delayed()

    def _is_delayed(self) -> bool:
        delay = self._options.min_journal_compact_delay * 1000
        return self._rewritten_ms is None or self._clock() - self._rewritten_ms >= delay

    def _pack(self) -> None:
        """Replace the files up to the checkpoint by one that stands for them."""
        items = self._items
        assert items.checkpoint is not None
        there = {item.number: item for item in (*items.memory, *items.opened.values())}
        self._files.pack(items.checkpoint, there.get)
        items.checkpoint = None
