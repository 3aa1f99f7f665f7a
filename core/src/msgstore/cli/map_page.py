"""Writes the page of ``map --html``: one file, with everything in it, that asks the network for nothing."""

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
"""What a page of ours has near its beginning: such a file may be replaced by a newer one."""
_LOOKED_AT = 1024


def check_target(path: Path, catalogue: Catalogue, *, force: bool) -> Path:
    """Where the page will be written: behind a symbolic link what it leads to. Raises StoreError if that is no place for it.

    A file that is no page of ours is left alone, unless forced: two arguments are easily taken for one another.
    """
    try:
        target = path.resolve()
    except RuntimeError as error:  # from 3.13 on it is the OSError of ``stat``
        raise StoreError(f"{path}: is a symbolic link that leads to itself; give the name of a file") from error
    if target.name == SETTINGS or segment_number(target.name, catalogue.formats_by_extension()) is not None:
        raise StoreError(f"{path}: has the name of a part of a store; give a name such as map.html")
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise StoreError(f"{path}: there is no directory {target.parent}; make it first") from None
        return target
    except NotADirectoryError:
        raise StoreError(f"{path}: there is no such directory") from None
    if stat.S_ISDIR(mode):
        raise StoreError(f"{path}: is a directory; give the name of a file, such as {path / 'map.html'}")
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path}: is not a regular file; give the name of one, such as map.html")
    if not force and not _is_ours(target):
        raise StoreError(f"{path}: is there, and is no page of 'msgstore map'; --force replaces it all the same")
    return target


def _is_ours(path: Path) -> bool:
    with path.open("rb") as stream:
        return MARK.encode() in stream.read(_LOOKED_AT)


def write_page(path: Path, data: Mapping[str, Any]) -> int:
    """Atomically: nobody ever finds half a page under its name. Returns its size in bytes. Raises StoreError."""
    page = render(data).encode("utf-8")
    try:
        Files().write_file(path, [page], sync=False)
    except OSError as error:
        raise StoreError(f"{path}: the page cannot be written: {error.strerror or error}; nothing is left of it") from error
    return len(page)


def render(data: Mapping[str, Any]) -> str:
    """The page. Only its own style and script are obeyed, by their hashes: what stands in segments stays data."""
    style, script = _part("map_page.css"), _part("map_paint.js") + _part("map_page.js")
    title = ", ".join(store["path"] for store in data["stores"]) or "no segments"
    return Template(_part("map_page.html")).substitute(
        mark=MARK,
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'",
        title=html.escape(title.encode("utf-8", "replace").decode()),
        style=style,
        script=script,
        data=as_data(data),
    )


def as_data(value: object) -> str:
    """JSON that stands in a page: nothing in it can end the element that it is in, or begin another."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _part(name: str) -> str:
    return package_files("msgstore.cli").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
