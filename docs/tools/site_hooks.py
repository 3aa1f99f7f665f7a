"""Hooks of mkdocs. A warning ends a strict build.

Pages are plain Markdown whose links work in the repository. Markdown files outside docs/ to which pages link become pages of
the site, and links to and from them are rewritten. A page that fetches anything from another host causes a warning.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_NAMED = {
    "README.md": "readme.md", "SECURITY.md": "security.md", "core/README.md": "core.md", "pipeline/README.md": "pipeline.md",
    "queues/README.md": "queues.md",
    "bench/README.md": "benchmarks.md", "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "license.txt",
}  # fmt: skip
log = logging.getLogger("mkdocs.hooks.msgstore")

_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_FETCHED = re.compile(
    r"<(?:script|img|iframe|link(?=[^>]*rel=.?(?:stylesheet|preload|preconnect|icon)))[^>]*(?:src|href)=.?(?:https?:)?//[^>]*>"
)


def _outside(root: Path) -> dict[str, str]:
    """Return (path in the repository to path in the site) of the files outside docs/ to which pages link."""
    found = {path: f"project/{name}" for path, name in _NAMED.items()}
    for readme in sorted(one for part in ("plugins", "libs", "examples") for one in root.glob(f"{part}/*/README.md")):
        found[readme.relative_to(root).as_posix()] = f"project/{readme.parent.name}.md"
    return found


def on_files(files: Files, *, config: Any) -> Files:
    root = Path(config.config_file_path).parent
    for path, uri in _outside(root).items():
        files.append(File.generated(config, uri, content=(root / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    outside = _outside(Path(config.config_file_path).parent)
    in_repository = {uri: path for path, uri in outside.items()}
    here = page.file.src_uri
    folder = posixpath.dirname(in_repository.get(here, f"docs/{here}"))

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        uri = outside.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        return f"{link[1]}{posixpath.relpath(uri, posixpath.dirname(here))}{link[3]}" if uri else link[0]

    parts, at = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(rewrite, markdown[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*parts, _LINK.sub(rewrite, markdown[at:])])


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    for fetched in _FETCHED.findall(output):
        log.warning("%s fetches from another host: %s", page.file.src_uri, fetched)
    if 'class="mermaid"' in output:
        log.warning("%s has a Mermaid drawing, for which the site would fetch a script from another host", page.file.src_uri)
    return output
