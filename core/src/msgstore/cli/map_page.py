"""Writer of the page of ``map --html``: one self-contained file that makes no network request."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import stat
from collections.abc import Mapping
from importlib.resources import files as package_files
from pathlib import Path
from string import Template
from typing import Any

from msgstore.contract import StoreError
from msgstore.directory import SETTINGS, segment_number
from msgstore.files import Files
from msgstore.plugins.catalogue import Catalogue

MARK = '<meta name="generator" content="msgstore map">'
"""Text near the beginning of every page. A file with it may be replaced by a newer page."""
_MARK_SEARCH_BYTES = 1024


def check_target(path: Path, catalogue: Catalogue, *, force: bool) -> Path:
    """Return the path that the page will be written to, with symbolic links resolved. Raises StoreError for an unsuitable path.

    Without ``force``, refuses to replace a file that is not such a page: the arguments are easily swapped.
    """
    try:
        target = path.resolve()
        is_loop = target.is_symlink()  # since Python 3.13 ``resolve`` returns it instead of raising
    except RuntimeError:
        is_loop = True
    if is_loop:
        raise StoreError(f"{path}: is a symbolic link that leads to itself. Give the name of a file.")
    if target.name == SETTINGS or segment_number(target.name, catalogue.formats_by_extension()) is not None:
        raise StoreError(f"{path}: has the name of a part of a store. Give a name such as map.html.")
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise StoreError(f"{path}: there is no directory {target.parent}. Create it first.") from None
        return target
    except NotADirectoryError:
        raise StoreError(f"{path}: there is no such directory") from None
    if stat.S_ISDIR(mode):
        raise StoreError(f"{path}: is a directory. Give the name of a file, such as {path / 'map.html'}.")
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path}: is not a regular file. Give the name of one, such as map.html.")
    if not force and not _is_page(target):
        raise StoreError(f"{path}: exists and is not a page of 'msgstore map'. Use --force to replace it.")
    return target


def _is_page(path: Path) -> bool:
    with path.open("rb") as stream:
        return MARK.encode() in stream.read(_MARK_SEARCH_BYTES)


def write_page(path: Path, data: Mapping[str, Any]) -> int:
    """Write the page atomically. Returns its size in bytes. Raises StoreError."""
    page = render(data).encode("utf-8")
    try:
        Files().write_file(path, [page], sync=False)
    except OSError as error:
        raise StoreError(f"{path}: the page cannot be written: {error.strerror or error}. Nothing was left behind.") from error
    return len(page)


def render(data: Mapping[str, Any]) -> str:
    """Return the page. Its policy allows only its own style and script, by hash, so that text of segments stays text."""
    style, script = _part("map_page.css"), _part("map_paint.js") + _part("map_page.js")
    title = ", ".join(store["path"] for store in data["stores"]) or "no segments"
    return Template(_part("map_page.html")).substitute(
        mark=MARK,
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'",
        title=html.escape(title.encode("utf-8", "replace").decode()),
        style=style,
        script=script,
        data=as_inline_json(data),
    )


def as_inline_json(value: object) -> str:
    """Return JSON for a script element. It contains no character that could end the element or start another."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _part(name: str) -> str:
    return package_files("msgstore.cli").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
