"""Links of the pages lead somewhere, in the repository and in the site; pictures can be drawn; the site is built.

``tests/requirements.txt`` lacks mkdocs: there the site is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.reading import DOCS, PAGES, ROOT

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")


def anchors(text: str) -> set[str]:
    """Of the headings, as the repository's hosts and the site make them."""
    found: Counter[str] = Counter()
    made = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE):
        slug = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        made.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_and_sections_are_unique(page):
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = Counter(re.findall(r"^## .+$", text, re.MULTILINE))
    assert [heading for heading, times in headings.items() if times > 1] == []
    for link in re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("`", text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_a_picture_can_be_drawn_and_fetches_nothing(picture):
    text = picture.read_text(encoding="utf-8")
    drawing = ET.fromstring(text)
    title = drawing.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}
    _, _, width, _ = map(float, drawing.attrib["viewBox"].split())
    for place in drawing.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(place.get("x", 0)) + float(place.attrib["width"]) <= width
    assert any(f"pictures/{picture.name})" in page.read_text(encoding="utf-8") for page in PAGES), "nobody shows it"


# -- the site -----------------------------------------------------------------------------------------------------------------


needs_mkdocs = pytest.mark.skipif(not find_spec("mkdocs"), reason="mkdocs is in requirements-dev.txt")


def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", project / "mkdocs.yml", "--site-dir", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", env=environment)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the site is made of."""
    readmes = [f"{directory}/README.md" for directory in ("core", "pipeline", "queues", "bench")]
    pages = "docs examples libs plugins README.md SECURITY.md CONTRIBUTING.md LICENSE mkdocs.yml"
    for name in [*pages.split(), *readmes]:
        source, target = ROOT / name, tmp_path / "project" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.py[co]", "__pycache__", "src", "*.egg-info"))
        else:
            shutil.copy(source, target)
    for path in (ROOT / "docs/tools").glob("*.py"):
        shutil.copy(path, tmp_path / "project/docs/tools")
    return tmp_path / "project"


@pytest.mark.slow
@needs_mkdocs
def test_the_site_is_built_and_fetches_nothing_from_others(project, tmp_path):
    done = build(project, tmp_path / "site")
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    fetched = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^\s\"'>]+", re.DOTALL)
    for page in pages:
        assert fetched.findall(page.read_text(encoding="utf-8")) == [], page
    for sheet in (tmp_path / "site").rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^\s\"')]+", text) == [], sheet


@pytest.mark.slow
@needs_mkdocs
def test_faults_end_the_build_and_are_told(project, tmp_path):
    links = "no-such-page.md", "how-to/monitor.md#no-such-heading", "../README.md#no-heading", "../plugins/no_such/README.md"
    text = "".join(f"[there]({link})\n" for link in links)
    (project / "docs/new.md").write_text("# New\n", encoding="utf-8")
    (project / "docs/tutorial.md").write_text(f'# T\n\n{text}\n<img src="https://example.org/a.png">\n', encoding="utf-8")
    done = build(project, tmp_path / "site")
    assert done.returncode != 0
    assert 'not included in the "nav" configuration:\n  - new.md' in done.stdout
    for link in ("no-such-page.md", "../plugins/no_such/README.md"):
        assert f"contains a link '{link}'" in done.stdout
    for anchor in ("#no-such-heading", "#no-heading"):
        assert f"does not contain an anchor '{anchor}'" in done.stdout
    assert "tutorial.md fetches from another host" in done.stdout
