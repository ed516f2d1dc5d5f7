"""Work items on a real Spark: reports, failures, retries."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logstore.disk.errors import CorruptCheckpoint
from logstore.spark.jobs.work import Progress, Workers, WorkFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Square:
    number: int
    scratch: str = ""

    def __str__(self) -> str:
        return f"the square of {self.number}"


def square(item: Square) -> int:
    if item.number < 0:
        raise CorruptCheckpoint(f"{item.number} is negative\nand that is that")
    return item.number**2


def square_at_the_second_try(item: Square) -> int:
    """Leaves a file at the first try, and fails."""
    tried = Path(item.scratch) / str(item.number)
    if tried.exists():
        return item.number**2
    tried.touch()
    raise OSError(5, "Input/output error")


def divide(item: Square) -> float:
    return 1 / item.number


def workers() -> Workers:
    return Workers(Progress(io.StringIO(), lambda: 0.0))


def test_each_item_is_reported_once(spark: SparkSession) -> None:
    with workers() as at_work:
        reports = list(at_work.reports([Square(n) for n in range(5)], square))
    assert sorted(reports, key=lambda pair: pair[0].number) == [(Square(n), n * n) for n in range(5)]


def test_nothing_to_do_starts_no_session() -> None:
    with Workers(Progress(io.StringIO(), lambda: 0.0), master="no such master") as at_work:
        assert list(at_work.reports([], square)) == []


def test_a_failure_names_the_item_and_is_one_line(spark: SparkSession) -> None:
    """Spark wraps an error in traces of two languages; who reads it wants the item and the reason."""
    with workers() as at_work, pytest.raises(WorkFailed) as raised:
        list(at_work.reports([Square(2), Square(-2), Square(4)], square))
    assert str(raised.value) == "the square of -2: -2 is negative\nand that is that"


def test_an_error_that_nobody_expects_keeps_its_trace(spark: SparkSession) -> None:
    with workers() as at_work, pytest.raises(Exception, match="ZeroDivisionError") as raised:
        list(at_work.reports([Square(0)], divide))
    assert not isinstance(raised.value, WorkFailed)
    assert raised.value.__notes__ == ["while working on the square of 0"]


def test_a_task_that_is_tried_again_reports_once(spark: SparkSession, tmp_path: Path) -> None:
    items = [Square(n, str(tmp_path)) for n in range(3)]
    with workers() as at_work:
        reports = [report for _, report in at_work.reports(items, square_at_the_second_try)]
    assert sorted(reports) == [0, 1, 4]


def test_a_session_that_was_there_goes_on(spark: SparkSession) -> None:
    with workers() as at_work:
        assert at_work.session is spark
    assert spark.range(2).count() == 2
