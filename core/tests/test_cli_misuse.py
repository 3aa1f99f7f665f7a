"""Misuse of the command line: exit code 2, one line that says why, nothing on standard output, and nothing is written."""

from __future__ import annotations

import os

import pytest

import msgstore
from core_support import BROKER, run, snapshot

ID = "00112233445566778899aabbccddeeff"
READING = ["info STORE", "verify STORE", "scrub STORE", "top STORE --once --interval 100ms", "ls STORE", f"get STORE {ID}"]
CHANGING = [f"rm STORE {ID}", "compact STORE"]
MAKING = [f"put STORE {ID}", "migrate STORE --to v2"]
NO_SEGMENTS = "there are no segments in this directory ("
SEGMENTS = [
    ("nowhere", "there is no such file or directory"),
    ("BROKER/v1_clean/manifest.json", ": no installed format reads such files; known are *."),
    ("HERE/letters", "there are no segments in this directory ("),
    ("HERE/0.sqs", "neither a regular file nor a directory"),
    ("--record checksum=5 BROKER", "or 4, which is assigned to it"),
    ("--record message=200 BROKER", "message is the format's own record type, and has byte 3"),
    ("--record checksum BROKER", "not of the form NAME=BYTE"),
    ("--record nothing=200 BROKER", "no installed plugin provides the record type"),
    ("--body erlan BROKER", "Did you mean 'erlang'?"),
    ("", "Missing argument"),
]
"""What ``scan`` refuses, and ``map``, which has fewer options."""
PAGES = [
    ("letters", "is not a regular file"),
    ("absent/map.html", "there is no directory"),
    ("file/map.html", "there is no directory"),
    ("file", "not a page of 'msgstore map'"),
    ("7.sqs", "the name of a part of a store"),
    ("msgstore.json", "the name of a part of a store"),
    ("loop", "is not a regular file"),
    ("pipe --force", "is not a regular file"),
]
"""Files that ``map --html`` cannot write, found before anything is read."""
VALUES = [
    *((f"get HERE/store {text}", "32 hexadecimal digits") for text in ("12", "g" * 32, "00" * 17, "00_" * 10 + "00")),
    ("ls --refcounts HERE/counts.csv HERE/store", "line 4 is not 'id,count'"),
    ("scrub HERE/store --rate=0", "the size must not be 0"),
    ("scrub HERE/store --rate=quick", "is not a size"),
    ("scrub HERE/store --rate=-5", "is not a size"),
    ("top HERE/store --interval 0", "at least 100ms"),
    ("top HERE/store --interval soon", "is not a time"),
    ("top HERE/store --interval nan", "is not a time"),
    ("top HERE/store --interval 1e99", "too large"),
    ("map --force HERE/store", "--html"),
]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    top = tmp_path_factory.mktemp("here")
    msgstore.open_store(top / "store").close()
    (top / "letters").mkdir()
    (top / "letters" / "letter.txt").write_text("Dear all,")
    (top / "store.toml").write_text(f'[stores.letters]\npath = "{top / "letters"}"\nindex = "ets"\n')
    (top / "counts.csv").write_text(f"id,count\n{ID},1\n\n{ID}\n")
    (top / "file").write_text("text")
    (top / "loop").symlink_to("loop")
    for name in ("0.sqs", "pipe"):
        os.mkfifo(top / name)
    return top


def pairs(commands, place, message):
    return [(command.replace("STORE", place), message) for command in commands]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        *((f"scan {arguments}", message) for arguments, message in SEGMENTS),
        *((f"map {arguments}", message) for arguments, message in SEGMENTS if "--" not in arguments),
        *((f"map HERE/no_store --html HERE/{page}", message) for page, message in PAGES),
        *pairs(READING + CHANGING + MAKING, "HERE/nowhere", "there is no such directory"),
        *pairs(READING + CHANGING, "HERE/letters", f"letters: {NO_SEGMENTS}"),
        *pairs(READING + CHANGING, "letters --config HERE/store.toml", NO_SEGMENTS),
        ("info BROKER/v1_clean", "directories beneath it that have some: store"),
        *VALUES,
    ],
    ids=lambda text: text[:40],
)
def test_misuse_is_refused_and_writes_nothing(here, command, message):
    before = snapshot(here)
    words = [word.replace("HERE", str(here)).replace("BROKER", str(BROKER)).replace("_00", " 00") for word in command.split()]
    result = run(*words, code=2)
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("Usage: ") or result.stderr.count("\n") == 1
    assert snapshot(here) == before
