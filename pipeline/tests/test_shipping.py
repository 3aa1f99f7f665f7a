"""Executors whose Python has none of this: they say what they lack, and have it when wheels were sent."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import clusters
from msgstore.contract import ConfigError
from msgstore_spark import upload_wheels

ROOT = Path(__file__).parents[2]
OURS = sorted({*ROOT.glob("*/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")})
HAS = [
    "attrs", "pluggy", "cattrs", "typing-extensions", "click", "rich", "lmdb", "crc32c", "numpy", "pandas", "python-dateutil",
    "pyarrow", "zstandard", "prometheus-client",
]  # fmt: skip
"""What an executor's Python has: what others have written."""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Of every distribution of the repository."""
    directory = tmp_path_factory.mktemp("wheels")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(directory),
    ]
    subprocess.run([*build, *(str(project.parent) for project in OURS)], check=True)
    found = sorted(directory.glob("*.whl"))
    assert len(found) == len(OURS)
    return found


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory):
    """A Python without anything of this repository."""
    directory = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    for name in HAS:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    python = str(directory / "bin" / "python")
    done = subprocess.run([python, "-c", "import pyarrow, attrs, msgstore"], check=False, capture_output=True, encoding="utf-8")
    assert "No module named 'msgstore'" in done.stderr
    return python


ASK = """
    import json, sys
    from msgstore_spark import ExecutorMismatch, check_executors, session, upload_wheels
    for wheels in map(json.loads, sys.argv[2:]):
        with session(sys.argv[1]) as spark:
            upload_wheels(spark, *wheels)
            try:
                print(json.dumps(check_executors(spark)))
            except ExecutorMismatch as error:
                print(json.dumps(str(error).splitlines()))
"""


def ask(master: str, *sent: Iterable[Path], python: str | None = None) -> list[Any]:
    """What executors answer in one session after the other: how many there are, or the lines of the error."""
    env = {"PYSPARK_PYTHON": python} if python else {}
    said = clusters.run(ASK, master, *(json.dumps(list(map(str, wheels))) for wheels in sent), env=env)
    return [json.loads(line) for line in said.splitlines()]


def test_missing_distributions_are_said_and_wheels_bring_them(bare_python, wheels):
    some = [wheel for wheel in wheels if not wheel.name.startswith("acme_audit")]
    nothing, forgotten, answered = ask("local[2]", [], some, wheels, python=bare_python)
    assert nothing[0] == "executors differ from the driver"
    assert "msgstore-spark cannot be used (ModuleNotFoundError: No module named 'msgstore_spark')" in nothing[1]
    assert "Try there: pip install" in nothing[1]
    assert "acme-audit-record==1.0.0" in nothing[1]
    assert len(nothing) == len(forgotten) == 2
    assert forgotten[1].startswith("on ")
    assert "record audit of v2: nothing; here acme-audit-record 1.0.0" in forgotten[1]
    assert forgotten[1].endswith("Try there: pip install acme-audit-record==1.0.0")
    assert answered == 1


def test_wheels_are_sent_to_every_executor(bare_python, wheels):
    assert ask("local-cluster[2,1,1024]", wheels, python=bare_python) == [2]


def test_wheels_are_sent_to_a_connect_server(bare_python, wheels, tmp_path):
    with clusters.connect_server(tmp_path, env={"PYSPARK_PYTHON": bare_python}) as url:
        nothing, answered = ask(url, [], wheels)
        assert "No module named 'msgstore_spark'" in nothing[1]
        assert answered == 1


def test_job_of_spark_submit_takes_wheels(bare_python, wheels, tmp_path):
    """The wheels, renamed, in --py-files; the session is spark-submit's."""
    archives = []
    for wheel in wheels:
        archives.append(tmp_path / f"{wheel.stem}.zip")
        shutil.copyfile(wheel, archives[-1])  # a link would be followed, and the name with it
    job = tmp_path / "job.py"
    job.write_text(
        "from msgstore_spark import check_executors, session\n"
        "with session() as spark:\n"
        "    print('answered', check_executors(spark), spark.sparkContext.master)\n"
    )
    said = clusters.submit(
        "--master", "local-cluster[2,1,1024]", "--py-files", ",".join(map(str, archives)), str(job),
        env={"PYSPARK_PYTHON": bare_python, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )  # fmt: skip
    assert "answered 2 local-cluster[2,1,1024]" in said


def test_other_version_of_python_is_refused():
    """PySpark refuses it before anything of ours runs. Here it is the driver that says something else of itself."""
    program = """
        from msgstore_spark import ExecutorMismatch, check_executors, session
        with session("local[2]") as spark:
            spark.sparkContext.pythonVer = "3.99"
            try:
                check_executors(spark)
            except ExecutorMismatch as error:
                print(error)
    """
    said = clusters.run(program)
    assert said.startswith("the executors cannot run Python: [PYTHON_VERSION_MISMATCH]")
    assert "3.99" in said
    assert said.count("\n") == 1


def test_segment_that_only_driver_sees_is_refused(tmp_path):
    """A descriptor of this process stands for a disk that is not mounted on the executors' hosts."""
    program = """
        import os, sys
        from pathlib import Path
        from msgstore.jobs.runner import make_runner
        from msgstore.jobs.salvage import plan_salvage
        from msgstore.plugins.catalogue import load_catalogue
        from msgstore_spark import ExecutorMismatch, check_executors, session

        source, rescued = map(Path, sys.argv[1:])
        os.dup2(os.open(source, os.O_RDONLY), 200)
        (source.parent / "seen").mkdir()
        link = source.parent / "seen" / source.name
        link.symlink_to("/proc/self/fd/200")
        catalogue = load_catalogue()
        job = plan_salvage(catalogue, [link.parent], rescued)
        with session("local[2]") as spark:
            print(check_executors(spark, [source, "/no/such/file"]))
            try:
                make_runner(catalogue, "spark", {}).salvage(job)
            except ExecutorMismatch as error:
                print(error)
        print(rescued.exists())
    """
    source = tmp_path / "0.rdq"
    shutil.copyfile(next(ROOT.glob("tests/data/**/msg_store_persistent/0.rdq")), source)
    everybody, complaint, line, there = clusters.run(program, str(source), str(tmp_path / "rescued")).splitlines()
    assert everybody == "1"
    assert complaint == "executors differ from the driver"
    assert f"{tmp_path}/seen/0.rdq: No such file or directory. Executors need it under this path" in line
    assert there == "False"


def test_absent_python_is_named():
    ((said,),) = ask("local[2]", [], python="/no/such/python")
    assert "/no/such/python" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read as a wheel"),
        ("text", "cannot be read as a wheel"),
        (["a.py"], r"there is no \.dist-info in it"),
        (["a-1.dist-info/METADATA", "a.so"], r"compiled modules \(a.so\)"),
    ],
    ids=["absent", "text", "archive", "compiled"],
)
def test_file_that_is_no_wheel_is_refused(tmp_path, wheels, content, message):
    file = tmp_path / "bad.whl"
    if isinstance(content, str):
        file.write_text(content)
    elif content:
        with zipfile.ZipFile(file, "w") as archive:
            for name in content:
                archive.writestr(name, "")
    with pytest.raises(ConfigError, match=message):
        upload_wheels(None, wheels[0], file)
