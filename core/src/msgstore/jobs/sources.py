"""Inputs of a job that needs them unchanged: no store may be open for writing there, and the job writes nothing there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgstore.jobs.inputs import JobInputs, find_inputs
from msgstore.jobs.output.staging_directory import check_destination
from msgstore.jobs.paths import matched_by
from msgstore.plugins.catalogue import Catalogue
from msgstore.writer_lock import check_no_writer


def find_offline(
    catalogue: Catalogue,
    sources: Sequence[Path],
    records: Mapping[str, int] | None,
    *,
    destination: Path | None = None,
    also_read: Iterable[Path] = (),
) -> JobInputs:
    """Return the segments of ``sources``, after a check that no writer is at work there and that ``destination`` can be made.

    ``also_read`` are further paths that the destination must not lie in. Raises StoreError (no segments, destination in use),
    StoreLocked, PluginError.
    """
    found = find_inputs(catalogue, sources, records=records)
    for store in sorted({item.store for item in found.inputs}):
        check_no_writer(Path(store))
    if destination is not None:
        paths = [*sources, *matched_by(sources)]
        of_named_files = {path.parent for path in paths if path.is_file()}
        stores = {Path(item.store) for item in found.inputs} - of_named_files
        check_destination(destination, [*paths, *sorted(stores), *also_read])
    return found
