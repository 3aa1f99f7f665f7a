"""Tells queues whose files are final from those of a kill, in which acknowledgements may not have been written.

They are final after a clean stop, and in a queue that nobody used in the last minute before the kill. The second needs the
times of the files, which a careless copy loses.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from msgstore.contract import SourceContext
from msgstore_rabbitmq_source.layout import PERSISTENT, RECOVERY, FileTimes, NodeFiles, VhostFiles, joined
from rabbitmq_files.tables import Table, read_dets, text_of

IDLE_SECONDS = 60
"""A queue whose files are older than the newest file of the node by this time had nothing to write."""
LONG_SECONDS = 86400
"""Times that span a day are not those of a copy."""
CLEAN_MARK = "clean.dot"


def recovery_terms(context: SourceContext, node: NodeFiles, vhost: VhostFiles) -> Table:
    """Return the rows of ``recovery.dets``: written when a queue ends cleanly, deleted when the broker starts."""
    name = vhost.path(RECOVERY)
    return read_dets(bytes(context.read(name))) if name in node.files else Table()


def stopped_cleanly(node: NodeFiles, vhost: VhostFiles, terms: Table, directory: str) -> bool:
    """Return True if the queue in ``directory`` ended cleanly."""
    if vhost.path(RECOVERY) not in node.files or terms.damage:
        return joined(vhost.path(PERSISTENT), CLEAN_MARK) in node.files
    rows = {text_of(row[0]) for _, row in terms.terms if isinstance(row, tuple) and row}
    return PurePosixPath(directory).name in rows


def newest_change(node: NodeFiles) -> float | None:
    """Return the time of the newest file of a queue or a store, or None if the times are those of a copy. A start that failed
    after the kill has changed other files only.

    A copy that keeps times is later than they are. Otherwise files may have been written one after the other by the broker, or
    by a copy that took its time; a copy takes less than a day.
    """
    parts = [part for vhost in node.vhosts.values() for part in (*vhost.queues.items(), *vhost.stores.items())]
    places = [joined(directory, name) for directory, names in parts for name in names if name[0] != "."]
    files = {place: node.files[place] for place in places}
    if not files:
        return None
    newest = max(times.changed for times in files.values())
    oldest = min(times.changed for times in files.values())
    is_kept = min(times.arrived for times in files.values()) > newest + 1
    return newest if is_kept or newest - oldest > LONG_SECONDS else None


def is_idle(files: Mapping[str, FileTimes], directory: str, names: list[str], newest: float | None) -> bool:
    """Return True if no file of a queue was written in the last minute of the node."""
    if newest is None:
        return False
    found = [files[joined(directory, name)].changed for name in names]
    return bool(found) and max(found) <= newest - IDLE_SECONDS
