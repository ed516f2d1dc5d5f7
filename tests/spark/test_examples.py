"""The examples, as a newcomer runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
LINES = """\
26/11/20 21:27:19 WARN Utils: Your hostname resolves to a loopback address
26/11/20 21:27:20 ERROR Executor: Exception in task 0.0
\tat somewhere(Executor.scala:1)
26/11/20 21:27:21 INFO Executor: Running task 0.1
"""


def told(*arguments: str, cwd: Path) -> str:
    """What a program of Python prints. It must end well."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_log_lines_become_a_table(tmp_path: Path) -> None:
    """From a file that is there."""
    (tmp_path / "app.log").write_text(LINES)
    said = told(str(ROOT / "examples/spark_logs.py"), "app.log", "--output", "out", cwd=tmp_path)
    assert "4 lines sent, 4 read from the topic, 4 rows in" in said
    report = (tmp_path / "out" / "report.txt").read_text()
    row = next(line.split() for line in report.splitlines() if line.startswith("Executor"))
    assert row == ["Executor", "2", "1", "0", "1"]
    assert "(no log lines)" in report


def test_the_readmes_lines_for_spark(tmp_path: Path) -> None:
    """In a process of its own: they end the session that they began."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    (block,) = (each for each in blocks if "pyspark" in each)
    rows = told("-c", block, cwd=tmp_path)
    assert re.search(r"\| *ann *\| *2 *\|", rows)
    assert re.search(r"\| *bob *\| *1 *\|", rows)
