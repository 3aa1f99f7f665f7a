"""What the documentation shows is run, what it lists is complete, and what the code can say better it says.

Everything in the fences of a page is an example: :mod:`docs.reading` does it. Bytes and links have tests under ``tests/docs``.
"""

from __future__ import annotations

import codeop
import contextlib
import inspect
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import attrs
import click
import pytest
from click.testing import CliRunner

import msgstore
import msgstore.contract
from docs.reading import DOCS, PAGES, ROOT, PageReader, blocks
from msgstore import hookspecs
from msgstore.cli.commands.plugins import config
from msgstore.cli.main import main
from msgstore.config import StoreConfig, store_config
from msgstore.contract import MessageBatch, MsgStoreError, QueueName, events
from msgstore.engine.events import Counters
from msgstore.engine.open.recovery_plan import Recovery
from msgstore.engine.stats import StoreStats
from msgstore.jobs.messages.rows import rows_of
from msgstore.locations import pack_location
from msgstore.plugins.loader import EVENT_HOOKS, HOOKS
from test_examples import EXAMPLES

ELSEWHERE = {
    "docs/reference/wrong-configuration.md": "test_wrong_configuration.py provokes each of its errors",
    "docs/reference/contract.md": "core/tests/test_kit_on_the_contract.py tries the backends of its examples",
    "plugins/prometheus_observer/README.md": "opens a port",
}
"""Pages whose examples are not done as they stand, and why."""
SPARK = ["on-a-cluster", "on-a-laptop", "and-object-storage", "in-production"]
ELSEWHERE |= dict.fromkeys(
    ["pipeline/README.md", *(f"docs/how-to/spark-{page}.md" for page in SPARK)],
    "pipeline/tests/test_pages.py does it, where Spark is installed",
)
ELSEWHERE |= {f"examples/{name}/README.md": "test_examples.py does it where only its wheel is installed" for name in EXAMPLES}
RUN = [
    path.relative_to(ROOT).as_posix() for path in PAGES if {"python", "console"} & {language for language, _ in blocks(path)}
]
PLUGINS = ["queues", *(path.name for path in ROOT.glob("plugins/*"))]
needs_all_plugins = pytest.mark.skipif(
    not all(find_spec(f"msgstore_{name}") for name in PLUGINS), reason="the examples use every plugin of the repository"
)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[PageReader]:
    (tmp_path / "tests").symlink_to(ROOT / "tests", target_is_directory=True)
    reader = PageReader(tmp_path)
    yield reader
    reader.leave()


@pytest.mark.slow
@needs_all_plugins
@pytest.mark.parametrize("name", [name for name in RUN if name not in ELSEWHERE])
def test_examples_do_what_the_page_says(name, reader):
    for language, text in blocks(ROOT / name):
        reader.block(language, text)


def test_the_tutorial_can_be_typed_into_a_session():
    """Line by line, as a newcomer does: behind an indented block a session wants an empty line."""
    for language, text in blocks(DOCS / "tutorial.md"):
        if language != "python" or text.startswith("# crash.py"):
            continue
        typed: list[str] = []
        for line in [*text.splitlines(), ""]:
            typed.append(line)
            if codeop.compile_command("\n".join(typed)) is not None:  # SyntaxError: a statement too early
                typed = []
        assert typed in ([], [""])


PACKAGES = [name for name in RUN if name not in ELSEWHERE and "\n# acme/pyproject.toml\n" in (ROOT / name).read_text("utf-8")]
"""Pages that show a whole package."""


@pytest.mark.kit
@needs_all_plugins
@pytest.mark.parametrize("name", PACKAGES)
def test_what_a_page_says_to_ship_passes_the_kit(name, reader):
    """All but whole stores, which take most of the time: the examples of the page use one."""
    for language, text in blocks(ROOT / name):
        if text.startswith("# acme/"):
            reader.block(language, text)
    reader.install()
    distribution = tomllib.loads((reader.directory / "acme/pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    kit = f"pytest --quiet --tb=short -p no:cacheprovider --pyargs msgstore.testing.suite --msgstore-dist {distribution}"
    done = reader.shell(f"{kit} -k 'not Combination' --msgstore-partial 'takes long'")
    assert done.returncode == 0, done.stdout
    assert f" of {distribution} " in done.stdout


def test_no_page_is_left_out_without_need():
    assert ELSEWHERE.keys() <= set(RUN)
    assert len(PACKAGES) >= 4


# -- what the code writes -------------------------------------------------------------------------------------------------


def generate(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, root / "docs/tools/generate.py", *options]
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")


@needs_all_plugins
def test_the_reference_is_what_the_code_says(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "docs/tools")
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "docs/tools/generate.py"), run_name="__main__")
    assert ended.value.code == 0, capsys.readouterr().out


@pytest.mark.slow
@needs_all_plugins
def test_a_page_that_is_stale_is_told(tmp_path):
    """The same program, on a copy in which a default was changed by hand."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("core", "libs", "pipeline", "plugins", "queues"):
        (tmp_path / name).symlink_to(ROOT / name)
    page = tmp_path / "docs/reference/configuration.md"
    page.write_text(page.read_text(encoding="utf-8").replace('`"200ms"`', '`"300ms"`'), encoding="utf-8")
    checked = generate(tmp_path, "--check")
    assert checked.returncode == 1
    assert '-| `sync_interval` | time | `"300ms"`' in checked.stdout
    assert "python docs/tools/generate.py" in checked.stdout
    assert generate(tmp_path).returncode == 0
    assert page.read_text(encoding="utf-8") == reference("configuration")


# -- nothing is left out --------------------------------------------------------------------------------------------------


def reference(*names: str) -> str:
    return "".join((DOCS / f"reference/{name}.md").read_text(encoding="utf-8") for name in names)


def errors(kind: type[MsgStoreError] = MsgStoreError) -> set[str]:
    found = {kind.__name__}.union(*map(errors, kind.__subclasses__()))
    return {name for name in found if hasattr(msgstore.contract, name)}


def loggers() -> set[str]:
    sources = [*(ROOT / "core/src").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    calls = re.compile(r"getLogger\(\"(msgstore\.\w+)\"\)")
    return {name for path in sources for name in calls.findall(path.read_text(encoding="utf-8"))}


def fields(*kinds: type) -> list[str]:
    return [name for kind in kinds for name in attrs.fields_dict(kind) if name not in ("where", "last_opened")]


CELL = "| `{}` |"
EXPLAINED: dict[str, tuple[Callable[[], Iterable[str]], int, tuple[str, ...], list[str]]] = {
    "key of the configuration": (lambda: [*fields(StoreConfig), "disabled"], 10, ("configuration",), [CELL]),
    "counter": (lambda: fields(Recovery, StoreStats, Counters), 20, ("logging-and-events",), [CELL]),
    "logger": (loggers, 8, ("logging-and-events",), [CELL]),
    "error": (errors, 16, ("errors",), ["- **`{}`**"]),
    "name of the package": (lambda: msgstore.__all__, 10, ("python", "errors"), ["`{}`", "msgstore.{}("]),
    "name of the contract": (lambda: {*msgstore.contract.__all__} - {"events"}, 10, ("contract", "errors"), ["`{}`"]),
}
"""What: names, how many there are at least, pages of the reference, and texts that explain a name."""


@pytest.mark.parametrize("what", EXPLAINED)
def test_every_name_is_explained(what):
    names, least, pages, texts = EXPLAINED[what]
    assert len(set(names())) >= least
    page = reference(*pages)
    assert [name for name in names() if not any(text.format(name) in page for text in texts)] == []


def test_the_whole_configuration_is_shown_with_its_defaults():
    """The first block of the page: every key, and the store that it describes is the one of no key but the path."""
    shown = tomllib.loads(blocks(DOCS / "reference/configuration.md")[0][1])
    (table,) = shown["stores"].values()
    assert table.keys() == set(fields(StoreConfig))
    assert store_config(table, "", Path()) == store_config({"path": table["path"]}, "", Path())
    assert shown["disabled"] == []


@needs_all_plugins
def test_every_option_of_a_backend_is_explained():
    configuration, jobs = reference("configuration"), reference("jobs")
    names = []
    for found in msgstore.load_catalogue().registrations:
        if found.provider.distribution.startswith("msgstore"):  # third parties have READMEs of their own
            text, page = ("`{}`: ", jobs) if found.kind == "runner" else (CELL, configuration)
            names += [(name, text.format(name) in page) for name in fields(found.descriptor.options)]
    assert {"map_size", "processes"} <= {name for name, _ in names}
    assert [name for name, is_explained in names if not is_explained] == []


VERBS = {f"msgstore {name}": command for name, command in main.commands.items() if not isinstance(command, click.Group)}
VERBS |= {f"msgstore config {name}": command for name, command in config.commands.items()}
for group in (main.get_command(click.Context(main), name) for name in ("queue", "vhost")):
    if isinstance(group, click.Group):  # of msgstore-queues, if it is installed
        VERBS |= {f"msgstore {group.name} {name}": command for name, command in group.commands.items()}


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_and_option_is_explained(name):
    page = reference("command-line")
    section = re.search(rf"^## `{re.escape(name)}[ `].*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, f"no section about {name}"
    visible = [parameter for parameter in VERBS[name].params if isinstance(parameter, click.Option) and not parameter.hidden]
    options = [parameter.opts[0] for parameter in visible]
    shared = {"--json", "--config", "--refcounts", "--runner", "--master", "--processes"}
    assert [option for option in options if option not in section[0] and option not in shared] == []
    assert all(option in page for option in shared)


@pytest.mark.slow
@needs_all_plugins
def test_every_member_of_the_json_objects_is_explained(reader):
    page = reference("command-line")
    reader.shell("cp -r tests/data/msg-store/mixed_upgrade/store one && cp -r tests/data/msg-store/v2_clean/store two")
    reader.shell("cp -r tests/data/msg-store/v2_dirty_torn/store broken")
    with msgstore.open_store(reader.directory / "contradictory") as store:
        store._index.enter([bytes(16)], [pack_location(0, 10, 10)])
        store.client().write(bytes([1]) * 16, b"")
    message = "915fc214106f14391b488a84b9247ca5"
    (reader.directory / "rows.jsonl").write_text(f'{{"id": "{message}", "text": "one"}}\n')
    (reader.directory / "vhosts.toml").write_text("[vhosts.a]\npath = 'queues'\n")
    (reader.directory / "changes.csv").write_text(f"{message},-1\n{'ab' * 16},1\n")
    verbs = [
        "plugins", "scan one", "info one", "verify one", "scrub one", "top one --once --interval 100ms",
        "ls two", f"get two {message}", f"rm two --adopt {message}",
        f"put two {message}", "migrate one --adopt --to v2", "compact one --all", "map one",
        "salvage tests/data/msg-store/v2_dirty_torn/store new", "scrub broken", "verify contradictory", "demo",
        "new-plugin index mine", "import rows.jsonl imported", "inventory one broken", "diff one two", "diff two broken",
        "inventory tests/data/rabbitmq-3.10/clean",
        "detect tests/data/kestrel", "queues tests/data/kestrel",
        "convert tests/data/kestrel converted.jsonl",
        "vhost add queues", "queue publish queues jobs text --header a=b", "queue get queues jobs", "queue ls queues",
        "queue top queues", "queue purge queues jobs", "vhost ls queues", "vhost stop queues", "vhost start queues",
        "vhost delete queues --yes", "config check --config vhosts.toml",
        "reconcile two broken --deltas changes.csv", "export broken exported", "migrate two migrated --to v2",
    ]  # fmt: skip
    missing = set()
    for verb in verbs:
        with contextlib.chdir(reader.directory):
            done = CliRunner().invoke(main, [*shlex.split(verb), "--json"], prog_name="msgstore")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines, verb
        keys = {key for line in lines for key in _keys(line)}
        missing |= {f"{verb}: {key}" for key in keys if f'"{key}"' not in page}
    assert missing == set()


def test_every_member_of_a_message_is_explained():
    batch = MessageBatch(
        name=QueueName("s"), bodies=[b""], positions=[0], states=["ready"], files=[""], offsets=[0], sizes=[0], raws=[b""]
    )
    [row] = rows_of(batch)
    assert [name for name in row if f"`{name}`" not in reference("messages")] == []


COUNTED = {"certainties", "reasons", "records_by_name", "types", "formats", "states", "steps", "live_percent"}
"""Members whose own members are names of what is counted."""


def _keys(value: object) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_keys, value[:50]))
    if not isinstance(value, dict):
        return set()
    inner = (_keys(member) for key, member in value.items() if key not in COUNTED)
    return {key for key in value if re.fullmatch("[a-z][a-z0-9_]*", key)}.union(*inner)


def test_every_hook_and_event_is_explained():
    page = reference("hooks")
    hooks = {name: call for name, call in vars(hookspecs).items() if name.startswith("msgstore_")}
    assert hooks.keys() == EVENT_HOOKS.keys() | {hook for hook, _ in HOOKS.values()}
    for name, call in hooks.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert [argument for argument in inspect.signature(call).parameters if f"`{argument}`" not in row] == []
    sections = re.split(r"^### ", reference("logging-and-events"), flags=re.MULTILINE)
    for hook, event in EVENT_HOOKS.items():
        (section,) = [text for text in sections if text.startswith(f"`{hook}`\n")]
        members = attrs.fields_dict(event).keys() - attrs.fields_dict(events.Event).keys()
        assert {name for name in members if CELL.format(name) not in section} == set(), hook


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
