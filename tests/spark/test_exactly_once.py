"""A stream that fails at every stage of its writing: each row once, in order per partition.

Short; `make spark-restarts` does it two hundred times, with Spark and without, to brokers and with dying
drivers too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logstore.broker.placement import partition_of_key
from logstore.log.log import Log
from tests.spark.conftest import ROOT
from tests.spark.fire import (
    AFTER,
    AMID,
    APPENDED,
    BEFORE,
    DECIDED,
    EVERY,
    MARKED,
    STAGED,
    TWICE,
    Fault,
)
from tests.spark.restarts import (
    PARTITIONS,
    Campaign,
    NotOnce,
    check_rows,
    read_directory,
    register,
    run,
    run_query,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAULTS = [
    Fault(STAGED, 0, "kill"),
    Fault(BEFORE),
    Fault(DECIDED, 1, "kill"),
    Fault(TWICE, 1),  # lets the batch be committed: of the next one nothing is appended yet
    Fault(AMID, 1, "kill"),
    Fault(APPENDED),
    Fault(EVERY),
    Fault(MARKED, 0, "kill"),
    Fault(AFTER),
]


def kills(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.spark.kills", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.timeout(600)
def test_processes_killed_at_every_stage() -> None:
    """Without Spark, and therefore often."""
    done = kills("--restarts", "48")
    assert done.returncode == 0, done.stderr
    assert "49 starts" in done.stdout


@pytest.mark.timeout(600)
def test_processes_killed_without_a_ledger_are_noticed() -> None:
    done = kills("--restarts", "16", "--control")
    assert "NotOnce" in done.stderr


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_restarts(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    campaign = Campaign(spark, tmp_path)
    assert run(campaign, FAULTS) >= 2 * 120
    assert sorted(stage for stage, _ in campaign.struck) == sorted(fault.stage for fault in FAULTS)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_sink_without_a_ledger_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with pytest.raises(NotOnce, match="too many"):
        run(Campaign(spark, tmp_path, control=True), [Fault(AFTER)])


@pytest.mark.spark
def test_from_our_own_source(spark: SparkSession, tmp_path: Path) -> None:
    """Log to log, several batches a start, broken off in the middle of one."""
    register(spark)
    values = {partition: [f"{partition} {row}" for row in range(60)] for partition in range(PARTITIONS)}
    for partition, rows in values.items():
        with Log.open(tmp_path / "source" / f"a-{partition}") as log:
            log.append([row.encode() for row in rows])
    source = (
        spark.readStream.format("logstore")
        .options(subscribe="a", startingOffsets="earliest", maxOffsetsPerTrigger=90)
        .load(str(tmp_path / "source"))
        .select("value", "partition")
    )
    plan = tmp_path / "plan.json"
    for fault in (Fault(AMID, 3, "kill"), Fault(AFTER), Fault(TWICE, nth=-1)):
        fault.write(plan)
        failed = run_query(source, tmp_path, plan)
        assert (failed is not None) == fault.fails_the_query, failed
    assert read_directory(tmp_path / "logs") == values


def rows_of(batches: int) -> dict[int, list[str]]:
    """As two tasks a batch write them: even values, then odd ones."""
    values = [
        120 * batch + value for batch in range(batches) for task in (0, 1) for value in range(task, 120, 2)
    ]
    return {
        partition: [
            f"{value} {value % 2}" for value in values if partition_of_key(b"%d" % value, 3) == partition
        ]
        for partition in range(3)
    }


def test_the_checker() -> None:
    """It sees a row twice, none, one out of its place, half a batch; the last batch may be there or not."""
    assert check_rows(rows_of(2), range(2)) == check_rows(rows_of(2), range(1)) == 240
    spoils: list[Callable[[list[str]], Any]] = [
        lambda rows: rows.append(rows[0]),
        lambda rows: rows.pop(),
        lambda rows: rows.reverse(),
        lambda rows: rows.insert(3, rows.pop(2)),
        lambda rows: rows.__setitem__(1, rows[0]),
    ]
    for spoil in spoils:
        found = rows_of(2)
        spoil(found[1])
        with pytest.raises(NotOnce):
            check_rows(found, range(2))
    with pytest.raises(NotOnce):
        check_rows(rows_of(2), range(3))
    with pytest.raises(NotOnce):
        check_rows({**rows_of(2), 0: rows_of(1)[0]}, range(1))
