"""The Spark source and sink on an Apache Kafka that asks for TLS and logins (its jars come from Maven)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from bench.kafka.jars import Missing, jars
from tests.logins.secured_kafka import MECHANISMS, SecuredKafka, client_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

ROWS = 500


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    try:
        found = jars("3.9.1")
    except Missing as reason:
        pytest.skip(str(reason))
    running = SecuredKafka(tmp_path_factory.mktemp("kafka"), version="3.9.1", jars=found)
    try:
        running.start_all()
        running.add_user()
        yield running
    finally:
        running.end_all()


def options(kafka: SecuredKafka, mechanism: str, password: str = "ann-secret") -> dict[str, str]:
    properties = client_properties(mechanism, password, ca=kafka.ca)
    return {
        "kafka.bootstrap.servers": kafka.secured,
        **{f"kafka.{name}": value for name, value in properties.items()},
    }


def values(spark: SparkSession, given: dict[str, str], topic: str) -> list[int]:
    rows = spark.read.format("logstore").options(subscribe=topic, **given).load()
    return sorted(int(row.value) for row in rows.selectExpr("cast(value as string) as value").collect())


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rows_are_written_and_read(
    spark: SparkSession, kafka: SecuredKafka, mechanism: str, delivery: str
) -> None:
    given, topic = options(kafka, mechanism), f"{mechanism}-{delivery}"
    rows = spark.range(0, ROWS, 1, 3).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    sink = {"topic": topic, "partitions": "3", "delivery": delivery, **given}
    rows.write.format("logstore").mode("append").options(**sink).save()
    assert values(spark, given, topic) == list(range(ROWS))


def test_a_stream_goes_from_topic_to_topic(spark: SparkSession, kafka: SecuredKafka, tmp_path: Path) -> None:
    given = options(kafka, "SCRAM-SHA-512")
    rows = spark.range(0, ROWS, 1, 3).selectExpr("cast(id as string) as value")
    rows.write.format("logstore").mode("append").options(topic="from", partitions="3", **given).save()
    source = (
        spark.readStream.format("logstore")
        .options(subscribe="from", startingOffsets="earliest", **given)
        .load()
    )
    for _ in range(2):  # the second run finds nothing new
        query = (
            source.select("value")
            .writeStream.format("logstore")
            .options(topic="to", partitions="3", checkpointLocation=str(tmp_path / "checkpoint"), **given)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert values(spark, given, "to") == list(range(ROWS))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_named(spark: SparkSession, kafka: SecuredKafka, mechanism: str) -> None:
    with pytest.raises(Exception, match=r"AuthenticationFailed: .*login of 'ann' refused") as failed:
        values(spark, options(kafka, mechanism, "no-password"), "from")
    last = str(failed.value).strip().splitlines()[-2]
    assert last.endswith("Check kafka.sasl.mechanism and kafka.sasl.jaas.config"), last
    assert "no-password" not in str(failed.value)
