"""``new-plugin``: what it writes is installed, and works. What is wrong is refused, and leaves nothing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import msgstore
from core_support import raising, refused, rows_of, run
from msgstore.cli.commands import new_plugin
from msgstore.plugins import loader

KEYS: dict[str, dict[str, Any]] = {
    "record-type": {"record": "mine-record-type", "format": {"use": "v2", "records": {"mine-record-type": {"byte": 200}}}},
    "format": {"format": "mine-format"},
    "index": {"index": "mine-index"},
    "gc-policy": {"gc": {"use": "mine-gc-policy", "garbage": 0.5, "smallest": 0}},
    "body-codec": {"body": {"use": "mine-body-codec", "level": 1}},
    "source": {},
    "sink": {},
    "observer": {},
    "command": {},
}


@pytest.fixture(params=new_plugin.KINDS)
def kind(request):
    return request.param


@pytest.fixture
def site(kind, tmp_path):
    """A plugin that the verb has written, installed: what pip makes of its pyproject.toml, without pip."""
    run("new-plugin", kind, f"mine-{kind}", "--into", tmp_path, code=0)
    plugin = tmp_path / f"mine-{kind}"
    project = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]
    [(entry_point, module)] = project["entry-points"]["msgstore"].items()
    info = plugin / "src" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (info / "entry_points.txt").write_text(f"[msgstore]\n{entry_point} = {module}\n")
    return plugin / "src"


def test_store_with_new_plugin_works(kind, site, tmp_path, monkeypatch):
    """Written, flushed, rolled, removed, compacted, opened again, verified."""
    monkeypatch.setattr(loader, "INSTALLATION_SECONDS", 0)  # it is complete: 15 ms for each command
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    assert [problem for problem in msgstore.load_catalogue().problems() if "mine" in problem] == []
    path, ids = tmp_path / "store", [bytes([n]) * 16 for n in range(200)]
    with msgstore.open_store(path, gc_interval=0, **KEYS[kind]) as store, store.client() as client:
        client.write_many((msg_id, msg_id * 20) for msg_id in ids)
        store.flush()
        store.roll()
        client.remove(ids[:180])
        client.write(ids[190], b"")
        done = store.compact()
        assert sum(one.size_after for one in done) < sum(one.size_before for one in done) / 3
        assert client.read_many(ids) == {msg_id: msg_id * 20 for msg_id in ids[180:]}
        client.write(b"the last one....", b"hello")
    with msgstore.open_store(path, gc_interval=0, **KEYS[kind]) as store, store.client() as client:
        assert client.read_many(ids) == {msg_id: msg_id * 20 for msg_id in ids[180:]}
        assert client.read(b"the last one....") == b"hello"
        assert store.references(ids[190]) == 2
    *segments, summary = rows_of("verify", path)
    assert summary["verified"] == sum(row["records"] for row in segments) == 21
    for name in [name for name in sys.modules if name.split(".")[0] == f"mine_{kind.replace('-', '_')}"]:
        del sys.modules[name]


@pytest.mark.kit
@pytest.mark.parametrize("what", ["its own tests", "the conformance kit"])
def test_own_tests_of_new_plugin_pass(kind, site, what, tmp_path):
    """As its README says."""
    line = f"pytest --pyargs msgstore.testing.suite --msgstore-dist mine-{kind}"
    assert line in (site.parent / "README.md").read_text()
    arguments = line.split()[1:] if what == "the conformance kit" else [str(site.parent / "tests")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", tmp_path, "-p", "no:cacheprovider", *arguments],
        env={**os.environ, "PYTHONPATH": str(site)}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_new_plugin_lists_files_it_wrote(tmp_path):
    [made] = rows_of("new-plugin", "format", "acme-two-words", "--summary", "Blocks of 4 KiB, 'fast'.", "--into", tmp_path)
    plugin = tmp_path / "acme-two-words"
    assert (made["kind"], made["name"], made["path"]) == ("format", "acme-two-words", str(plugin))
    found = [path for path in plugin.rglob("*") if path.is_file()]
    assert sorted(made["files"]) == sorted(path.relative_to(plugin).as_posix() for path in found)
    assert list(tmp_path.iterdir()) == [plugin]
    assert not any("$" in path.read_text() for path in found if path.suffix == ".py")
    assert 'extension=".acme_two_words"' in (plugin / "src/acme_two_words/plugin.py").read_text()
    assert sum("Blocks of 4 KiB, 'fast'" in path.read_text() for path in found) == 4


_NOT_A_NAME = "is not a name"
_NO_PACKAGE = "cannot be the name of a package"
REFUSED = [
    *(("index", name, _NOT_A_NAME) for name in ("", "Acme", "acme_audit", "1st", "-acme", "acme-", "a--b", "../acme", "a" * 41,
                                                "ümlaut")),
    *(("index", name, _NO_PACKAGE) for name in ("class", "json", "msgstore", "tests")),
    ("index", "ets", "already exists in msgstore-ets-index"),
    ("command", "scan", "msgstore has a command 'scan'"),
    ("index", "click", "would replace the distribution click"),  # ``pip install -e .`` would uninstall it
    ("index", "attr", "would replace the module attr"),
    ("format", "sqs", "would end in .sqs, as those of the format 'v2'"),
    *(("format", name, f"would end in .{name}, as other files") for name in ("tmp", "erase", "lock", "hint")),
    ("drain", "mine", "record-type"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "message"), REFUSED, ids=[f"{kind} {name[:20]}" for kind, name, _ in REFUSED])
def test_new_plugin_with_unusable_name_is_refused(kind, name, message, tmp_path):
    result = run("new-plugin", "--into", tmp_path, "--", kind, name, code=2)
    assert message in " ".join(result.stderr.replace("\u2502", " ").split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("summary", ["two\nlines", 'a "word"', "\\", " "])
def test_new_plugin_with_unusable_summary_is_refused(summary, tmp_path):
    assert "is not one line" in run("new-plugin", "index", "mine", "--summary", summary, "--into", tmp_path, code=2).stderr
    assert list(tmp_path.iterdir()) == []


def test_new_plugin_with_unusable_directory_is_refused(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    for into, error in (
        (".", "mine: already exists. Choose another name, or another directory with --into."),
        ("no", "no: there is no such directory. Create it first."),
    ):
        assert refused("new-plugin", "index", "mine", "--into", tmp_path / into) == f"msgstore: {tmp_path}/{error}\n"
    monkeypatch.setattr(Path, "rename", raising(OSError(28, "No space left on device", "somewhere")))
    assert "No space left" in refused("new-plugin", "index", "other", "--into", tmp_path)
    assert [*tmp_path.rglob("*")] == [tmp_path / "mine"]


@pytest.mark.parametrize(
    ("version", "versions"), [("0.1.0", ">=0.1,<0.2"), ("0.9.3", ">=0.9,<0.10"), ("1.4.0rc1", ">=1.4,<2"), ("2.0", ">=2.0,<3")]
)
def test_versions_end_before_next_breaking_one(version, versions):
    assert new_plugin._versions(version) == versions
