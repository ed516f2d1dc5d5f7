"""Producer ids, epochs, elections, reassignments, log dirs and settings over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Set
from tests.broker.asking import Asker
from tests.broker.handlers.administering import BROKER, TOPIC, create, produce, run, send
from tests.broker.nodes import Nodes


def test_every_idempotent_producer_has_a_number_of_its_own() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        given = set()
        for address in nodes.addresses.values():
            async with Asker(address) as each:
                for version in range(5):
                    request = t.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
                    answer = await each.ask(request, version)
                    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 0)
                    given.add(answer.producer_id)
        assert len(given) == 10
        again = await client.ask(
            t.InitProducerIdRequest(transactional_id=None, producer_id=3, producer_epoch=0), 4
        )
        assert again.error_code == ErrorCode.NONE
        assert again.producer_id not in given
        refused = await client.ask(t.InitProducerIdRequest(transactional_id="mine"), 4)
        assert (refused.error_code, refused.producer_id) == (ErrorCode.INVALID_REQUEST, -1)
        half = await client.ask(t.InitProducerIdRequest(transactional_id=None, producer_id=3), 4)
        assert half.error_code == ErrorCode.INVALID_REQUEST

    run(test)


def test_the_end_of_an_epoch_is_told_and_other_epochs_are_fenced() -> None:
    async def test(nodes: Nodes, _: Asker) -> None:
        await nodes.create_topic("t", (0, 1))
        await produce(nodes, "t", 3)
        leader = nodes.leader(TopicPartition("t", 0))
        async with Asker(nodes.addresses[leader]) as client:
            found = []
            for current in (-1, 0, 7):
                partition = t.OffsetForLeaderEpochRequestOffsetForLeaderPartition(
                    current_leader_epoch=current, leader_epoch=0
                )
                topic = t.OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic="t", partitions=[partition])
                answer = await client.ask(t.OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic]), 4)
                result = answer.topics[0].partitions[0]
                found.append((result.error_code, result.leader_epoch, result.end_offset))
            assert found == [
                (ErrorCode.NONE, 0, 3),
                (ErrorCode.NONE, 0, 3),
                (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1),
            ]

    run(test)


def test_the_producers_of_a_partition_are_described_by_every_replica() -> None:
    """Two producers, one of them in its second epoch; what is no replica here, unknown, or listed twice."""

    async def test(nodes: Nodes, client: Asker) -> None:
        await nodes.create_topic("t", (0, 1))
        first, second = TopicPartition("t", 0), TopicPartition("u", 0)
        await nodes.create_topic("u", (1,))
        for producer_id, epoch, first_sequence, time_ms in (
            (7, 0, 0, 1000),
            (9, 0, 0, 5),
            (7, 1, 0, 2000),
            (7, 1, 2, 3000),
        ):
            records = [Record(number, time_ms, None, b"x") for number in range(2)]
            batch = encode_batch(
                records, producer_id=producer_id, producer_epoch=epoch, base_sequence=first_sequence
            )
            await send(nodes, "t", batch)
        log = nodes.running[1 - nodes.leader(first)].node.replicas.partitions[first].log
        await nodes.until(lambda: log.log_end_offset == 8)
        for address in nodes.addresses.values():
            async with Asker(address) as each:
                (found,) = await described_producers(each, "t", 0)
            assert (found.error_code, found.error_message) == (ErrorCode.NONE, None)
            facts = [
                (one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp)
                for one in found.active_producers
            ]
            assert facts == [(7, 1, 3, 3000), (9, 0, 1, 5)]
            assert {
                (one.coordinator_epoch, one.current_txn_start_offset) for one in found.active_producers
            } == {(-1, -1)}
        async with Asker(nodes.addresses[1 - nodes.leader(second)]) as other:
            (found,) = await described_producers(other, "u", 0)
            assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        (unknown,) = await described_producers(client, "t", 7)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (bad,) = await described_producers(client, "a b", 0)
        assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        twice = await described_producers(client, "t", 0, 0)
        assert [(each.error_code, each.active_producers) for each in twice] == [
            (ErrorCode.INVALID_REQUEST, [])
        ] * 2

    run(test)


async def described_producers(client: Asker, topic: str, *partitions: int) -> Any:
    wanted = t.DescribeProducersRequestTopicRequest(name=topic, partition_indexes=list(partitions))
    return (await client.ask(t.DescribeProducersRequest(topics=[wanted]), 0)).topics[0].partitions


def test_the_cluster_is_described() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        answer = await client.ask(t.DescribeClusterRequest(), 1)
        assert answer.error_code == ErrorCode.NONE
        assert answer.controller_id == nodes.controller()
        assert sorted(each.broker_id for each in answer.brokers) == [0, 1]
        assert answer.cluster_authorized_operations == -(2**31)

    run(test)


def test_a_broker_tells_of_no_other_endpoints() -> None:
    async def test(_: Nodes, client: Asker) -> None:
        for asked, code in ((2, 114), (9, 115)):  # MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE
            answer = await client.ask(t.DescribeClusterRequest(endpoint_type=asked), 1)
            assert (answer.error_code, answer.endpoint_type) == (code, 1)

    run(test)


def test_access_lists_are_switched_off() -> None:
    async def test(_: Nodes, client: Asker) -> None:
        described = await client.ask(t.DescribeAclsRequest(), 3)
        two = [t.CreateAclsRequestAclCreation(), t.CreateAclsRequestAclCreation()]
        created = await client.ask(t.CreateAclsRequest(creations=two), 2)
        deleted = await client.ask(t.DeleteAclsRequest(filters=[t.DeleteAclsRequestDeleteAclsFilter()]), 1)
        codes = [described.error_code, *(each.error_code for each in created.results)]
        codes += [each.error_code for each in deleted.filter_results]
        assert codes == [ErrorCode.SECURITY_DISABLED] * 4

    run(test, 1)


# --- leaders and replicas -----------------------------------------------------------------------


def test_preferred_replicas_are_elected_on_request() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        controller = nodes.controller()
        other = 1 - controller
        await create(nodes, client, "t", (other, controller))
        topic_partition = TopicPartition("t", 0)

        async def elect(partitions: list[Any] | None, version: int = 2) -> Any:
            request = t.ElectLeadersRequest(topic_partitions=partitions)
            return await client.ask(request, version)

        wanted = [t.ElectLeadersRequestTopicPartitions(topic="t", partitions=[0, 9])]
        first = await elect(wanted)
        codes = [each.error_code for each in first.replica_election_results[0].partition_result]
        assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await elect(None)).replica_election_results == []
        await nodes.stop(other)
        await nodes.until(lambda: nodes.leader(topic_partition) == controller)
        assert (await elect(wanted)).replica_election_results[0].partition_result[0].error_code == (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        )
        await nodes.start(other)
        await nodes.until(lambda: len(nodes.isr(topic_partition)) == 2)
        back = await elect(None, 0)
        assert back.replica_election_results[0].partition_result[0].error_code == ErrorCode.NONE
        await nodes.until(lambda: nodes.leader(topic_partition) == other)
        odd = await client.ask(t.ElectLeadersRequest(election_type=7, topic_partitions=None), 2)
        assert odd.error_code == ErrorCode.INVALID_REQUEST

    run(test)


def test_partitions_are_moved_and_their_moves_listed_and_called_off() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        controller = nodes.controller()
        stays, goes, comes = controller, *(number for number in range(3) if number != controller)
        await create(nodes, client, "t", (stays, goes))

        async def move(replicas: list[int] | None, name: str = "t") -> int:
            partition = t.AlterPartitionReassignmentsRequestReassignablePartition(replicas=replicas)
            topic = t.AlterPartitionReassignmentsRequestReassignableTopic(name=name, partitions=[partition])
            answer = await client.ask(t.AlterPartitionReassignmentsRequest(topics=[topic]), 0)
            assert answer.error_code == ErrorCode.NONE
            code: int = answer.responses[0].partitions[0].error_code
            return code

        assert await move(None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert await move([stays, 9]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await move([stays], "nobody") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # What the newcomer would fetch is lost, so that the move does not end by itself.
        nodes.running[comes].peers.send = lambda *_: None  # type: ignore[method-assign]
        assert await move([stays, comes]) == ErrorCode.NONE
        listing = await client.ask(t.ListPartitionReassignmentsRequest(topics=None), 0)
        (under_way,) = listing.topics[0].partitions
        assert (under_way.adding_replicas, under_way.removing_replicas) == ([comes], [goes])
        topics = [t.ListPartitionReassignmentsRequestListPartitionReassignmentsTopics(name="t")]
        nothing = await client.ask(t.ListPartitionReassignmentsRequest(topics=topics), 0)
        assert nothing.topics == []
        assert await move(None) == ErrorCode.NONE
        listing = await client.ask(t.ListPartitionReassignmentsRequest(topics=None), 0)
        assert listing.topics == []
        del nodes.running[comes].peers.send

    run(test, 3)


def test_log_dirs_tell_what_lies_in_them() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0, 1), (0, 1))
        await produce(nodes, "t", 5)
        everything = await client.ask(t.DescribeLogDirsRequest(topics=None), 4)
        (log_dir,) = everything.results
        assert (log_dir.error_code, log_dir.log_dir) == (ErrorCode.NONE, "data")
        assert 0 < log_dir.usable_bytes <= log_dir.total_bytes
        (topic,) = log_dir.topics
        assert [each.partition_index for each in topic.partitions] == [0, 1]
        assert topic.partitions[0].partition_size > 0
        assert topic.partitions[1].partition_size == 0
        one = t.DescribeLogDirsRequestDescribableLogDirTopic(topic="t", partitions=[1])
        some = await client.ask(t.DescribeLogDirsRequest(topics=[one]), 1)
        assert [each.partition_index for each in some.results[0].topics[0].partitions] == [1]

    run(test)


# --- settings -----------------------------------------------------------------------------------


async def describe(client: Asker, kind: int, name: str, keys: list[str] | None = None) -> Any:
    resource = t.DescribeConfigsRequestDescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    request = t.DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )
    return (await client.ask(request, 4)).results[0]


async def change(
    client: Asker, kind: int, name: str, *changes: tuple[str, int, str | None], **more: bool
) -> Any:
    configs = [
        t.IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = t.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    answer = await client.ask(t.IncrementalAlterConfigsRequest(resources=[resource], **more), 1)
    return answer.responses[0]


@pytest.mark.parametrize("keys", [None, []])
def test_no_keys_ask_for_all_settings(keys: list[str] | None) -> None:
    """As in Kafka, an empty list too."""

    async def test(nodes: Nodes, client: Asker) -> None:
        kind = t.DescribeConfigsRequestDescribeConfigsResource
        resources = [kind(resource_type=BROKER, resource_name="0", configuration_keys=keys)]
        answer = await client.ask(t.DescribeConfigsRequest(resources=resources), 4)
        assert len(answer.results[0].configs) > 100

    run(test)


def test_a_topics_settings_are_described_with_where_they_come_from() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0, 1), retention_ms="5000")
        found = await describe(client, TOPIC, "t")
        settings = {each.name: each for each in found.configs}
        retention, segment = settings["retention.ms"], settings["segment.bytes"]
        assert (retention.value, retention.config_source) == ("5000", 1)
        assert [each.source for each in retention.synonyms] == [1, 5]
        assert (segment.value, segment.config_source) == (str(1 << 30), 5)
        assert segment.documentation
        int_kind, long_kind = 3, 5
        kinds = {settings[name].config_type for name in ("segment.bytes", "max.message.bytes")}
        assert kinds == {int_kind}, "as in Kafka: tools check values by it"
        assert settings["retention.bytes"].config_type == settings["segment.ms"].config_type == long_kind
        assert not any(each.is_sensitive or each.read_only for each in found.configs)
        few = await describe(client, TOPIC, "t", ["segment.ms", "nonsense"])
        assert [each.name for each in few.configs] == ["segment.ms"]
        for kind, name, error in (
            (TOPIC, "nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "no/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (BROKER, "99", ErrorCode.INVALID_REQUEST),
            (32, "x", ErrorCode.INVALID_REQUEST),
        ):
            refused = await describe(client, kind, name)
            assert (refused.error_code, refused.configs) == (error, [])

    run(test)


def test_a_topics_settings_are_described_as_they_are_read() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0, 1), flush_ms=" 7 ", preallocate="TRUE")
        given = (await describe(client, TOPIC, "t", ["flush.ms", "preallocate"])).configs
        assert [each.value for each in given] == ["7", "true"]

    run(test)


def test_a_brokers_settings_are_described_by_itself() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        found = await describe(client, BROKER, str(nodes.controller()))
        settings = {each.name: each for each in found.configs}
        assert settings["broker.id"].value == str(nodes.controller())
        assert settings["log.flush.offset.checkpoint.interval.ms"].read_only
        assert not settings["log.retention.ms"].read_only
        assert settings["socket.request.max.bytes"].value == str(100 << 20)
        assert not settings["unclean.leader.election.enable"].read_only

    run(test, 1)


def test_settings_change_one_by_one_and_take_effect() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0, 1), segment_ms="70000")
        leader = nodes.running[nodes.leader(TopicPartition("t", 0))].node.replicas

        def value(name: str) -> object:
            return getattr(leader.partitions[TopicPartition("t", 0)].log.config, name)

        valid = await change(client, TOPIC, "t", ("retention.ms", 0, "1234"), validate_only=True)
        assert valid.error_code == ErrorCode.NONE
        assert value("retention_ms") != 1234
        done = await change(
            client, TOPIC, "t",
            ("retention.ms", 0, "1234"), ("segment.ms", 1, None), ("cleanup.policy", 2, "compact"),
        )  # fmt: skip
        assert done.error_code == ErrorCode.NONE
        await nodes.until(lambda: value("retention_ms") == 1234)
        assert (value("segment_ms"), value("cleanup_policy")) == (7 * 24 * 3600 * 1000, "delete,compact")
        assert (await change(client, TOPIC, "t", ("cleanup.policy", 3, "delete"))).error_code == 0
        await nodes.until(lambda: value("cleanup_policy") == "compact")
        for changes, error in (
            ([("retention.ms", 0, "soon")], ErrorCode.INVALID_CONFIG),
            ([("no.such.setting", 0, "1")], ErrorCode.INVALID_CONFIG),
            ([("retention.ms", 2, "1")], ErrorCode.INVALID_CONFIG),
            ([("log.cleanup.policy", 2, "compact")], ErrorCode.INVALID_CONFIG),
            ([("log.dirs", 3, "data")], ErrorCode.INVALID_CONFIG),
            ([("retention.ms", 0, None)], ErrorCode.INVALID_REQUEST),
            ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
            ([("retention.ms", 0, "1"), ("retention.ms", 1, None)], ErrorCode.INVALID_REQUEST),
        ):
            refused = await change(client, TOPIC, "t", *changes)
            assert refused.error_code == error, changes
            assert refused.error_message
        assert (await change(client, TOPIC, "nobody", ("retention.ms", 0, "1"))).error_code == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        assert value("retention_ms") == 1234

    run(test)


def test_alter_configs_replaces_all_of_them() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0, 1), retention_ms="5000")

        async def replace(*settings: tuple[str, str | None]) -> ErrorCode:
            resource = t.AlterConfigsRequestAlterConfigsResource(
                resource_type=TOPIC,
                resource_name="t",
                configs=[t.AlterConfigsRequestAlterableConfig(name=name, value=to) for name, to in settings],
            )
            answer = await client.ask(t.AlterConfigsRequest(resources=[resource]), 1)
            return ErrorCode(answer.responses[0].error_code)

        assert await replace(("segment.ms", "60000")) is ErrorCode.NONE
        assert await replace(("segment.ms", None)) is ErrorCode.INVALID_REQUEST, (
            "what is left out has no value"
        )
        found = await describe(client, TOPIC, "t")
        own = {each.name: each.value for each in found.configs if each.config_source == 1}
        assert own == {"segment.ms": "60000"}

    run(test)


def test_clients_set_no_segments_that_use_up_the_brokers_descriptors() -> None:
    """Kafka refuses less than 1 MiB since 4.0. A topic that has less keeps it; other settings change."""

    async def test(nodes: Nodes, client: Asker) -> None:
        small, least = ("segment.bytes", 0, str((1 << 20) - 1)), ("segment.bytes", 0, str(1 << 20))
        refused = await create(nodes, client, "small", (0,), segment_bytes="14")
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert "1048576" in refused.error_message
        await create(nodes, client, "t", (0,))
        assert (await change(client, TOPIC, "t", small)).error_code == ErrorCode.INVALID_CONFIG
        assert (await change(client, TOPIC, "t", least)).error_code == ErrorCode.NONE
        own = layout.encode_topic_config({"segment.bytes": "9000"})
        await nodes.brokers[0].services.ask_store(Set(layout.topic_config_path("t"), own, -1))
        assert (await change(client, TOPIC, "t", ("retention.ms", 0, "7"))).error_code == ErrorCode.NONE
        described = await describe(client, TOPIC, "t", ["segment.bytes"])
        assert [each.value for each in described.configs] == ["9000"]

    run(test, 1)


def test_the_throttles_of_a_topic_are_deleted_though_there_are_none() -> None:
    """The same tool does so on every topic of its plan, with null as the value."""

    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0,))
        throttled = [f"{who}.replication.throttled.replicas" for who in ("leader", "follower")]
        deleted = await change(client, TOPIC, "t", *((name, 1, None) for name in throttled))
        assert deleted.error_code == ErrorCode.NONE

    run(test, 1)


def test_transactions_are_refused_by_what_ends_each_clients_search() -> None:
    """librdkafka asks again for ever after any other error."""

    async def test(nodes: Nodes, client: Asker) -> None:
        for version, error in (
            (2, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),  # the newest of librdkafka
            (3, ErrorCode.INVALID_REQUEST),
        ):
            refused = await client.ask(t.FindCoordinatorRequest(key="x", key_type=1), version)
            assert refused.error_code == error
            assert "not supported" in refused.error_message

    run(test, 1)


def test_the_consumer_protocol_is_refused_with_advice() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        heartbeat = t.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t"], topic_partitions=[]
        )
        refused = await client.ask(heartbeat, 1)
        assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "group.protocol=classic" in refused.error_message

    run(test, 1)


def test_all_brokers_take_unclean_election_while_they_run() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        name = "unclean.leader.election.enable"
        assert (await change(client, BROKER, "", (name, 0, "TRUE"))).error_code == ErrorCode.NONE
        (entry,) = (await describe(client, BROKER, "")).configs
        assert (entry.name, entry.value, entry.config_source) == (name, "true", 3)
        mine = await describe(client, BROKER, str(nodes.controller()), [name])
        assert [each.source for each in mine.configs[0].synonyms] == [3, 5]
        for kind, resource, changes, error in (
            (BROKER, "", (name, 0, "perhaps"), ErrorCode.INVALID_CONFIG),
            (BROKER, "", ("log.dirs", 0, "/x"), ErrorCode.INVALID_REQUEST),
            (BROKER, "0", (name, 0, "true"), ErrorCode.INVALID_REQUEST),
            (8, "", (name, 0, "true"), ErrorCode.INVALID_REQUEST),
        ):
            assert (await change(client, kind, resource, changes)).error_code == error
        assert (await change(client, BROKER, "", (name, 1, None))).error_code == ErrorCode.NONE
        assert (await describe(client, BROKER, "")).configs == []

    run(test, 1)


def test_what_another_broker_has_handed_on_goes_no_further() -> None:
    """Error 41: two that take each other for the controller would hand it on for ever."""

    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "t", (0, 1))
        other = nodes.addresses[1 - nodes.controller()]
        async with Asker(other, "broker-9") as elsewhere:
            deletion = await elsewhere.ask(t.DeleteTopicsRequest(topic_names=["t"], timeout_ms=100), 3)
            assert deletion.responses[0].error_code == ErrorCode.NOT_CONTROLLER
            topic = t.CreatePartitionsRequestCreatePartitionsTopic(name="t", count=3, assignments=None)
            growth = await elsewhere.ask(t.CreatePartitionsRequest(topics=[topic]), 1)
            assert growth.results[0].error_code == ErrorCode.NOT_CONTROLLER
            election = await elsewhere.ask(t.ElectLeadersRequest(topic_partitions=None), 2)
            assert election.error_code == ErrorCode.NOT_CONTROLLER
            listing = await elsewhere.ask(t.ListPartitionReassignmentsRequest(topics=None), 0)
            assert listing.error_code == ErrorCode.NOT_CONTROLLER

    run(test)
