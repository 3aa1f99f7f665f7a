"""The conformance kit's own mechanics: what is run for whom, and what a run says of itself."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.kit

OWN = """
import pytest
from msgstore.contract import Capability, GcPolicyDescriptor
from msgstore.testing import DescriptorTests, Subject, replaces

class TestMine(DescriptorTests):
    @pytest.fixture
    def subject(self):
        return Subject.of(GcPolicyDescriptor(name="mine", contract={contract}, factory="mine:Mine", summary="none"))

    {extra}
"""


def run_own(pytester, *args, contract="(1, 0)", extra="pass"):
    pytester.makepyfile(test_mine=OWN.format(contract=contract, extra=extra))
    return pytester.runpytest_subprocess(*args)


def run_suite(pytester, *args):
    return pytester.runpytest_subprocess("--pyargs", *args)


def test_suite_tests_distribution_without_code(pytester):
    done = run_suite(
        pytester, "msgstore.testing.suite", "--msgstore-dist", "msgstore", "-k", "TestDescriptor", "--msgstore-partial", "slow"
    )
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["tested: gc:half-empty of msgstore *", "tested: body:raw of msgstore *"])
    done.stdout.fnmatch_lines(["left out: *TestGcPolicy::* and * more: slow"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "*say what to test: --msgstore-dist NAME*"),
        (["--msgstore-dist", "acme-nowhere"], "*'acme-nowhere' is not installed; try: pip install acme-nowhere"),
        (["--msgstore-dist", "attrs"], "*attrs registers nothing: *entry point in the group 'msgstore'*"),
    ],
)
def test_suite_without_subject_is_an_error(pytester, args, message):
    done = run_suite(pytester, "msgstore.testing.suite", *args)
    assert done.ret != 0
    assert "Traceback" not in done.stdout.str() + done.stderr.str()
    (done.stderr if args else done.stdout).fnmatch_lines([message])


@pytest.mark.parametrize("node", ["::TestDescriptor", "::TestBodyCodec::test_large_bodies"])
def test_suite_with_some_tests_named_fails(pytester, node):
    one = [f"msgstore.testing.suite.test_kit{node}", "--msgstore-dist", "msgstore-erlang-body"]
    done = run_suite(pytester, *one)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["left out, so the run has failed: *Tests.test_*[[]body:erlang[]], * more"])
    assert run_suite(pytester, *one, "--collect-only").ret == pytest.ExitCode.OK


LEFT_OUT = "left out, so the run has failed: *test_it_is_a_value*"
DESELECTED = ["--deselect", "test_mine.py::TestMine::test_it_is_a_value"]
CLASSES = {
    "as it is": ("pass", [], {"passed": 6}, "*6 passed*"),
    "replaced": (
        "@replaces('made at run time')\n    def test_it_is_a_value(self): pass", [], {"passed": 6},
        "replaced: TestMine.test_it_is_a_value: made at run time",
    ),
    "a capability": (
        "def test_more(self, subject): subject.needs(Capability.PERSISTENT)", [],
        {"passed": 6, "skipped": 1}, "skipped, not claimed: persistent: test_more",
    ),
    "no subject": ("subject = DescriptorTests.subject", [], {"errors": 6}, "*TestMine has nothing to test: give it a fixture*"),
    "skipped": ("pytestmark = pytest.mark.skip('later')", [], {"skipped": 6}, LEFT_OUT),
    "expected to fail": ("pytestmark = pytest.mark.xfail", [], {"xpassed": 6}, LEFT_OUT),
    "skipped by a fixture": (
        "@pytest.fixture(autouse=True)\n    def later(self): pytest.skip('later')", [], {"skipped": 6}, LEFT_OUT
    ),
    "overridden": ("def test_it_is_a_value(self): pass", [], {"passed": 6}, LEFT_OUT),
    "deleted": ("test_it_is_a_value = None", [], {"passed": 5}, LEFT_OUT),
    "by -k": ("pass", ["-k", "not it_is_a_value"], {"passed": 5, "deselected": 1}, LEFT_OUT),
    "deselected": ("pass", DESELECTED, {"passed": 5, "deselected": 1}, LEFT_OUT),
    "for a reason": (
        "pass", [*DESELECTED, "--msgstore-partial", "it is made at run time"],
        {"passed": 5, "deselected": 1}, "left out: *test_it_is_a_value: it is made at run time",
    ),
}  # fmt: skip
"""Name to (members of the author's class, arguments, outcomes, a line of the output)."""


@pytest.mark.parametrize("case", CLASSES)
def test_run_of_own_class_reports_outcomes(pytester, case):
    extra, args, outcomes, line = CLASSES[case]
    done = run_own(pytester, *args, extra=extra)
    done.assert_outcomes(**outcomes)
    done.stdout.fnmatch_lines([line])
    assert done.ret == (pytest.ExitCode.TESTS_FAILED if line == LEFT_OUT or "errors" in outcomes else pytest.ExitCode.OK)


def test_run_of_faulty_backend_fails(pytester):
    done = run_own(pytester, contract="(2, 0)")
    done.assert_outcomes(passed=4, failed=2)
    done.stdout.fnmatch_lines(["*FAILED*test_the_contract_version_is_one_that_this_core_serves*"])
    done.stdout.no_fnmatch_line("left out*")


def test_run_may_leave_other_tests_out(pytester):
    pytester.makepyfile(test_harmless="def test_mine(): pass")
    done = run_own(pytester, "--deselect", "test_harmless.py::test_mine")
    done.assert_outcomes(passed=6, deselected=1)
    done.stdout.no_fnmatch_line("left out*")


def test_run_without_kit_does_not_import_it(pytester):
    """Nor hypothesis, which is only there with the extra."""
    pytester.makepyfile(
        "import sys\n"
        "def test_it(): assert not {'hypothesis', 'msgstore.testing.formats', 'msgstore.testing.subjects'} & set(sys.modules)"
    )
    pytester.runpytest_subprocess("-p", "no:hypothesispytest").assert_outcomes(passed=1)
