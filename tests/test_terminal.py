"""Names of files and fields of records may be hostile: what would control a terminal never reaches it."""

from __future__ import annotations

import re
import shutil

import pytest

import msgstore
from msgstore.cli import output
from msgstore.cli.output import visible
from support import A, command

TITLE = "\x1b]0;owned\x07"
"""Sets the title of a terminal's window."""
COLOURS = re.compile("\x1b\\[[0-9;]*m|\x1b\\]8;[^\x1b]*\x1b\\\\")
"""Escape sequences that rich writes: colours and links."""


@pytest.mark.parametrize("colours", ["", "1"])
@pytest.mark.parametrize(
    "arguments",
    [
        "scan {}", "scan {}/{}.sqs", "info {}", "ls {}", "verify {}", "map {}", "inventory {}", "diff {} {}",
        "export {} new", "salvage {} new", "salvage absent{} new", "compact {}", "migrate {} --to v2", "rm {} {id}",
        "top {} --once",
    ],
)  # fmt: skip
def test_no_name_controls_the_terminal(arguments, colours, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", colours)
    with msgstore.open_store(TITLE) as store, store.client() as client:
        client.write(A, b"body")
    shutil.copy(tmp_path / TITLE / "0.sqs", tmp_path / TITLE / f"{TITLE}.sqs")
    words = [word.replace("{id}", A.hex()).replace("{}", TITLE) for word in arguments.split()]
    result = command(*words, code=None)
    for stream in (result.stdout, result.stderr):
        controls = re.sub(COLOURS, "", stream).replace("\n", "")
        assert controls.isprintable(), repr(controls)
    assert "x1b]0;owned" in result.output or arguments.startswith(("ls", "rm", "compact", "migrate"))


def test_printable_text_is_unchanged():
    assert visible("Grüße, 世界\nline") == "Grüße, 世界\nline"
    assert visible("\x1b[2J\x9b\x7f\t\u202eabc") == "\\x1b[2J\\x9b\\x7f\\t\\u202eabc"


def test_table_of_many_rows_is_cut_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "MAX_ROWS", 10)
    for number in range(13):
        (tmp_path / f"{number}.sqs").touch()
    text = command("scan", tmp_path, code=None).stdout
    table, _, rest = text.partition("... and 3 more; --json lists them all")
    assert "\n9.sqs " in table
    assert "\n10.sqs " not in table
    assert rest
