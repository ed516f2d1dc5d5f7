"""What brokers tell of their logs, and a read through a change of leaders. Brokers of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.broker.embedded import BrokerConfig
from logstore.broker.embedded_cluster import BrokerCluster
from logstore.broker.errors import RequestUnanswered
from logstore.broker.threaded import Broker
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.log import Log
from logstore.spark.broker_logs import BrokerLogs
from logstore.spark.errors import UnknownTopic
from logstore.spark.logs import Bounds, Cause, Missing, OffsetRange
from logstore.spark.read_options import ReadOptions
from tests.spark.groups import progress_of

TP = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[BrokerCluster]:
    with BrokerCluster(3, settings={"offsets.topic.num.partitions": "1"}) as running:
        yield running


def logs_of(cluster: Broker | BrokerCluster, **options: str) -> BrokerLogs:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "orders"}
    return BrokerLogs(ReadOptions.parse({**given, **options}, streaming=None))


@pytest.fixture
def logs(cluster: BrokerCluster) -> Iterator[BrokerLogs]:
    made = logs_of(cluster)
    yield made
    made.close()


def values(logs: BrokerLogs, wanted: OffsetRange, missing: list[Missing] | None = None) -> list[bytes]:
    found = []
    for rows in logs.read(wanted, ("offset", "value"), [] if missing is None else missing):
        found += rows.column("value").to_pylist()
    return found


def test_partitions_bounds_and_times(cluster: BrokerCluster, logs: BrokerLogs) -> None:
    cluster.create_topic("times", 2)
    first, second = TopicPartition("times", 0), TopicPartition("times", 1)
    for number in range(5):
        cluster.append("times", [Record(0, 1_000 * number, None, b"%d" % number)], partition=0)
    assert [each for each in logs.partitions() if each.topic == "times"] == [first, second]
    assert logs.bounds([first, second]) == {first: Bounds(0, 5), second: Bounds(0, 0)}
    assert logs.offsets_by_time({first: 1_500, second: 0}) == {first: 2, second: None}
    assert logs.offsets_by_time({first: 4_001}) == {first: None}


def test_topics_that_come_and_go_are_seen(cluster: BrokerCluster, logs: BrokerLogs) -> None:
    known = logs.partitions()
    cluster.create_topic("newcomer", 1)
    assert set(logs.partitions()) - set(known) == {TopicPartition("newcomer", 0)}
    with pytest.raises(UnknownTopic, match="partition nowhere-0 does not exist"):
        logs.bounds([TopicPartition("nowhere", 0)])


def test_rows_of_a_range(cluster: BrokerCluster) -> None:
    """More than one fetch; columns as they were asked for."""
    cluster.create_topic("rows", 1)
    for number in range(40):
        cluster.append("rows", b"%d" % number * 50, key=b"k%d" % number)
    made = logs_of(cluster, **{"kafka.max.partition.fetch.bytes": "1000"})
    try:
        missing: list[Missing] = []
        batches = list(made.read(OffsetRange("rows", 0, 7, 33), ("offset", "key"), missing))
        assert len(batches) > 3
        assert [key for rows in batches for key in rows.column("key").to_pylist()] == [
            b"k%d" % number for number in range(7, 33)
        ]
        assert batches[0].schema.names == ["offset", "key"]
        assert missing == []
    finally:
        made.close()


def test_a_group_shows_the_progress(cluster: BrokerCluster, logs: BrokerLogs) -> None:
    """As tools that ask for a group's offsets see it."""
    cluster.create_topic("progress", 2)
    first, second = TopicPartition("progress", 0), TopicPartition("progress", 1)
    logs.publish("analysts", {first: 3, second: 0})
    logs.close()
    assert progress_of(cluster, "analysts") == {first: 3, second: 0}


def test_a_progress_that_cannot_be_published_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    made = nobody()
    made.publish("analysts", {TP: 3})
    made.close()
    assert "failed to commit the offsets of group analysts: " in caplog.text


def test_committed_reads_end_at_the_last_stable_offset(tmp_path: Path) -> None:
    """Of an aborted, a committed and an open transaction; the first is left out, the last not reached."""
    config = BrokerConfig(log_dirs=(str(tmp_path / "data"),))
    with Broker(config) as broker:
        broker.create_topic("payments", 1)
    with Log.open(tmp_path / "data" / "payments-0") as log:
        for sequence, outcome in enumerate(("abort", "commit", "")):
            rows = [Record(0, 1_000, None, outcome.encode())]
            batch = encode_batch(
                rows, producer_id=7, producer_epoch=0, base_sequence=sequence, is_transactional=True
            )
            log.append_batches(batch)
            if outcome:
                log.end_transaction(7, 0, commit=outcome == "commit")
    with Broker(config) as broker:
        payments = TopicPartition("payments", 0)
        for isolation, end, found, lost in (
            ("read_uncommitted", 5, [b"abort", b"commit", b""], []),
            ("read_committed", 4, [b"commit"], [Missing("payments", 0, 0, 1, Cause.ABORTED, number=1)]),
        ):
            made = logs_of(broker, isolation=isolation)
            missing: list[Missing] = []
            assert made.bounds([payments]) == {payments: Bounds(0, end)}
            assert values(made, OffsetRange("payments", 0, 0, end), missing) == found
            assert missing == lost
            made.close()


def test_a_read_goes_on_where_the_leader_is(tmp_path: Path) -> None:
    """The leader is killed between two fetches; the last offsets are asked of the one that takes over."""
    with BrokerCluster(3) as cluster:
        cluster.create_topic("orders", 1)
        for number in range(60):
            cluster.append("orders", b"%03d" % number)
        made = logs_of(cluster, **{"kafka.fetch.max.bytes": "600"})
        try:
            found: list[bytes] = []
            missing: list[Missing] = []
            for rows in made.read(OffsetRange("orders", 0, 0, 60), ("value",), missing):
                if not found:
                    cluster.kill(cluster.leader("orders"))
                found += rows.column("value").to_pylist()
            assert found == [b"%03d" % number for number in range(60)]
            assert missing == []
            assert made.bounds([TP]) == {TP: Bounds(0, 60)}
        finally:
            made.close()


def nobody() -> BrokerLogs:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "orders",
        "kafka.default.api.timeout.ms": "100",
        "fetchOffset.numRetries": "2",
    }
    return BrokerLogs(ReadOptions.parse(options, streaming=None))


def test_a_wrong_address_is_refused_at_once() -> None:
    made = nobody()
    try:
        with pytest.raises(
            RequestUnanswered, match=r"127.0.0.1:1: Connection refused.*Check kafka.bootstrap"
        ):
            made.partitions()
    finally:
        made.close()


def test_brokers_that_are_gone_are_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    made = nobody()
    try:
        with pytest.raises(RequestUnanswered, match=r"127.0.0.1:1: no .*kafka.bootstrap.servers names some"):
            made.bounds([TopicPartition("orders", 0)])
        warned = [record.getMessage().rpartition("; ")[2] for record in caplog.records]
        assert warned == ["retrying, up to 2 times", "retrying, up to 1 times"]
    finally:
        made.close()


def test_no_thread_and_no_socket_is_left(cluster: BrokerCluster) -> None:
    """Closed in the middle of a read, twice, or never used."""
    before = set(threading.enumerate())
    cluster.create_topic("left", 1)
    for _ in range(20):
        cluster.append("left", bytes(500))
    made = logs_of(cluster, **{"kafka.fetch.max.bytes": "600"})
    rows = made.read(OffsetRange("left", 0, 0, 20), ("offset",), [])
    next(rows)
    made.close()
    made.close()
    logs_of(cluster).close()
    left = {each.name for each in set(threading.enumerate()) - before}
    assert not {name for name in left if not name.startswith("sync_")}, "those are of the brokers beside it"
