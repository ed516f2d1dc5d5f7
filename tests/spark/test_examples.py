"""The example with lines whose table is known. It runs as a newcomer runs it in tests/test_docs.py."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
LINES = """\
26/11/20 21:27:19 WARN Utils: Your hostname resolves to a loopback address
26/11/20 21:27:20 ERROR Executor: Exception in task 0.0
\tat somewhere(Executor.scala:1)
26/11/20 21:27:21 INFO Executor: Running task 0.1
"""


def test_log_lines_become_a_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a file. The README's run of the example, in tests/test_docs.py, starts a Spark of its own."""
    (tmp_path / "app.log").write_text(LINES)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # other tests go on with this session
    monkeypatch.setattr(
        sys, "argv", ["spark_logs.py", str(tmp_path / "app.log"), "--output", str(tmp_path / "out")]
    )
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples/spark_logs.py"), run_name="__main__")
    assert ended.value.code == 0
    assert "4 lines sent, 4 read from the topic, 4 rows in" in capsys.readouterr().out
    report = (tmp_path / "out" / "report.txt").read_text()
    row = next(line.split() for line in report.splitlines() if line.startswith("Executor"))
    assert row == ["Executor", "2", "1", "0", "1"]
    assert "(no log lines)" in report


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("", 0, "nothing to report: there is no line in"),
        ("\n\n", 0, "nothing to report: there is no line in"),
        (None, 1, "error: [PATH_NOT_FOUND] Path does not exist"),
    ],
)
def test_without_a_line_it_says_so(
    content: str | None,
    code: int,
    says: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Spark's words for a table without files are about a schema."""
    log = tmp_path / "app.log"
    if content is not None:
        log.write_text(content)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # other tests go on with this session
    monkeypatch.setattr(sys, "argv", ["spark_logs.py", str(log), "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples/spark_logs.py"), run_name="__main__")
    assert ended.value.code == code
    told = [line for each in capsys.readouterr() for line in each.splitlines() if str(log) in line]
    assert len(told) == 1
    assert told[0].startswith(says)
