"""Apache Kafka and Spark's connector from Maven Central, in a cache outside of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
SPARK_CONNECTOR: Final = "4.2.0"
"""The version of Spark's Kafka connector that is compared with ours; it runs in later Sparks, too."""
_OF_CONNECTOR: Final = ("spark-sql-kafka-", "spark-token-", "kafka-clients-", "commons-pool2-")
_PATIENCE_S: Final = 600
_COMPILING_S: Final = 120


class Missing(Exception):
    """Java, Maven or the jars are not here: the reason to skip."""


def cache_dir() -> Path:
    """Return the directory of the jars of all versions."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "logstore" / "kafka"


def jars(version: str) -> Path:
    """Return the directory with Apache Kafka's jars of this version; fetch them if it is not there.

    Raises `Missing`.
    """
    names = [("org.apache.kafka", name, version) for name in ("kafka_2.13", "kafka-tools")]
    return _fetched(cache_dir() / version, f"Apache Kafka {version}", names, "kafka_2.13-*.jar")


def application_jars(version: str) -> Path:
    """Return the directory with the jars of Streams, Connect and MirrorMaker 2; fetch them if needed.

    Raises `Missing`.
    """
    wanted = ("kafka-streams", "connect-runtime", "connect-file", "connect-mirror")
    names = [("org.apache.kafka", name, version) for name in wanted]
    proof = f"connect-mirror-{version}.jar"
    return _fetched(cache_dir() / f"{version}-applications", f"Kafka's applications {version}", names, proof)


def compile_java(found: Path, into: Path, *sources: Path) -> None:
    """Compile programs for the jars in a directory. Raises `Missing`."""
    command = ["javac", "-cp", f"{found}/*", "-d", str(into), *map(str, sources)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILING_S)
    except FileNotFoundError as error:
        raise Missing("javac is not installed: apt-get install default-jdk-headless") from error


def connector_jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector that a session needs; fetch them if they are not there.

    Raises `Missing`.
    """
    name = "spark-sql-kafka-0-10_2.13"
    found = _fetched(
        cache_dir().parent / "spark-kafka" / SPARK_CONNECTOR,
        f"Spark's Kafka connector {SPARK_CONNECTOR}",
        [("org.apache.spark", name, SPARK_CONNECTOR)],
        f"{name}-*.jar",
    )
    return [jar for part in _OF_CONNECTOR for jar in found.glob(f"{part}*.jar")]


def _fetched(directory: Path, what: str, dependencies: Sequence[tuple[str, str, str]], proof: str) -> Path:
    """Return `directory` with the jars of Maven's `dependencies`, one of which matches `proof`."""
    if shutil.which("java") is None:
        raise Missing("Java is not installed: apt-get install default-jre-headless")
    if any(directory.glob(proof)):
        return directory
    if shutil.which("mvn") is None:
        raise Missing("Maven is not installed: apt-get install maven")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        listed = "".join(_DEPENDENCY.format(*each) for each in dependencies)
        (Path(scratch) / "pom.xml").write_text(_POM.format(dependencies=listed))
        command = ["mvn", "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={scratch}/jars"]
        try:
            done = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Missing(f"Maven did not fetch {what} in {_PATIENCE_S} s") from error
        if done.returncode:
            last = (done.stdout.strip() or done.stderr.strip()).splitlines()[:1]
            raise Missing(f"Maven cannot fetch {what}: {' '.join(last)}")
        shutil.rmtree(directory, ignore_errors=True)  # what an interrupted run has left
        (Path(scratch) / "jars").rename(directory)
    return directory
