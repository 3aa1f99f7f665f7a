"""The conformance kit's own mechanics: what is run for whom, and what a run says of itself."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.kit

OWN = """
import msgstore.contract
import pytest
from msgstore.contract import GcPolicyDescriptor
from msgstore.testing import DescriptorTests, Subject, replaces

class TestMine(DescriptorTests):
    {extra}

    @pytest.fixture
    def subject(self):
        return Subject.of(GcPolicyDescriptor(name="mine", contract={contract}, factory="mine:Mine", summary="none"))
"""


def run_own(pytester, *args, contract="(1, 0)", extra="pass"):
    pytester.makepyfile(OWN.format(contract=contract, extra=extra))
    return pytester.runpytest_subprocess(*args)


def run_suite(pytester, *args):
    return pytester.runpytest_subprocess("--pyargs", "msgstore.testing.suite", *args)


def test_a_distribution_is_tested_without_a_line_of_its_author(pytester):
    done = run_suite(pytester, "--msgstore-dist", "msgstore", "-k", "TestDescriptor", "--msgstore-partial", "the rest is slow")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["tested: gc:half-empty of msgstore *", "tested: body:raw of msgstore *"])
    done.stdout.fnmatch_lines(["left out: *TestGcPolicy::* and * more: the rest is slow"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "*say what to test: --msgstore-dist NAME*"),
        (["--msgstore-dist", "acme-nowhere"], "*'acme-nowhere' is not installed; try: pip install acme-nowhere"),
        (["--msgstore-dist", "attrs"], "*attrs registers nothing: *entry point in the group 'msgstore'*"),
    ],
)
def test_nothing_to_test_is_an_error(pytester, args, message):
    done = run_suite(pytester, *args)
    assert done.ret != 0
    assert "Traceback" not in done.stdout.str() + done.stderr.str()
    (done.stdout if not args else done.stderr).fnmatch_lines([message])


UNPROVEN = "skipped or expected to fail, so the run has failed: *test_it_is_a_value*"
CLASSES = {
    "as it is": ("pass", "(1, 0)", {"passed": 6}, "*6 passed*"),
    "a fault": (
        "pass", "(2, 0)", {"passed": 4, "failed": 2}, "*FAILED*test_the_contract_version_is_one_that_this_core_serves*"
    ),
    "replaced": (
        "@replaces('made at run time')\n    def test_it_is_a_value(self): pass", "(1, 0)", {"passed": 6},
        "replaced: TestMine.test_it_is_a_value: made at run time",
    ),
    "a capability": (
        "def test_more(self, subject): subject.needs(msgstore.contract.Capability.PERSISTENT)",
        "(1, 0)", {"passed": 6, "skipped": 1}, "skipped, not claimed: persistent: test_more",
    ),
    "skipped": ("pytestmark = pytest.mark.skip('later')", "(1, 0)", {"skipped": 6}, UNPROVEN),
    "expected to fail": ("pytestmark = pytest.mark.xfail", "(1, 0)", {"xpassed": 6}, UNPROVEN),
    "skipped by a fixture": (
        "@pytest.fixture(autouse=True)\n    def later(self): pytest.skip('later')", "(1, 0)", {"skipped": 6}, UNPROVEN
    ),
}  # fmt: skip
"""Name to (members of the author's class, version of its contract, outcomes, a line of the output)."""


@pytest.mark.parametrize("case", CLASSES)
def test_run_of_own_class_reports_outcomes(pytester, case):
    extra, contract, outcomes, line = CLASSES[case]
    done = run_own(pytester, contract=contract, extra=extra)
    done.assert_outcomes(**outcomes)
    done.stdout.fnmatch_lines([line])
    assert done.ret == (pytest.ExitCode.TESTS_FAILED if line == UNPROVEN or "failed" in outcomes else pytest.ExitCode.OK)


@pytest.mark.parametrize(
    ("extra", "conftest"),
    [
        ("test_it_is_a_value = None", ""),
        ("def test_it_is_a_value(self): pass", ""),
        ("test_it_is_a_value = property()", ""),
        ("pass", "del DescriptorTests.test_it_is_a_value"),
        ("pass", "DescriptorTests.test_it_is_a_value = lambda self: 0"),
    ],
)
def test_deleted_or_overridden_test_fails_the_run(pytester, extra, conftest):
    pytester.makeconftest(f"from msgstore.testing import DescriptorTests\n{conftest}")
    done = run_own(pytester, extra=extra)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*deleted or overridden: TestMine.test_it_is_a_value*replaces*"])


def test_a_run_that_has_nothing_to_do_with_the_kit_does_not_import_it(pytester):
    """Nor hypothesis, which is only there with the extra."""
    pytester.makepyfile(
        "import sys\n"
        "def test_it(): assert not {'hypothesis', 'msgstore.testing.formats', 'msgstore.testing.subjects'} & set(sys.modules)"
    )
    done = pytester.runpytest_subprocess("-p", "no:hypothesispytest")
    done.assert_outcomes(passed=1)


def test_a_class_without_a_subject_fails_the_run(pytester):
    """Else all of its tests would be skipped, and the run be green."""
    pytester.makepyfile("from msgstore.testing import GcPolicyTests\n\nclass TestMine(GcPolicyTests):\n    pass")
    done = pytester.runpytest_subprocess()
    assert done.ret != 0
    done.stdout.fnmatch_lines(["*TestMine has nothing to test: give it a fixture 'subject'*"])


HARMLESS = "def test_mine(): pass"


@pytest.fixture
def three(pytester):
    """Three modules with a class of the kit, one of them in a directory, and one without."""
    own = OWN.format(extra="pass", contract="(1, 0)")
    pytester.makepyfile(test_mine=own, test_other=own, test_harmless=HARMLESS)
    pytester.mkdir("more").joinpath("test_deep.py").write_text(own)
    return pytester


@pytest.mark.parametrize(
    ("args", "conftest", "said"),
    [
        (["-k", "not it_is_a_value"], "", "*, test_mine.py::TestMine::test_it_is_a_value, *"),
        (["--deselect", "test_mine.py::TestMine::test_it_is_a_value"], "", "test_mine.py::TestMine::test_it_is_a_value"),
        ([], "def pytest_collection_modifyitems(items): del items[2:]", "* and 11 more"),
        (["--ignore", "test_other.py"], "", "*test_other.py"),
        (["--ignore", "more"], "", "*more/test_deep.py"),
        ([], "collect_ignore = ['test_other.py']", "*test_other.py"),
        ([], "collect_ignore_glob = ['test_o*', 'mo*']", "*test_deep.py, *test_other.py"),
    ],
    ids=["k", "deselect", "modified", "ignore", "ignore a directory", "collect_ignore", "collect_ignore_glob"],
)
def test_what_is_left_out_fails_the_run(three, args, conftest, said):
    three.makeconftest(conftest)
    done = three.runpytest_subprocess(*args)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(
        [f"left out, so the run has failed: {said}", "Run them, or say why not: --msgstore-partial REASON"]
    )


def test_what_is_left_out_for_a_reason_is_said(three):
    done = three.runpytest_subprocess("--ignore", "more", "--msgstore-partial", "it is tested elsewhere")
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["left out: *more/test_deep.py: it is tested elsewhere"])


def test_what_is_none_of_the_kits_may_be_left_out(pytester):
    pytester.makepyfile(test_mine=OWN.format(extra="pass", contract="(1, 0)"), test_harmless=HARMLESS, test_slow=HARMLESS)
    done = pytester.runpytest_subprocess("--ignore", "test_slow.py", "--deselect", "test_harmless.py::test_mine")
    done.assert_outcomes(passed=6, deselected=1)
    done.stdout.no_fnmatch_line("left out*")


def test_a_distribution_is_tested_with_the_whole_kit(pytester):
    """However it comes that a test is not there: here only one is named."""
    one = ["--pyargs", "msgstore.testing.suite.test_kit::TestDescriptor", "--msgstore-dist", "msgstore-erlang-body"]
    done = pytester.runpytest_subprocess(*one)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["left out, so the run has failed: BodyCodecTests.test_*[[]body:erlang[]], * more"])
    assert pytester.runpytest_subprocess(*one, "--collect-only").ret == pytest.ExitCode.OK
