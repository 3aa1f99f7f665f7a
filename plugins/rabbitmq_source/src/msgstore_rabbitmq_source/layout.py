"""Files of a node directory, by vhost and queue: which are there is enough, nothing is opened.

A node has ``msg_stores/vhosts/HASH`` for each vhost; before RabbitMQ 3.7 it had one pair of stores, and ``queues``. A vhost
directory, a directory of queues, one queue, or a bare message store can be given as well.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

import attrs

from msgstore.contract import Buffer

PERSISTENT, TRANSIENT = "msg_store_persistent", "msg_store_transient"
QUEUE_NAME, VHOST_NAME, VHOST_CONFIG, RECOVERY = ".queue_name", ".vhost", ".config", "recovery.dets"
JOURNAL = "journal.jif"
OWN_QUEUE = "msgstore-queue.json"
"""File in the directory of a queue that msgstore has made, or opened."""
NUMBERED = re.compile(r"(\d{1,19})\.(idx|qi|qs)")
TABLE_FILES = re.compile(r"LATEST\.LOG|rabbit_\w+\.DC[DL]")
_QUEUE_FILE = re.compile(r"journal\.jif|\.queue_name|\d{1,19}\.(idx|qi|qs)")
_SEGMENT = re.compile(r"\d{1,19}\.\w+")
_MOST_OF_A_NAME = 2**16
_VHOST_FILES = (VHOST_NAME, RECOVERY)


@attrs.frozen
class FileTimes:
    """Size and times of a file."""

    size: int
    changed: float
    """Seconds since the epoch: when its content changed, which a careful copy keeps."""
    arrived: float
    """When the file came to this place, or changed here."""


@attrs.define
class VhostFiles:
    """Files of one vhost, or of a whole node before RabbitMQ 3.7. Paths are relative to the source's path."""

    directory: str
    queues: dict[str, list[str]] = attrs.field(factory=dict)
    """Directory of each queue to the names of its files."""
    stores: dict[str, list[str]] = attrs.field(factory=dict)
    """Directory of each message store to the names of its segments. Empty: the store is there, and has none."""
    has_name: bool = False
    has_queues: bool = False
    """True if the directory of the queues is there."""

    @property
    def is_hashed(self) -> bool:
        """True for a vhost's own directory, since RabbitMQ 3.7."""
        return self.has_name or PurePosixPath(self.directory).parent.name == "vhosts"

    def path(self, name: str) -> str:
        """Return the path of a file in the directory of the vhost."""
        return joined(self.directory, name)


@attrs.define
class NodeFiles:
    """Files below the source's path."""

    files: Mapping[str, FileTimes]
    vhosts: dict[str, VhostFiles] = attrs.field(factory=dict)
    root: str = ""
    """Directory of the node: that of the tables, beside ``msg_stores``."""
    extensions: frozenset[str] = frozenset()
    skipped: list[tuple[str, str]] = attrs.field(factory=list)
    """Path and reason of each entry of a directory that is not read."""


def read_small(node: NodeFiles, read: Callable[[str], Buffer], place: str) -> bytes:
    """Return the content of a file with a name or a setting. One that is larger than any of these is taken for empty."""
    return bytes(read(place)) if node.files[place].size <= _MOST_OF_A_NAME else b""


def joined(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def list_files(path: Path) -> tuple[NodeFiles, list[str]]:
    """Return the regular files below a directory, and the directories, by their paths relative to it. Raises OSError if the
    directory itself cannot be listed."""
    files, directories, skipped = dict[str, FileTimes](), list[str](), list[tuple[str, str]]()

    def skip(error: OSError) -> None:
        if Path(error.filename) == path:
            raise error
        skipped.append((PurePosixPath(error.filename).relative_to(path).as_posix(), f"cannot be examined: {error.strerror}"))

    for place, inner, names in os.walk(path, onerror=skip):
        relative = str_of(PurePosixPath(place).relative_to(path))
        for name in (*inner, *names):
            try:
                about = os.stat(os.path.join(place, name), follow_symlinks=False)  # noqa: PTH116, PTH118 - one call for each file
            except OSError as error:
                skip(error)
                continue
            if stat.S_ISREG(about.st_mode):
                files[joined(relative, name)] = FileTimes(about.st_size, about.st_mtime, about.st_ctime)
            elif stat.S_ISDIR(about.st_mode):
                directories.append(joined(relative, name))
            else:
                what = "a symbolic link, and is not read. Copy the node with cp -aL"
                what = what if stat.S_ISLNK(about.st_mode) else "neither a file nor a directory, and is not read"
                skipped.append((joined(relative, name), what))
    return NodeFiles(dict(sorted(files.items())), skipped=sorted(skipped)), sorted(directories)


def find_node(path: Path, extensions: Iterable[str]) -> NodeFiles:
    """Return the files of the node at ``path``, or of the part of one. ``extensions``: those of segments."""
    node, directories = list_files(path)
    node.extensions = frozenset(extensions)
    for name in directories:
        place = PurePosixPath(name)
        if place.name in (PERSISTENT, TRANSIENT):
            _vhost(node, place.parent).stores.setdefault(name, [])
        elif place.parent.name == "vhosts" and place.parent.parent.name in ("msg_stores", ""):
            _vhost(node, place)
        elif place.parent.name == "queues" and _is_vhost(node, place.parent.parent):
            _vhost(node, place.parent.parent).queues.setdefault(name, [])
    for name in node.files:
        _place_file(node, PurePosixPath(name))
    node.root = _root(node)
    return node


def _place_file(node: NodeFiles, file: PurePosixPath) -> None:
    directory, up = str_of(file.parent), file.parent.parent
    if file.name in _VHOST_FILES and (file.name == VHOST_NAME or directory in node.vhosts):
        _vhost(node, file.parent).has_name |= file.name == VHOST_NAME
    elif _QUEUE_FILE.fullmatch(file.name) and not {"quorum", "stream", "coordination"} & set(file.parts):
        owner = up.parent if up.name == "queues" else up
        owner = owner if directory else file.parent
        _vhost(node, owner).queues.setdefault(directory, []).append(file.name)
    elif _SEGMENT.fullmatch(file.name) and file.suffix in node.extensions:
        is_store = file.parent.name in (PERSISTENT, TRANSIENT)
        if is_store or not directory:
            owner = file.parent.parent if is_store else file.parent
            _vhost(node, owner).stores.setdefault(directory, []).append(file.name)


def _is_vhost(node: NodeFiles, place: PurePosixPath) -> bool:
    return str_of(place) in node.vhosts


def _vhost(node: NodeFiles, place: PurePosixPath) -> VhostFiles:
    directory = str_of(place)
    return node.vhosts.setdefault(directory, VhostFiles(directory))


def str_of(place: PurePosixPath) -> str:
    """Return a relative directory as text: the source's path itself is empty."""
    text = place.as_posix()
    return "" if text == "." else text


def _root(node: NodeFiles) -> str:
    """Return the directory of the node's tables."""
    for directory in node.vhosts:
        parts = PurePosixPath(directory).parts
        if "msg_stores" in parts:
            return "/".join(parts[: parts.index("msg_stores")])
    tables = sorted(name for name in node.files if TABLE_FILES.fullmatch(PurePosixPath(name).name))
    return str_of(PurePosixPath(tables[0]).parent) if tables else ""


def coordination_node(node: NodeFiles) -> str:
    """Return the name of the node in ``coordination/NODE``, which RabbitMQ 4 has: with Khepri, its tables are in there."""
    begin = joined(node.root, "coordination") + "/"
    return next((file[len(begin) :].partition("/")[0] for file in node.files if file.startswith(begin)), "")


def node_roots(node: NodeFiles) -> list[str]:
    """Return the directories that have ``msg_stores``: more than one are several nodes."""
    found = set()
    for directory in node.vhosts:
        parts = PurePosixPath(directory).parts
        if "msg_stores" in parts:
            found.add("/".join(parts[: parts.index("msg_stores")]))
    return sorted(found)
