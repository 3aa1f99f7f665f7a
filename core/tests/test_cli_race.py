"""Looking at a store whose collector is at work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import msgstore
from msgstore.cli.commands import scan as scan_verb
from msgstore.cli.inputs import Inputs
from msgstore.cli.main import main
from msgstore.scan import scan_file


@pytest.mark.parametrize("verb", ["scan", "map"])
def test_a_segment_that_is_deleted_after_it_was_listed_is_passed_over(verb: str, tmp_path: Path, monkeypatch) -> None:
    with msgstore.open_store(tmp_path / "store", gc_interval=0) as store, store.client() as client:
        for number in range(3):
            client.write(bytes([number]) * 16, b"body")
            store.roll()

    def collected_meanwhile(files, path, *arguments, **keys):
        (tmp_path / "store/1.sqs").unlink(missing_ok=True)
        return scan_file(files, path, *arguments, **keys)

    monkeypatch.setattr(scan_verb, "scan_file", collected_meanwhile)
    done = CliRunner().invoke(main, [verb, "--json", str(tmp_path / "store")])
    assert done.exit_code == 0, done.stderr
    assert [Path(json.loads(line)["path"]).name for line in done.stdout.splitlines()] == ["0.sqs", "2.sqs"]
    named = CliRunner().invoke(main, [verb, "--json", str(tmp_path / "store/1.sqs")])
    assert named.exit_code == 2


@pytest.mark.parametrize("page", [[], ["--html", "page.html"]], ids=["bars", "page"])
def test_a_segment_that_is_deleted_before_it_is_measured_is_passed_over(page: list[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with msgstore.open_store("store", gc_interval=0) as store, store.client() as client:
        client.write(bytes(16), b"body")
        store.roll()
        client.write(bytes(range(16)), b"body")

    def collected_meanwhile(inputs, paths):
        found = list(find(inputs, paths))
        Path("store/0.sqs").unlink()
        return found

    find = Inputs.find
    monkeypatch.setattr(Inputs, "find", collected_meanwhile)
    done = CliRunner().invoke(main, ["map", *page, "store"])
    assert done.exit_code == 0, done.output
    assert Path("page.html").exists() == bool(page)
