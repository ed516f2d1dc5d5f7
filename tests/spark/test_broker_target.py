"""Publishing to brokers of this process: once, whatever breaks between a batch and its acknowledgement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from logstore.broker.embedded_cluster import BrokerCluster
from logstore.broker.errors import RequestUnanswered
from logstore.disk.files import OsDisk
from logstore.spark.errors import PublicationBroken, RowRefused, WriteRefused
from logstore.spark.ledger import Ledger, read_ledger
from logstore.spark.publishing import Message, Target
from logstore.spark.sink import Sink, open_target
from logstore.spark.targets import BrokerTarget
from logstore.spark.write_options import WriteOptions


@pytest.fixture(scope="module")
def cluster() -> Iterator[BrokerCluster]:
    settings = {"offsets.topic.num.partitions": "1", "replica.fetch.wait.max.ms": "100"}
    with BrokerCluster(3, settings=settings) as running:
        yield running


class Writer:
    """Writes versions of one transaction, ten rows to each of two partitions, a batch a row."""

    def __init__(self, cluster: BrokerCluster, home: Path, topic: str, **options: Any) -> None:
        self.topic, self.ledger = topic, str(home / topic)
        given = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "topic": topic,
            "partitions": "2",
            "kafka.batch.size": "1",
            "kafka.delivery.timeout.ms": "30000",
            **options,
        }
        self._options = WriteOptions.parse(given, streaming=False)
        self.around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda produce: produce

    def stage(self, sink: Sink, version: int) -> list[Message]:
        numbers = range(20 * version, 20 * version + 20)
        rows = pa.RecordBatch.from_pydict(
            {
                "value": [str(number) for number in numbers],
                "partition": pa.array([number % 2 for number in numbers], pa.int32()),
            }
        )
        message = sink.stage(
            [rows], self.ledger, version, spark_partition=0, attempt=0, random=Random(version)
        )
        return [message]

    def write(self, version: int) -> bool:
        sink = Sink(self._options, OsDisk(), self._target)
        return sink.commit(self.stage(sink, version), self.ledger, version)

    def _target(self, options: WriteOptions, disk: Any) -> Target:
        target = open_target(options, disk)
        assert isinstance(target, BrokerTarget)
        target._client.produce = self.around(target._client.produce)  # type: ignore[method-assign]
        return target

    def check(self, cluster: BrokerCluster, *versions: int) -> None:
        for partition in (0, 1):
            values = [int(record.value or b"") for record in cluster.scan(self.topic, partition)]
            wanted = [
                number
                for version in versions
                for number in range(20 * version + partition, 20 * version + 20, 2)
            ]
            assert values == wanted, f"partition {partition}"


@pytest.fixture
def writer(cluster: BrokerCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Writer:
    return Writer(cluster, tmp_path, request.node.name)


def test_a_topic_is_made_and_written_to(cluster: BrokerCluster, writer: Writer) -> None:
    assert [writer.write(version) for version in (0, 1, 1, 0)] == [True, True, False, False]
    writer.check(cluster, 0, 1)
    state = read_ledger(OsDisk(), writer.ledger).state
    assert state["sequences"] == {f"{writer.topic}-0": 20, f"{writer.topic}-1": 20}


def test_a_topic_that_is_not_there(cluster: BrokerCluster, tmp_path: Path) -> None:
    writer = Writer(cluster, tmp_path, "nowhere")
    options = WriteOptions.parse(
        {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "nowhere"}, streaming=False
    )
    with pytest.raises(WriteRefused, match=r"topic nowhere does not exist in .*; set option partitions"):
        writer.stage(Sink(options, OsDisk(), open_target), 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"max.message.bytes": "80"}, "the limit is 80 "), ({"cleanup.policy": "compact"}, "it has no key")],
)
def test_a_topics_own_rules_are_kept(
    cluster: BrokerCluster, tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    """Known before anything is sent."""
    topic = f"ruled-{len(said)}"
    cluster.create_topic(topic, 2, settings=settings)
    with pytest.raises(RowRefused, match=said):
        Writer(cluster, tmp_path, topic).write(0)


@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("nth", [0, 7, 19])
def test_a_break_at_a_batch(cluster: BrokerCluster, tmp_path: Path, when: str, nth: int) -> None:
    """Its fate is unknown; the next commit looks, completes, and goes on with its own."""
    writer = Writer(cluster, tmp_path, f"break-{when}-{nth}")
    calls = 0

    def around(produce: Callable[..., Any]) -> Callable[..., Any]:
        async def broken(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > nth and when == "before":
                raise RequestUnanswered("the connection broke")
            answer = await produce(*arguments, **named)
            if calls > nth:
                raise RequestUnanswered("the connection broke")
            return answer

        return broken

    writer.around = around
    with pytest.raises(
        PublicationBroken,
        match=r"Run the same query or transaction again: .* nothing twice",
    ):
        writer.write(0)
    writer.around = lambda produce: produce
    cluster.append(writer.topic, [b"1000"], partition=0)
    assert writer.write(1)
    values = [record.value for record in cluster.scan(writer.topic, 0)]
    assert values.count(b"1000") == 1
    assert [int(value or b"") for value in values if value != b"1000"] == list(range(0, 40, 2))
    assert [record.value for record in cluster.scan(writer.topic, 1)] == [b"%d" % n for n in range(1, 40, 2)]


def test_a_leader_that_dies_meanwhile(cluster: BrokerCluster, writer: Writer) -> None:
    writer.write(0)
    leader = cluster.leader(writer.topic, 0)
    calls = 0

    def around(produce: Callable[..., Any]) -> Callable[..., Any]:
        async def killing(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 5:
                cluster.kill(leader)
            return await produce(*arguments, **named)

        return killing

    writer.around = around
    assert writer.write(1)
    writer.around = lambda produce: produce
    cluster.start(leader)
    writer.write(2)
    writer.check(cluster, 0, 1, 2)


def test_a_log_that_knows_another_place_of_the_producer(cluster: BrokerCluster, writer: Writer) -> None:
    """As after a loss of what was acknowledged: another producer writes the rest."""
    writer.write(0)
    with Ledger(OsDisk(), writer.ledger) as ledger:
        state = dict(ledger.state)
        state["sequences"] = {**state["sequences"], f"{writer.topic}-1": 77}
        ledger.decide(1, {})
        ledger.finish(state)
    for version in (2, 3):
        writer.write(version)
    writer.check(cluster, 0, 2, 3)
    assert read_ledger(OsDisk(), writer.ledger).state["producer"] != state["producer"]
