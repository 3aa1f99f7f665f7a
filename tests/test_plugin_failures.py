"""A method of a plugin raises: each command and call names plugin, distribution and store, and the command exits with 2."""

from __future__ import annotations

import contextlib
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import msgstore
import msgstore.contract
from msgstore import forking
from msgstore.contract import BrokenPlugin
from support import A, B, C, command, contents, filled, json_of, open_with

FORMAT = "msgstore_format_v2.format:SegmentFormatV2"
RECORD = "msgstore_format_v2.message:MessageRecord"
POLICY = "msgstore.builtin.policies:HalfEmpty"
ETS = "msgstore_ets_index.index:EtsIndex"


def break_method(monkeypatch: pytest.MonkeyPatch, target: str, method: str) -> None:
    """Let a method of a plugin's class raise, in the plugin's own module."""
    module, _, name = target.partition(":")
    there = importlib.import_module(module)
    scope = vars(there) | {}
    exec(f"def {method}(self, *_, **__):\n    raise RuntimeError('boom')\n", scope)
    monkeypatch.setattr(getattr(there, name), method, scope[method])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In the working directory. Its commands end like programs: what they leave open is abandoned."""
    monkeypatch.chdir(tmp_path)
    with msgstore.open_store(tmp_path / "store") as opened, opened.client() as client:
        client.write(A, b"body" * 25)
        client.write(B, b"another")
    yield tmp_path / "store"
    for left in list(forking._open):
        if isinstance(left, msgstore.Store) and left.path.resolve() == (tmp_path / "store").resolve():
            with contextlib.suppress(BrokenPlugin):
                left.abandon()


@pytest.mark.parametrize(
    ("scan", "text"),
    [
        ("SegmentScan(end=ScanEnd('odd', 0))", "the scan returns the end"),
        ("SegmentScan(damage=[Damage(0, 1, 7)], end=ScanEnd('clean', len(data)))", "its reason is no text"),
    ],
)
def test_scan_with_impossible_result_is_the_plugins(scan, text, store, monkeypatch):
    there = importlib.import_module(FORMAT.partition(":")[0])
    scope = dict(vars(msgstore.contract)) | vars(there)
    exec(f"def scan(self, data, *_, **__):\n    return {scan}\n", scope)
    monkeypatch.setattr(there.SegmentFormatV2, "scan", scope["scan"])
    done = command("verify", store, code=2)
    assert text in done.output
    assert "msgstore-format-v2" in done.output


@pytest.mark.parametrize(
    ("target", "method", "arguments"),
    [
        (FORMAT, "decode", "get store {A}"),
        (FORMAT, "decode", "verify store"),
        (FORMAT, "decode", "salvage store new --record checksum"),
        (FORMAT, "encode", "put store {C}"),
        (FORMAT, "scan", "scan store"),
        (FORMAT, "scan", "salvage store new"),
        (FORMAT, "scan", "inventory store"),
        (FORMAT, "scan", "diff store store"),
        (FORMAT, "scan", "verify store"),
        (FORMAT, "fill_gap", "compact store --all"),
        (ETS, "release", "rm store {A}"),
        (ETS, "enter", "put store {C}"),
        (ETS, "freeze", "put store {C}"),
        (ETS, "commit", "put store {C}"),
        (ETS, "close", "put store {C}"),
        (ETS, "clear", "put store {C}"),
        (ETS, "items", "ls store"),
        (ETS, "load", "info store"),
        (ETS, "__len__", "info store"),
    ],
)
def test_command_names_plugin_that_raises(target, method, arguments, store, monkeypatch):
    if "compact" in arguments:
        command("rm", store, A.hex())
    if method == "clear":
        (store / "msgstore-ets.snapshot").unlink()
    break_method(monkeypatch, target, method)
    filled = arguments.format(A=A.hex(), C="11" * 16).split()
    result = command(*filled, code=2, stdin=b"body")
    output = " ".join((result.stderr + result.stdout).split())
    distribution = target.partition(".")[0].replace("_", "-")
    assert f"of {distribution}" in output
    called = "close" if method == "clear" else method  # which clears what is left
    assert f"failed in {called}" in output or "cannot" in output
    assert "RuntimeError: boom" in output
    assert "get" not in arguments or f"message {A.hex()}" in output
    assert "store" in output.partition("RuntimeError")[0].replace(distribution, "").replace("msgstore", "")
    assert not Path("new").exists()


@pytest.mark.parametrize("method", ["get", "references", "release"])
def test_call_names_plugin_that_raises(method, tmp_path, monkeypatch):
    store = open_with(tmp_path, sync_interval="1h")
    client = store.client()
    client.write(A, b"body")
    store.flush()
    break_method(monkeypatch, "msgstore_ets_index.index:EtsIndex", method)
    calls = {"get": lambda: store.entry(A), "references": lambda: store.references(A), "release": lambda: client.remove([A])}
    monkeypatch.setattr(store._index, method, getattr(type(store._index), method).__get__(store._index), raising=False)
    at = r"RuntimeError: boom \(<string>:2\)\. "  # the line of the plugin's code
    with pytest.raises(BrokenPlugin, match=f"{tmp_path}: the index 'ets' of msgstore-ets-index .* failed in {method}: {at}"):
        calls[method]()
    monkeypatch.undo()
    store.abandon()


@pytest.mark.parametrize(
    ("method", "result", "call"),
    [
        ("get", (1, 2), lambda store: store.read(A)),
        ("get", (1, 2), lambda store: store.read_many([A])),
        ("get", (1, 2), lambda store: store.entry(A)),
        ("release", ([], []), lambda store: store.client().remove([A])),
        ("enter", None, lambda store: (store.client().write(B, b"new"), store.flush())),
        ("load", [], lambda store: (store.close(), open_with(store.path))),
    ],
)
def test_call_names_index_with_wrong_result(method, result, call, tmp_path, monkeypatch):
    filled(tmp_path, [(A, b"body")])
    store = open_with(tmp_path, sync_interval="1h")
    monkeypatch.setattr(f"{ETS.replace(':', '.')}.{method}", lambda *_: result)
    if method == "get":  # both have bound it
        monkeypatch.setattr(store._index, method, lambda _: result)
        monkeypatch.setattr(store._reader, "_locate", store._index.get)
    with pytest.raises(BrokenPlugin, match=r"the index 'ets' of msgstore-ets-index .* (failed in|load) ") as caught:
        call(store)
    assert str(tmp_path) in str(caught.value)
    assert method in str(caught.value)
    monkeypatch.undo()
    store.abandon()


def test_verify_names_format_that_decodes_nothing(store, monkeypatch):
    """A format that returns None: the codec is not to blame, and a store of plain bodies is not whole."""
    from msgstore_format_v2.format import SegmentFormatV2

    monkeypatch.setattr(SegmentFormatV2, "decode", lambda *_: None)
    error = command("verify", store, code=2).stderr
    assert "the segment format 'v2' of msgstore-format-v2" in error
    assert "failed in decode: TypeError: a body is bytes, not NoneType" in error


def test_fast_read_names_plugin_that_raises(tmp_path, monkeypatch):
    """Whatever it raises: the fast path of a read takes some exceptions for a message that has moved."""
    with open_with(tmp_path) as store:
        client = store.client()
        client.write(A, b"body")
    break_method(monkeypatch, FORMAT, "decode")
    with open_with(tmp_path) as store:
        for _ in range(2):
            with pytest.raises(BrokenPlugin, match="failed in decode: RuntimeError: boom") as caught:
                store.read(A)
            assert f"message {A.hex()}" in str(caught.value)


AUDIT = "acme_audit_record.record:AuditRecord"
AUDITED = {"record": "audit", "format": {"use": "v2", "records": {"audit": 200}}}


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of audit records in the working directory."""
    monkeypatch.chdir(tmp_path)
    return filled(Path("store"), [(A, b"body")], **AUDITED)


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data, sizes: (data, [size - 1 for size in sizes]), "it returns .* bytes, and sizes of "),
        (lambda data, sizes: (data, sizes[1:]), "it returns 1 sizes for 2 messages"),
        (lambda data, sizes: None, "it returns NoneType, not"),
        (lambda data, sizes: (data, tuple(sizes)), "it returns tuple, not"),
    ],
)
def test_flush_refuses_sizes_that_do_not_fit(change, said, typed, tmp_path, monkeypatch):
    """Nothing is confirmed; what encodes rightly later is written, and nothing of the refused batch."""
    there = importlib.import_module("acme_audit_record.record" if typed else "msgstore_format_v2.format")
    kind = there.AuditRecord if typed else there.SegmentFormatV2
    encode, confirmed = kind.encode, []
    monkeypatch.setattr(kind, "encode", lambda self, ids, bodies: change(*encode(self, ids, bodies)))
    with open_with(tmp_path, sync_interval="1h", **(AUDITED if typed else {})) as store:
        client = store.client(on_confirm=confirmed.extend)
        client.write_many([(A, b"body"), (B, b"another")])
        named = "the segment format 'v2' of msgstore-format-v2"
        named += ".* or the record type 'audit' of acme-audit-record" if typed else ".*"
        with pytest.raises(BrokenPlugin, match=f"^{tmp_path}: {named}.* failed in encode: .*{said}"):
            store.flush()
        assert (confirmed, store.stats().pending) == ([], 2)
        monkeypatch.undo()
        store.flush()
        assert (confirmed, contents(store)) == ([A, B], {A: b"body", B: b"another"})
    if typed:
        monkeypatch.setattr(kind, "encode", lambda self, ids, bodies: change(*encode(self, ids, bodies)))
        stderr = command("salvage", tmp_path, f"{tmp_path}-new", "--record", "audit", code=2).stderr
        assert re.search(f"{tmp_path}-new: {named}.* failed in encode: .*{said}", stderr)


@pytest.mark.parametrize(
    ("method", "verb"),
    [
        ("encode", "put store {C} --config msgstore.toml"),
        ("encode", "salvage store new"),
        ("decode", "get store {A}"),
        ("decode", "messages store"),
        ("check", "scan store"),
        ("check", "verify store"),
        ("fields", "scan store --json"),
        ("fields", "get store {A} --fields"),
    ],
)
@pytest.mark.usefixtures("audited")
def test_command_names_record_type_that_raises(method, verb, monkeypatch):
    """Not the format, which calls it: to install that again would not help."""
    Path("msgstore.toml").write_text('[stores.store]\npath = "store"\nrecord = "audit"\n')
    if verb.startswith("salvage"):
        verb += " --record audit"
    break_method(monkeypatch, AUDIT, method)
    stderr = command(*verb.format(A=A.hex(), C="11" * 16).split(), code=2, stdin=b"body").stderr
    assert "the record type 'audit' of acme-audit-record" in stderr
    assert "RuntimeError: boom (<string>:2)" in stderr
    assert "segment format" not in stderr
    assert re.search(r"\b(store|new)\b", stderr.partition("the record type")[0])


@pytest.mark.parametrize("verb", ["get store {A}", "messages store", "convert store new --sink jsonl", "verify store"])
def test_command_names_record_type_that_decodes_text(verb, audited, monkeypatch):
    monkeypatch.setattr(f"{AUDIT.replace(':', '.')}.decode", lambda *_: "text")
    stderr = command(*verb.format(A=A.hex()).split(), code=2).stderr
    assert re.search(r"store.*'v2' of msgstore-format-v2 .* or the record type 'audit' of acme-audit-record", stderr)
    assert "failed in decode: TypeError: a body is bytes, not str" in stderr
    with open_with(audited, **AUDITED) as store:
        for call in (lambda: store.read(A), lambda: store.read_many([A])):
            with pytest.raises(BrokenPlugin, match=r"'audit' of acme-audit-record.* not str"):
                call()


@pytest.mark.parametrize(
    ("method", "verb"),
    [
        ("is_valid", "scan store --body zstd"),
        ("is_valid", "salvage store new --body zstd"),
        ("decode", "get store {A}"),
        ("decode", "messages store"),
        ("decode", "messages store --source-option body=zstd"),
        ("decode", "convert store new --sink jsonl"),
        ("decode", "verify store"),
    ],
)
@pytest.mark.parametrize("raises", [True, False])
def test_command_names_codec_that_raises(method, verb, raises, tmp_path, monkeypatch):
    """Or returns None: no body is damaged."""
    codec = pytest.importorskip("acme_zstd_body.codec").ZstdBody
    monkeypatch.chdir(tmp_path)
    filled(Path("store"), [(A, b"body"), (B, b"body")], body="zstd")
    if raises:
        break_method(monkeypatch, "acme_zstd_body.codec:ZstdBody", method)
    else:
        monkeypatch.setattr(codec, method, lambda *_: None)
    done = command(*verb.format(A=A.hex()).split(), code=2)
    assert re.search(rf"store.*the body codec 'zstd' of acme-zstd-body .* failed in {method}", done.output)
    assert ("RuntimeError: boom" if raises else "NoneType") in done.output
    assert "damaged" not in done.output
    assert "invalid" not in done.output
    for call in ("read", "read_many") if method == "decode" else ():
        with open_with(tmp_path / "store", body="zstd") as store, pytest.raises(BrokenPlugin, match=f"^{tmp_path}/store: the"):
            getattr(store, call)(A if call == "read" else [A, B])


def test_command_that_cannot_close_says_so_once(store):
    """In a program of its own: at its end the store, which is still open, would warn once more."""
    code = (
        "from msgstore_format_v2.format import SegmentFormatV2 as V2\nfrom msgstore.cli.main import main\n"
        "V2.encode = lambda *_: None\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code, "put", store, C.hex()], input=b"body", capture_output=True)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr


@pytest.mark.parametrize("plan", [None, "compact", [1]])
def test_policy_with_impossible_plan_is_named(plan, store, monkeypatch):
    monkeypatch.setattr(f"{POLICY.replace(':', '.')}.plan", lambda *_: plan)
    assert "the GC policy 'half-empty' of msgstore" in command("compact", store, code=2).stderr


def test_factory_that_raises_oserror_hides_no_other_store(tmp_path, monkeypatch):
    """``config check`` says so of its store, and checks the others. No installation is proposed for a file that is missing."""
    pytest.importorskip("acme_zstd_body")
    from acme_zstd_body.codec import ZstdBody

    def absent(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "key")

    monkeypatch.setattr(ZstdBody, "__init__", absent)
    (tmp_path / "msgstore.toml").write_text('[stores.a]\npath = "a"\nbody = "zstd"\n[stores.b]\npath = "b"\n', encoding="utf-8")
    result = command("config", "check", "--config", tmp_path / "msgstore.toml", code=2)
    assert "[stores.a]" in result.stderr
    assert "the body codec 'zstd' of acme-zstd-body 1.0.0" in result.stderr
    assert "cannot be created: FileNotFoundError: [Errno 2] No such file or directory: 'key'" in result.stderr
    assert "pip install" not in result.stderr
    assert "b: ok" in result.stdout


@pytest.mark.parametrize(
    ("target", "method", "given", "said"),
    [
        (POLICY, "plan", lambda self, segments: [], "plan(segments, now)"),
        (POLICY, "plan", lambda self, segments, now, more: [], "plan(segments, now)"),
        (FORMAT, "body_span", lambda self, *, data: (0, 0), "body_span(data, offset, size)"),
        (ETS, "freeze", lambda self: None, "freeze(state)"),
        (FORMAT, "scan", lambda self, data, *, start=0: None, "scan(data, start, check_body)"),
        (FORMAT, "scan", lambda self, data, **_: None, None),
        (POLICY, "plan", lambda self, segments, now, more=None: [], None),
        (POLICY, "plan", lambda self, *arguments: [], None),
        (POLICY, "plan", staticmethod(lambda segments, now: []), None),
    ],
)
def test_method_with_wrong_arguments_is_found_at_opening(target, method, given, said, tmp_path, monkeypatch):
    """A policy would fail in the background only."""
    module, _, name = target.partition(":")
    monkeypatch.setattr(getattr(importlib.import_module(module), name), method, given)
    if said is None:
        msgstore.open_store(tmp_path / "store").close()
    else:
        with pytest.raises(BrokenPlugin, match=rf"{name} has no {re.escape(said)} \(it has {method}\(.*\)\), which"):
            msgstore.open_store(tmp_path / "store")


def test_missing_backend_is_named_once(tmp_path):
    (tmp_path / "msgstore.toml").write_text('[stores.a]\npath = "a"\nindex = "none"\ngc = "none"\n')
    [found] = json_of("config", "check", "--config", tmp_path / "msgstore.toml", code=2)
    places = [error.partition(": no installed plugin")[0] for error in found["errors"]]
    assert places == [f"{tmp_path / 'msgstore.toml'}: [stores.a] {key}" for key in ("index", "gc")]


def test_application_is_not_blamed_on_its_plugin(tmp_path, monkeypatch):
    """A callback of the same package raises: that is no method of the plugin, whatever else the package registers."""
    codec = pytest.importorskip("acme_zstd_body.codec")
    scope = vars(codec) | {}
    exec("def progress(done, total):\n    raise LookupError('mine')\n", scope)
    with open_with(tmp_path) as store, store.client() as client:
        client.write_many([(A, b"body"), (B, b"body")])
        store.roll()
        client.remove([A])
        with pytest.raises(LookupError, match="mine"):
            store.compact(everything=True, progress=scope["progress"])


def test_blame_imports_no_plugin_that_is_not_in_use(monkeypatch):
    from msgstore.plugins.blame import blame
    from msgstore_format_v2.format import SegmentFormatV2

    monkeypatch.delitem(sys.modules, "msgstore_lmdb_index.plugin", raising=False)
    break_method(monkeypatch, FORMAT, "decode")
    caught = None
    try:
        exec("SegmentFormatV2.decode(None)", {"__name__": "msgstore.test", "SegmentFormatV2": SegmentFormatV2})
    except RuntimeError as error:
        caught = error
    assert "the segment format 'v2' of msgstore-format-v2" in str(blame(caught))
    assert "msgstore_lmdb_index.plugin" not in sys.modules
