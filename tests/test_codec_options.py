"""Options of plugins: in the configuration file, and as commands and jobs take those of a codec."""

from __future__ import annotations

import base64
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

import msgstore
from msgstore.cli.checking import check_segments
from msgstore.cli.commands import verify
from msgstore.cli.option_texts import toml_value
from msgstore.cli.options import target_of
from msgstore.contract import BodyCodecDescriptor, ConfigError, Duration, RecordError
from msgstore.option_values import Backend, GivenText, backend_of, structure, typed
from msgstore.plugins import loader
from msgstore.plugins.descriptor_checks import check_descriptor
from support import A, B, command, filled, flip, json_of

KEY = "ab" * 16


@attrs.frozen
class Server:
    host: str
    port: int = 80


@attrs.frozen
class Options:
    server: Server = Server("localhost")
    certificate: Path = Path()
    password: str = ""
    mirrors: tuple[Server, ...] = ()
    wait: Duration | None = None


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ({"server": {"host": "a", "prot": 1}}, "where server: unknown key 'prot'. Did you mean 'port'?"),
        ({"server": {}}, "where server: the key 'host' is missing"),
        ({"server": "a"}, "where server: text is not a table"),
        ({"server": {"host": "a", "port": "b"}}, "where server port: 'b' is not an integer"),
        ({"mirrors": [{"host": "a"}, {"hots": "b"}]}, "where mirrors: unknown key 'hots'. Did you mean 'host'?"),
        ({"password": {"env": "NO_SUCH"}}, "where password: the environment variable NO_SUCH is not set"),
        ({"password": {"file": "absent"}}, "where password: base/absent: cannot be read: No such file or directory"),
        ({"password": {"env": 5}}, "where password: 5 is not the name of an environment variable"),
        ({"password": {"env": "A", "file": "b"}}, "where password: a table with the keys env, file is not text, { env"),
        ({"password": 7}, "where password: an integer is not text"),
        ({"certificate": "~nobody-here/c"}, "where certificate: '~nobody-here/c': there is no such user"),
    ],
)
def test_wrong_option_is_named(table, error):
    with pytest.raises(ConfigError) as caught:
        structure(Options, table, "where", Path("base"))
    assert str(caught.value).startswith(error)


def test_options_take_paths_from_the_file_and_text_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSWORD", "secret\n")
    (tmp_path / "password").write_text("pass word\n\n", encoding="utf-8")
    found = structure(Options, {"certificate": "c.pem", "password": {"env": "PASSWORD"}}, "where", tmp_path)
    assert found == Options(certificate=tmp_path / "c.pem", password="secret\n")
    found = structure(Options, {"certificate": "~/c", "password": {"file": "password"}}, "where", tmp_path)
    assert found == Options(certificate=Path.home() / "c", password="pass word\n")
    assert structure(Options, {"certificate": "/c", "mirrors": [{"host": "a"}]}, "where", tmp_path).mirrors == (Server("a"),)


@pytest.mark.parametrize(
    ("option", "given", "value"),
    [
        ("password", "5", "5"),
        ("password", "true", "true"),
        ("password", '"quo\\"ted"', 'quo"ted'),
        ("password", '{ env = "PASSWORD" }', "secret"),
        ("password", '{"env": "PASSWORD"}', "secret"),
        ("certificate", "5", Path("5")),
        ("server", '{ host = "a", port = 5 }', Server("a", 5)),
        ("mirrors", '[{"host": "a"}]', (Server("a"),)),
        ("wait", "5", 5),
        ("wait", "5s", 5),
    ],
)
def test_type_of_option_decides_how_value_is_read(option, given, value, monkeypatch):
    monkeypatch.setenv("PASSWORD", "secret")
    assert getattr(structure(Options, {option: GivenText(given)}, "where", Path()), option) == value


@pytest.mark.parametrize("given", ["{ secret", "{ env = PASSWORD, secret", "{secret: 1}", "{}\nother = 'secret'"])
def test_value_that_begins_like_table_is_refused(given):
    with pytest.raises(ConfigError, match=r'^where password: begins with "{", and is no table') as caught:
        structure(Options, {"password": GivenText(given)}, "where", Path())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("given", ['[{"use": "aes-gcm", "key": "secret"}]', 'use = "aes-gcm", key = "secret"'])
def test_text_that_is_no_name_is_refused_unseen(given):
    for read in (backend_of, partial(typed, Backend, where="body")):
        with pytest.raises(ConfigError, match="neither a name nor a table") as caught:
            read(GivenText(given))
        assert "secret" not in str(caught.value)


def test_list_is_not_made_of_letters():
    assert typed(tuple[str, ...] | None, ["a"], "only") == ("a",)
    assert typed(tuple[str, ...] | None, None, "only") is None
    for kind in (tuple[str, ...], tuple[str, ...] | None):
        with pytest.raises(ConfigError, match="only: text is not a list"):
            typed(kind, GivenText("abc"), "only")


def test_backend_is_name_or_table():
    assert backend_of("zstd") == Backend("zstd")
    assert backend_of(' {"use": "zstd", "level": 9}') == Backend("zstd", {"level": 9})
    assert backend_of('{ use = "zstd", level = 9 }') == Backend("zstd", {"level": 9})
    for text in ('{"use": "aes-gcm", "key": "secret"', '{"key": "secret"}', '{"use": 1, "key": "secret"}'):
        with pytest.raises(ConfigError, match=r"a backend: .* table") as caught:
            backend_of(text)
        assert "secret" not in str(caught.value)


@pytest.fixture
def config(tmp_path):
    """The option of commands for the configuration of the test."""
    return ["--config", tmp_path / "msgstore.toml"]


@pytest.fixture
def letters(tmp_path, monkeypatch):
    """A store with encrypted bodies, its configuration, and the working directory elsewhere."""
    pytest.importorskip("acme_aes_body")
    (tmp_path / "key").write_text(KEY, encoding="ascii")
    text = '[stores.letters]\npath = "letters"\nbody = { use = "aes-gcm", key = { file = "key" } }\n'
    (tmp_path / "msgstore.toml").write_text(text, encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with msgstore.load_config(tmp_path / "msgstore.toml").open("letters") as store, store.client() as client:
        client.write(A, b"secret")
    return tmp_path / "letters"


def test_commands_take_options_of_codec(letters, config, tmp_path):
    """From a configuration, or as JSON."""
    body = json.dumps({"use": "aes-gcm", "key": {"file": str(tmp_path / "key")}})
    wrong = ["--body", json.dumps({"use": "aes-gcm", "key": "cd" * 16})]
    for number, options in enumerate((["--body", "aes-gcm", *config], ["--body", body])):
        assert not json_of("scan", letters, *options)[0]["damage"]
        json_of("salvage", letters, tmp_path / f"rescued{number}", *options)
    json_of("scan", letters, *wrong, code=1)
    json_of("salvage", letters, tmp_path / "nothing", *wrong, code=1)
    for verb in (["scan", letters], ["salvage", letters, tmp_path / "none"]):
        assert "other options of the codec 'aes-gcm'" in " ".join(command(*verb, *wrong, code=1).stdout.split())
    rows = json_of("messages", letters, "--source-option", f"body={body}")
    assert [base64.b64decode(row["body"]) for row in rows if "body" in row] == [b"secret"]
    rows = json_of("messages", letters, "--source-option", f"body={wrong[1]}", code=1)
    assert [row["messages"] for row in rows if row.get("kind") == "damage"] == [1]
    command("convert", letters, tmp_path / "files.parquet", "--source-option", f"body={body}")
    command("convert", tmp_path / "files.parquet", tmp_path / "again", "--sink", "store", "--sink-option", f"body={body}")
    command("migrate", "letters", tmp_path / "migrated", "--to", "v2", *config)
    for copy in ("rescued0", "rescued1", "again", "migrated"):
        with msgstore.open_store(tmp_path / copy, body={"use": "aes-gcm", "key": KEY}) as store:
            assert store.read(A) == b"secret"


def test_diff_compares_what_codec_decodes(letters, config, tmp_path):
    """Each encryption of a body has its own nonce."""
    other = filled(tmp_path / "other", [(A, b"secret")], body={"use": "aes-gcm", "key": KEY})
    command("diff", letters, other, code=1)
    codec = ["--body", "aes-gcm", *config]
    assert json_of("diff", letters, other, *codec)[-1]["same"] == 1
    plain = filled(tmp_path / "plain", [(A, b"secret")], body="raw")
    assert json_of("diff", letters, plain, *codec, code=1)[-1]["differing"] == 1, "a body that is stored as it is"
    (tmp_path / "key").write_text("cd" * 16, encoding="ascii")
    error = command("get", "letters", A.hex(), *config, code=1).stderr
    assert ", or was written with other options of the codec 'aes-gcm': compare them first." in error
    wrong = json.dumps({"use": "aes-gcm", "key": "00" * 32})
    assert json_of("diff", letters, other, "--body", wrong, code=1)[-1]["differing"] == 1


@pytest.mark.parametrize("place", ["letters", "../letters"])
def test_diff_decodes_each_side_by_its_codec(letters, config, place, tmp_path):
    """``plain`` is not in the configuration, and its codec has no options."""
    plain = filled(tmp_path / "plain", [(A, b"secret")], body="raw")
    for sides in ((place, plain), (plain, place)):
        assert json_of("diff", *sides, *config)[-1]["same"] == 1
    assert "of A are decoded by aes-gcm, those of B by raw" in command("diff", place, plain, *config).stdout
    assert json_of("diff", place, plain, *config, "--body", "raw", code=1)[-1]["differing"] == 1
    error = " ".join(command("diff", letters, plain, code=2).stderr.split())
    assert f"{letters}: remembers the body codec 'aes-gcm', and the other side another one" in error
    assert "the key 'key' is missing. Options of the codec come from a store in --config FILE." in error
    filled(plain, [(B, b"secret")], body="raw")
    assert json_of("diff", place, plain, *config, code=1)[-1]["only_b"] == 1


def test_diff_of_trees_with_several_codecs_compares_stored_bodies(letters, config, tmp_path):
    """Directories of one codec with different options are no side that one codec decodes, either."""
    for name, body in (("plain", "raw"), ("tree/0", "raw"), ("tree/1", {"use": "aes-gcm", "key": KEY})):
        filled(tmp_path / name, [(A, b"secret")], body=body)
    result = command("diff", tmp_path / "tree", tmp_path / "plain")
    assert "have directories with several body codecs: stored bodies are compared" in " ".join(result.stderr.split())
    shutil.rmtree(tmp_path / "tree" / "0")
    shutil.copytree(letters, tmp_path / "tree" / "2")
    text = '[stores.{0}]\npath = "tree/{0}"\nbody = {{ use = "aes-gcm", key = "{1}" }}\n'
    config[1].write_text(text.format(1, KEY) + text.format(2, "cd" * 16), encoding="utf-8")
    error = command("diff", tmp_path / "tree", tmp_path / "plain", *config, code=2).stderr
    assert "has different options of the codec 'aes-gcm' for its directories" in " ".join(error.split())


def test_store_without_options_of_its_codec_does_what_needs_no_body(letters, tmp_path):
    """And says what is missing where one is needed. A secret is in no message."""
    for verb in ("info", "ls", "map", "compact"):
        command(verb, letters)
    json_of("salvage", letters, tmp_path / "rescued")
    for arguments in (["get", letters, A.hex()], ["verify", letters], ["put", letters, bytes(16).hex()]):
        error = command(*arguments, code=2).stderr
        assert "was written with the body codec 'aes-gcm', which has options" in error
        assert "the key 'key' is missing. Give them in a configuration" in error
        assert "in Python as body={'use': 'aes-gcm', ...}, or" in error
    command("rm", letters, A.hex())


def test_options_of_configuration_must_be_of_one_store(letters, tmp_path):
    file = tmp_path / "msgstore.toml"
    for codec, error in (("zstd", "has no store with this codec"), ("aes-gcm", "has several stores with this codec")):
        assert error in command("scan", letters, "--body", codec, "--config", file, code=2).stderr
        file.write_text(file.read_text() + f'[stores.b]\npath = "b"\nbody = {{ use = "aes-gcm", key = "{KEY}" }}\n')


def test_salvage_binds_record_type(tmp_path):
    pytest.importorskip("acme_audit_record")
    filled(tmp_path / "plain", [(A, b"body")])
    salvage = ["salvage", tmp_path / "plain", tmp_path / "rescued", "--record", "audit"]
    assert "Write --bind audit=128, with" in command(*salvage, code=2).stderr
    sink = command("convert", tmp_path / "plain", tmp_path / "new", "--sink", "store", "--sink-option", "record=audit", code=2)
    assert """Write --sink-option 'records={"audit": 128}', with""" in sink.stderr
    command(*salvage, "--bind", "audit=140")
    assert json_of("info", tmp_path / "rescued")[0]["records"] == {"audit": 140}


def test_plugins_shows_options_and_what_formats_declare():
    found = {(one["kind"], one["name"]): one for one in json_of("plugins") if one["kind"] != "problem"}
    options = {one["name"]: one for one in found["gc", "retention"]["options"]}
    assert options["max_age"]["type"] == "time"
    assert options["then"] == {"name": "then", "type": '"never" or "half-empty"', "default": '"never"'}
    assert found["index", "ets"]["options"] == []
    assert (found["format", "v2"]["extension"], found["format", "v2"]["generation"]) == (".sqs", 2)
    assert (found["record", "checksum"]["format"], found["record", "checksum"]["assigned_byte"]) == ("v2", 4)
    text = command("plugins").stdout
    assert 'then: "never" or "half-empty", default "never"' in text
    assert "files *.sqs, generation 2" in text
    assert "type of v2, byte 4" in text


def test_default_is_text_of_a_configuration_file():
    options = '`{ server = { host = "localhost", port = 80 }, certificate = ".", password = "" }`'
    assert toml_value(None, Options()) == toml_value(None, attrs.Factory(Options)) == options
    assert toml_value(None, attrs.Factory(dict)) == "none"
    assert toml_value(None, (Server("a"), 5)) == '`[{ host = "a", port = 80 }, 5]`'
    assert toml_value(None, Path("a")) == '`"a"`'


def test_check_creates_backends_with_their_examples(monkeypatch):
    codec = pytest.importorskip("acme_aes_body.codec")

    def fail(*_: object) -> None:
        raise OSError(2, "No such file or directory", "key")

    monkeypatch.setattr(codec.AesBody, "__init__", fail)
    [problem] = (row["message"] for row in json_of("plugins", "--check", code=2) if row["kind"] == "problem")
    assert "the body codec 'aes-gcm' of acme-aes-body" in problem
    assert "cannot be created: FileNotFoundError" in problem


def test_option_that_selects_the_backend_is_refused():
    options = attrs.make_class("Options", {"use": attrs.field(default="", type=str)})
    with pytest.raises(ValueError, match="an option cannot be named 'use'"):
        check_descriptor(BodyCodecDescriptor(name="a", contract=(1, 0), factory="a:b", options=options))


def test_only_a_configuration_takes_text_from_elsewhere(tmp_path):
    """Not a file of the store's directory, which anybody may have written."""
    with pytest.raises(ConfigError, match="a table with the keys env is not text"):
        structure(Options, {"password": {"env": "HOME"}}, "where")
    filled(tmp_path / "store", [(A, b"body")])
    spot = {"file": "0.sqs", "offset": 64, "size": 8, "reason": {"env": "HOME"}}
    state = {"layout": 1, "behind": 0, "segments": 1, "records": 1, "bytes": 1, "findings": [], "spots": [spot]}
    state["crc32"] = zlib.crc32(json.dumps(state, sort_keys=True).encode())
    (tmp_path / "store" / "msgstore-scrub.json").write_text(json.dumps(state), encoding="utf-8")
    result = command("verify", tmp_path / "store", "--resume", code=None)
    assert "cannot be used: it is not what a check writes" in result.stderr
    assert str(Path.home()) not in result.stdout


def test_file_of_an_option_is_a_small_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(2**20 + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfsecret\n")
    for name, error in (("pipe", "not a regular file"), ("large", "is larger than"), ("binary", "is not text in UTF-8")):
        with pytest.raises(ConfigError, match=error):
            structure(Options, {"password": {"file": name}}, "where", tmp_path)
    assert structure(Options, {"password": {"file": "marked"}}, "where", tmp_path).password == "secret"


@pytest.mark.parametrize(
    "body",
    [
        {"user": "aes-gcm", "key": "secret"},
        {"use": "aes-gcm", "key": ["secret"]},
        {"use": "aes-gcm", "key": {"vaule": "secret"}},
    ],
)
def test_no_error_shows_a_secret(body, tmp_path):
    pytest.importorskip("acme_aes_body")
    with pytest.raises(ConfigError) as caught:
        msgstore.open_store(tmp_path, body=body)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(Backend("aes-gcm", {"key": "secret"}))


def test_options_of_record_types_are_relative_to_the_file(tmp_path, monkeypatch):
    pytest.importorskip("acme_audit_record")
    (tmp_path / "actor").write_text("tests", encoding="utf-8")
    text = '[stores.a]\npath = "a"\nformat = { use = "v2", records = { audit = { byte = 200, actor = { file = "actor" } } } }\n'
    (tmp_path / "msgstore.toml").write_text(text, encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    msgstore.load_config(tmp_path / "msgstore.toml").open("a").close()
    command("config", "check", "--config", tmp_path / "msgstore.toml")


@attrs.frozen
class SecretActor:
    actor: str = attrs.field(default="", repr=False)


@pytest.fixture
def keyed(tmp_path, monkeypatch):
    """A store with a message of the actor ``us`` and one of ``them``. A reader that has the option refuses other actors."""
    record = pytest.importorskip("acme_audit_record.record")
    decode = record.AuditRecord.decode

    def checked(self, data):
        if self._actor and self._actor != self.fields(data)[1].encode():
            raise RecordError("other_actor", "it is not that of the configuration")
        return decode(self, data)

    monkeypatch.setattr(record.AuditRecord, "decode", checked)
    monkeypatch.setenv("ACTOR", "us")
    for msg_id, actor in ((A, "us"), (B, "them")):
        audit = {"use": "v2", "records": {"audit": {"byte": 200, "actor": actor}}}
        filled(tmp_path / "a", [(msg_id, b"body")], format=audit, record="audit")
    text = 'record = "audit"\nformat = { use = "v2", records = { audit = { byte = 200, actor = { env = "ACTOR" } } } }\n'
    (tmp_path / "msgstore.toml").write_text(f'[stores.a]\npath = "a"\n{text}', encoding="utf-8")
    return tmp_path / "a"


def test_check_that_needs_the_configuration(keyed, config, tmp_path):
    """As that of a signature: without the key the record is like others, and salvage copies it."""
    assert "2 messages in 1 queue" in command("queues", keyed).stdout
    for verb in (["messages"], ["queues"], ["convert", tmp_path / "out.jsonl"]):
        shown = command(verb[0], keyed, *verb[1:], *config, code=1).stdout
        assert "other_actor" in shown
    assert [row["id"] for row in json_of("messages", tmp_path / "out.jsonl") if "body" in row] == [A.hex()]
    error = command("get", "a", B.hex(), *config, code=1).stderr
    assert "other options of its record type, such as another key: compare them first" in error
    assert "--config FILE' leaves out the records that these options refuse; 'msgstore salvage' copies them." in error


def test_missing_key_is_that_of_the_file(keyed, config, monkeypatch):
    monkeypatch.delenv("ACTOR")
    for verb in ("messages", "verify"):
        error = command(verb, keyed, *config, code=2).stderr
        assert "format records audit actor: the environment variable ACTOR is not set" in error
        assert "as last opened" not in error


def test_file_without_the_store_is_told(keyed, tmp_path):
    config = tmp_path / "others.toml"
    config.write_text('[stores.b]\npath = "b"\n[vhosts.v]\n', encoding="utf-8")
    told = f"{config}: has no table [stores.NAME] of {keyed}: bodies and records are read without it"
    assert told in command("messages", keyed, "--config", config).stderr
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n', encoding="utf-8")
    assert "has no table" not in command("messages", tmp_path / "rows.jsonl", "--config", config).stderr
    error = command("verify", keyed, "--config", config, code=2).stderr
    assert "Message stores of a vhost need a table of their own here" in error


def test_damage_of_a_message_is_one_span(keyed, tmp_path):
    """A scan finds it, and so does the reader of the message. What to do about it is said once."""
    with msgstore.open_store(keyed, mode="r") as store:
        entry = store.entry(A)
    flip(keyed / "0.sqs", entry.offset + entry.size - 1, 1)
    for verb in (["messages"], ["convert", tmp_path / "out.jsonl"]):
        done = command(verb[0], keyed, *verb[1:], code=1)
        assert done.stdout.count("checksum_mismatch") == 1
        assert f"checksum_mismatch: message {A.hex()}" in done.stdout
        assert done.stderr.count("'msgstore salvage' copies every intact record") == 1
    assert json_of("convert", keyed, tmp_path / "again.jsonl", code=1)[-1]["damaged_spans"] == 1
    damage = [row for row in json_of("messages", keyed, code=1) if row.get("kind") == "damage"]
    assert [(row["offset"], row["reason"]) for row in damage] == [(entry.offset, f"checksum_mismatch: message {A.hex()}")]


def test_reader_without_the_key_says_so(keyed, config, tmp_path, monkeypatch):
    """A secret is an option that no repr shows."""
    assert "read without" not in command("verify", keyed).stderr
    monkeypatch.setattr("acme_audit_record.plugin.AuditOptions", SecretActor)
    monkeypatch.setattr(loader, "_KEPT", {})
    for verb in (["verify", keyed], ["scan", keyed, *config], ["salvage", keyed, tmp_path / "copy", *config]):
        said = "records are read without the secrets of their types, so nothing that needs them is checked: audit (actor). "
        assert said in command(*verb).stderr
    assert "read without" not in command("verify", keyed, *config, code=1).stderr
    said = "new records of the type 'audit' are written without actor, which no directory keeps: give record and format with it"
    assert [said in command("compact", store, *more).stderr for store, more in ((keyed, []), ("a", config))] == [True, False]


def test_check_is_not_resumed_with_another_key(keyed, config, monkeypatch):
    def stopped(*arguments: Any) -> Iterator[Any]:
        yield next(iter(check_segments(*arguments)))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("msgstore.cli.commands.verify.check_segments", stopped)
        command("verify", keyed, "--resume", code=130)
    done = command("verify", "a", "--resume", *config, code=1)
    assert "the stopped check had other options, such as a key. Starting at the first segment." in done.stderr
    assert "1 of 2 live messages verified" in done.stdout
    monkeypatch.setattr("msgstore.cli.commands.verify.check_segments", stopped)
    command("verify", "a", "--resume", *config, code=130)


def test_check_is_one_with_the_same_codec_and_options(tmp_path, monkeypatch):
    """However the file is named, and in whatever order it has the options."""
    pytest.importorskip("acme_audit_record")
    monkeypatch.chdir(tmp_path)
    filled(tmp_path / "a")

    def options_of(*keys: str, file: Path = Path("msgstore.toml")) -> str:
        file.write_text('[stores.a]\npath = "a"\n' + "\n".join(keys), encoding="utf-8")
        return verify._options_of(target_of("a", config_file=file))

    audit = 'format = {{ use = "v2", records = {{ audit = {{ {}, {} }} }} }}'
    one, other = audit.format("byte = 200", 'actor = "us"'), audit.format('actor = "us"', "byte = 200")
    assert options_of(one) == options_of(other, file=tmp_path / "msgstore.toml") != options_of()
    assert options_of('body = "raw"') == options_of() != options_of('body = "erlang"')


def test_rescued_bodies_of_a_broker_are_compared_as_stored(tmp_path):
    """Under raw they are terms; the codec of the other store would unwrap those that are binaries."""
    pytest.importorskip("msgstore_erlang_body")
    for name in ("raw", "erlang"):
        with msgstore.open_store(tmp_path / name, body=name) as store, store.client() as client:
            client.write(A, msgstore.StoredBody(b"\x83m\0\0\0\1x"))
    [*_, summary] = json_of("diff", tmp_path / "raw", tmp_path / "erlang")
    assert (summary["same"], summary["differing"]) == (1, 0)


def test_default_options_of_records_are_said(keyed, config, tmp_path):
    said = "records of the type audit are written with the defaults of its options (actor); "
    assert said in command("put", keyed, "03" * 16, stdin=b"x").stderr
    assert said not in command("put", "a", "04" * 16, *config, stdin=b"x").stderr
    filled(tmp_path / "plain", [(A, b"x")])
    for arguments, is_said in ((["--record", "audit", "--bind", "audit=200"], True), ([], False)):
        assert (said in command("salvage", tmp_path / "plain", tmp_path / f"new{is_said}", *arguments).stderr) == is_said


def test_conversion_says_defaults_of_new_records(keyed, tmp_path):
    said = "records of the type audit are written with the defaults of its options (actor); --sink-option 'records="
    for records, code, is_said in (("200", 0, True), ('{"byte": 200}', 0, True), ('{"byte": 200, "actor": "us"}', 0, False)):
        sink = ["--sink", "store", "--sink-option", "record=audit", "--sink-option", f'records={{"audit": {records}}}']
        done = command("convert", keyed, tmp_path / records[-5:], *sink, code=code)
        assert (said in done.stderr) == is_said
    error = command("convert", keyed, tmp_path / "none", *sink[:4], code=2).stderr
    assert "from 128 to 255 of your choice. A table with byte gives its options, too: actor." in error


def test_missing_record_type_is_one_error_of_a_store(keyed, config):
    file = config[1]
    file.write_text(f'disabled = ["audit-record"]\n{file.read_text(encoding="utf-8")}', encoding="utf-8")
    [found] = json_of("config", "check", *config, code=2)
    [error] = found["errors"]
    assert "[stores.a]: no installed plugin provides the record type 'audit'" in error


def test_second_codec_of_a_directory_is_no_right_configuration(tmp_path):
    pytest.importorskip("acme_zstd_body")
    (tmp_path / "msgstore.toml").write_text('[stores.a]\npath = "a"\nbody = "raw"\n', encoding="utf-8")
    filled(tmp_path / "a", [(A, b"body")], body="zstd")
    [found] = json_of("config", "check", "--config", tmp_path / "msgstore.toml", code=2)
    assert "its bodies are stored by the codec 'zstd', and the configuration names 'raw'" in found["errors"][0]


def test_type_that_no_directory_remembers_is_named(keyed, tmp_path):
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "0.sqs").write_bytes((keyed / "0.sqs").read_bytes())
    told = "If 200 is the type byte of records, name their type: {} NAME=200 (installed: "
    assert told.format("--record") in command("scan", tmp_path / "loose", code=1).stdout
    assert told.format("--source-record") in command("salvage", tmp_path / "loose", tmp_path / "new", code=1).stdout
    assert "type byte" not in command("scan", tmp_path / "loose", "--record", "audit=200").stdout


def test_copy_keeps_the_types_of_records(tmp_path):
    pytest.importorskip("acme_audit_record")
    table = 'path = "a"\nrecord = "audit"\nformat = { use = "v2", records = { audit = 200 } }\n'
    (tmp_path / "msgstore.toml").write_text(f"[stores.a]\n{table}", encoding="utf-8")
    filled(tmp_path / "a", [(A, b"body")])
    done = command("migrate", "a", tmp_path / "b", "--to", "v2", "--config", tmp_path / "msgstore.toml")
    assert "copied records do not get record = 'audit', which is for new ones: convert writes all anew" in done.stderr


def test_new_store_has_records_with_options(keyed, tmp_path):
    """The sink ``store`` gives them to the record type, with a secret from the environment."""
    options = ["record=audit", 'records={"audit": {"byte": 200, "actor": {"env": "ACTOR"}}}']
    given = [part for option in options for part in ("--sink-option", option)]
    command("convert", keyed, tmp_path / "new", "--sink", "store", *given)
    config = (tmp_path / "msgstore.toml").read_text(encoding="utf-8").replace('path = "a"', 'path = "new"')
    (tmp_path / "new.toml").write_text(config, encoding="utf-8")
    rows = json_of("messages", tmp_path / "new", "--config", tmp_path / "new.toml")
    assert [row["properties"]["actor"] for row in rows if "body" in row] == ["us", "us"]
    wrong = ["--sink-option", 'records={"audit": {"byte": 200, "actr": "x"}}']
    assert "unknown key 'actr'" in command("convert", keyed, tmp_path / "x", "--sink", "store", *wrong, code=2).stderr


@pytest.mark.parametrize("place", ["letters", "../letters"])
def test_configuration_has_options_of_its_stores_codec(letters, config, place, tmp_path):
    """The store is given by its name or its directory."""
    [row] = (row for row in json_of("messages", place, *config) if "body" in row)
    assert base64.b64decode(row["body"]) == b"secret"
    assert json_of("queues", place, *config)[0]["messages"] == 1
    command("convert", place, tmp_path / "out.jsonl", *config)
    assert command("get", place, A.hex(), *config).stdout_bytes == b"secret"
    assert json_of("scan", place, *config, "--body", "aes-gcm")[0]["records_by_name"] == {"message": 1}
    assert json_of("diff", place, letters, *config)[-1]["same"] == 1


def test_misspelt_disabled_plugin_is_named_with_its_file(letters, config):
    file = config[1]
    file.write_text('disabled = ["aes-bod"]\n' + file.read_text())
    for arguments in (["get", "letters", A.hex()], ["scan", "letters"], ["plugins"]):
        assert f"{file}: disabled: no installed" in command(*arguments, *config, code=2).stderr
