"""Spark Connect: the same source, found by the server. Its client is the extra `connect`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from logstore import Log

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SCRIPT = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__, type(spark)
read = spark.read.format("logstore").option("subscribe", "orders").load(sys.argv[1])
print([bytes(row["value"]).decode() for row in read.orderBy("offset").collect()])
try:
    spark.read.format("logstore").option("subscribe", "absent").load(sys.argv[1]).collect()
except Exception as error:
    print([line for line in str(error).splitlines() if line.startswith("logstore.spark.errors.")])
spark.stop()
"""


def test_a_read_over_connect(tmp_path: Path) -> None:
    """A process of its own: one that has a classic session cannot have this one too."""
    with Log.open(tmp_path / "orders-0") as log:
        log.append([b"a", b"b"])
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": root, "PYSPARK_PYTHON": sys.executable},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    rows, refusal = done.stdout.strip().splitlines()[-2:] if not done.returncode else ("", done.stderr)
    assert rows == "['a', 'b']"
    assert "UnknownTopic" in refusal
