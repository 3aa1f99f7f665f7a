"""Figures in the pages come from a command in the repository: what it prints today has the rows that the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from docs.reading import DOCS, ROOT, blocks


@pytest.mark.skipif(
    not (find_spec("msgstore_ets_index") and find_spec("msgstore_format_v2")), reason="the store that is timed has ets and v2"
)
def test_what_a_hook_costs():
    page = DOCS / "explanation/plugins-are-resolved-once.md"
    (shown,) = (text for language, text in blocks(page) if language == "text")
    command = [sys.executable, ROOT / "bench/hooks.py", "--calls", "200"]
    printed = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    row = re.compile(r"^ *([\d,]+) ns  (.+)$", re.MULTILINE)
    assert [name for _, name in row.findall(printed)] == [name for _, name in row.findall(shown)]
    assert len(row.findall(printed)) == len(printed.splitlines()) == 6
