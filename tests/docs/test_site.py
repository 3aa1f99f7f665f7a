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


@pytest.mark.parametrize(
    ("page", "text", "said"),
    [
        ("new.md", "# New\n", 'not included in the "nav" configuration:\n  - new.md'),
        ("tutorial.md", "# T\n\n[there](no-such-page.md)\n", "contains a link 'no-such-page.md'"),
        ("tutorial.md", "# T\n\n[there](how-to/monitor.md#no-such-heading)\n", "does not contain an anchor '#no-such-heading'"),
        ("tutorial.md", "# T\n\n[there](../README.md#no-such-heading)\n", "does not contain an anchor '#no-such-heading'"),
        ("tutorial.md", "# T\n\n[there](../plugins/no_such/README.md)\n", "contains a link '../plugins/no_such/README.md'"),
        ("tutorial.md", '# T\n\n<img src="https://example.org/a.png">\n', "tutorial.md fetches from another host"),
    ],
)
def test_a_fault_ends_the_build_and_says_which(project, tmp_path, page, text, said):
    (project / "docs" / page).write_text(text, encoding="utf-8")
    done = build(project, tmp_path / "site")
    assert done.returncode != 0
    assert said in done.stdout
