"""`logstore transactions`: hanging transactions are found and aborted, those of a coordinator are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from bench.kafka.jars import Missing, jars
from bench.kafka.servers import Kafka
from logstore.broker import BrokerCluster
from logstore.broker.connections import Connections
from logstore.broker.limits import Address
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.cli.operating import wait_until
from logstore.disk.errors import ErrorCode
from logstore.disk.files import wall_clock_ms
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.append import append_as_leader, maybe_start_verification
from logstore.replication.partition import Partition
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]
ORDERS = TopicPartition("orders", 0)
HOUR_MS = 3_600_000
HANGS = "a transaction hangs: readers of committed data and compaction stop there"


@pytest.fixture(scope="module")
def brokers() -> Iterator[BrokerCluster]:
    with BrokerCluster(3) as running:
        for name in ("orders", "others"):
            running.create_topic(name, 2)
        yield running


@pytest.fixture
def over(command: Command, brokers: BrokerCluster) -> Command:
    return lambda *words: command("transactions", *words, "--bootstrap", brokers.bootstrap)


def replicas(brokers: BrokerCluster, where: TopicPartition = ORDERS) -> list[Partition]:
    """Return the leader's replica, then the others."""
    nodes = [each._client._running.runtime.node for each in brokers.brokers.values()]
    found = [node.replicas.partitions[where] for node in nodes]
    return sorted(found, key=lambda each: not each.is_leader)


def begin(brokers: BrokerCluster, producer_id: int, where: TopicPartition = ORDERS, age_ms: int = 0) -> int:
    """Open a transaction, as a directory of Apache Kafka may hold it; return its first offset.

    Another record follows it, so that all replicas have both.
    """
    leader = replicas(brokers, where)[0]
    now_ms = wall_clock_ms()
    batch = encode_batch(
        [Record(0, now_ms - age_ms, None, b"x")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    guard = maybe_start_verification(leader.log, producer_id, 0, 0)
    info = append_as_leader(
        leader.log, batch, leader_epoch=leader.leader_epoch, now_ms=now_ms, verification_guard=guard
    )
    brokers.append(where.topic, b"plain", partition=where.partition)
    return info.first_offset


def lines(ended: Outcome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.out.splitlines()]


def test_a_hanging_transaction_is_found_and_aborted(
    command: Command, over: Command, brokers: BrokerCluster
) -> None:
    assert over("find-hanging") == (0, "no hanging transactions\n", "")
    assert over("find-hanging", "--json") == (0, "", "")
    offset = begin(brokers, 7, age_ms=HOUR_MS)
    begin(brokers, 8, TopicPartition("others", 1))
    found = over("find-hanging", "--json")
    assert found.code == 1
    (facts,) = lines(found)
    assert wall_clock_ms() - facts.pop("last_timestamp_ms") >= HOUR_MS
    expected = {
        "topic": "orders",
        "partition": 0,
        "producer_id": 7,
        "producer_epoch": 0,
        "coordinator_epoch": None,
        "start_offset": offset,
    }
    assert facts == expected
    said = over("find-hanging", "orders").out
    assert f"orders-0  producer 7  epoch 0  open since offset {offset}  last timestamp 20" in said
    assert "logstore transactions abort TOPIC-PARTITION --start-offset OFFSET" in said
    at = ("--bootstrap", brokers.bootstrap)
    told = (f"orders-0: {HANGS}", f"producer 7 has one open since offset {offset}; its last record is of 20")
    for words in (("health",), ("why", "orders-0"), ("why", "cluster")):
        asked = command(*words, *at)
        assert asked.code == 1
        assert all(each in asked.out for each in told), asked.out
        assert "others-1" not in asked.out, "that transaction is young"
    abort = ("abort", "orders-0", "--start-offset", offset)
    planned = over(*abort, "--plan")
    assert planned == (
        0,
        f"orders-0  would abort the transaction of producer 7, epoch 0, that starts at offset {offset}\n",
        "",
    )
    assert over("find-hanging").code == 1, "a plan changes nothing"
    done = over(*abort, "--json")
    assert done.code == 0, done.err
    assert lines(done)[0] | expected == lines(done)[0]
    assert lines(done)[0]["is_aborted"] is True
    leader, *others = replicas(brokers)
    assert leader.log.last_stable_offset == leader.log.log_end_offset == offset + 3
    assert wait_until(30, lambda: all(each.log.log_end_offset == offset + 3 for each in others))
    assert over("find-hanging").out == "no hanging transactions\n"
    assert HANGS not in command("health", *at).out
    again = over(*abort)
    assert (again.code, again.out) == (1, "")
    assert f"no open transaction that starts at offset {offset}; none is open" in again.err


def test_how_long_a_transaction_may_be_open_is_an_option(over: Command, brokers: BrokerCluster) -> None:
    begin(brokers, 9)
    every = lines(over("find-hanging", "orders", "--max-transaction-timeout", 0, "--json"))
    assert 9 in [each["producer_id"] for each in every]
    day_ms = 24 * HOUR_MS
    assert over("find-hanging", "--max-transaction-timeout", day_ms).code == 0
    assert over("find-hanging", "--max-transaction-timeout", -1).code == 2


def test_a_replica_is_asked_instead_of_the_leader(over: Command, brokers: BrokerCluster) -> None:
    begin(brokers, 10, age_ms=HOUR_MS)
    told = {over("find-hanging", "orders-0", "--broker", each).out for each in brokers.brokers}
    assert len(told) == 1
    assert "producer 10" in told.pop()
    unknown = over("find-hanging", "--broker", 99)
    assert (unknown.code, unknown.out) == (1, "")
    assert "broker 99 is not alive" in unknown.err


def test_what_does_not_exist_is_named(over: Command, brokers: BrokerCluster) -> None:
    offset = begin(brokers, 11)
    ended = over("abort", "orders-0", "--start-offset", 10_000)
    assert ended.code == 1
    assert "open ones start at" in ended.err
    assert str(offset) in ended.err
    ended = over("abort", "orders", "--start-offset", 0)
    assert (ended.code, ended.out) == (2, "")
    assert "orders is a topic; name one of its partitions, like orders-0" in ended.err
    assert over("abort", "unknown-0", "--start-offset", 0).code == 1
    assert over("find-hanging", "unknown").code == 1
    assert over("abort", "orders-0").code == 2


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[str, list[int]]]:
    """Transactional ids by producer, and the partitions of `orders` without a marker yet."""
    known: dict[int, tuple[str, list[int]]] = {}
    plain = Connections.ask_wire

    async def told(self: Connections, address: Address, request: Struct) -> Struct:
        if isinstance(request, t.ListTransactionsRequest):
            kind = t.ListTransactionsResponseTransactionState
            return t.ListTransactionsResponse(
                transaction_states=[
                    kind(transactional_id=name, producer_id=each)
                    for each, (name, _) in known.items()
                    if each in request.producer_id_filters
                ]
            )
        if isinstance(request, t.DescribeTransactionsRequest):
            topic, state = (
                t.DescribeTransactionsResponseTopicData,
                t.DescribeTransactionsResponseTransactionState,
            )
            return t.DescribeTransactionsResponse(
                transaction_states=[
                    state(
                        transactional_id=name,
                        producer_id=each,
                        topics=[topic(topic="orders", partitions=partitions)],
                        error_code=0 if partitions is not GONE else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                    )
                    for each, (name, partitions) in known.items()
                    if name in request.transactional_ids
                ]
            )
        return await plain(self, address, request)

    monkeypatch.setattr(Connections, "ask_wire", told)
    return known


GONE: list[int] = []


def test_a_transaction_that_a_coordinator_will_end_is_left_alone(
    over: Command, brokers: BrokerCluster, coordinator: dict[int, tuple[str, list[int]]]
) -> None:
    """As with Apache Kafka's brokers. If the coordinator has forgotten the partition, it hangs."""
    offset = begin(brokers, 12, age_ms=HOUR_MS)
    coordinator[12] = "mine", [0]
    assert "producer 12" not in over("find-hanging").out
    ended = over("abort", "orders-0", "--start-offset", offset)
    assert (ended.code, ended.out) == (1, "")
    assert "of transactional id 'mine', and will end it; nothing was aborted" in ended.err
    assert replicas(brokers)[0].log.producer_state.has_open_transaction(12, 0)
    for partitions in ([1], GONE):
        coordinator[12] = "mine", partitions
        assert "producer 12" in over("find-hanging").out
    assert over("abort", "orders-0", "--start-offset", offset).code == 0
    assert not replicas(brokers)[0].log.producer_state.has_open_transaction(12, 0)


def test_a_partition_without_a_leader_is_named_and_the_others_are_searched(command: Command) -> None:
    with BrokerCluster(2) as running:
        wanted = ("topics", "create", "alone", "--replica-assignment", "2")
        assert command(*wanted, "--bootstrap", running.bootstrap, "--wait", 30).code == 0
        running.kill(2)
        words = ("transactions", "find-hanging", "--bootstrap", running.bootstrap)
        assert wait_until(60, lambda: "alone-0 could not be asked: it has no leader" in command(*words).err)
        assert command(*words).code == 1
        assert command(*words).out == "no hanging transactions in the others\n"
        named = command(*words, "alone-0", "--broker", "1")
        assert (named.code, named.err) == (
            1,
            "logstore: alone-0 could not be asked: broker 1 has no replica\n",
        )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_transaction_that_apache_kafka_coordinates_is_left_alone(command: Command, tmp_path: Path) -> None:
    """Needs Java and jars from Maven."""
    try:
        servers = Kafka(tmp_path, 3, version="3.9.1", jars=jars("3.9.1"))
    except Missing as error:
        pytest.fail(str(error))
    try:
        servers.start_all()
        servers.wait_until_whole()
        over = ("--bootstrap", servers.bootstrap)
        assert command("topics", "create", "orders", "--wait", 30, *over).code == 0
        find = ("transactions", "find-hanging", "--max-transaction-timeout", 0, *over)
        with closing(KafkaProducer(bootstrap_servers=servers.bootstrap, transactional_id="mine")) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            offset = producer.send("orders", b"x", partition=0).get(30).offset
            assert command(*find) == (0, "no hanging transactions\n", "")
            ended = command("transactions", "abort", "orders-0", "--start-offset", offset, *over)
            assert ended.code == 1
            assert "of transactional id 'mine', and will end it; nothing was aborted" in ended.err
            producer.commit_transaction()
    finally:
        servers.end_all()
