"""Copies of an id in a store that was just written: they must have one body, for an id names one body for ever."""

from __future__ import annotations

from msgstore.contract import StoreError
from msgstore.engine.store import Store
from msgstore.files import Files
from msgstore.scan import OpenFormat


def check_copies(files: Files, store: Store, form: OpenFormat, name: str) -> None:
    """Raises StoreError for the first id with two bodies; ``name`` is what the store will be called. Reads every segment."""
    for stats in store.segments():
        with files.view(store.path / stats.file) as data:
            scan = form.scan(data)
            for columns in (scan.records, scan.duplicates):
                for msg_id, offset, size, _ in columns.rows():
                    entry = store.entry(msg_id)
                    if entry is None or (entry.number, entry.offset) == (stats.number, offset):
                        continue
                    if form.format.decode(msg_id, data[offset : offset + size]) != store.stored_body(entry):
                        raise StoreError(
                            f"{name}: the id {msg_id.hex()} comes with two bodies, and an id names one body for ever. "
                            f"Remove one of them, or give it another id, and run the job again."
                        )
