"""Apache Kafka from Maven Central: its broker and its tools, in a cache outside of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""
_PATIENCE_S: Final = 600


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
    if shutil.which("java") is None:
        raise Missing("Java is not installed: apt-get install default-jre-headless")
    directory = cache_dir() / version
    if any(directory.glob("kafka_2.13-*.jar")):
        return directory
    if shutil.which("mvn") is None:
        raise Missing("Maven is not installed: apt-get install maven")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        (Path(scratch) / "pom.xml").write_text(_POM.format(version=version))
        command = ["mvn", "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={scratch}/jars"]
        try:
            done = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Missing(f"Maven did not fetch Apache Kafka {version} in {_PATIENCE_S} s") from error
        if done.returncode:
            last = (done.stdout.strip() or done.stderr.strip()).splitlines()[:1]
            raise Missing(f"Maven cannot fetch Apache Kafka {version}: {' '.join(last)}")
        shutil.rmtree(directory, ignore_errors=True)  # what an interrupted run has left
        (Path(scratch) / "jars").rename(directory)
    return directory
