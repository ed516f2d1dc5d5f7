"""Requests that list something again and again: it is answered once, so answers stay in proportion."""

from __future__ import annotations

import asyncio

import pytest

from logstore.broker.handlers.metadata import PARTITIONS_A_TURN
from logstore.broker.store_session import StoreSession
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.replication.metastore.operations import Operation, Outcome
from tests.broker.asking import Asker
from tests.broker.handlers import group_requests
from tests.broker.handlers.data_requests import TP, batch, produce, run
from tests.broker.handlers.test_data_apis import overtaken
from tests.broker.nodes import Nodes

TIMES = 50


def test_topics_of_metadata() -> None:
    """By name, by id, unknown by either."""

    async def test(nodes: Nodes, client: Asker) -> None:
        known = nodes.running[0].node.replicas.metadata.topic_ids["t"]
        answer = await client.ask(t.MetadataRequest(topics=[t.MetadataRequestTopic(name="t")]), 12)
        topic_id = answer.topics[0].topic_id
        assert known
        wanted = [
            t.MetadataRequestTopic(name="t"),
            t.MetadataRequestTopic(name=None, topic_id=topic_id),
            t.MetadataRequestTopic(name=None, topic_id=bytes(15) + b"\1"),
            t.MetadataRequestTopic(name="new"),
        ]
        request = t.MetadataRequest(topics=wanted * TIMES, allow_auto_topic_creation=False)
        answer = await client.ask(request, 12)
        assert [(each.name, each.error_code) for each in answer.topics] == [
            ("t", ErrorCode.NONE),
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
            ("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]

    run(test)


def test_partitions_of_a_fetch() -> None:
    """Within an entry, and in entries of their own: `max_bytes` holds for all."""

    async def test(_: Nodes, client: Asker) -> None:
        await produce(client, batch(b"x" * 10_000))
        part = t.FetchRequestFetchPartition(partition=0, fetch_offset=0, partition_max_bytes=20_000)
        topics = [t.FetchRequestFetchTopic(topic="t", partitions=[part] * TIMES)] * TIMES
        answer = await client.ask(t.FetchRequest(replica_id=-1, min_bytes=1, topics=topics), 11)
        found = [each for topic in answer.responses for each in topic.partitions]
        assert [(each.partition_index, each.error_code) for each in found] == [(0, ErrorCode.NONE)]
        assert bytes(found[0].records).count(b"x" * 10_000) == 1

    run(test)


def test_described_groups() -> None:
    async def test(_: Nodes, client: Asker) -> None:
        await group_requests.stable(client)
        groups = [group_requests.GROUP, "other"] * TIMES
        answer = await client.ask(t.DescribeGroupsRequest(groups=groups), 5)
        assert [each.group_id for each in answer.groups] == [group_requests.GROUP, "other"]

    group_requests.run(test)


def test_groups_of_fetched_offsets() -> None:
    """What is asked of one group is answered in one place; null means all its offsets."""

    def asking(*topics: str | None) -> t.OffsetFetchRequest:
        groups = [
            t.OffsetFetchRequestGroup(
                group_id=group_requests.GROUP,
                topics=None
                if name is None
                else [t.OffsetFetchRequestTopics(name=name, partition_indexes=[0])],
            )
            for name in topics
        ]
        return t.OffsetFetchRequest(groups=groups)

    async def test(_: Nodes, client: Asker) -> None:
        await group_requests.commit(client)
        for topics, names in (
            (("t", "u", "t") * TIMES, ["t", "u"]),
            (("u", None, "t") * TIMES, ["t"]),
        ):
            answer = await client.ask(asking(*topics), 8)
            (group,) = answer.groups
            assert [topic.name for topic in group.topics] == names

    group_requests.run(test)


def test_described_settings() -> None:
    """Of one resource: all that is asked for, in one place."""

    def asked(keys: list[str] | None) -> t.DescribeConfigsRequestDescribeConfigsResource:
        return t.DescribeConfigsRequestDescribeConfigsResource(
            resource_type=2, resource_name="t", configuration_keys=keys
        )

    async def test(_: Nodes, client: Asker) -> None:
        names = ["retention.ms", "segment.bytes"]
        answer = await client.ask(
            t.DescribeConfigsRequest(resources=[asked([each]) for each in names] * TIMES), 4
        )
        (result,) = answer.results
        assert sorted(each.name for each in result.configs) == names
        answer = await client.ask(t.DescribeConfigsRequest(resources=[asked(names[:1]), asked(None)]), 4)
        (result,) = answer.results
        assert len(result.configs) > len(names)

    run(test)


def test_settings_of_many_topics_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, thousands would take longer than `health` waits: it would call the store down."""
    reads = under_way = most = 0
    ask = StoreSession.ask

    async def counted(store: StoreSession, operation: Operation) -> Outcome:
        nonlocal reads, under_way, most
        reads, under_way = reads + 1, under_way + 1
        most = max(most, under_way)
        try:
            return await ask(store, operation)
        finally:
            under_way -= 1

    async def test(nodes: Nodes, client: Asker) -> None:
        known = nodes.running[0].node.replicas.metadata
        names = [f"a-{number}" for number in range(30)]
        known.topics.update({name: {0: known.partitions[TP]} for name in names})
        kind = t.DescribeConfigsRequestDescribeConfigsResource
        resources = [kind(resource_type=2, resource_name=name) for name in names]
        nonlocal reads, most
        reads = most = 0
        answer = await client.ask(t.DescribeConfigsRequest(resources=resources), 4)
        assert [each.resource_name for each in answer.results] == names
        assert not any(each.error_code for each in answer.results)
        assert len(names) <= reads < len(names) + 10
        assert most > 10

    monkeypatch.setattr(StoreSession, "ask", counted)
    run(test)


def test_a_broker_that_leaves_between_two_turns_leads_nothing_in_the_answer() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        known = nodes.running[0].node.replicas.metadata
        state = known.partitions[TP]
        assert set(state.replicas) == {0, 1}
        for number in range(4 * PARTITIONS_A_TURN):
            known.topics[f"a-{number}"] = {0: state}

        def leave() -> None:
            del known.brokers[state.leader]
            known.updates += 1

        answer = await overtaken(nodes, client, t.MetadataRequest(topics=None), leave)
        assert [each.node_id for each in answer.brokers] == [1 - state.leader]
        told = {
            (each.leader_id, each.error_code, *each.offline_replicas)
            for topic in answer.topics
            for each in topic.partitions
        }
        assert told == {(-1, ErrorCode.LEADER_NOT_AVAILABLE, state.leader)}

    run(test, count=2)


def test_an_answer_in_turns_ends_with_its_connection() -> None:
    """Else a client that comes again and again has any number of them made for nobody."""

    async def test(nodes: Nodes, _: Asker) -> None:
        services = nodes.brokers[0].services
        names = (f"unknown-{number}" for number in range(200 * PARTITIONS_A_TURN))
        request = t.MetadataRequest(
            topics=[t.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        async with Asker(nodes.addresses[0]) as leaving:
            leaving.send(request, 9)
            while not services._tasks:
                await asyncio.sleep(0)
            (task,) = services._tasks
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns < 100, "it stopped long before the last turn"
        assert task.result() is None

    run(test)


def test_a_resource_whose_settings_change() -> None:
    """None of its changes is made, as in Kafka: which one counts is not said."""

    async def test(nodes: Nodes, client: Asker) -> None:
        def resource(name: str, value: str) -> t.IncrementalAlterConfigsRequestAlterConfigsResource:
            config = t.IncrementalAlterConfigsRequestAlterableConfig(name="retention.ms", value=value)
            return t.IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=2, resource_name=name, configs=[config]
            )

        resources = [resource("t", "1"), resource("x", "1"), resource("t", "2")]
        answer = await client.ask(t.IncrementalAlterConfigsRequest(resources=resources), 1)
        assert [each.error_code for each in answer.responses] == [
            ErrorCode.INVALID_REQUEST,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_REQUEST,
        ]
        asked = t.DescribeConfigsRequest(
            resources=[t.DescribeConfigsRequestDescribeConfigsResource(resource_type=2, resource_name="t")]
        )
        told = {each.name: each for each in (await client.ask(asked, 4)).results[0].configs}
        assert told["retention.ms"].config_source != 1

    run(test)


def test_a_topic_that_grows() -> None:
    """As in Kafka: nobody says which number counts."""

    async def test(_: Nodes, client: Asker) -> None:
        kind = t.CreatePartitionsRequestCreatePartitionsTopic
        topics = [kind(name=name, count=count, assignments=None) for name, count in (("t", 2), ("t", 3))]
        answer = await client.ask(t.CreatePartitionsRequest(topics=topics, timeout_ms=1_000), 3)
        assert [(each.name, each.error_code) for each in answer.results] == [("t", ErrorCode.INVALID_REQUEST)]
        answer = await client.ask(t.MetadataRequest(topics=[t.MetadataRequestTopic(name="t")]), 12)
        assert len(answer.topics[0].partitions) == 1

    run(test)
