"""Executors in separate processes read and salvage. They have the driver's plugins, or errors name what they lack."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import clusters
import msgstore
from msgstore.contract import ConfigError
from msgstore.scan import describe
from msgstore_spark import ExecutorMismatch, check_executors, executors, sessions, upload_wheels
from msgstore_spark.executors import _problems, differences, fingerprint

# -- executors with this Python -----------------------------------------------------------------------------------------------


WORK = """
    import json, os, sys
    from pathlib import Path
    import msgstore
    from msgstore.jobs.messages.conversion_plan import plan_convert
    from msgstore.jobs.messages.selection import select
    from msgstore.jobs.runner import make_runner
    from msgstore.jobs.salvage import plan_salvage
    from msgstore_spark import check_executors, session

    master, config, store, rescued = sys.argv[1:]
    with session(master, config=json.loads(config)) as spark:
        answered = [check_executors(spark), check_executors(spark)]
        found = spark.read.format("msgstore").option("taskSize", "16kB").load(store)  # without registration
        rows = found.selectExpr("lower(hex(id))", "type", "string(body)", "unix_micros(time)", "actor").collect()
        progress = []
        catalogue = msgstore.load_catalogue()
        os.chdir(Path(store).parent)  # a job's paths may be relative, wherever executors run
        job = plan_salvage(catalogue, [Path(Path(store).name)], Path(rescued))
        report = make_runner(catalogue, "spark", {}).salvage(job, lambda done, known: progress.append((done, known)))
        relative = os.path.relpath(rescued + ".parquet")
        job = plan_convert(catalogue, Path(Path(store).name), relative, select())
        converted = make_runner(catalogue, "spark", {}).convert(job)
        print(json.dumps({
            "converted": [converted.destination == relative, converted.total("written")],
            "answered": answered, "columns": found.columns, "rows": [list(row) for row in rows],
            "messages": report.messages, "progress": progress[-1:],
        }))
"""
SMALL = '{"spark.executor.memory": "512m"}'


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Store with a third party's records in several segments, and its rows: id, type, body, time in microseconds, actor."""
    path = tmp_path_factory.mktemp("audited") / "store"
    form = {"use": "v2", "records": {"audit": {"byte": 200, "actor": "billing"}}}
    with msgstore.open_store(path, record="audit", format=form, file_size_limit=8000) as store, store.client() as client:
        for n in range(1000):
            client.write(n.to_bytes(16), b"message %d" % n)
            if n % 50 == 0:
                store.flush()
    assert len(list(path.glob("*.sqs"))) > 4
    return path, read(path)


def read(store: Path) -> list[list[Any]]:
    rows = []
    with msgstore.open_store(store, mode="r") as opened:
        for entry in opened.entries():
            nanoseconds, actor = describe(opened.record(entry)).values
            rows.append([entry.msg_id.hex(), 200, opened.stored_body(entry).decode(), nanoseconds // 1000, actor])
    return sorted(rows)


@pytest.mark.parametrize(
    ("master", "config", "executors"),
    [("local-cluster[2,1,1024]", SMALL, 2), ("standalone", SMALL, 2), ("connect_server", "{}", 1)],
)
def test_executors_read_and_salvage(request, audited, tmp_path, master, config, executors):
    """All messages, with the columns of the third party's record type."""
    store, written = audited
    url = master if "[" in master else request.getfixturevalue(master)
    (line,) = clusters.run(WORK, url, config, str(store), str(tmp_path / "rescued")).splitlines()
    found = json.loads(line)
    assert found["answered"] == [executors, executors]
    assert found["columns"] == ["store", "file", "format", "offset", "size", "type", "id", "body", "time", "actor", "modified"]
    assert {row[4] for row in written} == {"billing"}
    assert len(written) == found["messages"] == 1000
    assert sorted(found["rows"]) == read(tmp_path / "rescued") == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rescued", "rescued.parquet"]
    assert found["converted"] == [True, 1000]
    for done, known in found["progress"]:
        assert 0 < done == known


def test_fingerprint_names_third_parties(spark):
    assert check_executors(spark) == 1
    found = fingerprint()
    assert found["record audit of v2"].startswith("acme-audit-record 1.0.0 (contract ")
    assert (found["msgstore-spark"], found["pyarrow"]) == ("msgstore-spark 0.1.0", "pyarrow 18 or newer")


def test_connect_and_classic_alternate_in_process(connect_server):
    program = """
        import sys
        from msgstore_spark import SparkUnavailable, session
        for master in (sys.argv[1], "local[2]", sys.argv[1]):
            with session(master) as spark:
                assert session() is session(master) is spark
                try:
                    session("local[3]")
                except SparkUnavailable as error:
                    print(spark.range(10).count(), error)
    """
    lines = clusters.run(program, connect_server).splitlines()
    said = [line.removeprefix("10 a session is active here, and its master is ")[:9] for line in lines]
    assert said == ["localhost", "local[2],", "localhost"]


def test_cluster_without_workers_is_refused(tmp_path):
    """At the start of a job, and also while its tasks wait."""
    program = """
        import sys
        from msgstore_spark import SparkUnavailable, check_executors, executors, runner, session

        def work(spark):
            with runner.watch(spark):
                spark.range(1).collect()

        executors.TIMEOUT_SECONDS = 1
        with session(sys.argv[1]) as spark:
            for act in (check_executors, work):
                try:
                    act(spark)
                except SparkUnavailable as error:
                    print(error)
    """
    with clusters.standalone(tmp_path, workers=0) as url:
        assert clusters.run(program, url).count(f"{url}: no executor within 1 s. Check that it has a worker with") == 2


# -- executors whose Python has no msgstore: uploaded wheels make it available ------------------------------------------------


ROOT = Path(__file__).parents[2]
OURS = sorted({*ROOT.glob("*/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")})
OTHERS = [
    "attrs", "pluggy", "cattrs", "typing-extensions", "click", "rich", "lmdb", "crc32c", "numpy", "pandas", "python-dateutil",
    "pyarrow", "zstandard", "prometheus-client", "flatbuffers", "pika", "cryptography",
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
                if wheels:
                    upload_wheels(spark, *wheels[:1])
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
    assert nothing[0] == forgotten[0] == "executors cannot do what the driver can"
    assert "msgstore-spark cannot be used (ModuleNotFoundError: No module named 'msgstore_spark')" in nothing[1]
    assert "Install there: pip install ./core ./queues ./libs/* ./plugins/* ./pipeline, in a checkout; acme-" in nothing[1]
    assert "acme-audit-record==1.0.0" in nothing[1]
    assert nothing[1].endswith(", the way you did here, or upload wheels (upload_wheels(), spark-submit --py-files)")
    assert len(nothing) == len(forgotten) == 2
    assert forgotten[1].startswith("on ")
    assert "record audit of v2: nothing; here acme-audit-record 1.0.0" in forgotten[1]
    assert "Install there: acme-audit-record==1.0.0, the way you did here, or upload wheels" in forgotten[1]
    assert answered == 2


def test_wheels_reach_workers_of_queries(bare_python, wheels, audited, tmp_path):
    """Without check_executors, whose workers would have them."""
    program = """
        import sys
        from msgstore_spark import session, upload_wheels
        with session("local-cluster[2,1,1024]") as spark:
            source, saved, *wheels = sys.argv[1:]
            upload_wheels(spark, *wheels)
            read = spark.read.format("msgstore").load(source)
            read.select("id", "body").write.format("msgstore").mode("append").save(saved)
            print(read.count(), spark.read.format("msgstore").load(saved).count())
    """
    given = map(str, [audited[0], tmp_path / "saved", *wheels])
    assert clusters.run(program, *given, env={"PYSPARK_PYTHON": bare_python}) == "1000 1000\n"


def test_missing_dependencies_are_all_named(tmp_path):
    """Wheels would not help."""
    venv.create(tmp_path / "venv", symlinks=True)
    (lines,) = ask(CLUSTER, [], python=str(tmp_path / "venv/bin/python"))
    assert len(lines) == 3
    assert re.search(r"dependencies are missing: attrs, cattrs, .*pyarrow.* wheels do not bring them$", lines[1])
    assert "Install there: pip install ./core" in lines[2]
    assert "wheels" not in lines[2]


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
    assert line.startswith(f"executors: no task can be run with {sys.executable}: [PYTHON_VERSION_MISMATCH]")
    assert "3.99" in line
    assert ".. " not in line
    version = "{}.{}".format(*sys.version_info)
    assert f"Set PYSPARK_PYTHON, where this program starts, to a Python {version} that is at the same path" in line
    ((line,),) = ask("local[2]", [], python="/no/such/python")
    assert re.match(r"on the host that Spark names \S+: no task can be run with /no/such/python: ", line)


def test_dependency_and_library_that_are_missing_are_named_alone():
    """Only a query that uses the plugin would fail: the check has no other difference to report."""
    here = fingerprint()
    assert "msgstore-rabbitmq-files" in here  # no plugin, but one needs it
    answer = {
        "host": "h", "process": 1, "python": here["Python"], "problem": "", "unreadable": {}, "fingerprint": here,
        "missing": ["crc32c"],
    }  # fmt: skip
    assert _problems(here, answer) == [
        "dependencies are missing: crc32c. Install them there with pip: wheels do not bring them"
    ]
    there = {name: found for name, found in here.items() if name != "msgstore-rabbitmq-files"}
    (line,) = _problems(here, answer | {"missing": [], "fingerprint": there})
    assert line.startswith("msgstore-rabbitmq-files: nothing; here msgstore-rabbitmq-files ")


def test_directory_is_checked_by_a_file_in_it(tmp_path, monkeypatch, caplog):
    """A host where nothing is mounted has the directory, too."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "0.sqs").touch()
    asked = []

    def answer(spark, paths):
        here = fingerprint()
        asked.extend(paths)
        unreadable = {path: "No such file or directory" for path in paths if path.endswith(".sqs")}
        return [{"host": "h", "process": 1, "python": here["Python"], "missing": [], "problem": "", "fingerprint": here,
                 "unreadable": unreadable}]  # fmt: skip

    monkeypatch.setattr(executors, "_ask_executors", answer)
    monkeypatch.setattr(executors, "count", lambda spark: 1)
    with pytest.raises(ExecutorMismatch, match=r"on h: .*0\.sqs: No such file or directory\. Executors need it"):
        check_executors(None, [tmp_path, tmp_path / "empty", tmp_path / "typo"])
    assert asked == [*map(str, (tmp_path, tmp_path / "empty", tmp_path / "typo", tmp_path / "store" / "0.sqs"))]
    assert "typo: does not exist on the driver, and is not checked" in caplog.text


REMEDY = "Install there: acme==2, the way you did here, or upload wheels (upload_wheels(), spark-submit --py-files)"


def test_remedy_is_one_for_each_distribution():
    here = {"Python": "3.11", "source a": "acme 2 (contract 1.0)", "sink a": "acme 2 (contract 1.0)"}
    assert differences(here, here) == []
    (python,) = differences(here, {"Python": "3.12"})
    assert python.startswith("Python 3.12, here 3.11. Set PYSPARK_PYTHON")
    (line,) = differences(here, {"Python": "3.11"})
    assert line.startswith(
        "source a, sink a: nothing; here acme 2 (contract 1.0). Install there: acme==2, the way you did here"
    )
    (line,) = differences(here, {"Python": "3.11", "plugin acme": "fails: ModuleNotFoundError: No module named 'acme'"})
    assert line.endswith(
        "because acme fails: ModuleNotFoundError: No module named 'acme'; here acme 2 (contract 1.0). " + REMEDY
    )


def test_planner_is_asked_with_the_paths_that_spark_gives_it(monkeypatch, caplog):
    """A Python without PySpark gets that of Spark, before what PYTHONPATH has."""
    version, asked = fingerprint()["Python"], []

    def run(command, *, env, **_):
        asked.append(env["PYTHONPATH"].split(os.pathsep))
        return subprocess.CompletedProcess(command, 0, f"{version}\n{json.dumps(fingerprint())}\n".encode(), b"")

    monkeypatch.setattr(sessions.subprocess, "run", run)
    monkeypatch.setenv("PYTHONPATH", "/a")
    sessions._check_planner("/no/such/python")
    assert [Path(path).name.partition("-")[0] for path in sorted(asked[0])] == ["a", "py4j", "pyspark.zip"]
    assert asked[0][-1] == "/a"
    assert not caplog.records


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("/no/such/python", "cannot be run"),
        ("bare", "cannot import msgstore_spark"),
        ("other", "differs from the driver's Python"),
        ("old", "is Python 3.99, here "),
    ],
)
def test_unusable_planner_is_warned_of(request, tmp_path, python, why):
    """A session for DataFrames warns, the one of a job does not."""
    program = """
        import logging, sys
        from msgstore_spark import session, sessions
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        for start in (sessions.open_session, session):
            with start("local[2]") as spark:
                print(start.__name__)
    """
    if python in ("other", "old"):
        version = fingerprint()["Python"] if python == "other" else "3.99"
        python = str(tmp_path / "python")
        Path(python).write_text(f"#!/bin/sh\necho {version}\necho '{json.dumps(fingerprint() | {'pyarrow': 'pyarrow 1'})}'\n")
        Path(python).chmod(0o755)
    python = request.getfixturevalue("bare_python") if python == "bare" else python
    job, warning, *more, _ = clusters.run(program, env={"PYSPARK_PYTHON": python}).splitlines()
    assert job == "open_session"
    assert ["pyarrow 1; here" in line for line in more] == [True] * why.startswith("differs")
    assert warning.startswith(f"PYSPARK_PYTHON: {python} {why}")
    assert ("on this machine" in warning) is ("Set PYSPARK_PYTHON" not in warning)


def test_path_that_only_driver_sees_is_refused(tmp_path):
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
        (source.parent / "mounted").mkdir()
        os.dup2(os.open(source.parent / "mounted", os.O_RDONLY), 201)
        (source.parent / "unseen").symlink_to("/proc/self/fd/201")
        jobs = [
            plan_salvage(catalogue, [link.parent], rescued),
            plan_salvage(catalogue, [source], source.parent / "unseen" / "rescued"),
        ]
        with session("local[2]") as spark:
            print(check_executors(spark, [source, "/no/such/file"]))
            for job in jobs:
                try:
                    make_runner(catalogue, "spark", {}).salvage(job)
                except ExecutorMismatch as error:
                    print(error)
        print(rescued.exists())
    """
    source = tmp_path / "0.rdq"
    shutil.copyfile(next(ROOT.glob("tests/data/**/msg_store_persistent/0.rdq")), source)
    count, _, line, _, destination, is_there = clusters.run(program, str(source), str(tmp_path / "rescued")).splitlines()
    assert (count, is_there) == ("1", "False")
    assert f"{tmp_path}/seen/0.rdq: No such file or directory. Executors need it under this path" in line
    assert f"{tmp_path}/unseen: No such file or directory. Executors need it under this path" in destination


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "bad.whl: No such file"),
        ([], "cannot be read as a wheel"),
        (["a.py"], r"there is no \.dist-info in it"),
        (["a-1.dist-info/METADATA", "a.so"], r"compiled modules \(a.so\)"),
        (["a-1.dist-info/METADATA", "a/b/__init__.py"], r"a/ has no __init__\.py"),
    ],
    ids=["absent", "empty", "archive", "compiled", "namespace"],
)
def test_file_that_is_no_wheel_is_refused(tmp_path, content, message):
    file = tmp_path / "bad.whl"
    if content is not None:
        file.touch()
    if content:
        with zipfile.ZipFile(file, "w") as archive:
            for name in content:
                archive.writestr(name, "")
    with pytest.raises(ConfigError, match=message):
        upload_wheels(SimpleNamespace(sparkContext=SimpleNamespace(applicationId="a")), file)


def test_other_wheel_of_same_name_is_refused(tmp_path):
    sent: list[str] = []
    registry = SimpleNamespace(register=id)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(applicationId="b", addPyFile=sent.append), dataSource=registry)
    for version in "112":
        file = tmp_path / version / "acme-1-py3-none-any.whl"
        file.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(zipfile.ZipInfo("acme-1.dist-info/METADATA"), version)
        with pytest.raises(ConfigError, match="another wheel of this name") if version == "2" else contextlib.nullcontext():
            upload_wheels(spark, file)
    assert len(sent) == 1
