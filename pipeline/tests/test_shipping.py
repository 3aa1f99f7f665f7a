"""Executors whose Python has no msgstore: errors name what they lack, and uploaded wheels make it available."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

import clusters
from msgstore.contract import ConfigError
from msgstore_spark import upload_wheels

ROOT = Path(__file__).parents[2]
OURS = sorted({*ROOT.glob("*/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")})
OTHERS = [
    "attrs", "pluggy", "cattrs", "typing-extensions", "click", "rich", "lmdb", "crc32c", "numpy", "pandas", "python-dateutil",
    "pyarrow", "zstandard", "prometheus-client",
]  # fmt: skip
"""Distributions of others that an executor's Python has."""
CLUSTER = "local-cluster[2,1,1024]"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Wheels of all distributions of the repository."""
    directory = tmp_path_factory.mktemp("wheels")
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([sys.executable, *build, str(directory), *(str(project.parent) for project in OURS)], check=True)
    found = sorted(directory.glob("*.whl"))
    assert len(found) == len(OURS)
    return found


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory):
    """Python without any distribution of this repository."""
    directory = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    for name in OTHERS:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    return str(directory / "bin" / "python")


def ask(master: str, *sent: list[Path], python: str) -> list[Any]:
    """Check the executors in one session per list of wheels. Return their numbers, or the lines of the errors."""
    program = """
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
    given = (json.dumps(list(map(str, wheels))) for wheels in sent)
    return [json.loads(line) for line in clusters.run(program, master, *given, env={"PYSPARK_PYTHON": python}).splitlines()]


def test_missing_distributions_are_named_and_uploaded(bare_python, wheels):
    some = [wheel for wheel in wheels if not wheel.name.startswith("acme_audit")]
    nothing, forgotten, answered = ask(CLUSTER, [], some, wheels, python=bare_python)
    assert nothing[0] == forgotten[0] == "executors differ from the driver"
    assert "msgstore-spark cannot be used (ModuleNotFoundError: No module named 'msgstore_spark')" in nothing[1]
    assert "Try there: pip install" in nothing[1]
    assert "acme-audit-record==1.0.0" in nothing[1]
    assert len(nothing) == len(forgotten) == 2
    assert forgotten[1].startswith("on ")
    assert "record audit of v2: nothing; here acme-audit-record 1.0.0" in forgotten[1]
    assert forgotten[1].endswith("Try there: pip install acme-audit-record==1.0.0")
    assert answered == 2


def test_wheels_reach_connect_server(bare_python, wheels, tmp_path):
    with clusters.connect_server(tmp_path, env={"PYSPARK_PYTHON": bare_python}) as url:
        nothing, answered = ask(url, [], wheels, python=bare_python)
    assert "No module named 'msgstore_spark'" in nothing[1]
    assert answered == 1


def test_job_of_spark_submit_uses_wheels(bare_python, wheels, tmp_path):
    """The wheels, renamed, in --py-files; the session is spark-submit's."""
    archives = [shutil.copyfile(wheel, tmp_path / f"{wheel.stem}.zip") for wheel in wheels]
    job = tmp_path / "job.py"
    job.write_text(
        "from msgstore_spark import check_executors, session\n"
        "with session() as spark:\n"
        "    print('answered', check_executors(spark), spark.sparkContext.master)\n"
    )
    output = clusters.submit(
        "--master", CLUSTER, "--py-files", ",".join(map(str, archives)), str(job),
        env={"PYSPARK_PYTHON": bare_python, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )  # fmt: skip
    assert f"answered 2 {CLUSTER}" in output


def test_unusable_python_is_named():
    """PySpark itself refuses another version of Python, so the driver pretends to have another one."""
    program = """
        from msgstore_spark import ExecutorMismatch, check_executors, session
        with session("local[2]") as spark:
            spark.sparkContext.pythonVer = "3.99"
            try:
                check_executors(spark)
            except ExecutorMismatch as error:
                print(error)
    """
    (line,) = clusters.run(program).splitlines()
    assert line.startswith("the executors cannot run Python: [PYTHON_VERSION_MISMATCH]")
    assert "3.99" in line
    ((line,),) = ask("local[2]", [], python="/no/such/python")
    assert "/no/such/python" in line


def test_segment_that_only_driver_reads_is_refused(tmp_path):
    """A descriptor of this process stands for a disk that is not mounted on the executors' hosts."""
    program = """
        import os, sys
        from pathlib import Path
        from msgstore import load_catalogue
        from msgstore.jobs.runner import make_runner
        from msgstore.jobs.salvage import plan_salvage
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
    count, _, line, is_there = clusters.run(program, str(source), str(tmp_path / "rescued")).splitlines()
    assert (count, is_there) == ("1", "False")
    assert f"{tmp_path}/seen/0.rdq: No such file or directory. Executors need it under this path" in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read as a wheel"),
        (["a.py"], r"there is no \.dist-info in it"),
        (["a-1.dist-info/METADATA", "a.so"], r"compiled modules \(a.so\)"),
    ],
    ids=["absent", "archive", "compiled"],
)
def test_file_that_is_no_wheel_is_refused(tmp_path, content, message):
    file = tmp_path / "bad.whl"
    if content:
        with zipfile.ZipFile(file, "w") as archive:
            for name in content:
                archive.writestr(name, "")
    with pytest.raises(ConfigError, match=message):
        upload_wheels(None, file)
