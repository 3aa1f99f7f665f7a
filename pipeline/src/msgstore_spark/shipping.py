"""Wheels to executors that have not installed them. Spark puts a ``.zip`` on their path, and takes a ``.whl`` without a word
without making it importable."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from msgstore.contract import ConfigError
from msgstore_spark.java import for_this_process


def ship(spark: SparkSession, *wheels: str | os.PathLike[str]) -> None:
    """Give the executors of a session, those that come later too, the distributions in ``wheels``: their modules, and the entry
    points by which plugins are found.

    What a wheel depends on is not looked for: it has to be there, or to be shipped too. Raises ConfigError for what is no
    wheel, and for one with compiled modules, which Python cannot import out of a zip; then nothing was sent.
    """
    for wheel in map(Path, wheels):
        _check(wheel)
    directory = Path(tempfile.mkdtemp(dir=for_this_process()))  # executors fetch from it as long as the session lives
    for wheel in map(Path, wheels):
        archive = directory / f"{wheel.stem}.zip"
        shutil.copyfile(wheel, archive)
        if is_remote():
            spark.addArtifacts(str(archive), pyfile=True)
        else:
            spark.sparkContext.addPyFile(str(archive))


def _check(wheel: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheel}: cannot be read as a wheel ({error}). Try: pip wheel --no-deps NAME") from None
    if not any(name.endswith(".dist-info/METADATA") for name in names):
        raise ConfigError(f"{wheel}: no wheel: there is no .dist-info in it. Try: pip wheel --no-deps NAME")
    if compiled := [name for name in names if name.endswith((".so", ".pyd", ".dylib"))]:
        raise ConfigError(
            f"{wheel}: has compiled modules ({compiled[0]}), which cannot be imported out of a zip. Install it on every host"
        )
