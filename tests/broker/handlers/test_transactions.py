"""Transactions that nobody ends: found by DescribeProducers, ended by WriteTxnMarkers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from logstore.broker.groups.records import OffsetAndMetadata, encode_offset, encode_offset_key
from logstore.broker.groups.served import OFFSETS_TOPIC
from logstore.broker.handlers import transactions
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch, walk
from logstore.format.record import Record
from logstore.log.append import append_as_leader, maybe_start_verification
from logstore.replication.partition import Partition
from tests.broker.asking import Asker
from tests.broker.handlers import group_requests
from tests.broker.handlers.data_requests import TP, batch, produce, run
from tests.broker.handlers.test_cluster_apis import described_producers
from tests.broker.nodes import Nodes

NONE = ErrorCode.NONE


def replica(nodes: Nodes, node_id: int, where: TopicPartition = TP) -> Partition:
    return nodes.running[node_id].node.replicas.partitions[where]


async def begin(nodes: Nodes, producer_id: int, *records: Record, where: TopicPartition = TP) -> int:
    """Open a transaction of a producer, which no client can do; return its first offset."""
    partition = replica(nodes, nodes.leader(where), where)
    data = encode_batch(
        list(records) or [Record(0, 5, None, b"of %d" % producer_id)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    guard = maybe_start_verification(partition.log, producer_id, 0, 0)
    info = append_as_leader(
        partition.log, data, leader_epoch=partition.leader_epoch, now_ms=9, verification_guard=guard
    )
    # Every change of a log must wake the requests that wait for it: a fetch session checks a partition once.
    nodes.running[nodes.leader(where)].node.replicas.waiting.wake(where)
    await nodes.until(lambda: partition.log.high_watermark > info.last_offset)
    return info.first_offset


def ending(
    producer_id: int, *partitions: int, commit: bool = False, topic: str = "t", epoch: int = 0
) -> t.WriteTxnMarkersRequestWritableTxnMarker:
    named = t.WriteTxnMarkersRequestWritableTxnMarkerTopic(
        name=topic, partition_indexes=list(partitions or (0,))
    )
    return t.WriteTxnMarkersRequestWritableTxnMarker(
        producer_id=producer_id, producer_epoch=epoch, transaction_result=commit, topics=[named]
    )


async def write(
    client: Asker, *markers: t.WriteTxnMarkersRequestWritableTxnMarker
) -> list[tuple[int, str, int, int]]:
    """Return producer id, topic, partition and error of each marker."""
    answer = await client.ask(t.WriteTxnMarkersRequest(markers=list(markers)), 1)
    return [
        (each.producer_id, topic.name, one.partition_index, one.error_code)
        for each in answer.markers
        for topic in each.topics
        for one in topic.partitions
    ]


async def read_committed(client: Asker) -> tuple[list[bytes | None], list[tuple[int, int]]]:
    """Return the values below the last stable offset, and the aborted transactions among them."""
    part = t.FetchRequestFetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [t.FetchRequestFetchTopic(topic="t", partitions=[part])]
    request = t.FetchRequest(replica_id=-1, min_bytes=0, topics=topics, isolation_level=1)
    found = (await client.ask(request, 11)).responses[0].partitions[0]
    batches = [each for each in walk(bytes(found.records)) if not each.is_control]
    aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions]
    return [record.value for each in batches for record in each.records()], aborted


def test_markers_end_transactions_on_all_replicas() -> None:
    """Aborted records are named to readers of committed data, committed ones are simply there."""

    async def test(nodes: Nodes, client: Asker) -> None:
        assert await begin(nodes, 7) == 0
        assert await begin(nodes, 8) == 1
        await produce(client, batch(b"plain"))
        await nodes.until(lambda: replica(nodes, 0).log.high_watermark == 3)
        (found,) = await described_producers(client, "t", 0)
        assert [each.current_txn_start_offset for each in found.active_producers] == [0, 1]
        assert (await read_committed(client))[0] == []
        assert await write(client, ending(7), ending(8, commit=True)) == [(7, "t", 0, 0), (8, "t", 0, 0)]
        (found,) = await described_producers(client, "t", 0)
        assert {each.current_txn_start_offset for each in found.active_producers} == {-1}
        assert {each.coordinator_epoch for each in found.active_producers} == {0}
        assert await read_committed(client) == ([b"of 7", b"of 8", b"plain"], [(7, 0)])
        await nodes.until(lambda: replica(nodes, 1).log.last_stable_offset == 5)
        assert nodes.ends(TP) == {0: 5, 1: 5}

    run(test, count=2)


def test_a_restart_keeps_the_end_of_a_transaction() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await begin(nodes, 7)
        assert await write(client, ending(7)) == [(7, "t", 0, 0)]
        for node_id in (0, 1):
            await nodes.stop(node_id)
            await nodes.start(node_id)
            await nodes.until(lambda: len(nodes.isr(TP)) == 2)
            async with Asker(nodes.addresses[node_id]) as again:
                (found,) = await described_producers(again, "t", 0)
            assert [each.current_txn_start_offset for each in found.active_producers] == [-1]
        async with Asker(nodes.addresses[nodes.leader(TP)]) as leader:
            assert await read_committed(leader) == ([b"of 7"], [(7, 0)])

    run(test, count=2)


def test_what_no_tool_sends_is_refused_and_nothing_is_written() -> None:
    """A partition twice for a producer, ids and epochs below 0, another leader, names that do not exist."""

    async def test(nodes: Nodes, client: Asker) -> None:
        await begin(nodes, 7)
        refused = ErrorCode.INVALID_REQUEST
        assert await write(client, ending(7, 0, 0)) == [(7, "t", 0, refused)] * 2
        assert await write(client, ending(7), ending(7, commit=True)) == [(7, "t", 0, refused)] * 2
        assert await write(client, ending(-1), ending(-(2**63))) == [
            (-1, "t", 0, refused),
            (-(2**63), "t", 0, refused),
        ]
        assert await write(client, ending(7, epoch=-1)) == [(7, "t", 0, refused)]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await write(client, ending(7, 9, -1), ending(7, topic="a b")) == [
            (7, "t", 9, unknown),
            (7, "t", -1, unknown),
            (7, "a b", 0, unknown),
        ]
        assert await write(client) == []
        async with Asker(nodes.addresses[1]) as follower:
            assert await write(follower, ending(7)) == [(7, "t", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        assert replica(nodes, 0).log.log_end_offset == 1
        assert await write(client, ending(7, epoch=2)) == [(7, "t", 0, NONE)]
        assert await write(client, ending(7)) == [(7, "t", 0, ErrorCode.INVALID_PRODUCER_EPOCH)]
        late = ending(7, epoch=2)
        late.coordinator_epoch = -1
        assert await write(client, late) == [(7, "t", 0, ErrorCode.TRANSACTION_COORDINATOR_FENCED)]
        assert replica(nodes, 0).log.log_end_offset == 2

    run(test, count=2)


def test_a_request_writes_a_bounded_number_of_markers() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        most = transactions.MOST_MARKERS
        found = await write(client, *(ending(number) for number in range(most)))
        assert [each[3] for each in found] == [NONE] * most
        assert replica(nodes, 0).log.log_end_offset == most
        found = await write(client, *(ending(number) for number in range(most)), ending(7, 1))
        assert [each[3] for each in found] == [ErrorCode.INVALID_REQUEST] * (most + 1)
        found = await write(client, ending(7, *([0] * 50_000)))
        assert {each[3] for each in found} == {ErrorCode.INVALID_REQUEST}
        assert replica(nodes, 0).log.log_end_offset == most

    run(test)


def test_a_client_that_leaves_before_the_answer_leaves_nothing_behind() -> None:
    """The marker is in the log all the same."""

    async def test(nodes: Nodes, client: Asker) -> None:
        await begin(nodes, 7)
        await leave_before_the_answer(nodes, TP, ending(7))
        (found,) = await described_producers(client, "t", 0)
        assert [each.current_txn_start_offset for each in found.active_producers] == [-1]

    run(test, count=2)


async def leave_before_the_answer(
    nodes: Nodes, where: TopicPartition, marker: t.WriteTxnMarkersRequestWritableTxnMarker
) -> None:
    """Send a marker that the follower does not fetch, and close the connection once it is in the log."""
    leader = nodes.leader(where)
    log, waiting = replica(nodes, leader, where).log, nodes.running[leader].node.replicas.waiting.produces
    nodes.running[1 - leader].node.replicas.followers.remove(where)
    end = log.log_end_offset
    async with Asker(nodes.addresses[leader]) as leaving:
        leaving.send(t.WriteTxnMarkersRequest(markers=[marker]), 1)
        await nodes.until(lambda: waiting.delayed == 1)
    await nodes.until(lambda: waiting.delayed == 0)
    assert (log.log_end_offset, log.high_watermark) == (end + 1, end)


def test_no_transaction_is_coordinated_here() -> None:
    async def test(_: Nodes, client: Asker) -> None:
        for version in range(3):
            request = t.ListTransactionsRequest(
                state_filters=["Ongoing", "Asleep", "Asleep"], producer_id_filters=[7]
            )
            answer = await client.ask(request, version)
            assert (answer.error_code, answer.transaction_states) == (NONE, [])
            assert answer.unknown_state_filters == ["Asleep"]
        described = await client.ask(t.DescribeTransactionsRequest(transactional_ids=["a", "", "a"]), 0)
        assert [(each.transactional_id, each.error_code) for each in described.transaction_states] == [
            ("a", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
            ("", ErrorCode.INVALID_REQUEST),
            ("a", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        ]

    run(test)


# --- offsets committed in a transaction ---------------------------------------------------------


async def stable_offset(client: Asker) -> Any:
    """Return the group's offset of partition 0, or the error, as a consumer of committed data sees it."""
    wanted = t.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    groups = [t.OffsetFetchRequestGroup(group_id=group_requests.GROUP, topics=[wanted])]
    answer = await client.ask(t.OffsetFetchRequest(groups=groups, require_stable=True), 8)
    if answer.groups[0].error_code:
        return ErrorCode(answer.groups[0].error_code)
    (found,) = answer.groups[0].topics[0].partitions
    return ErrorCode(found.error_code) if found.error_code else found.committed_offset


async def hanging_offsets(nodes: Nodes, client: Asker) -> TopicPartition:
    """Commit an offset of the group, and another in a transaction that hangs; return where they are.

    The coordinator knows of it: it has loaded the log since.
    """
    assert await group_requests.commit(client, offset=5) == NONE
    (where,) = {
        each
        for runtime in nodes.running.values()
        for each, one in runtime.node.replicas.partitions.items()
        if one.log.log_end_offset and each.topic == OFFSETS_TOPIC
    }
    key, value = encode_offset_key(group_requests.GROUP, TP), encode_offset(OffsetAndMetadata(9))
    await begin(nodes, 7, Record(0, 5, key, value), where=where)
    leader = nodes.leader(where)
    await nodes.stop(leader)
    await nodes.start(leader)
    await group_requests.coordinator_of(nodes)
    await nodes.until(lambda: len(nodes.isr(where)) == len(nodes.running))
    return where


async def until_loaded(client: Asker) -> Any:
    while (found := await stable_offset(client)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        await asyncio.sleep(0.001)
    return found


@pytest.mark.parametrize(("commit", "offset"), [(True, 9), (False, 5)])
def test_offsets_that_a_transaction_commits_count_after_its_marker(commit: bool, offset: int) -> None:
    """Until then a consumer of committed data cannot start: UNSTABLE_OFFSET_COMMIT (88)."""

    async def test(nodes: Nodes, client: Asker) -> None:
        where = await hanging_offsets(nodes, client)
        async with Asker(nodes.addresses[nodes.leader(where)]) as again:
            assert await stable_offset(again) is ErrorCode.UNSTABLE_OFFSET_COMMIT
            marker = ending(7, where.partition, topic=OFFSETS_TOPIC, commit=commit)
            assert await write(again, marker) == [(7, OFFSETS_TOPIC, where.partition, NONE)]
            assert await until_loaded(again) == offset

    group_requests.run(test, count=2)


def test_offsets_count_even_if_the_client_leaves_before_the_answer() -> None:
    """They are loaded once the marker is committed, when the follower is back."""

    async def test(nodes: Nodes, client: Asker) -> None:
        where = await hanging_offsets(nodes, client)
        leader = nodes.leader(where)
        async with Asker(nodes.addresses[leader]) as again:
            assert await stable_offset(again) is ErrorCode.UNSTABLE_OFFSET_COMMIT
            marker = ending(7, where.partition, topic=OFFSETS_TOPIC, commit=True)
            await leave_before_the_answer(nodes, where, marker)
            assert await stable_offset(again) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await nodes.kill(1 - leader)
            await nodes.start(1 - leader)
            assert await until_loaded(again) == 9

    group_requests.run(test, count=2)
