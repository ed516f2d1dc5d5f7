"""Delta Lake's jars for the installed Spark, and the settings of a session that reads and writes its tables.

    delta-spark==4.4.0, pyspark==4.2.0  ─▶  io.delta:delta-spark_4.2_2.13:4.4.0
                                        ─▶  ~/.cache/logstore/delta/delta-spark_4.2_2.13-4.4.0/*.jar

Spark can fetch a package itself (`spark.jars.packages`), at every start and with sixty lines on stderr. Here
it does so once, in a process of its own, whose jars are kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from logstore.disk.errors import EngineError, ErrorCode
from logstore.spark.java import check_java

SCALA: Final = "2.13"
_PATIENCE_S: Final = 600
SQL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "4",  # not 50 tasks for each look at a table's log
}


class DeltaMissing(EngineError):
    """Delta Lake is not installed, is made for another Spark, or its jars cannot be fetched."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


def delta_settings() -> dict[str, str]:
    """Return the settings with which `session(settings=…)` reads and writes Delta tables.

    The first call fetches Delta's jars, from where Spark fetches packages: Maven Central, if nothing else is
    configured. Raises `DeltaMissing` and `JavaMissing`.
    """
    try:
        version, requirements = metadata.version("delta-spark"), metadata.requires("delta-spark") or ()
    except metadata.PackageNotFoundError as error:
        raise DeltaMissing("delta-spark is not installed: pip install 'pylogstore[delta]'") from error
    package = package_of(version, requirements, metadata.version("pyspark"))
    jars = sorted(map(str, _jars(package).glob("*.jar")))
    return {"spark.jars": ",".join(jars), **SQL_SETTINGS}


def package_of(version: str, requirements: list[str] | tuple[()], spark: str) -> str:
    """Return the package of this version of Delta for this version of Spark.

    Raises `DeltaMissing` if the requirements of `delta-spark` exclude it.
    """
    newest = re.search(r"\bpyspark\b\S*<=([\d.]+)", " ".join(requirements))
    if newest is not None and _numbers(spark) > _numbers(newest[1]):
        raise DeltaMissing(
            f"Delta {version} is made for Spark up to {newest[1]}, and {spark} is installed: in a separate "
            "environment, pip install 'pylogstore[delta]' selects compatible versions"
        )
    minor = ".".join(spark.split(".")[:2])
    return f"io.delta:delta-spark_{minor}_{SCALA}:{version}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version)[:3])


def _jars(package: str) -> Path:
    """Return the directory with a package's jars and those it needs; fetch them if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logstore" / "delta"
    directory = cache / package.partition(":")[2].replace(":", "-")
    if directory.is_dir():
        return directory
    check_java()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        nothing = Path(scratch) / "nothing.py"
        nothing.touch()
        command = [str(_spark_submit()), "--packages", package, "--conf", f"spark.jars.ivy={scratch}"]
        command.append(str(nothing))
        try:
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=_PATIENCE_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise DeltaMissing(
                f"{package} could not be fetched ({_first_complaint(error)}). Spark fetches packages from "
                "Maven Central, unless spark.jars.ivySettings or spark.jars.repositories name another place; "
                "or give the jars as spark.jars"
            ) from error
        try:
            (Path(scratch) / "jars").rename(directory)
        except OSError:
            if not directory.is_dir():  # otherwise another process was faster
                raise
    return directory


def _spark_submit() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent / "bin" / "spark-submit"


def _first_complaint(error: Exception) -> str:
    """Return the first line of Spark's output that names an error."""
    said = str(getattr(error, "stderr", None) or "").splitlines()
    wanted = (line.strip() for line in said if "not found" in line.lower() or "exception" in line.lower())
    return next(wanted, str(error))
