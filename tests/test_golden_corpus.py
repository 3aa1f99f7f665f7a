"""The kit reads a format's golden corpus from beside its factory, and says what is read otherwise than the corpus has it."""

from __future__ import annotations

import json
import shutil
from importlib import resources

import pytest

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
