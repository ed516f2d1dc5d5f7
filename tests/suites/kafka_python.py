"""kafka-python's own integration tests, from its sdist, against brokers of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from bench.kafka.jars import Missing, cache_dir
from tests.interop.cluster import Cluster
from tests.suites.verdict import Result

VERSION: Final = "3.0.12"
SETTINGS: Final = {
    "auto.create.topics.enable": "true",
    "num.partitions": "4",
    # Its consumers ask for 3 s.
    "group.min.session.timeout.ms": "1000",
}
"""What its own broker is configured with."""
_SPEAKS: Final = "3.9.0"
"""The version of Apache Kafka that its tests take the brokers for."""
_SERVICE: Final = """class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
"""
_TEST_S: Final = 180
_ALL_S: Final = 3600


def run(cluster: Cluster, directory: Path) -> dict[str, Result]:
    """Run the tests; return their results by `file::test`. Raises `Missing` without the sdist."""
    root = _source(directory)
    report = directory / "kafka-python.xml"
    environment = {
        **os.environ,
        "KAFKA_VERSION": _SPEAKS,
        "KAFKA_ROOT": str(directory),  # looked for, not used: the brokers run already
        "KAFKA_URI": f"kafka://{next(iter(cluster.addresses.values()))}",
        "PYTHONPATH": str(root),
    }
    options = [
        "-q",
        "-o",
        "addopts=",
        "-p",
        "no:benchmark",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        f"--timeout={_TEST_S}",
    ]
    with (directory / "kafka-python.txt").open("wb") as said:
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", "test/integration"],
            cwd=root,
            env=environment,
            stdout=said,
            stderr=said,
            timeout=_ALL_S,
            check=False,
        )
    if not report.exists():
        raise RuntimeError(
            f"kafka-python's tests did not run: {(directory / 'kafka-python.txt').read_text()}"
        )
    return results_of(report.read_text())


def results_of(report: str) -> dict[str, Result]:
    """Return the results in a JUnit report. A test that fails in its tear-down has failed."""
    found: dict[str, Result] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            found[name] = "failed"
        else:
            found.setdefault(name, "skipped" if "skipped" in kinds else "passed")
    return found


def _source(directory: Path) -> Path:
    """Unpack the sdist, of the client that the tests' environment has installed or could install."""
    kept = cache_dir().parent / "sdists"
    archive = kept / f"kafka_python-{VERSION}.tar.gz"
    if not archive.exists():
        kept.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "kafka-python"]
        done = subprocess.run(
            [*command, "-d", str(kept), f"kafka-python=={VERSION}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not archive.exists():
            raise Missing(f"pip cannot fetch the sdist of kafka-python {VERSION}: {done.stderr[-300:]}")
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    root = directory / f"kafka_python-{VERSION}"
    # The sdist lacks both files. Without the first, `test` is Python's own package.
    (root / "test" / "__init__.py").touch()
    (root / "test" / "service.py").write_text(_SERVICE)
    return root
