"""Beside Spark's own Kafka connector: the same answers, or a difference that the docs name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from bench.kafka.jars import Missing
from tests.spark.comparison import PAGE, Refused, judge, page, same, sides
from tests.spark.comparison_cases import CASES, Case, Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_page_is_that_of_the_cases() -> None:
    """`python -m tests.spark.comparison --docs` writes it."""
    assert PAGE.read_text() == page()
    names = [(case.name, case.kind, case.look) for case in CASES]
    assert len(set(names)) == len(names) >= 90


def test_the_judge() -> None:
    """Refusals agree whatever they say; a difference needs a reason, and a reason a difference."""
    assert same([1], [1])
    assert same(Refused("no"), Refused("nein"))
    assert not same([], Refused("no"))
    assert not same([1], [2])
    plain = Case(about="a", what="b", kind=Kind.BATCH)
    reasoned = Case(about="a", what="b", kind=Kind.BATCH, differs="better")
    assert not judge(plain, [1], [1])
    assert "differ, without a reason" in judge(plain, [1], [2])
    assert not judge(reasoned, [1], Refused("no"))
    assert "the difference in the table is gone" in judge(reasoned, [1], [1])


def compared(spark: SparkSession, home: Path, cases: list[Case]) -> list[str]:
    try:
        with sides(spark, home) as both:
            return [wrong for case in cases if (wrong := judge(case, *(side.outcome(case) for side in both)))]
    except Missing as reason:
        pytest.skip(str(reason))


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_some_cases(spark: SparkSession, tmp_path: Path) -> None:
    assert not compared(spark, tmp_path, [case for case in CASES if case.is_short])


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_cases(spark: SparkSession, tmp_path: Path) -> None:
    assert not compared(spark, tmp_path, list(CASES))
