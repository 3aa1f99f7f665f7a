"""The kit reads a format's golden corpus from beside its factory, and says what is read otherwise than the corpus has it."""

from __future__ import annotations

import json
import shutil
from importlib import resources

import pytest
from click.testing import CliRunner

import msgstore
from msgstore.testing.golden import main
from support import ACME_CELLS

OWN = """
import pytest
from msgstore.contract import SegmentFormatDescriptor
from msgstore.testing import SegmentFormatTests, Subject

class TestMine(SegmentFormatTests):
    @pytest.fixture
    def subject(self):
        return Subject.of(SegmentFormatDescriptor(
            name="mine", contract=(1, 0), factory="mine.format:SegmentFormatV2", extension=".sqs", generation=2))
"""


def another_body(corpus):
    said = json.loads((corpus / "copies.json").read_text())
    said["records"][1]["body_sha256"] = "0" * 64
    (corpus / "copies.json").write_text(json.dumps(said))


HALF = "*FileNotFoundError: *{}: a golden segment is a pair, NAME.sqs and NAME.json"
WRONG = "*AssertionError: copies.sqs: records is not read as the corpus says*"
CHANGES = {
    "nothing": (lambda corpus: None, "passed", "*1 passed*"),
    "another body": (another_body, "failed", WRONG),
    "no description": (lambda corpus: (corpus / "torn.json").unlink(), "failed", HALF.format("torn.json")),
    "no segment": (lambda corpus: (corpus / "torn.sqs").unlink(), "failed", HALF.format("torn.sqs")),
    "no corpus": (shutil.rmtree, "skipped", "skipped, not claimed: golden corpus: test_golden_segments"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("change", "outcome", "said"), CHANGES.values(), ids=CHANGES)
def test_shipped_segments_are_read(pytester, monkeypatch, change, outcome, said):
    package = pytester.mkpydir("mine")
    (package / "format.py").write_text("from msgstore_format_v2.format import SegmentFormatV2\n")
    shutil.copytree(resources.files("msgstore_format_v2") / "golden", package / "golden")
    change(package / "golden")
    pytester.makepyfile(OWN)
    monkeypatch.syspath_prepend(str(pytester.path))
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=":")
    done = pytester.runpytest_subprocess("-k", "golden", "--msgstore-partial", "it is about these")
    done.assert_outcomes(**{outcome: 1})
    done.stdout.fnmatch_lines([said])


def written_golden(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_segments_without_records_or_corrupt_are_refused(tmp_path):
    """If one of several files is refused, no description is written."""
    with msgstore.open_store(tmp_path / "own", **ACME_CELLS["ets-v2-audit"].keys) as store, store.client() as client:
        client.write(bytes(16), b"hello")
    with resources.as_file(resources.files("msgstore_format_v2") / "golden") as golden:
        for name in ("copies", "corrupt"):
            shutil.copy(golden / f"{name}.sqs", tmp_path)
    whole, corrupt, empty = (tmp_path / f"{name}.sqs" for name in ("copies", "corrupt", "empty"))
    [unbound] = (tmp_path / "own").glob("*.sqs")
    empty.write_bytes(whole.read_bytes()[:64])
    for file, problem in (
        (corrupt, "the scan ends at offset 480, corrupt: hole_after_hole"),
        (empty, "there is no record in it"),
        (unbound, "the scan ends at offset 64, corrupt: "),
    ):
        done = written_golden(whole, file)
        assert done.exit_code == 2
        assert f"{file}: {problem}" in done.stderr
        assert not any(path.with_suffix(".json").exists() for path in (whole, file))
    assert written_golden("--damaged", whole, corrupt, empty).exit_code == 0
    for file in (whole, corrupt):
        expected = resources.files("msgstore_format_v2") / "golden" / f"{file.stem}.json"
        assert json.loads(file.with_suffix(".json").read_text()) == json.loads(expected.read_text())
