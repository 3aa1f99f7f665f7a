"""The site: what is built strictly, and what must not get by. ``tests/requirements.txt`` lacks mkdocs: there it skips."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.reading import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not find_spec("mkdocs"), reason="mkdocs is in requirements-dev.txt")]


def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", project / "mkdocs.yml", "--site-dir", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", env=environment
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the site is made of."""
    pages = "docs examples plugins core/README.md pipeline/README.md bench/README.md README.md SECURITY.md CONTRIBUTING.md"
    for name in [*pages.split(), "LICENSE", "mkdocs.yml"]:
        source, target = ROOT / name, tmp_path / "project" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.py[co]", "__pycache__", "src", "*.egg-info"))
        else:
            shutil.copy(source, target)
    for path in (ROOT / "docs/tools").glob("*.py"):
        shutil.copy(path, tmp_path / "project/docs/tools")
    return tmp_path / "project"


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
