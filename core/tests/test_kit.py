"""Mechanics of the conformance kit: what is run for whom, what a run says of itself, and its file layers; and its observers'
tests, which no mutant tries."""

from __future__ import annotations

import threading
import time

import attrs
import pytest

from msgstore.contract import Capability, SegmentFormatDescriptor
from msgstore.contract.events import StoreClosedEvent
from msgstore.engine import events as announcing
from msgstore.plugins.catalogue import load_catalogue
from msgstore.plugins.loader import EVENT_HOOKS, Observer, Provider
from msgstore.testing import DescriptorTests, ObserverTests, Subject, observers
from msgstore.testing.faults import Crash, FailingFiles, RecordingFiles, StoppingFiles, copy_of, crash_points, stopped
from msgstore.testing.messages.writing import check_same
from msgstore.testing.probes import LineInterleaver
from msgstore.testing.segments import Placed, check_framed

kit = pytest.mark.kit
SUITE = "msgstore.testing.suite"
OWN = """
import pytest
from msgstore.contract import Capability, GcPolicyDescriptor
from msgstore.testing import DescriptorTests, Subject, replaces

class TestMine(DescriptorTests):
    @pytest.fixture
    def subject(self):
        return Subject.of(GcPolicyDescriptor(name="mine", contract=({version}, 0), factory="mine:Mine", summary="none"))

    {extra}
"""


def test_frames_are_the_same_whatever_the_options_of_the_writer():
    """A tool measures one record, and reads the bodies of all segments of the format by it."""

    class First:
        """A record begins with the number of bytes before its body, as an option of the writer may decide it."""

        def body_span(self, data, offset, size):
            return offset + data[offset], offset + size

    descriptor = SegmentFormatDescriptor(
        name="first", contract=(1, 0), factory="a:b", summary="none", extension=".first", generation=3,
        capabilities=[Capability.FRAMED],
    )  # fmt: skip
    subject = Subject(kind="format", name="first", catalogue=load_catalogue(), descriptor=descriptor)
    one, other = ((bytes([at, 0, 0, 0]), [Placed(bytes(16), 0, 4, b"")]) for at in (1, 2))
    check_framed(subject, First(), one, one)
    with pytest.raises(AssertionError, match=r"FRAMED is claimed, bytes in front of .* are \(1, 0\), \(2, 0\)"):
        check_framed(subject, First(), one, other)


# -- runs of the suite --------------------------------------------------------------------------------------------------------


@kit
def test_suite_tests_distribution_without_code(pytester):
    chosen = "-k", "TestDescriptor", "--msgstore-partial", "slow"
    done = pytester.runpytest("--pyargs", SUITE, "--msgstore-dist", "msgstore", *chosen)
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["tested: gc:half-empty of msgstore *", "tested: body:raw of msgstore *"])
    done.stdout.fnmatch_lines(["left out: *TestGcPolicy::* and * more: slow"])


@kit
def test_backend_without_a_test_is_not_tested(pytester):
    chosen = "-k", "TestDescriptor and raw", "--msgstore-partial", "in part"
    done = pytester.runpytest("--pyargs", SUITE, "--msgstore-dist", "msgstore", *chosen)
    assert [line.split()[1] for line in done.outlines if line.startswith("tested: ")] == ["body:raw"]


@kit
def test_source_without_sample_fails_with_what_is_missing(pytester):
    pytester.makepyfile("""
        import pytest
        from msgstore.contract import SourceDescriptor
        from msgstore.testing import SourceTests, Subject

        class TestMine(SourceTests):
            @pytest.fixture
            def subject(self):
                return Subject.of(SourceDescriptor(name="mine", contract=(1, 0), factory="mine:Mine", detect="mine:detect"))
        """)
    pytester.runpytest().stdout.fnmatch_lines(["*the descriptor has no sample: write a function*"])


@kit
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "*say what to test: --msgstore-dist NAME*"),
        (["--msgstore-dist", "acme-nowhere"], "*'acme-nowhere' is not installed; *try: pip install acme-nowhere"),
        (["--msgstore-dist", "attrs"], "*attrs registers nothing: *entry point in the group 'msgstore'*"),
    ],
)
def test_suite_without_subject_is_an_error(pytester, args, message):
    done = pytester.runpytest("--pyargs", SUITE, *args)
    assert done.ret != 0
    assert "Traceback" not in done.stdout.str() + done.stderr.str()
    (done.stderr if args else done.stdout).fnmatch_lines([message])


@kit
@pytest.mark.parametrize("node", ["::TestDescriptor", "::TestBodyCodec::test_large_bodies"])
def test_suite_with_some_tests_named_fails(pytester, node):
    one = ["--pyargs", f"{SUITE}{node}", "--msgstore-dist", "msgstore-erlang-body"]
    done = pytester.runpytest(*one)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["left out, so the run has failed: *Tests.test_*[[]body:erlang[]], * more"])
    assert pytester.runpytest(*one, "--collect-only").ret == pytest.ExitCode.OK


@kit
def test_run_without_kit_does_not_import_it(pytester):
    """Nor hypothesis, which is only there with the extra."""
    unused = "{'hypothesis', 'msgstore.testing.formats', 'msgstore.testing.subjects'}"
    pytester.makepyfile(f"import sys\ndef test_it(): assert not {unused} & set(sys.modules)")
    pytester.runpytest_subprocess("-p", "no:hypothesispytest").assert_outcomes(passed=1)


LEFT_OUT = "left out, so the run has failed: *test_it_is_a_value*"
DESELECTED = ["--deselect", "test_mine.py::TestMine::test_it_is_a_value"]
OUTCOMES = {
    "as it is": ("pass", [], {"passed": 3}, "*3 passed*"),
    "faulty": ("pass", [], {"passed": 2, "failed": 1}, "*FAILED*test_its_name_gives_it*"),
    "replaced": (
        "@replaces('made at run time')\n    def test_it_is_a_value(self): pass", [], {"passed": 3},
        "replaced: TestMine.test_it_is_a_value: made at run time",
    ),
    "a capability": (
        "def test_more(self, subject): subject.needs(Capability.PERSISTENT)", [],
        {"passed": 3, "skipped": 1}, "skipped, not claimed: persistent: test_more",
    ),
    "no subject": ("subject = DescriptorTests.subject", [], {"errors": 3}, "*TestMine has nothing to test: give it a fixture*"),
    "skipped": ("pytestmark = pytest.mark.skip('later')", [], {"skipped": 3}, LEFT_OUT),
    "expected to fail": ("pytestmark = pytest.mark.xfail", [], {"xpassed": 3}, LEFT_OUT),
    "skipped by a worker": ("pytestmark = pytest.mark.skip('later')", ["-n", "2"], {"skipped": 3}, LEFT_OUT),
    "skipped by a fixture": (
        "@pytest.fixture(autouse=True)\n    def later(self): pytest.skip('later')", [], {"skipped": 3}, LEFT_OUT
    ),
    "overridden": ("def test_it_is_a_value(self): pass", [], {"passed": 3}, LEFT_OUT),
    "deleted": ("test_it_is_a_value = None", [], {"passed": 2}, LEFT_OUT),
    "by -k": ("pass", ["-k", "not it_is_a_value"], {"passed": 2, "deselected": 1}, LEFT_OUT),
    "deselected": ("pass", DESELECTED, {"passed": 2, "deselected": 1}, LEFT_OUT),
    "of another class": ("pass\ndef test_mine(): pass", ["--deselect", "test_mine.py::test_mine"],
                         {"passed": 3, "deselected": 1}, "*3 passed*"),
    "for a reason": (
        "pass", [*DESELECTED, "--msgstore-partial", "it is made at run time"],
        {"passed": 2, "deselected": 1}, "left out: *test_it_is_a_value: it is made at run time",
    ),
}  # fmt: skip
"""Name to (members of the author's class, arguments, outcomes, a line of the output)."""


@kit
@pytest.mark.parametrize("case", OUTCOMES)
def test_run_of_own_class_reports_outcomes(pytester, case):
    extra, args, outcomes, line = OUTCOMES[case]
    pytester.makepyfile(test_mine=OWN.format(version=2 if case == "faulty" else 1, extra=extra))
    done = pytester.runpytest(*args)
    done.assert_outcomes(**outcomes)
    done.stdout.fnmatch_lines([line])
    if not line.startswith("left out"):
        done.stdout.no_fnmatch_line("left out*")
    fails = line == LEFT_OUT or outcomes.keys() & {"errors", "failed"}
    assert done.ret == (pytest.ExitCode.TESTS_FAILED if fails else pytest.ExitCode.OK)


def test_subject_of_installed_backend_replaces_it():
    [installed] = [it.descriptor for it in load_catalogue().registrations if it.descriptor.name == "half-empty"]
    DescriptorTests().test_its_name_gives_it(Subject.of(attrs.evolve(installed, summary="changed since it was installed")))


# -- file layers, copies, threads ---------------------------------------------------------------------------------------------


def write(files, directory):
    files.write_file(directory / "a", [b"x" * 700, b"y"], sync=True)


def test_each_crash_point_leaves_what_it_says(tmp_path):
    whole = RecordingFiles()
    write(whole, tmp_path)
    names = [name for name, _, _ in whole.changes()]
    assert names == ["unlink", "create", "pwrite", "pwrite", "sync", "replace", "sync_directory"]
    points = crash_points(whole)
    assert points == [(0, 0), (1, 0), (2, 0), (2, 512), (3, 0), (4, 0), (5, 0), (6, 0)]
    for number, (stop, torn) in enumerate(points):
        directory = tmp_path / str(number)
        directory.mkdir()
        files = StoppingFiles(stop, torn)
        assert stopped(lambda: write(files, directory))  # noqa: B023 - called at once
        with pytest.raises(Crash):
            files.unlink(directory / "a")
        there = {path.name: path.stat().st_size for path in directory.iterdir()}
        expected = {2: 0, 3: 512, 4: 700, 5: 701, 6: 701}
        assert there == ({"a": 701} if number == 7 else {"a.tmp": expected[number]} if number > 1 else {})


def test_failing_files_fail_once(tmp_path):
    files = FailingFiles(2)
    with pytest.raises(OSError, match="error"):
        write(files, tmp_path)
    assert files.failed.startswith("pwrite")
    write(files, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_copy_equals_directory_and_keeps_holes(tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    with (source / "sparse").open("wb") as stream:
        stream.truncate(2**24)
        stream.seek(2**23)
        stream.write(b"middle")
    copy_of(source, copy)
    assert (copy / "sparse").read_bytes() == (source / "sparse").read_bytes()
    used, allowed = ((path / "sparse").stat().st_blocks * 512 for path in (copy, source))
    assert used <= max(allowed, 2**23)


def test_look_between_two_lines_sees_half_of_change():
    entries, seen = {"a": 1}, set()

    def move():
        del entries["a"]
        entries["a"] = 2

    LineInterleaver(lambda: seen.add(entries.get("a"))).run(move)
    assert seen == {1, None, 2}


# -- observers ----------------------------------------------------------------------------------------------------------------


def observed_by(call):
    """An observer of every event."""
    mine = Provider("mine", "1", "mine", "mine")
    told = tuple(Observer(hook, call, mine) for hook in EVENT_HOOKS)
    return Subject(kind="observer", name="mine", catalogue=load_catalogue(), observers=told, provider=mine)


@kit
def test_observer_without_fault_is_told_of_everything(tmp_path):
    told = []
    mine = observed_by(told.append)
    ObserverTests().test_events_of_each_kind(mine)
    ObserverTests().test_stores_at_once_in_any_order(mine)
    ObserverTests().test_a_store_is_observed(mine, tmp_path)
    assert {type(event) for event in told} == set(EVENT_HOOKS.values())


def test_another_content_of_one_file_is_named(tmp_path):
    """As that of a sink which forgets ``truncate``."""
    for name in ("made", "whole"):
        (tmp_path / name).write_text(name)
    with pytest.raises(AssertionError, match=r"(?m)another content of made$"):
        check_same(tmp_path / "made", tmp_path / "whole")


@kit
def test_observer_that_raises_fails(tmp_path):
    mine = observed_by(lambda event: {}[event.store])
    with pytest.raises(KeyError):
        ObserverTests().test_events_of_each_kind(mine)
    with pytest.raises(AssertionError, match="KeyError"):
        ObserverTests().test_a_store_is_observed(mine, tmp_path)


@kit
def test_observer_that_waits_once_fails(monkeypatch):
    """As one that connects when it is first called. What it waits for is no processor time."""
    monkeypatch.setattr(observers, "SOON", 0.01)
    seconds = iter([0.02])
    with pytest.raises(AssertionError, match="takes its time"):
        ObserverTests().test_events_of_each_kind(observed_by(lambda event: time.sleep(next(seconds, 0))))


@kit
def test_observer_that_does_not_return_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(announcing, "CLOSE_TIMEOUT_SECONDS", 0.05)
    comes_back = threading.Event()
    mine = observed_by(lambda event: isinstance(event, StoreClosedEvent) and comes_back.wait(30))
    try:
        with pytest.raises(AssertionError, match="still running"):
            ObserverTests().test_a_store_is_observed(mine, tmp_path)
    finally:
        comes_back.set()
