"""Random reads beside plain data: some seeds of `make read-judge`, and planted mistakes that it must find."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from logstore.disk.topic_partition import TopicPartition
from logstore.spark.data_source import LogstoreDataSource
from logstore.spark.tier import Manifest, Tier
from tests.spark.read_judge.__main__ import WITHOUT_SPARK, Judge
from tests.spark.read_judge.batches import judged
from tests.spark.read_judge.plants import PLANTS
from tests.spark.read_judge.queries import Drawing
from tests.spark.read_judge.tiers import asked_with, tiered
from tests.spark.read_judge.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("seed", [2, 4, 5])
def test_queries_without_a_session(seed: int, tmp_path: Path) -> None:
    """Options, columns, isolation and lost records."""
    assert list(Judge(None, tmp_path, LogstoreDataSource).differences(seed)) == []


def test_a_planted_mistake_in_a_plan_is_found(tmp_path: Path) -> None:
    """Each task but the first ends one offset early."""
    assert list(Judge(None, tmp_path, PLANTS["short-pieces"]).differences(2)) != []


@pytest.mark.parametrize("what", ["brokers", "tiers"])
def test_it_is_found_of_brokers_and_tiers(what: str, tmp_path: Path) -> None:
    """The same mistake; and none is seen where none is."""
    for source, is_right in ((LogstoreDataSource, True), (PLANTS["short-pieces"], False)):
        home = tmp_path / source.name()
        home.mkdir()
        judge = Judge(None, home, source)
        of = judge.of_brokers if what == "brokers" else judge.of_tiers
        assert (list(of(3, range(8))) == []) == is_right


def test_a_tier_without_its_first_object_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that retention removed from the log are missing then."""
    judge, manifest = Judge(None, tmp_path, LogstoreDataSource), Tier.manifest
    topics = Topics(random.Random(5), tmp_path / "logs")
    plain = tiered(topics, url := f"file://{tmp_path}/tier")

    def shorter(tier: Tier, where: TopicPartition) -> Manifest:
        found = manifest(tier, where)
        return Manifest(found.topic_id, found.objects[1:])

    monkeypatch.setattr(Tier, "manifest", shorter)
    try:
        queries = [
            Drawing(random.Random(number), topics, plain).query(has_where=False) for number in range(20)
        ]
        named = ((str(number), asked_with(each, url)) for number, each in enumerate(queries))
        assert list(judge._compared(named, plain)) != []
    finally:
        topics.close()


@pytest.fixture
def own_session(spark: SparkSession) -> SparkSession:
    """One that `Judge` may configure."""
    return spark.newSession()


@pytest.mark.spark
def test_predicates(own_session: SparkSession, tmp_path: Path) -> None:
    """Some queries with predicates that are pushed down."""
    judge = Judge(own_session, tmp_path, LogstoreDataSource)
    assert list(judge.of_queries(1, range(WITHOUT_SPARK + 1, WITHOUT_SPARK + 4))) == []


@pytest.mark.spark
def test_a_stream(own_session: SparkSession, tmp_path: Path) -> None:
    """It is stopped, crashes and is started again between appends."""
    assert list(Judge(own_session, tmp_path, LogstoreDataSource).of_stream(2)) == []


@pytest.mark.spark
def test_planted_mistakes_are_found_in_spark(own_session: SparkSession, tmp_path: Path) -> None:
    """`offset <= n` is taken for `offset < n`; the source itself passes."""
    topics = Topics(random.Random(2), tmp_path)
    topics.write(14)
    plain = topics.plain()
    topics.close()
    query = Drawing(random.Random(0), topics, plain).everything()
    query.where, query.options["pushdown"] = "offset <= 3", "one_query"
    for source, is_right in ((LogstoreDataSource, True), (PLANTS["last-offset"], False)):
        Judge(own_session, tmp_path, source)
        assert (judged(own_session, source, query, plain) == "") == is_right
