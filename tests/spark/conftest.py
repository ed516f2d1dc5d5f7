"""A Spark session for all tests of a worker: it takes seconds to start, so there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logstore.segment.scan import use_compiled
from tests.spark.spark_home import linked_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = str(Path(__file__).parents[2])
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
    "spark.executorEnv.PYTHONPATH": ROOT,
}


@pytest.fixture(scope="session", autouse=True)
def _spark_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For sessions here and in the processes that tests start."""
    if "SPARK_HOME" not in os.environ:
        os.environ["SPARK_HOME"] = str(linked_home(tmp_path_factory.mktemp("spark-home") / "home"))


@pytest.fixture(autouse=True)
def _plain_walk_again() -> Iterator[None]:
    """Reads switch to the compiled walk for the whole process; other tests look at the plain one."""
    yield
    use_compiled(wanted=False)


def has_session() -> bool:
    """Return whether Spark was started in this process, without importing it."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


@pytest.fixture(autouse=True)
def _starts_spark_only_if_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Only tests marked `spark` may start a JVM: it costs the other part of `make test` half a minute."""
    before = has_session()
    yield
    if not before and not request.node.get_closest_marker("spark"):
        assert not has_session(), "this test starts Spark: mark it, or give it workers in this process"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's start alone takes a minute where many share two cores: a limit is for what hangs."""
    for item in items:
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2,3]`: two threads, and three attempts a task, so that retries can be tested.

    LOGSTORE_SPARK_MASTER names another master: `make spark` runs the suite on real executors too.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = ROOT  # Spark's Python workers import what is tested here
    builder = SparkSession.builder.master(os.environ.get("LOGSTORE_SPARK_MASTER", "local[2,3]"))
    builder = builder.appName("logstore-tests")
    directory = tmp_path_factory.mktemp("spark")
    for key, value in {**SETTINGS, "spark.sql.warehouse.dir": f"{directory}/warehouse"}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
