"""Upload of wheels to executors that do not have them installed.

Wheels are sent as ``.zip``: Spark puts a ``.zip`` on the import path. It accepts a ``.whl`` without an error, but does not
make it importable.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from msgstore.contract import ConfigError


def upload_wheels(spark: SparkSession, *wheels: str | os.PathLike[str]) -> None:
    """Make the distributions in ``wheels`` importable on all current and later executors of a session, entry points included.

    Dependencies are not resolved: they must be installed on the executors, or uploaded too. Raises ConfigError, and uploads
    nothing, if a file is no wheel, or has compiled modules, which Python cannot import from a zip file.
    """
    for wheel in map(Path, wheels):
        _check(wheel)
    directory = Path(tempfile.mkdtemp(prefix="msgstore-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)  # executors fetch from it during the whole session
    for wheel in map(Path, wheels):
        archive = shutil.copyfile(wheel, directory / f"{wheel.stem}.zip")
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
        raise ConfigError(f"{wheel}: is no wheel: there is no .dist-info in it. Try: pip wheel --no-deps NAME")
    if compiled := [name for name in names if name.endswith((".so", ".pyd", ".dylib"))]:
        raise ConfigError(
            f"{wheel}: has compiled modules ({compiled[0]}), which cannot be imported from a zip. Install it on every host"
        )
