"""Administrative requests over real sockets: what each does, and what it says when it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import fields
from typing import Any

import pytest

from logstore.broker.configs import Source
from logstore.broker.handlers import topics
from logstore.broker.links import client_id_of
from logstore.broker.wire import types as t
from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.ids import id_to_text
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import deletion
from logstore.replication.messages import UpdateMetadataRequest
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.operations import Create, Operation, Outcome
from tests.broker.asking import Asker
from tests.broker.handlers.administering import create, leaders, produce, run
from tests.broker.nodes import Nodes


def test_any_broker_takes_what_the_controller_has_to_do() -> None:
    """Clients go on asking the controller that they know: librdkafka and aiokafka for minutes."""

    async def test(nodes: Nodes, _: Asker) -> None:
        other = 1 - nodes.controller()
        metadata = nodes.running[other].node.replicas.metadata
        await nodes.until(lambda: metadata.controller_id == nodes.controller())
        async with Asker(nodes.addresses[other]) as client:
            made = await create(nodes, client, "t", (0, 1))
            assert (made.error_code, made.name) == (ErrorCode.NONE, "t")
            wanted = t.CreatePartitionsRequestCreatePartitionsTopic(name="t", count=3, assignments=None)
            grown = await client.ask(t.CreatePartitionsRequest(topics=[wanted]), 0)
            assert grown.results[0].error_code == ErrorCode.NONE
            again = await create(nodes, client, "t", (0,))
            assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
            listed = await client.ask(t.ListPartitionReassignmentsRequest(), 0)
            assert (listed.error_code, listed.topics) == (ErrorCode.NONE, [])

    run(test)


@pytest.mark.parametrize("known", [-1, 7])
def test_without_a_controller_there_is_nobody_to_hand_it_on_to(known: int) -> None:
    async def test(nodes: Nodes, _: Asker) -> None:
        other = 1 - nodes.controller()
        metadata = nodes.running[other].node.replicas.metadata
        await nodes.until(lambda: metadata.controller_id == nodes.controller())
        metadata.controller_id = known
        async with Asker(nodes.addresses[other]) as client:
            made = await create(nodes, client, "t", (0, 1))
            assert made.error_code == ErrorCode.NOT_CONTROLLER

    run(test)


def test_a_controller_that_does_not_answer_is_none() -> None:
    async def test(nodes: Nodes, _: Asker) -> None:
        gone = nodes.controller()
        other = 1 - gone
        metadata = nodes.running[other].node.replicas.metadata
        await nodes.until(lambda: metadata.controller_id == gone)
        nodes.brokers[gone].server.close()
        async with Asker(nodes.addresses[other]) as client:
            made = await create(nodes, client, "t", (0, 1))
            assert made.error_code == ErrorCode.NOT_CONTROLLER

    run(test)


# --- topics -------------------------------------------------------------------------------------


class TestSettingsOfANewTopic:
    @pytest.mark.parametrize("validate_only", [False, True])
    def test_the_answer_has_them_all(self, validate_only: bool) -> None:
        """Java's `CreateTopicsResult.config` is made of nothing else."""

        async def test(nodes: Nodes, client: Asker) -> None:
            request = asked_with("retention.ms", "123456789")
            request.validate_only = validate_only
            (made,) = (await client.ask(request, 7)).topics
            assert (made.error_code, made.topic_config_error_code) == (ErrorCode.NONE, ErrorCode.NONE)
            settings = {each.name: (each.value, each.config_source) for each in made.configs}
            assert settings["retention.ms"] == ("123456789", Source.TOPIC)
            assert settings["cleanup.policy"] == ("delete", Source.DEFAULT)
            assert len(settings) == len(fields(LogConfig))

        run(test)

    def test_a_topic_that_was_not_made_has_none(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            (refused,) = (await client.ask(asked_with("nonsense", "1"), 7)).topics
            assert (refused.error_code, refused.configs) == (ErrorCode.INVALID_CONFIG, [])

        run(test)

    def test_one_without_a_value_is_refused(self) -> None:
        """As in Kafka: whoever sent it meant to set something."""

        async def test(nodes: Nodes, client: Asker) -> None:
            (refused,) = (await client.ask(asked_with("retention.ms", None), 7)).topics
            assert (refused.error_code, refused.configs) == (ErrorCode.INVALID_CONFIG, [])

        run(test)

    def test_without_the_store_the_topic_is_made_and_the_reason_told(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            async def lost(operation: Operation) -> Outcome:
                raise MetadataStoreFailed("down")

            nodes.brokers[nodes.controller()].services.ask_store = lost
            (made,) = (await client.ask(asked_with("retention.ms", "123456789"), 7)).topics
            assert (made.error_code, made.configs) == (ErrorCode.NONE, [])
            assert made.topic_config_error_code == MetadataStoreFailed.code

        run(test)


def asked_with(name: str, value: str | None) -> t.CreateTopicsRequest:
    setting = t.CreateTopicsRequestCreatableTopicConfig(name=name, value=value)
    topic = t.CreateTopicsRequestCreatableTopic(
        name="t", num_partitions=1, replication_factor=1, configs=[setting]
    )
    return t.CreateTopicsRequest(topics=[topic])


def test_who_made_a_topic_hears_at_once_who_leads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer of franz-go that is told of an unknown topic asks again five seconds later."""

    async def test(nodes: Nodes, client: Asker) -> None:
        metadata = nodes.running[nodes.controller()].node.replicas.metadata
        update = metadata.update

        def late(request: UpdateMetadataRequest) -> list[TopicPartition]:
            asyncio.get_running_loop().call_later(0.05, update, request)
            return []

        monkeypatch.setattr(metadata, "update", late)
        for name in ("a", "b", "c"):
            topic = t.CreateTopicsRequestCreatableTopic(name=name, num_partitions=3, replication_factor=2)
            made = await client.ask(t.CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
            assert made.topics[0].error_code == ErrorCode.NONE
            assert len(await leaders(client, name)) == 3
            more = t.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=5, assignments=None)
            grown = await client.ask(t.CreatePartitionsRequest(topics=[more], timeout_ms=30_000), 3)
            assert grown.results[0].error_code == ErrorCode.NONE
            assert len(await leaders(client, name)) == 5

    run(test)


def test_partitions_that_nobody_leads_when_the_time_is_over_were_made() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        other = 1 - nodes.controller()
        await create(nodes, client, "t", (other,))
        await nodes.kill(other)
        metadata = nodes.running[nodes.controller()].node.replicas.metadata
        await nodes.until(lambda: not metadata.is_alive(other))
        more = t.CreatePartitionsRequestCreatePartitionsTopic(name="t", count=2, assignments=None)
        grown = await client.ask(t.CreatePartitionsRequest(topics=[more], timeout_ms=50), 3)
        assert grown.results[0].error_code == ErrorCode.NONE
        await nodes.until(lambda: TopicPartition("t", 1) in metadata.partitions)
        assert await leaders(client, "t") == [nodes.controller()]

    run(test)


@pytest.mark.parametrize("by_id", [True, False])
def test_topics_are_deleted_by_name_and_by_id(by_id: bool) -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        made = await create(nodes, client, "t", (0, 1))
        wanted = (
            t.DeleteTopicsRequestDeleteTopicState(topic_id=made.topic_id)
            if by_id
            else t.DeleteTopicsRequestDeleteTopicState(name="t")
        )
        answer = await client.ask(t.DeleteTopicsRequest(topics=[wanted], timeout_ms=30_000), 6)
        (result,) = answer.responses
        told = result.error_code, result.name, result.topic_id
        assert told == (ErrorCode.NONE, "t", made.topic_id)
        metadata = await client.ask(t.MetadataRequest(topics=None), 12)
        assert metadata.topics == []

    run(test)


def test_a_deletion_by_id_reaches_no_later_topic() -> None:
    """The id is of an earlier topic, by the metadata that this broker has yet."""

    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0,))
        metadata = nodes.running[nodes.controller()].node.replicas.metadata
        metadata.topic_names[id_to_text(b"\1" * 16)] = "t"
        earlier = t.DeleteTopicsRequestDeleteTopicState(topic_id=b"\1" * 16)
        answer = await client.ask(t.DeleteTopicsRequest(topics=[earlier], timeout_ms=1_000), 6)
        assert [each.error_code for each in answer.responses] == [ErrorCode.UNKNOWN_TOPIC_ID]
        assert await leaders(client, "t") == [0]

    run(test)


def test_what_cannot_be_deleted_is_told_item_by_item() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        made = await create(nodes, client, "t", (0,))
        asked = [
            t.DeleteTopicsRequestDeleteTopicState(name="nobody"),
            t.DeleteTopicsRequestDeleteTopicState(topic_id=b"\1" * 16),
            t.DeleteTopicsRequestDeleteTopicState(name="t", topic_id=made.topic_id),
            t.DeleteTopicsRequestDeleteTopicState(),
        ]
        answer = await client.ask(t.DeleteTopicsRequest(topics=asked, timeout_ms=1_000), 6)
        assert [each.error_code for each in answer.responses] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
        ]
        assert all(each.error_message for each in answer.responses)
        old = await client.ask(t.DeleteTopicsRequest(topic_names=["nobody"], timeout_ms=1), 1)
        assert old.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(test)


def test_a_deletion_waits_for_a_dead_replica_where_nobody_sees_it() -> None:
    """Clients see the topic no more; its name is free once the broker that has a replica is back."""

    async def test(nodes: Nodes, client: Asker) -> None:
        controller = nodes.controller()
        other = 1 - controller
        await create(nodes, client, "t", (controller, other))
        await nodes.kill(other)
        answer = await client.ask(t.DeleteTopicsRequest(topic_names=["t"], timeout_ms=30_000), 5)
        assert answer.responses[0].error_code == ErrorCode.NONE
        again = await create(nodes, client, "t", (controller,))
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert "is being deleted" in again.error_message
        await nodes.start(other)
        while (await create(nodes, client, "t", (controller,))).error_code != ErrorCode.NONE:
            await asyncio.sleep(0.01)

    run(test)


def test_a_forwarded_deletion_that_waits_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker forwards all requests of its clients on one connection."""
    # As while the topic is being reassigned.
    monkeypatch.setattr(deletion, "learn_requests", lambda context: iter(()))
    monkeypatch.setattr(topics, "_PATIENCE_MS", 50)

    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0,))
        name = client_id_of(1 - nodes.controller())
        async with asyncio.timeout(20), Asker(nodes.addresses[nodes.controller()], name) as broker:
            answer = await broker.ask(t.DeleteTopicsRequest(topic_names=["t"], timeout_ms=60_000), 5)
            assert [each.error_code for each in answer.responses] == [ErrorCode.REQUEST_TIMED_OUT]

    run(test)


def test_topics_grow() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0,))

        def ask(count: int, *lists: list[int], validate_only: bool = False) -> Awaitable[Any]:
            assignments = [
                t.CreatePartitionsRequestCreatePartitionsAssignment(broker_ids=each) for each in lists
            ]
            topic = t.CreatePartitionsRequestCreatePartitionsTopic(
                name="t", count=count, assignments=assignments or None
            )
            request = t.CreatePartitionsRequest(
                topics=[topic], validate_only=validate_only, timeout_ms=30_000
            )
            return client.ask(request, 3)

        assert (await ask(3, validate_only=True)).results[0].error_code == ErrorCode.NONE
        assert (await ask(1)).results[0].error_code == ErrorCode.INVALID_PARTITIONS
        assert (await ask(3, [1], [0])).results[0].error_code == ErrorCode.NONE
        metadata = await client.ask(t.MetadataRequest(topics=[t.MetadataRequestTopic(name="t")]), 12)
        assert [each.replica_nodes for each in metadata.topics[0].partitions] == [[0], [1], [0]]

    run(test)


def test_new_partitions_with_an_empty_list_of_replicas_are_refused() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0,))
        topics = [
            t.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=count, assignments=[])
            for name, count in (("t", 2), ("nobody", 2))
        ]
        grown = await client.ask(t.CreatePartitionsRequest(topics=topics), 3)
        assert {each.name: each.error_code for each in grown.results} == {
            "t": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "nobody": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }

    run(test)


def test_a_partition_on_a_broker_that_never_was_is_refused_or_listed() -> None:
    """Java and librdkafka lose sends to topics with a hole in their partitions."""

    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0,))
        lists = [t.CreatePartitionsRequestCreatePartitionsAssignment(broker_ids=[each]) for each in (99, 1)]
        topic = t.CreatePartitionsRequestCreatePartitionsTopic(name="t", count=3, assignments=lists)
        grown = await client.ask(t.CreatePartitionsRequest(topics=[topic]), 3)
        assert grown.results[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "brokers [99]" in grown.results[0].error_message
        assert (await create(nodes, client, "u", (99,))).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        # A tool that writes to the store, as Kafka's old ones did, is not stopped.
        node = layout.TopicAssignment("", {0: (1,), 1: (99,), 2: (0,)})
        write = Create(layout.topic_path("by-hand"), layout.encode_topic(node))
        await nodes.brokers[0].services.ask_store(write)

        async def listed() -> list[tuple[int, int, int, list[int]]]:
            asked = t.MetadataRequest(topics=[t.MetadataRequestTopic(name="by-hand")])
            found = (await client.ask(asked, 12)).topics[0].partitions
            return [
                (each.partition_index, each.error_code, each.leader_id, each.replica_nodes) for each in found
            ]

        while not (seen := await listed()):
            await asyncio.sleep(0.01)
        assert seen == [(0, 0, 1, [1]), (1, ErrorCode.LEADER_NOT_AVAILABLE, -1, [99]), (2, 0, 0, [0])]

    run(test)


def test_records_are_deleted_up_to_an_offset_or_to_the_high_watermark() -> None:
    async def test(nodes: Nodes, _: Asker) -> None:
        await nodes.create_topic("t", (0, 1))
        await produce(nodes, "t", 10)
        leader = nodes.leader(TopicPartition("t", 0))

        async def ask(client: Asker, offset: int) -> tuple[int, int]:
            partition = t.DeleteRecordsRequestDeleteRecordsPartition(offset=offset)
            topic = t.DeleteRecordsRequestDeleteRecordsTopic(name="t", partitions=[partition])
            answer = await client.ask(t.DeleteRecordsRequest(topics=[topic], timeout_ms=30_000), 2)
            result = answer.topics[0].partitions[0]
            return result.error_code, result.low_watermark

        async with Asker(nodes.addresses[leader]) as client:
            assert await ask(client, 4) == (ErrorCode.NONE, 4)
            assert await ask(client, 11) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
            assert await ask(client, -1) == (ErrorCode.NONE, 10)
        async with Asker(nodes.addresses[1 - leader]) as client:
            assert (await ask(client, 4))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(test)


# --- producers, epochs, clusters ----------------------------------------------------------------


def test_records_of_an_internal_topic_are_not_deleted() -> None:
    """Groups would lose their offsets; `cleanup.policy` makes no difference."""

    async def test(nodes: Nodes, client: Asker) -> None:
        for name in ("__consumer_offsets", "t"):
            await create(nodes, client, name, (0,), cleanup_policy="compact,delete")
        partitions = [t.DeleteRecordsRequestDeleteRecordsPartition(partition_index=0, offset=-1)]
        topics = [
            t.DeleteRecordsRequestDeleteRecordsTopic(name=name, partitions=partitions)
            for name in ("__consumer_offsets", "t")
        ]
        answer = await client.ask(t.DeleteRecordsRequest(topics=topics, timeout_ms=5_000), 2)
        told = {each.name: each.partitions[0] for each in answer.topics}
        internal, other = told["__consumer_offsets"], told["t"]
        assert (internal.error_code, internal.low_watermark) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
        assert (other.error_code, other.low_watermark) == (ErrorCode.NONE, 0)

    run(test, count=1)


def test_kafkas_metadata_is_no_topic() -> None:
    """`logstore adopt` would read its directory as the metadata of a cluster."""

    async def test(nodes: Nodes, client: Asker) -> None:
        made = await create(nodes, client, "__cluster_metadata", (0,))
        assert made.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    run(test, count=1)
