"""Which sources recognise a path."""

from __future__ import annotations

import logging
from pathlib import Path

from msgstore.contract import Candidate, PluginError, StoreError, StoreIOError
from msgstore.error_texts import install_line
from msgstore.jobs.reports import QUEUE_FILES, find_not_read
from msgstore.plugins.catalogue import Catalogue

log = logging.getLogger("msgstore.bulk")
_ORDER = ("certain", "likely", "perhaps")
_MOST_NAMED = 5
_ARCHIVES = (".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".zip")


def detect(catalogue: Catalogue, path: Path) -> list[tuple[str, Candidate]]:
    """Return the sources that can read a path, the most likely first. A source that fails is a warning. Raises StoreError if
    the path does not exist or is a pipe or device, and the first failure if no source can read it."""
    if not path.exists():
        raise StoreError(f"{path}: there is no such file or directory")
    if not (path.is_file() or path.is_dir()):
        raise StoreError(f"{path}: is neither a regular file nor a directory; copy what it holds into a file")
    found: list[tuple[str, Candidate]] = []
    failures: list[StoreIOError | PluginError] = []
    for name in catalogue.names("source"):
        try:
            candidate = detect_one(catalogue, name, path)
        except (StoreIOError, PluginError) as error:
            failures.append(error)
        else:
            found += [(name, candidate)] if candidate is not None else []
    if failures and not found:
        raise failures[0]
    is_clear = any(candidate.likelihood == "certain" for _, candidate in found)
    for failure in failures:
        if is_clear and isinstance(failure, StoreIOError):  # a file that the others need not have read
            continue
        log.warning("%s. The other sources were asked. To ask only one, name it (source=, --source).", str(failure).rstrip("."))
    return sorted(found, key=lambda one: _ORDER.index(one[1].likelihood))


def detect_one(catalogue: Catalogue, name: str, path: Path) -> Candidate | None:
    """Return what one source says of a path. Raises StoreIOError, PluginError."""
    descriptor = catalogue.source(name)
    try:
        with catalogue.attribute_errors(descriptor, f"cannot examine {path}"):
            candidate = descriptor.load_detect()(path)
            if not isinstance(candidate, Candidate | None):
                raise TypeError(f"detect returns {type(candidate).__name__}, not a Candidate")
            return candidate
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        raise StoreIOError(f"{path}: the source {name!r} cannot examine it: {where}{error.strerror or error}") from error


def not_recognised(catalogue: Catalogue, path: Path) -> str:
    """Return the sentences about a path that no source recognises. They name the directories in it that a source recognises,
    archives, and what failed to load."""
    text = f"{path}: no installed source recognises anything here ({', '.join(catalogue.names('source'))})"
    names = sorted(child.name for child in path.iterdir()) if path.is_dir() else [path.name]
    inner = [name for name in names if (path / name).is_dir()]
    beneath = [name for name in inner if any(one.likelihood != "perhaps" for _, one in detect(catalogue, path / name))]
    if beneath:
        more = f" and {len(beneath) - _MOST_NAMED} more" if len(beneath) > _MOST_NAMED else ""
        text += (
            f"; directories in it that are recognised: {', '.join(beneath[:_MOST_NAMED])}{more}. Name one: {path / beneath[0]}"
        )
    queues = [one.path for one in find_not_read(path) if one.what in QUEUE_FILES] if path.is_dir() else []
    if queues and "rabbitmq" not in catalogue.names("source"):
        text += f". There are queues: {queues[0]}. What reads their messages: {install_line('msgstore-rabbitmq-source')}"
    if packed := [name for name in names if name.lower().endswith(_ARCHIVES)]:
        text += f". Unpack these first, if they are what you look for: {', '.join(packed[:_MOST_NAMED])}"
    return f"{text}.{catalogue.failed_to_load()}"


def reads_messages(catalogue: Catalogue, path: Path) -> str:
    """Return what to write instead, for a path without segments whose messages a source can read; otherwise "".

    A source that cannot be loaded does not hide the error that this text is added to.
    """
    try:
        found = detect(catalogue, path)
    except (StoreIOError, PluginError):
        return ""
    return f". The source {found[0][0]} can read it: msgstore queues {path} ({found[0][1].evidence})" if found else ""
