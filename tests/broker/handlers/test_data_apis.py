"""Metadata, Produce, Fetch, ListOffsets: the rules of docs/reference/protocol-traps.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from logstore.broker.handlers import metadata
from logstore.broker.handlers.metadata import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    PARTITIONS_A_TURN,
    TOPIC_OPERATIONS,
)
from logstore.broker.topic_creation import MOST_OF_ONE_REQUEST
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.ids import id_from_text
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.compression import Codec
from logstore.format.record import Record
from logstore.replication.config import NodeConfig
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.messages import CreateTopicsRequest
from tests.broker.asking import Asker
from tests.broker.handlers.data_requests import TP, batch, produce, producing, run
from tests.broker.nodes import Nodes

ALL_METADATA = range(13)


ALL_PRODUCE = range(3, 12)


async def overtaken(
    nodes: Nodes, client: Asker, large: t.MetadataRequest, between: Callable[[], object] = list
) -> Any:
    """The answer to a large request, which comes after that to a later one on another connection."""
    order = []
    async with Asker(nodes.addresses[0]) as other:
        first = asyncio.create_task(client.ask(large, 12))
        first.add_done_callback(lambda _: order.append("large"))
        await asyncio.sleep(0)
        await other.ask(t.MetadataRequest(topics=[]), 12)
        order.append("small")
        between()
        answer = await first
    assert order == ["small", "large"]
    return answer


class TestMetadata:
    @pytest.mark.parametrize("version", ALL_METADATA)
    def test_brokers_leaders_and_the_clusters_id_are_told(self, version: int) -> None:
        """Every leader and replica is among the brokers, with the address that it listens on."""

        async def test(nodes: Nodes, client: Asker) -> None:
            topics: list[t.MetadataRequestTopic] | None = None if version else []
            answer = await client.ask(t.MetadataRequest(topics=topics), version)
            ports = {each.node_id: each.port for each in answer.brokers}
            assert ports == {node_id: address.port for node_id, address in nodes.addresses.items()}
            (topic,) = answer.topics
            (partition,) = topic.partitions
            assert (topic.name, topic.error_code) == ("t", 0)
            assert {partition.leader_id, *partition.replica_nodes, *partition.isr_nodes} <= ports.keys()
            if version >= 2:
                assert answer.cluster_id == nodes.brokers[0].services.cluster_id
            if version >= 10:
                known = nodes.running[0].node.replicas.metadata.topic_ids["t"]
                assert topic.topic_id == id_from_text(known)

        run(test, count=2)

    def test_no_topics_is_all_in_version_0_and_none_later_where_null_is_all(self) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            cases: list[tuple[int, list[t.MetadataRequestTopic] | None, int]]
            cases = [(0, [], 1), (1, [], 0), (12, [], 0), (1, None, 1), (12, None, 1)]
            for version, topics, found in cases:
                answer = await client.ask(t.MetadataRequest(topics=topics), version)
                assert len(answer.topics) == found, (version, topics)

        run(test)

    @pytest.mark.parametrize(
        ("name", "error"),
        [
            ("unknown", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("..", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ],
    )
    def test_unknown_topics_and_bad_names(self, name: str, error: ErrorCode) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            request = t.MetadataRequest(
                topics=[t.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
            )
            (topic,) = (await client.ask(request, 12)).topics
            assert (topic.name, topic.error_code) == (name, error)

        run(test)

    @pytest.mark.parametrize("asked_of", [0, 1])
    @pytest.mark.parametrize("version", [3, 12])
    def test_a_topic_that_is_asked_for_is_made_where_the_request_allows_it(
        self, version: int, asked_of: int
    ) -> None:
        """Before version 4 it always does. By the controller, wherever that is; the client asks again."""

        async def test(nodes: Nodes, _: Asker) -> None:
            async with Asker(nodes.addresses[asked_of]) as client:
                request = t.MetadataRequest(topics=[t.MetadataRequestTopic(name="new")])
                (topic,) = (await client.ask(request, version)).topics
                assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE
                while topic.error_code:
                    await asyncio.sleep(0.01)
                    (topic,) = (await client.ask(request, version)).topics
                assert len(topic.partitions) == 1
                request = t.MetadataRequest(
                    topics=[t.MetadataRequestTopic(name="other")], allow_auto_topic_creation=False
                )
                (topic,) = (await client.ask(request, 12)).topics
                assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        run(test, count=2)

    def test_who_asks_again_for_a_topic_that_cannot_be_made_is_told_why(self) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            request = t.MetadataRequest(topics=[t.MetadataRequestTopic(name="new")])
            found: list[int] = []
            while ErrorCode.INVALID_REPLICATION_FACTOR not in found:
                (topic,) = (await client.ask(request, 12)).topics
                found.append(topic.error_code)
                await asyncio.sleep(0.01)
            assert found[0] == ErrorCode.LEADER_NOT_AVAILABLE

        run(test, base=NodeConfig(node_id=0, controller=ControllerConfig(default_replication_factor=2)))

    def test_a_request_for_thousands_of_topics_takes_turns_with_other_connections(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And queues only some of them for creation, however many turns it has; the answer comes late."""
        monkeypatch.setattr(metadata, "ANSWERED_LATE_MS", 50)

        async def test(nodes: Nodes, client: Asker) -> None:
            names = ["t", *(f"new-{number}" for number in range(4 * PARTITIONS_A_TURN))]
            many = t.MetadataRequest(topics=[t.MetadataRequestTopic(name=name) for name in names])
            creation = nodes.brokers[0].services.topic_creation
            asked: list[str] = []

            def never_answer(request: object, _: object) -> None:
                assert isinstance(request, CreateTopicsRequest)
                asked.extend(each.name for each in request.topics)

            creation._ask_controller = never_answer
            began_s = asyncio.get_running_loop().time()
            answer = await overtaken(nodes, client, many)
            assert [each.name for each in answer.topics] == names
            errors = {each.error_code for each in answer.topics[1:]}
            assert (answer.topics[0].error_code, errors) == (0, {ErrorCode.LEADER_NOT_AVAILABLE})
            assert len(asked) + creation.queued == MOST_OF_ONE_REQUEST
            assert asyncio.get_running_loop().time() - began_s > 0.04

        run(test)

    def test_thousands_of_partitions_are_shown_in_several_turns(self) -> None:
        """Also those of a topic that is deleted in between: it is not listed, or as it was."""

        async def test(nodes: Nodes, client: Asker) -> None:
            known = nodes.running[0].node.replicas.metadata
            state = known.partitions[TP]
            for number in range(4 * PARTITIONS_A_TURN):
                known.topics[f"a-{number}"] = {0: state}
            known.topics["s"] = dict.fromkeys(range(3), state)
            forget = partial(known.topics.pop, "s")
            answer = await overtaken(nodes, client, t.MetadataRequest(topics=None), forget)
            assert [each.name for each in answer.topics] == sorted(known.topics)

        run(test)

    @pytest.mark.parametrize("name", [None, ""])
    @pytest.mark.parametrize("version", [10, 12])
    def test_a_topic_is_found_by_its_id(self, version: int, name: str | None) -> None:
        """Whatever the name is: null, or empty as Java's AdminClient has it."""

        async def test(nodes: Nodes, client: Asker) -> None:
            known = id_from_text(nodes.running[0].node.replicas.metadata.topic_ids["t"])
            wanted = [
                t.MetadataRequestTopic(name=name, topic_id=known),
                t.MetadataRequestTopic(name=name, topic_id=bytes(15) + b"\1"),
            ]
            found, unknown = (await client.ask(t.MetadataRequest(topics=wanted), version)).topics
            assert (found.name, found.error_code) == ("t", 0)
            assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
            assert unknown.topic_id == bytes(15) + b"\1"

        run(test)

    def test_a_partition_without_a_leader_has_leader_minus_1_and_error_5(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            known = nodes.running[0].node.replicas.metadata
            state = known.partitions
            for leader in (-1, 7):  # nobody, and one that is not alive
                state[TP] = replace(state[TP], leader=leader, replicas=(0, 7))
                known.topics[TP.topic][TP.partition] = state[TP]
                nodes.brokers[0].services.shown.clear()
                answer = await client.ask(t.MetadataRequest(topics=None), 12)
                ((partition,),) = (topic.partitions for topic in answer.topics)
                assert (partition.leader_id, partition.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
                assert partition.offline_replicas == [7]

        run(test)

    def test_who_asks_before_the_controller_has_spoken_waits_for_its_word(self) -> None:
        """librdkafka that is told of no brokers asks nobody again until its connection ends."""

        async def test(nodes: Nodes, client: Asker) -> None:
            brokers = nodes.running[0].node.replicas.metadata.brokers
            known = dict(brokers)
            brokers.clear()
            asked = asyncio.create_task(client.ask(t.MetadataRequest(topics=[]), 12))
            done, _ = await asyncio.wait([asked], timeout=0.1)
            assert not done
            brokers.update(known)
            assert [each.node_id for each in (await asked).brokers] == [0]

        run(test)

    def test_a_cluster_without_a_controller_is_told_without_brokers_in_the_end(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            nodes.running[0].node.replicas.metadata.brokers.clear()
            asked = asyncio.create_task(client.ask(t.MetadataRequest(topics=[]), 12))
            await asyncio.wait([asked], timeout=0.1)
            nodes.clocks[0].jumped_ms += 5_000
            assert (await asked).brokers == []

        run(test)

    def test_authorized_operations_are_a_bit_field_if_asked_for_and_else_the_smallest_int32(self) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            for is_asked, of_topic, of_cluster in (
                (True, TOPIC_OPERATIONS, CLUSTER_OPERATIONS),
                (False, NOT_ASKED, NOT_ASKED),
            ):
                request = t.MetadataRequest(
                    topics=None,
                    include_topic_authorized_operations=is_asked,
                    include_cluster_authorized_operations=is_asked,
                )
                answer = await client.ask(request, 10)
                assert answer.topics[0].topic_authorized_operations == of_topic
                assert answer.cluster_authorized_operations == of_cluster

        run(test)

    def test_of_an_unknown_id_no_operations_are_told(self) -> None:
        """There is no topic on which they would be permitted."""

        async def test(_: Nodes, client: Asker) -> None:
            asked = t.MetadataRequestTopic(topic_id=b"0123456789abcdef", name=None)
            request = t.MetadataRequest(topics=[asked], include_topic_authorized_operations=True)
            (topic,) = (await client.ask(request, 12)).topics
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_ID
            assert topic.topic_authorized_operations == NOT_ASKED

        run(test)


class TestProduce:
    @pytest.mark.parametrize("version", ALL_PRODUCE)
    def test_a_batch_is_appended_and_its_offset_told(self, version: int) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            for offset, acks in ((0, 1), (2, -1)):
                result = await produce(client, batch(b"a", b"b"), version, acks=acks)
                assert (result.error_code, result.base_offset) == (0, offset)
                assert result.log_append_time_ms == -1
            assert nodes.ends(TP) == {0: 4}

        run(test)

    def test_one_batch_comes_for_a_partition(self) -> None:
        """As Kafka has it since Produce 3: two could not be answered with one offset."""

        async def test(nodes: Nodes, client: Asker) -> None:
            result = await produce(client, batch(b"a") + batch(b"b", b"c"))
            assert result.error_code == ErrorCode.INVALID_RECORD
            assert nodes.ends(TP) == {0: 0}

        run(test)

    def test_acks_0_is_not_answered(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            for _ in range(3):
                client.send(producing(batch(b"x"), acks=0), 9)
            assert (await produce(client, batch(b"y"))).base_offset == 3

        run(test)

    @pytest.mark.parametrize("topics", [[], [t.ProduceRequestTopicProduceData(name="t")]])
    def test_acks_0_of_nothing_is_not_answered_either(self, topics: list[Any]) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            client.send(t.ProduceRequest(acks=0, topic_data=topics), 9)
            assert (await produce(client, batch(b"y"))).base_offset == 0

        run(test)

    @pytest.mark.parametrize("data", [b"", batch(b"x")[:-1]], ids=["nothing", "torn"])
    def test_acks_0_that_failed_closes_the_connection(self, data: bytes) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            client.send(producing(data, acks=0), 9)
            assert await client.is_cut_off()

        run(test)

    @pytest.mark.parametrize(
        ("changed", "error"),
        [
            ({"topic": "unknown"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"topic": ".."}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
        ],
    )
    def test_what_cannot_be_appended_says_why(self, changed: dict[str, int], error: ErrorCode) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            result = await produce(client, batch(b"x"), **changed)
            assert (result.error_code, result.base_offset) == (error, -1)

        run(test)

    def test_zstd_is_for_those_who_know_it(self) -> None:
        """Version 7 says so; the batch of an older client would be one that older consumers cannot read."""

        async def test(_: Nodes, client: Asker) -> None:
            data = batch(b"x" * 100, codec=Codec.ZSTD)
            assert (await produce(client, data, 6)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            assert (await produce(client, data, 7)).error_code == 0

        run(test)

    def test_a_partition_that_is_listed_twice_ends_the_connection(self) -> None:
        """It has no one answer, and the second batch must not pass for the first."""

        async def test(nodes: Nodes, client: Asker) -> None:
            request = producing(batch(b"x"))
            request.topic_data *= 2
            client.send(request, 9)
            assert await client.is_cut_off()
            assert nodes.ends(TP) == {0: 0}

        run(test)

    @pytest.mark.parametrize("says_so", [True, False])
    def test_a_transactional_batch_is_refused(self, says_so: bool) -> None:
        """There is nobody to end it: readers of committed data would wait for ever."""

        async def test(nodes: Nodes, client: Asker) -> None:
            record = Record(0, 1000, None, b"x")
            request = producing(
                encode_batch(
                    [record], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=not says_so
                )
            )
            request.transactional_id = "me" if says_so else None
            answer = await client.ask(request, 9)
            result = answer.responses[0].partition_responses[0]
            assert result.error_code == ErrorCode.INVALID_TXN_STATE
            assert nodes.ends(TP) == {0: 0}

        run(test)

    def test_invalid_records_are_told_one_by_one(self) -> None:
        """87, and from version 8 on which of the batch's records they are."""

        async def test(nodes: Nodes, client: Asker) -> None:
            setting = t.CreateTopicsRequestCreatableTopicConfig(name="cleanup.policy", value="compact")
            topic = t.CreateTopicsRequestCreatableTopic(
                name="c", num_partitions=1, replication_factor=1, configs=[setting]
            )
            await client.ask(t.CreateTopicsRequest(topics=[topic]), 7)
            partitions = nodes.running[0].node.replicas.partitions
            await nodes.until(lambda: TopicPartition("c", 0) in partitions)
            keyless = encode_batch([Record(0, 1, b"k", b"v"), Record(1, 1, None, b"v")])
            result = await produce(client, keyless, 8, topic="c")
            assert result.error_code == ErrorCode.INVALID_RECORD
            assert [each.batch_index for each in result.record_errors] == [1]
            assert result.error_message

        run(test)

    def test_untimely_records_are_told_one_by_one(self) -> None:
        """32, with the records: a client sends the others of the batch again."""

        async def test(nodes: Nodes, client: Asker) -> None:
            setting = t.CreateTopicsRequestCreatableTopicConfig(
                name="message.timestamp.before.max.ms", value="86400000"
            )
            topic = t.CreateTopicsRequestCreatableTopic(
                name="c", num_partitions=1, replication_factor=1, configs=[setting]
            )
            await client.ask(t.CreateTopicsRequest(topics=[topic]), 7)
            partitions = nodes.running[0].node.replicas.partitions
            await nodes.until(lambda: TopicPartition("c", 0) in partitions)
            result = await produce(client, encode_batch([Record(0, 1, b"k", b"v")]), 8, topic="c")
            assert result.error_code == ErrorCode.INVALID_TIMESTAMP
            assert [each.batch_index for each in result.record_errors] == [0]

        run(test)

    @pytest.mark.parametrize("magic", [0, 1])
    def test_older_formats_are_refused_for_good(self, magic: int) -> None:
        """87, as in Kafka: a client sends a batch that is CORRUPT_MESSAGE (2) again and again."""

        async def test(nodes: Nodes, client: Asker) -> None:
            old = bytearray(batch(b"x"))
            old[16] = magic
            result = await produce(client, bytes(old))
            assert result.error_code == ErrorCode.INVALID_RECORD

        run(test)

    @pytest.mark.parametrize(
        ("damaged", "error"),
        [
            (batch(b"x")[:-1], ErrorCode.CORRUPT_MESSAGE),
            (batch(b"x")[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
        ],
        ids=["cut short", "checksum"],
    )
    def test_damaged_batches_are_refused(self, damaged: bytes, error: ErrorCode) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            assert (await produce(client, damaged)).error_code == error
            assert nodes.ends(TP) == {0: 0}

        run(test)
