"""Links of the pages lead somewhere, in the repository and in the site; every page is in the site; pictures can be drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter

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
def test_links_lead_somewhere(page):
    text = _CODE.sub("`", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_section_is_there_twice(page):
    headings = re.findall(r"^## .+$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    assert [heading for heading, times in Counter(headings).items() if times > 1] == []


def test_every_page_is_in_the_site():
    """As the strict build demands; here without mkdocs, so that it is said before."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = set(re.findall(r"- (?:[^:\n]+: )?(\S+\.md)$", nav, re.MULTILINE))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert pages - listed == set(), "add them to nav in mkdocs.yml"
    assert {page for page in listed if not page.startswith("project/")} - pages == set(), "there are no such pages"


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
