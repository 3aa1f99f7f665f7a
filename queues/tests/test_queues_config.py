"""Tables ``[vhosts.NAME]``: keys, paths, errors, and what ``config check`` says of them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

import msgstore_queues
from msgstore.contract import ConfigError, PluginError
from msgstore.option_values import Backend
from support import command as run
from support import json_of

TABLES = """
    [stores.orders]
    path = "orders"

    [vhosts.work]
    path = "data"
    durability = "fsync"
    store = { index = "lmdb" }
    defaults = { index = "v2" }

    [vhosts.work.queues.jobs]
    backing = { use = "variable", memory = 10 }
    dead_letter = "failed"
    retry_delay = "10s"

    [vhosts.root]
    path = "data"
    name = "/"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "msgstore.toml"


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return file


def test_config_opens_vhosts_beside_the_file(file, monkeypatch, tmp_path):
    """Paths are relative to the file. Queues have the options of their tables, and the stores theirs."""
    config = msgstore_queues.load_config(write(file, TABLES))
    monkeypatch.chdir(tmp_path)
    with config.open("work") as vhost:
        jobs = vhost.queue("jobs")
        assert jobs.options.backing == Backend("variable", {"memory": 10}, base=file.parent)
        assert (jobs.options.dead_letter, jobs.options.retry_delay) == ("failed", 10)
        assert vhost.options.durability == "fsync"
        jobs.put(b"large" * 5000)
        vhost.flush()
        assert json.loads((vhost.persistent._path / "msgstore.json").read_text())["index"] == "lmdb"
    with config.open("root") as vhost:
        assert vhost.name == "/"
    assert len(list((file.parent / "data/msg_stores/vhosts").iterdir())) == 2
    with config.stores.open("orders") as store:
        assert store.stats().messages == 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("pth = 'x'", "[vhosts.a]: unknown key 'pth'. Did you mean 'path'?"),
        ("name = 'x'", "[vhosts.a]: the key 'path' is missing"),
        ("path = 'x'\ndurability = 'never'", "[vhosts.a] durability: "),
        ("path = 'x'\nsync_interval = 'soon'", "[vhosts.a] sync_interval: "),
        ("path = 'x'\nstore = { path = 'y' }", "[vhosts.a]: store: the key 'path' is not of the store"),
        ("path = 'x'\nqueues = { q = { items_ = 5 } }", "[vhosts.a] queue 'q': unknown key 'items_'. Did you mean 'items'?"),
        ("path = 'x'\nqueues = { q = { overflow = 'explode' } }", "[vhosts.a] queue 'q' overflow: "),
        ("path = 'x'\nqueues = { q = 5 }", "[vhosts.a] queues"),
        ("path = 'x'\ndefaults = { durable = 'yes' }", "[vhosts.a] defaults durable: 'yes' is not true or false"),
    ],
)  # fmt: skip
def test_wrong_table_names_file_table_and_key(file, table, message):
    config = msgstore_queues.load_config(write(file, f"[vhosts.a]\n{table}\n[vhosts.good]\npath = 'good'\n"))
    with pytest.raises(ConfigError) as error:
        config.open("a")
    assert str(error.value).startswith(f"{file}: {message}")
    config.open("good").close()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("backing = 'varable'", "queue 'q': no backing queue 'varable' is installed. Installed: "),
        ("index = 'v3'", "queue 'q': no queue index 'v3' is installed. Installed: "),
        ("backing = { use = 'variable', memry = 1 }", "queue 'q' backing: unknown key 'memry'. Did you mean 'memory'?"),
    ],
)
def test_wrong_backend_is_named_by_check_and_opening(file, keys, message):
    write(file, f"[vhosts.a]\npath = 'x'\n[vhosts.a.queues.q]\n{keys}\n")
    checked = run("config", "check", "--config", file, code=2)
    assert checked.stderr.startswith(f"msgstore: {file}: [vhosts.a] {message}")
    with pytest.raises((ConfigError, PluginError), match="queue 'q'"):
        msgstore_queues.load_config(file).open("a")


@pytest.mark.parametrize(
    ("keys", "messages"),
    [
        (
            "record = 'tenat', index = 'lmbd', gc = { use = 'half-empty', garbage = 'q', foo = 1 }",
            [" record: no installed", " index: no installed", " gc garbage: 'q'", " gc: unknown key 'foo'"],
        ),
        ("gc_interval = 'x', reads = 5, gcc = 1", [" gc_interval: 'x'", " reads: 5", ": unknown key 'gcc'"]),
    ],
)
def test_wrong_store_is_named_and_no_vhost_added(file, keys, messages):
    write(file, f"[vhosts.a]\npath = 'x'\nstore = {{ {keys} }}\n")
    for verb in (["config", "check"], ["vhost", "check"]):
        errors = run(*verb, "--config", file, code=2).stderr.splitlines()
        begins = [f"msgstore: {file}: [vhosts.a] store{message}" for message in messages]
        assert [line[: len(begin)] for line, begin in zip(errors, begins, strict=True)] == begins
    assert run("vhost", "add", "a", "--config", file, code=2).stderr.splitlines() == errors[:1]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_unknown_vhost_names_the_nearest(file):
    with pytest.raises(ConfigError, match=r"there is no table \[vhosts.wrk\]. Vhosts: work, root. Did you mean 'work'"):
        msgstore_queues.load_config(write(file, TABLES)).open("wrk")


def test_unknown_top_level_table_is_refused(file):
    with pytest.raises(ConfigError, match=r"unknown key 'vhost'. Did you mean 'vhosts'"):
        msgstore_queues.load_config(write(file, "[vhost.a]\npath = 'x'\n"))


def test_config_check_reports_stores_and_vhosts(file):
    write(file, TABLES)
    good = run("config", "check", "--config", file)
    assert good.stdout.splitlines()[0] == f"orders: ok ({file.parent / 'orders'})"
    assert [line.split(" ")[0] for line in good.stdout.splitlines()] == ["orders:", "work:", "root:"]
    assert json_of("config", "check", "--config", file)[1:] == [
        {"vhost": name, "path": str(file.parent / "data"), "ok": True, "errors": []} for name in ("work", "root")
    ]
    assert not (file.parent / "data").exists()


def test_config_check_of_vhosts_alone_needs_no_store(file):
    write(file, "[vhosts.a]\npath = 'x'\n")
    assert run("config", "check", "--config", file).stdout == f"a: ok ({file.parent / 'x'})\n"
    write(file, "[vhosts.a]\npath = 'x'\n[stores.b]\npth = 'y'\n")
    assert "a: ok" in run("config", "check", "--config", file, code=2).stdout


def test_config_check_without_plugin_says_unchecked(file):
    """As if msgstore-queues were not installed: its entry point is disabled."""
    write(file, "disabled = ['msgstore-queues:queues']\n[vhosts.a]\npath = 'x'\n")
    done = run("config", "check", "--config", file, code=3)
    assert done.stderr == f"msgstore: {file}: [vhosts] was not checked: a. Install msgstore-queues.\n"


def test_paths_and_secrets_of_queues_come_from_the_file(file, monkeypatch):
    """An option of a queue may be ``{ env = "NAME" }``."""
    monkeypatch.setenv("TARGET", "failed")
    write(file, "[vhosts.a]\npath = 'x'\n[vhosts.a.queues.q]\ndead_letter = { env = 'TARGET' }\n")
    with msgstore_queues.load_config(file).open("a") as vhost:
        assert vhost.queue("q").options.dead_letter == "failed"


def test_config_check_lists_every_wrong_key(file):
    write(
        file,
        """
        [vhosts.a]
        pth = "x"
        durability = "never"
        defaults = { durable = 5, items = 3 }
        [vhosts.a.queues.q]
        max_length = -1
        overflow = "explode"
        """,
    )
    errors = run("config", "check", "--config", file, code=2).stderr.splitlines()
    assert all(line.startswith(f"msgstore: {file}: [vhosts.a]") for line in errors)
    parts = ["'path'?", "durability:", "durable:", "items:", "max_length", "overflow:"]
    assert [part for part, line in zip(parts, errors, strict=True) if part not in line] == []


def test_vhost_that_is_no_table_is_refused(file):
    write(file, "vhosts = { a = 5 }")
    assert run("vhost", "check", "--config", file, code=2).stderr == f"msgstore: {file}: [vhosts.a]: 5 is not a table\n"
