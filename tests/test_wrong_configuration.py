"""Messages of docs/reference/wrong-configuration.md, compared with what the program prints.

A section of the page has a cause (``toml``, ``python`` or ``console``) and the message (``text``). The function of a row
prepares the machine that the section describes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import pytest

import msgstore
import msgstore_queues
from msgstore import directory
from msgstore.files import Files
from msgstore.jobs import inputs
from msgstore.jobs.messages.conversion_plan import choose_sink
from msgstore.jobs.workers import DISABLED, disabled_plugins, worker_catalogue
from msgstore.plugins import catalogue as catalogue_module
from msgstore.plugins import loader
from msgstore.scan import FormatSet
from msgstore_queues.vhosts import find_vhost, stop_vhost
from support import DATA, command, json_of, slow

PAGE = Path(__file__).parents[1] / "docs/reference/wrong-configuration.md"
NEEDED = [
    "msgstore",
    "msgstore_ets_index",
    "msgstore_lmdb_index",
    "msgstore_format_v1",
    "msgstore_format_v2",
    "msgstore_checksum_record",
    "msgstore_queues",
    "msgstore_queue_index_v1",
    "msgstore_queue_index_v2",
]

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, NEEDED)), reason="the messages name what is installed: all plugins of the repository"
)


@attrs.frozen
class Section:
    title: str
    language: str
    cause: str
    message: str


def read_page(text: str) -> dict[str, Section]:
    sections = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL)
        if len(blocks) != 2 or blocks[1][0] != "text":
            raise ValueError(f"section {title!r} is not a cause and a message: {[language for language, _ in blocks]}")
        sections[title] = Section(title, blocks[0][0], blocks[0][1], blocks[1][1].strip())
    return sections


SECTIONS = read_page(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}


class Machine:
    """A directory to work in, and distributions that come and go."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.store = path / "orders"
        self.file = path / "msgstore.toml"
        self.site = path / "site-packages"
        self._monkeypatch = monkeypatch
        self._stack = contextlib.ExitStack()
        self._hidden = {"foreign-backends"}
        self._hidden |= {f"acme-{name}" for name in ("audit-record", "aes-body", "zstd-body", "stamped-format", "sqlite-index")}
        """Strangers of tests and examples: the page is of a machine that does not have them."""
        monkeypatch.setattr(loader, "INSTALLATION_SECONDS", 0)  # no installation goes on meanwhile: 15 ms for each command
        self._hide()

    def install(
        self, name: str, version: str, entry_point: str, hook: str, descriptor: str, *, head: str = "", group: str = "msgstore"
    ) -> None:
        """A distribution with one module, ``NAME_plugin``, that registers one descriptor."""
        module = name.replace("-", "_") + "_plugin"
        self.site.mkdir(exist_ok=True)
        (self.site / f"{module}.py").write_text(
            f"{head}\nfrom msgstore import hookimpl\nfrom msgstore.contract import *\n\n"
            f"@hookimpl\ndef {hook}():\n    return [{descriptor}]\n"
        )
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{entry_point} = {module}\n")
        self._monkeypatch.syspath_prepend(str(self.site))
        self._monkeypatch.delitem(sys.modules, module, raising=False)
        importlib.invalidate_caches()
        self._stack.callback(sys.modules.pop, module, None)

    def uninstall(self, distribution: str) -> None:
        """Its entry points are gone, as after ``pip uninstall``."""
        self._hidden.add(distribution)

    def _hide(self) -> None:
        def rest() -> list[tuple[loader.Provider, metadata.EntryPoint]]:
            return [found for found in loader.find_entry_points() if found[0].distribution not in self._hidden]

        self._monkeypatch.setattr(catalogue_module, "find_entry_points", rest)

    def write_store(self, **keys: Any) -> None:
        with msgstore.open_store(self.store, **keys) as store, store.client() as client:
            client.write(bytes(16), b"hello")

    def keep_open(self, **keys: Any) -> None:
        self._stack.enter_context(msgstore.open_store(self.store, **keys))

    def copy_store(self, name: str) -> None:
        shutil.copytree(DATA / "msg-store" / name / "store", self.store)

    def stop_vhost(self) -> None:
        msgstore_queues.open_vhost(self.path / "data", "work").close()
        stop_vhost(find_vhost(self.path / "data", "work"))

    def run(self, section: Section) -> str:
        """What the program prints, with placeholders for what differs from machine to machine."""
        if section.language == "console":
            printed = self._shell(section.cause)
        else:
            with pytest.raises(msgstore.MsgStoreError) as caught:
                self._toml(section.cause) if section.language == "toml" else self._python(section.cause)
            printed = str(caught.value)
        for value, placeholder in ((self.store, "DIR"), (self.file, "FILE"), (self.path, "PARENT")):
            printed = printed.replace(str(value), placeholder)
        printed = re.sub(r"vhosts/[0-9A-Z]+", "vhosts/VHOST", printed)
        for name in NEEDED:
            distribution = name.replace("_", "-")
            printed = printed.replace(f"{distribution} {metadata.version(distribution)}", f"{distribution} VERSION")
        return re.sub(r"\bprocess \d+\b", "process PID", printed).strip()

    def _toml(self, text: str) -> None:
        self.file.write_text(text)
        if "[vhosts." in text:
            msgstore_queues.load_config(self.file).open("work").close()
            return
        with msgstore.load_config(self.file).open("orders"):
            pass

    def _python(self, text: str) -> None:
        with contextlib.chdir(self.path):
            exec(compile(text, str(PAGE), "exec"), {"msgstore": msgstore, "DIR": str(self.store), "FILE": str(self.file)})

    def _shell(self, text: str) -> str:
        typed, _, code = text.strip().partition("  # exit ")
        arguments = shlex.split(typed.removeprefix("$ ").replace("DIR", str(self.store)).replace("FILE", str(self.file)))
        assert arguments[0] == "msgstore"
        environment = {**os.environ, "PYTHONPATH": str(self.site), "COLUMNS": "1000"}
        done = subprocess.run(
            [sys.executable, "-c", "from msgstore.cli.main import main; main()", *arguments[1:]],
            input="", capture_output=True, text=True, env=environment, cwd=self.path,
        )  # fmt: skip
        assert done.returncode == int(code), done.stderr
        return done.stderr

    def close(self) -> None:
        self._stack.close()
        for cached in (worker_catalogue, inputs._open):
            cached.cache_clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    made.close()  # what other tests have cached
    yield made
    made.close()


TABLE = '[stores.orders]\npath = "orders"\n'
INDEX_DESCRIPTOR = "IndexDescriptor(name={!r}, contract={}, factory={!r})"


def rocks(machine: Machine, contract: str = "(1, 0)", head: str = "", factory: str = "acme_rocks.index:Rocks") -> None:
    descriptor = INDEX_DESCRIPTOR.format("rocks", contract, factory)
    machine.install("acme-rocks", "1.4.0", "rocks", "msgstore_indexes", descriptor, head=head)


STAMPED = """
import attrs
from msgstore_format_v2.message import MessageRecord

@attrs.frozen
class Options:
    clock: str{}
"""


def stamped(machine: Machine, default: str = ' = "utc"') -> None:
    members = "name='stamped', contract=(1, 0), factory='acme_stamped_plugin:MessageRecord', format='v2', options=Options"
    descriptor, head = f"RecordTypeDescriptor({members})", STAMPED.format(default)
    machine.install("acme-stamped", "0.3.0", "stamped", "msgstore_record_types", descriptor, head=head)


def without_a_mark(machine: Machine) -> None:
    rocks(machine)
    module = machine.site / "acme_rocks_plugin.py"
    module.write_text(module.read_text().replace("@hookimpl\n", ""))


INDEX = """
class Rocks:
    def __init__(self, context): pass
    def load(self): {load}
    def clear(self): pass
    def __len__(self): return 0
    def get(self, msg_id): return None
    def references(self, msg_id): return 0
    def items(self): return iter(())
    def enter(self, ids, locations, references=None): pass
    def add_reference(self, msg_id): return False
    def release(self, ids): pass
    def relocate(self, ids, old, new): return 0
    def freeze(self, state): {freeze}
    def commit(self): pass
    def close(self, state): pass
"""


def failing_rocks(machine: Machine, load: str = "return None", freeze: str = "pass") -> None:
    rocks(machine, head=INDEX.format(load=load, freeze=freeze), factory="acme_rocks_plugin:Rocks")


def incomplete(machine: Machine) -> None:
    head = INDEX.format(load="return None", freeze="pass").replace("def add_reference", "def add_ref")
    rocks(machine, head=head.replace("def relocate", "def move"), factory="acme_rocks_plugin:Rocks")


def claiming(machine: Machine, **members: object) -> None:
    given = {"name": "blocks", "contract": (1, 0), "factory": "acme_blocks_plugin:Blocks", "extension": ".sqs", "generation": 3}
    described = ", ".join(f"{key}={value!r}" for key, value in (given | members).items())
    machine.install("acme-blocks", "1.1.0", "blocks", "msgstore_segment_formats", f"SegmentFormatDescriptor({described})")


PREPARED: dict[str, Callable[[Machine], object]] = {
    "Missing plugin": lambda m: m.uninstall("msgstore-lmdb-index"),
    "Two plugins of one name": lambda m: m.install(
        "acme-ets", "2.0.1", "fast-ets", "msgstore_indexes", INDEX_DESCRIPTOR.format("ets", "(1, 0)", "acme_ets.index:Ets")
    ),
    "Wrong contract version": lambda m: rocks(m, contract="(2, 0)"),
    "Broken import": lambda m: rocks(m, head="import rocksdb_bindings"),
    "Plugin that ends the program": lambda m: rocks(m, head="raise SystemExit('acme: no licence found')"),
    "Misspelt hook": lambda m: m.install("acme-rocks", "1.4.0", "rocks", "msgstore_indices", ""),
    "Wrong entry-point group": lambda m: m.install(
        "acme-rocks", "1.4.0", "rocks", "msgstore_indexes", "", group="msgstore.plugins"
    ),
    "Forgotten hookimpl": without_a_mark,
    "Plugin whose own code is missing": rocks,
    "Plugin that lacks a method": incomplete,
    "Two formats of one extension": claiming,
    "Format with the extension of other files": lambda m: claiming(m, extension=".tmp"),
    "Index that cannot load what it saved": lambda m: failing_rocks(m, load="raise ValueError('hm')"),
    "Index that cannot begin": lambda m: failing_rocks(m, freeze="raise ValueError('hm')"),
    "Several mistakes at once": lambda m: m.file.write_text(
        f'{TABLE}gc = {{ use = "retention", max_age = "2 days", foo = 1 }}\n'
    ),
    "Unknown store": lambda m: m.file.write_text(TABLE),
    "Record-type byte bound twice": stamped,
    "Record type with an option that it does not have": stamped,
    "Record type with a bad option": stamped,
    "Record type with options and no byte": stamped,
    "Record type whose option has no default": lambda m: stamped(m, default=""),
    "Unbound record type": stamped,
    "Other binding than the directory remembers": lambda m: m.write_store(format={"use": "v2", "records": {"checksum": 4}}),
    "Byte of another record type": lambda m: (
        stamped(m),
        m.write_store(format={"use": "v2", "records": {"checksum": 128}}),
    ),
    "Store opened without its record type": lambda m: (
        m.write_store(record="checksum"),
        m.uninstall("msgstore-checksum-record"),
    ),
    "Store opened without a third-party record type": lambda m: (
        stamped(m),
        m.write_store(record="stamped", format={"use": "v2", "records": {"stamped": 200}}),
        m.uninstall("acme-stamped"),
    ),
    "Store opened without its last index": lambda m: (
        m.write_store(index="lmdb"),
        m.uninstall("msgstore-lmdb-index"),
    ),
    "Store opened with another distribution's backend": lambda m: (
        sealed(m, "acme-seal"),
        m.write_store(body="seal"),
        m.uninstall("acme-seal"),
        sealed(m, "other-seal"),
    ),
    "Older format over newer segments": lambda m: m.copy_store("mixed_upgrade"),
    "Older segments, and on_legacy refuses them": lambda m: m.copy_store("mixed_upgrade"),
    "Second writer": lambda m: m.keep_open(),
    "Reader next to a writer": lambda m: m.keep_open(),
    "Reader with another index than the writer": lambda m: (
        m.keep_open(index="ets"),
        m.file.write_text(f'{TABLE}index = "lmdb"\n'),
    ),
    "Second writer in one process": lambda m: m.keep_open(),
    "Change of a store that was opened for reading": lambda m: m.write_store(),
    "Vhost that is stopped": lambda m: m.stop_vhost(),
}
"""What stands before the cause of a section; before all others nothing: everything of this repository is installed."""


def test_page_has_all_sections():
    assert PREPARED.keys() <= SECTIONS.keys()
    assert len(SECTIONS) >= 59, "a section went, and with it a message that is tried"


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_program_prints_the_message_of_page(title, machine):
    PREPARED.get(title, lambda _: None)(machine)
    assert machine.run(SECTIONS[title]) == SECTIONS[title].message


SEAL = """
class Seal:
    def __init__(self, options): pass
    def encode(self, msg_id, body): return b"{0}" + body
    def decode(self, msg_id, stored): return stored.removeprefix(b"{0}")
    def is_valid(self, msg_id, stored): return stored.startswith(b"{0}")
"""


def sealed(machine: Machine, name: str) -> None:
    """A codec ``seal`` with the layout of this distribution."""
    factory = name.replace("-", "_") + "_plugin:Seal"
    descriptor = f"BodyCodecDescriptor(name='seal', contract=(1, 0), factory={factory!r})"
    machine.install(name, "1.0", f"{name}-codec", "msgstore_body_codecs", descriptor, head=SEAL.format(name))


def test_provider_that_wrote_the_store_stays(machine, caplog):
    """Of two, the other is to be disabled. By itself, the other reads with a warning, and writes once it is adopted."""
    sealed(machine, "acme")
    machine.write_store(body="seal")
    sealed(machine, "rogue")
    with pytest.raises(msgstore.PluginError, match=r"provided 2 times.* disabled = \[\"rogue:rogue-codec\"\]"):
        msgstore.open_store(machine.store)
    machine.uninstall("acme")
    said = "the body codec 'seal' is of rogue 1.0 .*, and was of the distribution 'acme'"
    with pytest.raises(msgstore.StoreMismatch, match=f"{machine.store}: {said}.* open the store once with --adopt"):
        msgstore.open_store(machine.store)
    caplog.clear()
    msgstore.open_store(machine.store, mode="r").close()
    inputs.find_inputs(msgstore.load_catalogue(), [machine.store])
    assert sum(re.search(said, text) is not None for text in caplog.messages) == 2  # beside those of stores left by other tests
    msgstore.open_store(machine.store, adopt=True).close()
    msgstore.open_store(machine.store).close()


@pytest.mark.parametrize(
    ("claimed", "files"),
    [
        ({}, "*.sqs are"),
        ({"extension": ".blk", "leftover_extensions": (".sqs",)}, "*.sqs are"),
        ({"extension": ".SQS"}, "*.SQS and *.sqs are"),  # some file systems take both names for one file
        ({"extension": ".blk", "leftover_extensions": (".Sqs",)}, "*.Sqs and *.sqs are"),
    ],
)
def test_formats_claiming_same_files_are_refused(machine, claimed, files):
    """Whichever comes last; and 'msgstore plugins' says it of itself."""
    machine.write_store()
    claiming(machine, **claimed)
    catalogue = msgstore.load_catalogue()
    attempts: list[Callable[[], object]] = [lambda: catalogue.format("v2"), lambda: catalogue.format("blocks")]
    if " and " not in files:
        attempts += [lambda: msgstore.open_store(machine.store), lambda: FormatSet(catalogue).by_extension(".sqs")]
    for attempt in attempts:
        with pytest.raises(msgstore.PluginError, match=rf"files {re.escape(files)} claimed by 2 .*disabled = ."):
            attempt()
    [problem] = catalogue.problems()
    assert f"files {files} claimed by 2 segment formats: " in problem
    assert "'blocks' of acme-blocks 1.1.0 (entry point" in problem
    assert msgstore.load_catalogue(["acme-blocks:blocks"]).format("v2").name == "v2"


def test_source_provided_twice_is_disabled_for_detect(machine):
    machine.write_store()
    descriptor = "SourceDescriptor(name='store', contract=(1, 0), factory='acme_plugin:Made', detect='acme_plugin:detect')"
    machine.install("acme", "1.0", "acme-store", "msgstore_sources", descriptor)
    said = 'in a configuration (--config FILE): disabled = ["acme:acme-store"]'
    assert said in command("detect", machine.store, code=2).stderr
    machine.file.write_text(f"disabled = ['acme:acme-store']\n{TABLE}")
    assert "certain" in command("detect", "orders", "--config", machine.file).stdout


def test_config_check_lists_each_key_of_nested_tables(machine):
    """Also of a record type's table, and once each."""
    classes = "import attrs\n@attrs.frozen\nclass Limits:\n    per_run: int = 8\n"
    classes += "@attrs.frozen\nclass Options:\n    limits: Limits | None = None\n"
    descriptor = "GcPolicyDescriptor(name='cooled', contract=(1, 0), factory='acme_plugin:Made', options=Options)"
    machine.install("acme", "1.0", "acme-cooled", "msgstore_gc_policies", descriptor, head=classes)
    machine.file.write_text(
        "[stores.orders]\npath = 'orders'\ngc = { use = 'cooled', limits = { a = 1, per_run = 'q' } }\n"
        "format = { use = 'v2', records = { checksum = { x = 1, y = 2 } }, z = 3 }\n"
    )
    errors = command("config", "check", "--config", machine.file, code=2).stderr.splitlines()
    assert [line.removeprefix(f"msgstore: {machine.file}: [stores.orders] ").split(". ")[0] for line in errors] == [
        "format: unknown key 'z'",
        "format records checksum: unknown key 'x'",
        "format records checksum: unknown key 'y'",
        "gc limits: unknown key 'a'",
        "gc limits per_run: 'q' is not an integer",
    ]


@pytest.mark.parametrize(
    ("members", "claimed", "destination"),
    [
        ("endings=('.jsonl',)", "files *.jsonl are claimed by 2 sinks: 'packs' of acme-packs 1.0 (entry point", "q.jsonl"),
        ("endings=('.JSONL',)", "files *.JSONL and *.jsonl are claimed by 2 sinks: ", "q.jsonl"),
        ("schemes=('amqp',)", "URLs amqp:// are claimed by 2 sinks: ", "amqp://host"),
    ],
)
def test_sinks_claiming_same_destinations_are_refused(machine, members, claimed, destination, monkeypatch):
    """Unless one is named; and the line proposes to disable the stranger."""
    descriptor = f"SinkDescriptor(name='packs', contract=(1, 0), factory='a:b', {members})"
    machine.install("acme-packs", "1.0", "packs", "msgstore_sinks", descriptor)
    [problem] = msgstore.load_catalogue().problems()
    assert problem.startswith(claimed)
    assert problem.endswith('disabled = ["acme-packs:packs"]. Or name one (--sink).')
    machine.write_store()
    monkeypatch.chdir(machine.path)
    assert problem in command("convert", machine.store, destination, code=2).stderr
    assert not (machine.path / "q.jsonl").exists()
    command("convert", machine.store, "q.jsonl", "--sink", "jsonl")
    assert (machine.path / "q.jsonl").exists()


def test_longest_ending_selects_the_sink(machine):
    descriptor = "SinkDescriptor(name='packs', contract=(1, 0), factory='a:b', endings=('.jsonl.pack', '.p.jsonl'))"
    machine.install("acme-packs", "1.0", "packs", "msgstore_sinks", descriptor)
    chosen = [choose_sink(msgstore.load_catalogue(), name, None).name for name in ("a.JSONL", "a.p.jsonl", "a.jsonl.Pack")]
    assert chosen == ["jsonl", "packs", "packs"]


@pytest.mark.parametrize("kind", ["source", "sink"])
def test_missing_option_of_source_or_sink_is_shown(machine, kind):
    head = "import attrs\n@attrs.frozen\nclass Options:\n    vhost: str\n"
    descriptor = f"{kind.title()}Descriptor(name='packs', contract=(1, 0), factory='a:b', options=Options, {{}})"
    descriptor = descriptor.format("detect='a:b'" if kind == "source" else "")
    machine.install("acme-packs", "1.0", "packs", f"msgstore_{kind}s", descriptor, head=head)
    machine.write_store()
    told = f"the {kind} packs: the key 'vhost' is missing. Add --{kind}-option vhost=VALUE\n"
    assert told in command("convert", machine.store, machine.path / "to.jsonl", f"--{kind}", "packs", code=2).stderr


def packing_codec(machine: Machine, head: str) -> None:
    """A codec ``packs`` with the ``Options`` that are defined in the code ``head``."""
    descriptor = "BodyCodecDescriptor(name='packs', contract=(1, 0), factory='acme_packs_plugin:codec', options=Options)"
    machine.install("acme-packs", "1.0", "packs", "msgstore_body_codecs", descriptor, head=head)


def problems() -> list[str]:
    """Return what ``plugins --check`` finds."""
    return [row["message"] for row in json_of("plugins", "--check", code=2) if row["kind"] == "problem"]


OPTION_TYPES = (
    "int, float, bool, str, Literal, Path, Size, Duration, tuple[str, ...], or an attrs class, "
    "each also | None. For bytes take hexadecimal text"
)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("vhost: str = 5", "examples with the defaults: vhost: an integer is not text"),
        ("names: set = ()", f"the option 'names' cannot be a set, but {OPTION_TYPES}"),
        ("names: list[str] = ()", f"the option 'names' cannot be a list[str], but {OPTION_TYPES}"),
        ("names: tuple[bytes, ...] = ()", f"the option 'names' cannot be a tuple[bytes, ...], but {OPTION_TYPES}"),
        ("key: bytes | None = None", f"the option 'key' cannot be a bytes | None, but {OPTION_TYPES}"),
        ("key: dict[str, int] | str = ''", f"the option 'key' cannot be a dict[str, int] | str, but {OPTION_TYPES}"),
    ],
)
def test_plugins_check_finds_option_of_another_type(machine, option, problem):
    head = f"import attrs\n@attrs.frozen\nclass Options:\n    {option}\ndef codec(options): pass\n"
    packing_codec(machine, head)
    assert problems()[0].endswith(problem)


def test_plugins_check_takes_defaults_that_no_file_can_have(machine):
    head = (
        "import attrs, enum, math\nfrom msgstore.option_values import Duration\n"
        "@attrs.frozen\nclass Limit:\n    most: int = 3\n"
        "class Mode(enum.Enum):\n    FAST = 'fast'\n"
        "@attrs.frozen\nclass Options:\n    age: Duration = math.inf\n    limits: tuple[Limit, ...] = (Limit(),)\n"
        "    mode: Mode = Mode.FAST\n    pair: tuple[str, int] = ('a', 1)\n"
        "def codec(options): pass\n"
    )
    packing_codec(machine, head)
    assert not [message for message in problems() if "default" in message]


@pytest.mark.parametrize("verb", ["detect", "queues", "messages", "convert"])
def test_unrecognised_path_names_what_failed_to_load(machine, verb):
    """The plugin that reads or writes it may be that one."""
    rocks(machine, head="import rocksdb_bindings")
    (machine.path / "empty").mkdir()
    more = [machine.path / "to.jsonl"] if verb == "convert" else []
    (machine.path / "empty" / "node.tar.gz").touch()
    told = command(verb, machine.path / "empty", *more, code=None).output
    assert "Unpack these first, if they are what you look for: node.tar.gz" in told
    told = "Failed to load: acme-rocks 1.4.0 (entry point"
    assert told in " ".join(command(verb, machine.path / "empty", *more, code=None).output.split())
    machine.write_store()
    assert told in command("convert", machine.store, machine.path / "to.rocks", code=2).stderr


@pytest.mark.parametrize(
    "verb",
    [
        "scan DIR --record checksum=4 --body erlang", "salvage DIR TO",
        slow("diff DIR DIR"), "migrate DIR TO --to v2", "messages DIR", "convert DIR TO --sink jsonl",
    ],
)  # fmt: skip
def test_verb_omits_plugins_that_its_configuration_disables(machine, verb, monkeypatch):
    """Also in worker processes, and for options that look for plugins. A later command has them all."""
    monkeypatch.setattr("msgstore.jobs.tasks.group_into_tasks.__defaults__", (2**17,))
    machine.copy_store("v2_clean")
    claiming(machine)
    machine.file.write_text(f'disabled = ["acme-blocks:blocks"]\n{TABLE}')
    (machine.path / "rows.jsonl").write_text(f'{{"id": "{"ab" * 16}", "text": "one"}}\n')
    places = {"DIR": machine.store, "TO": machine.path / "to", "ROWS": machine.path / "rows.jsonl"}
    words = [places.get(word, word) for word in verb.split()]
    assert "claimed by 2" in command(*words, code=None).output
    named = ["orders" if verb.startswith("migrate") and word == machine.store else word for word in words]
    command(*named, "--config", machine.file)
    shutil.rmtree(machine.path / "to", ignore_errors=True)
    assert "claimed by 2" in command(*words, code=None).output


@pytest.mark.parametrize(
    ("make", "methods", "told"),
    [
        (
            stamped,
            ["encode", "decode", "body_span"],
            "the record type 'stamped' .*stamped_plugin.Made has no overhead, check, which",
        ),
        (
            lambda machine: claiming(machine, extension=".blk", capabilities=["compactable", "self-describing"]),
            ["encode", "decode", "body_span", "scan", "find_chain"],
            "the segment format 'blocks' .*Made has no gap_room, fill_gap, which",
        ),
    ],
    ids=["record type", "format"],
)
def test_incomplete_plugin_is_named(make, methods, told, machine):
    """A record type, not the format, which asks for it. A format with the capability COMPACTABLE needs its methods, too."""
    make(machine)
    [module] = machine.site.glob("*_plugin.py")
    made = "\nclass Made:\n    header, max_body = b'', 100\n    def __init__(self, context): pass\n"
    made += "".join(f"    def {name}(self, *arguments, **options): pass\n" for name in methods)
    module.write_text(module.read_text().replace(":MessageRecord", ":Made").replace(":Blocks", ":Made") + made)
    keys = (
        {"record": "stamped", "format": {"use": "v2", "records": {"stamped": 200}}} if make is stamped else {"format": "blocks"}
    )
    with pytest.raises(msgstore.BrokenPlugin, match=told):
        msgstore.open_store(machine.store, **keys)


def test_config_check_names_file_and_table_once(machine):
    stamped(machine)
    machine.write_store(record="stamped", format={"use": "v2", "records": {"stamped": 200}})
    machine.uninstall("acme-stamped")
    machine.file.write_text(TABLE)
    error = command("config", "check", "--config", machine.file, code=2).stderr
    assert f"{machine.file}: [stores.orders]: {machine.store}: the store uses" in error
    assert error.count("[stores.orders]") == 1


def test_record_type_of_other_format_is_named(machine):
    """Not asked whether it was meant, by its very name."""
    descriptor = "RecordTypeDescriptor(name='stamped', contract=(1, 0), factory='a:b', format='v3')"
    machine.install("acme-stamped", "0.3.0", "stamped", "msgstore_record_types", descriptor)
    with pytest.raises(msgstore.PluginError, match="'stamped' is for format 'v3' of acme-stamped; select that") as caught:
        msgstore.load_catalogue().record("v2", "stamped")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("acme_rocks.index:Rocks", "ModuleNotFoundError: No module named 'acme_rocks'"),
        ("acme_rocks_plugin:Rocks", "AttributeError: "),
        ("acme_rocks_plugin:__name__", "TypeError: acme_rocks_plugin:__name__ is not callable"),
    ],
)
def test_factory_not_importable_is_a_problem(machine, factory, said):
    rocks(machine, factory=factory)
    assert list(msgstore.load_catalogue().problems()) == []  # what is not selected is not imported
    command("plugins")
    [problem] = problems()
    assert said in problem
    assert "'rocks' of acme-rocks 1.4.0" in problem
    assert "cannot be imported" in problem


def test_salvage_without_the_format_makes_nothing(machine):
    claiming(machine, extension=".blk")
    machine.store.mkdir()
    (machine.store / "0.blk").write_bytes(b"records")
    directory.write_settings(Files(), machine.store, directory.Settings(format="blocks"))
    machine.uninstall("acme-blocks")
    done = command("salvage", machine.store, machine.path / "new", code=2)
    assert f"{machine.store / '0.blk'}: no installed format reads *.blk. No message could be read" in done.stderr
    assert not (machine.path / "new").exists()


def test_wrong_table_stops_its_own_store_only(machine):
    """``config check`` reports each."""
    machine.write_store()
    machine.file.write_text(f'{TABLE}[stores.bad]\npath = "bad"\nsync_intervall = 1\n')
    for verb in ("ls", "scan"):
        command(verb, "orders", "--config", machine.file)
        command(verb, machine.store, "--config", machine.file)
        assert "[stores.bad]: unknown key" in command(verb, "bad", "--config", machine.file, code=2).stderr
    assert [found["ok"] for found in json_of("config", "check", "--config", machine.file, code=2)] == [True, False]


@pytest.mark.parametrize("key", ["", 'body = "seal"\n'])
def test_config_check_names_codec_that_the_directory_has(key, machine):
    sealed(machine, "acme")
    machine.write_store(body="seal")
    machine.uninstall("acme")
    machine.file.write_text(TABLE + key)
    stderr = command("config", "check", "--config", machine.file, code=2).stderr
    assert "[stores.orders] body: no installed plugin provides the body codec 'seal'" in stderr
    assert "According to the directory, the distribution 'acme' provides it" in stderr


def test_failures_of_plugins_are_one_line_each(machine):
    """The missing backend may be the one that did not load."""
    fault = "raise ValueError('first\\nsecond')"
    rocks(machine, head=fault)
    descriptor = "BodyCodecDescriptor(name='odd', contract=(1, 0), factory='acme_odd_plugin:odd')"
    machine.install("acme-odd", "1.0", "odd", "msgstore_body_codecs", descriptor, head=f"def odd(options): {fault}")
    assert [("ValueError: first" in problem, "\n" in problem) for problem in problems()] == [(True, False)] * 2
    machine.file.write_text(f'{TABLE}gc = "fast"\n')
    with pytest.raises(msgstore.PluginError, match=r"Failed to load: acme-rocks 1.* Try: mend what failed to load,"):
        msgstore.load_config(machine.file).open("orders")
    machine.install("acme-quick", "1.0", "quick", "msgstore_gc_policies", "1")
    with pytest.raises(msgstore.PluginError, match=r"Failed to load: acme-rocks, acme-quick \('msgstore plugins' says why\)"):
        msgstore.load_config(machine.file).open("orders")


def test_misspelt_record_type_gets_a_suggestion(tmp_path):
    msgstore.open_store(tmp_path, record="checksum").close()
    for records, kind, told in (
        ({"records": {"chekcsum": 200}}, msgstore.PluginError, "Did you mean 'checksum'"),
        ({"recods": {"checksum": 4}}, msgstore.ConfigError, r"unknown key 'recods'\. Did you mean 'records'"),
    ):
        with pytest.raises(kind, match=told) as caught:
            msgstore.open_store(tmp_path, format={"use": "v2", **records})
        assert "the store uses" not in str(caught.value)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("SystemExit('no licence')", msgstore.PluginError),
        ("StoreError('hm')", msgstore.StoreError),
        ("OSError(5, 'hm')", msgstore.StoreError),
        ("KeyboardInterrupt('hm')", KeyboardInterrupt),
    ],
)
@pytest.mark.parametrize("selected", ["rocks", "ets"])
def test_error_of_loading_index_is_named(machine, selected, raised, expected):
    """Opened with it, and with another one that takes its entries over. What is no fault of it passes unchanged."""
    machine.write_store(index="ets")
    failing_rocks(machine, load=f"raise {raised}")
    remembered = directory.read_settings(Files(), machine.store)
    directory.write_settings(Files(), machine.store, attrs.evolve(remembered, index="rocks"))
    with pytest.raises(expected) as caught:
        msgstore.open_store(machine.store, index=selected)
    is_blamed = expected is msgstore.PluginError
    for part in ("index 'rocks'", "acme-rocks 1.4.0", "no licence" if is_blamed else "hm"):
        assert (part in str(caught.value)) == (is_blamed or part == "hm")


def test_disabled_plugin_need_not_be_in_an_executor(monkeypatch):
    """The process that has read the configuration has checked the name."""
    monkeypatch.setenv(DISABLED, "of-the-driver-only\nformat-v1")
    assert disabled_plugins() == ("format-v1",)
