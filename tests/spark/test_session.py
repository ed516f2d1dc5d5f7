"""`session` makes a session whose workers find the format, in a program that set up nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.spark_home import quick_environment

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pathlib import Path
from threading import Thread
from logstore import Log
from logstore.spark import session, table

path = sys.argv[1]
with Log.open(f"{path}/clicks-0") as log:
    log.append([b"a", b"b"])
spark = session(master="local[1]")
assert session() is spark
clicks = spark.read.format("logstore").option("subscribe", "clicks").load(path)
thread = Thread(target=lambda: print(clicks.count()))
thread.start()
thread.join()
session(settings={"spark.master": "local[1]", "spark.sql.shuffle.partitions": "7"})
print(table("clicks", path=Path(path)).count())
print(table("clicks", path=path, startingOffsets='{"clicks":{"0":1}}').count())
spark.sql(f"CREATE TEMPORARY VIEW seen USING logstore OPTIONS (path '{path}', subscribe 'clicks')")
print(spark.sql("SELECT max(offset) FROM seen").head()[0])
spark.stop()
"""


def test_the_workers_run_the_programs_python(tmp_path: Path) -> None:
    """Another `python3` comes first on PATH, as it does where no environment is activated.

    Spark lists modules to find the format. From another directory it does not see a package that was
    installed from a checkout.
    """
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "bin" / "python3").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= quick_environment(tmp_path / "spark")
    environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{environment['PATH']}"
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "logs")]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "2", "1", "1"]
    assert "so these settings have no effect: spark.sql.shuffle.partitions" in done.stderr
