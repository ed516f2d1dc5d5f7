"""Writing at least once: no row is ever missing, and only the rows of a repeated task are there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from logstore.broker.client import Client
from logstore.broker.errors import RequestRefused
from logstore.broker.threaded import Broker
from logstore.disk.errors import ErrorCode
from logstore.spark.direct import write_directly
from logstore.spark.errors import InvalidOption, PublicationBroken, RowRefused, WriteRefused
from logstore.spark.write_options import WriteOptions


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def options(broker: Broker, topic: str, **given: str) -> WriteOptions:
    servers = {"kafka.bootstrap.servers": broker.bootstrap, "kafka.delivery.timeout.ms": "60000"}
    return WriteOptions.parse(
        {**servers, "topic": topic, "partitions": "3", "delivery": "at_least_once", **given}, streaming=False
    )


def batches(count: int, rows: int = 10) -> list[Any]:
    """Keyed rows, numbered."""
    made = []
    for number in range(count):
        numbers = range(number * rows, (number + 1) * rows)
        made.append(
            pa.RecordBatch.from_pydict(
                {"key": [str(each % 7) for each in numbers], "value": [str(each) for each in numbers]}
            )
        )
    return made


def write(parsed: WriteOptions, rows: Iterable[Any], task: int = 0) -> int:
    return write_directly(parsed, rows, spark_partition=task, turn=task, flush_bytes=1)


def found(broker: Broker, topic: str) -> list[list[int]]:
    return [
        [int(record.value or b"-1") for record in broker.scan(topic, partition)] for partition in range(3)
    ]


def test_rows_arrive_in_order_of_their_partition(broker: Broker) -> None:
    """Several groups of batches, some partitions at a time; the topic is made by the first row."""
    assert write(options(broker, "ordered"), batches(6)) == 60
    each = found(broker, "ordered")
    assert all(rows == sorted(rows) for rows in each)
    assert sorted(row for rows in each for row in rows) == list(range(60))
    assert sum(map(bool, each)) > 1
    assert write(options(broker, "ordered"), []) == 0


def test_a_task_that_fails_after_it_wrote(broker: Broker) -> None:
    """Spark runs it again: its rows may be there twice, and none is missing."""

    def broken() -> Iterator[Any]:
        yield from batches(4)
        raise OSError("planted")

    parsed = options(broker, "repeated")
    with pytest.raises(OSError, match="planted"):
        write(parsed, broken())
    assert write(parsed, batches(6)) == 60
    counts = Counter(row for rows in found(broker, "repeated") for row in rows)
    assert set(counts) == set(range(60))
    assert max(counts.values()) == 2


def test_two_attempts_at_a_time(broker: Broker) -> None:
    """As speculation runs them: each row from both."""
    parsed = options(broker, "speculated")
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: write(parsed, batches(5)), range(2))) == [50, 50]
    counts = Counter(row for rows in found(broker, "speculated") for row in rows)
    assert counts == dict.fromkeys(range(50), 2)


def test_an_answer_that_is_lost_repeats_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is sent again under its number, and the leader drops it."""
    plain = Client.produce

    async def twice(self: Client, *given: Any, **named: Any) -> Any:
        await plain(self, *given, **named)
        return await plain(self, *given, **named)

    monkeypatch.setattr(Client, "produce", twice)
    write(options(broker, "answered"), batches(5))
    assert sorted(row for rows in found(broker, "answered") for row in rows) == list(range(50))


def _refusing(monkeypatch: pytest.MonkeyPatch, error: ErrorCode, times: int) -> None:
    plain, left = Client.produce, [times]

    async def produce(self: Client, *given: Any, **named: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise RequestRefused(error, "planted")
        return await plain(self, *given, **named)

    monkeypatch.setattr(Client, "produce", produce)


def test_a_log_that_lost_the_producer_gets_another_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refusing(monkeypatch, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 2)
    write(options(broker, "renewed"), batches(3))
    assert sorted(row for rows in found(broker, "renewed") for row in rows) == list(range(30))


@pytest.mark.parametrize("error", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_RECORD])
def test_a_refusal_names_the_partition(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, error: ErrorCode
) -> None:
    _refusing(monkeypatch, error, 1000)
    with pytest.raises(
        PublicationBroken, match=r"refused-\d: rows were not acknowledged.*Run the write again"
    ):
        write(options(broker, "refused"), batches(2))


def test_a_row_that_no_partition_takes(broker: Broker) -> None:
    rows = pa.RecordBatch.from_pydict({"value": ["x"], "partition": pa.array([9], pa.int32())})
    with pytest.raises(RowRefused, match=r"partitions 0 to 2\. Rows before it may be in the topic"):
        write(options(broker, "placed"), [*batches(1), rows])
    absent = replace(options(broker, "absent"), partitions=None)
    with pytest.raises(WriteRefused, match="topic absent does not exist in the cluster; set option"):
        write(absent, batches(1))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kafka.bootstrap.servers": "h:1", "delivery": "once"}, "'once'; use exactly_once or at_least_once"),
        ({"path": "/logs", "delivery": "at_least_once"}, "a directory has one writer; remove the option"),
        (
            {
                "kafka.bootstrap.servers": "h:1",
                "delivery": "at_least_once",
                "txnAppId": "a",
                "txnVersion": "1",
            },
            "published once; remove one or the other",
        ),
    ],
)
def test_what_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        WriteOptions.parse({"topic": "t", **given}, streaming=False)
