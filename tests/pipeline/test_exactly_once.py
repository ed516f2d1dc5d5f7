"""A stream that fails at every stage of its writing: each row once, in order per partition.

Short; `make spark-restarts` does it two hundred times, to brokers and with dying drivers too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.placement import partition_of_key
from tests.pipeline.fire import (
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
from tests.pipeline.restarts import Campaign, NotOnce, check_rows, register, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAULTS = [
    Fault(STAGED, 0, "kill"),
    Fault(BEFORE),
    Fault(DECIDED, 1, "kill"),
    Fault(AMID, 1, "kill"),
    Fault(TWICE, 1),
    Fault(APPENDED),
    Fault(EVERY),
    Fault(MARKED, 0, "kill"),
    Fault(AFTER),
]


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
