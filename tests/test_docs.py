"""What the documentation shows is run, and what it lists is complete.

In the pages of RUN every block is an example, in the order of the page, in one directory: ``python`` is executed, ``console``
is run and its output compared (``...`` stands for what is left out), a block of any language that begins with
``# NAME.EXTENSION`` is that file. ``expression  # -> value`` says what an expression gives, ``$ command  # exit N`` how a
command ends.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import click
import pytest

import msgstore
from msgstore import hookspecs
from msgstore.cli.main import main
from msgstore.config import StoreConfig
from msgstore.contract import events
from msgstore.contract.locations import pack
from msgstore.engine import hint_file
from msgstore.engine.counters import Counters
from msgstore.engine.store import StoreStats
from msgstore.plugins.loader import EVENT_HOOKS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [ROOT / "README.md", ROOT / "SECURITY.md", *DOCS.rglob("*.md"), *ROOT.glob("core/*.md"), *ROOT.glob("plugins/*/README.md")]
)
RUN = [
    "README.md", "core/README.md", "docs/tutorial.md", "docs/how-to/rabbitmq-directory.md",
    "docs/how-to/read-from-another-process.md", "docs/reference/command-line.md", "docs/reference/logging-and-events.md",
]  # fmt: skip
PLUGINS = ["ets_index", "lmdb_index", "format_v1", "format_v2", "checksum_record", "erlang_body", "prometheus_observer"]

needs_all_plugins = pytest.mark.skipif(
    not all(find_spec(f"msgstore_{name}") for name in PLUGINS), reason="the examples use every plugin of the repository"
)

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w./-]+\.\w+)\n")
_GIVES = re.compile(r"^(\s*)(.+?)  # -> (.+)$", re.MULTILINE)
_EXIT = re.compile(r"\s+# exit (\d+)$")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of each fenced block."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def _checked(line: re.Match[str]) -> str:
    return f"{line[1]}_gives({line[2]}, {line[3]!r})"


def _gives(value: object, expected: str) -> None:
    assert repr(value) == expected


@attrs.define
class Reader:
    """Does what a page says, in a directory of its own in which ``tests/data`` is that of the repository."""

    directory: Path
    names: dict[str, Any] = attrs.field(factory=lambda: {"_gives": _gives, "__name__": "example"})

    def block(self, language: str, text: str) -> None:
        file = _FILE.match(text)
        if file:
            target = self.directory / file[1]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        elif language == "python":
            with contextlib.chdir(self.directory):
                exec(compile(_GIVES.sub(_checked, text), "example", "exec"), self.names)
        elif language == "console":
            for command, code, output in commands(text):
                self.command(command, code, output)

    def shell(self, command: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment = {**os.environ, "PATH": path, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
        return subprocess.run(
            ["sh", "-c", command], cwd=self.directory, env=environment, encoding="utf-8",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def command(self, command: str, code: int, expected: str) -> None:
        done = self.shell(command)
        assert done.returncode == code, f"$ {command}\n{done.stdout}"
        if expected.strip():
            same = doctest.OutputChecker().check_output(expected, done.stdout, _FLAGS)
            assert same, f"$ {command}\nexpected:\n{expected}\nprinted:\n{done.stdout}"


def commands(text: str) -> list[tuple[str, int, str]]:
    """(command, exit code, output) of a console block."""
    found = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        code = _EXIT.search(command)
        found.append((_EXIT.sub("", command), int(code[1]) if code else 0, output))
    return found


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    (tmp_path / "tests").symlink_to(ROOT / "tests", target_is_directory=True)
    return Reader(tmp_path)


@needs_all_plugins
@pytest.mark.parametrize("name", RUN)
def test_examples_do_what_the_page_says(name, reader):
    for language, text in blocks(ROOT / name):
        reader.block(language, text)


# -- nothing is left out --------------------------------------------------------------------------------------------------


def test_every_key_of_the_configuration_is_explained():
    page = (DOCS / "reference/configuration.md").read_text(encoding="utf-8")
    keys = [name for name in attrs.fields_dict(StoreConfig) if name != "where"]
    assert [key for key in [*keys, "disabled"] if f"| `{key}` |" not in page] == []


@needs_all_plugins
def test_every_option_of_a_backend_is_explained():
    page = (DOCS / "reference/configuration.md").read_text(encoding="utf-8")
    options = [
        name for found in msgstore.load_catalogue().registrations for name in attrs.fields_dict(found.descriptor.options)
    ]
    assert "map_size" in options
    assert [name for name in options if f"| `{name}` |" not in page] == []


def _verbs(group: click.Group, prefix: str) -> list[tuple[str, click.Command]]:
    found = []
    for name, command in group.commands.items():
        found += _verbs(command, f"{prefix} {name}") if isinstance(command, click.Group) else [(f"{prefix} {name}", command)]
    return found


@pytest.mark.parametrize(
    ("name", "command"), _verbs(main, "msgstore"), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_verb_and_option_is_explained(name, command):
    page = (DOCS / "reference/command-line.md").read_text(encoding="utf-8")
    section = re.search(rf"^## `{re.escape(name)}[ `].*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, f"no section about {name}"
    options = [parameter.opts[0] for parameter in command.params if isinstance(parameter, click.Option)]
    shared = {"--json", "--config", "--refcounts"}
    assert [option for option in options if option not in section[0] and option not in shared] == []
    assert all(option in page for option in shared)


@needs_all_plugins
def test_every_member_of_the_json_objects_is_explained(reader):
    page = (DOCS / "reference/command-line.md").read_text(encoding="utf-8")
    reader.shell("cp -r tests/data/msg-store/mixed_upgrade/store one && cp -r tests/data/msg-store/v2_clean/store two")
    reader.shell("cp -r tests/data/msg-store/v2_dirty_torn/store broken")
    with msgstore.open_store(reader.directory / "contradictory") as store:
        store._writer.index.enter([bytes(16)], [pack(0, 10, 10)])
        store.client().write(bytes([1]) * 16, b"")
    message = "915fc214106f14391b488a84b9247ca5"
    verbs = [
        "plugins", "scan one", "info one", "verify one", "scrub one", "top one --once --interval 100ms",
        "ls two", f"get two {message}", f"rm two {message}",
        f"put two {message}", "migrate one --to v2", "compact one --all", "map one",
        "salvage tests/data/msg-store/v2_dirty_torn/store new", "scrub broken", "verify contradictory", "demo",
    ]  # fmt: skip
    missing = set()
    for verb in verbs:
        lines = [json.loads(line) for line in reader.shell(f"msgstore {verb} --json").stdout.splitlines()]
        assert lines, verb
        keys = {key for line in lines for key in _keys(line)}
        missing |= {f"{verb}: {key}" for key in keys if f'"{key}"' not in page}
    assert missing == set()


def _keys(value: object) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_keys, value[:50]))
    if isinstance(value, dict):
        return {key for key in value if re.fullmatch("[a-z][a-z0-9_]*", key)}.union(
            *(_keys(inner) for key, inner in value.items() if key not in ("records_by_name", "formats", "live_percent"))
        )
    return set()


def test_every_hook_is_explained():
    page = (DOCS / "how-to/write-a-plugin.md").read_text(encoding="utf-8")
    hooks = {name for name in vars(hookspecs) if name.startswith("msgstore_")} - EVENT_HOOKS.keys()
    assert len(hooks) == 5
    assert [hook for hook in hooks if f"`{hook}`" not in page] == []


def test_every_event_and_counter_is_explained():
    page = (DOCS / "reference/logging-and-events.md").read_text(encoding="utf-8")
    assert EVENT_HOOKS.keys() <= vars(hookspecs).keys()
    missing = {hook for hook in EVENT_HOOKS if f"| `{hook}` |" not in page}
    for hook, event in EVENT_HOOKS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{hook}`")]
        members = attrs.fields_dict(event).keys() - attrs.fields_dict(events.Event).keys()
        missing |= {f"{hook}: {name}" for name in members if f"`{name}`" not in row}
    for made in (events.RecoverySummary, StoreStats, Counters):
        missing |= {f"{made.__name__}: {name}" for name in attrs.fields_dict(made) if f"`{name}`" not in page}
    assert missing == set()


def test_every_logger_is_explained():
    page = (DOCS / "reference/logging-and-events.md").read_text(encoding="utf-8")
    sources = [*(ROOT / "core/src").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    loggers = {
        name for path in sources for name in re.findall(r"getLogger\(\"(msgstore\.\w+)\"\)", path.read_text(encoding="utf-8"))
    }
    assert len(loggers) >= 8
    assert [name for name in sorted(loggers) if f"| `{name}` |" not in page] == []


def test_every_page_is_on_the_map():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page != DOCS / "index.md"]
    assert [page for page in pages if f"({page})" not in index] == []


ESSAY = (DOCS / "explanation/essay.md").read_text(encoding="utf-8")


def test_no_paragraph_of_the_essay_is_left_out():
    text, faults = ESSAY.split("\n## What that implementation gets wrong")
    numbers = re.findall(r"^\| (\d+)([a-z]?) \| \S", text, re.MULTILINE)
    assert list(dict.fromkeys(int(number) for number, _ in numbers)) == list(range(1, 30))
    assert re.findall(r"^\| (\d) \| \S", faults, re.MULTILINE) == list("123456789")


@pytest.mark.parametrize("row", re.findall(r"^\| \d.*$", ESSAY, re.MULTILINE), ids=lambda row: row[2:5].strip("| "))
def test_every_test_and_module_that_the_essays_page_names_is_there(row):
    named = re.findall(r"`([\w/.-]+\.py)(?:::(\w+))?`", row)
    assert named, "what holds it?"
    if "TODO(" in row:
        return
    for file, test in named:
        assert (ROOT / file).exists(), file
        defined = re.findall(r"^def (test_\w+)\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert not test or test in defined, f"{file}::{test}"
    for module in re.findall(r"`(msgstore(?:\.\w+)+)`", row):
        assert find_spec(module), module


def _slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(_slug, headings), link


# -- a plugin as the page writes it ---------------------------------------------------------------------------------------


@needs_all_plugins
def test_the_plugin_of_the_page_works(reader, monkeypatch):
    """The files of the page, installed as pip would install them."""
    for language, text in blocks(DOCS / "how-to/write-a-plugin.md"):
        if _FILE.match(text):
            reader.block(language, text)
    project = (reader.directory / "acme/pyproject.toml").read_text()
    entry_point = re.search(r"^\[project\.entry-points\.msgstore\]\n(.+)$", project, re.MULTILINE)
    assert entry_point
    site = reader.directory / "acme/src"
    info = site / "acme_msgstore-1.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-msgstore\nVersion: 1.0.0\n")
    (info / "entry_points.txt").write_text("[msgstore]\n" + entry_point[1].replace('"', "") + "\n")
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    msg_id = bytes(range(16))
    try:
        assert list(msgstore.load_catalogue().problems()) == []
        config = reader.directory / "msgstore.toml"
        config.write_text(config.read_text() + "\ngc_interval = 0\n")  # or the collector might come before the test
        with msgstore.load_config(config).open("orders") as store, store.client() as client:
            client.write(msg_id, b"hello")
            client.write_many((bytes([n]) * 16, bytes(100)) for n in range(100))
            store.roll()
            client.remove(bytes([n]) * 16 for n in range(95))
            (done,) = store.compact()
            assert done.size_after < done.size_before / 5
            assert client.read(msg_id) == b"hello"
        with msgstore.open_store(reader.directory / "data/orders", mode="r") as store:
            (entry,) = (entry for entry in store.entries() if entry.msg_id == msg_id)
            assert entry.size == 29 + 5
        scanned = next((reader.directory / "data/orders").glob("*.sqs")).read_bytes()
        assert scanned[64] == 200
    finally:
        for name in [name for name in sys.modules if name.startswith("acme_msgstore")]:
            del sys.modules[name]


# -- bytes ---------------------------------------------------------------------------------------------------------------


def dump(page: str) -> dict[int, bytes]:
    """The ``hex`` blocks of a page: offset to bytes."""
    found: dict[int, bytes] = {}
    for language, text in blocks(DOCS / "spec" / page):
        if language == "hex":
            for line in text.splitlines():
                offset, digits = line.strip().split("  ")[:2]
                found[int(offset)] = bytes.fromhex(digits)
    return found


def assert_is_in(dumped: dict[int, bytes], file: str) -> bytes:
    data = (ROOT / file).read_bytes()
    assert dumped
    for offset, shown in dumped.items():
        assert data[offset : offset + len(shown)] == shown, f"{file} at {offset}"
    return data


def test_the_bytes_of_v1_are_as_the_page_decodes_them():
    data = assert_is_in(dump("v1.md"), "tests/data/msg-store/v1_clean/store/0.rdq")
    (size,) = struct.unpack_from(">Q", data, 11268)
    assert (size, size + 9) == (48, 57)
    assert data[11276:11292].hex() == "1efad049c3795c8d889505e257ea0cc6"
    assert data[11292:11298] == b"\x83m" + (26).to_bytes(4, "big")
    assert data[11324] == 255
    assert struct.unpack_from(">Q", data, 11325)[0] > 16


def test_the_bytes_of_v2_are_as_the_page_decodes_them():
    data = assert_is_in(dump("v2.md"), "tests/data/msg-store/v2_compacted/store/0.sqs")
    assert (data[:4], data[4], data[5:64]) == (b"RSQS", 2, bytes(59))
    kind, size, msg_id = struct.unpack_from(">BI16s", data, 64)
    assert (kind, size, msg_id.hex()) == (3, 87, "23e5d4b019dc064761bc7f158d167079")
    assert data[85:91] == b"\x83m" + (60).to_bytes(4, "big")
    assert data[2126:2130] == b"\x01" * 4
    assert struct.unpack_from(">BI", data, 2644) == (2, 5)
    assert data[2649] == 3


def test_the_bytes_of_a_hint_are_as_the_page_decodes_them():
    dumped = dump("hints.md")
    data = b"".join(dumped[offset] for offset in sorted(dumped))
    assert [len(data[:offset]) for offset in sorted(dumped)] == sorted(dumped)
    assert zlib.crc32(b"5.sqs" + data[:-4]) == int.from_bytes(data[-4:])
    hint = hint_file.read(data, "5.sqs", 177, 1_700_000_000_123_456_789)
    ids = ["23e5d4b019dc064761bc7f158d167079", "915fc214106f14391b488a84b9247ca5"]
    assert [msg_id.hex() for msg_id in hint.id_list()] == ids
    assert hint.locations(5) == [pack(5, 64, 87), pack(5, 151, 26)]
    assert b"".join(hint_file.write(hint, "5.sqs", 177, 1_700_000_000_123_456_789)) == data


def test_the_checksum_of_the_directory_page_is_right():
    text = (DOCS / "spec/store-directory.md").read_text(encoding="utf-8")
    (shown,) = (text for language, text in blocks(DOCS / "spec/store-directory.md") if language == "json")
    members = json.loads(shown)
    crc = members.pop("crc32")
    assert zlib.crc32(json.dumps(members, sort_keys=True).encode()) == crc
    assert "msgstore-lmdb" in text
