"""Groups, offsets, SASL: the rules of docs/reference/protocol-traps.md, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.served import OFFSETS_TOPIC, partition_for
from logstore.broker.handlers.groups import GROUP_OPERATIONS
from logstore.broker.handlers.metadata import NOT_ASKED
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Get
from tests.broker.asking import Asker
from tests.broker.groups.desk import subscription
from tests.broker.nodes import Nodes

GROUP = "g"
SESSION_MS = 30_000
Test = Callable[[Nodes, Asker], Awaitable[None]]


def run(test: Test, count: int = 1, groups: GroupConfig | None = None, *, is_ready: bool = True) -> None:
    """Nodes, a topic `t` of one partition, and a connection to whoever coordinates the group."""

    async def bounded() -> None:
        async with asyncio.timeout(90), Nodes(count, groups=groups) as nodes:
            topic_partition = await nodes.create_topic("t", tuple(range(count)))
            caches = [each.node.replicas.metadata for each in nodes.running.values()]
            await nodes.until(lambda: all(topic_partition in cache.partitions for cache in caches))
            node_id = await coordinator_of(nodes) if is_ready else 0
            async with Asker(nodes.addresses[node_id]) as client:
                await test(nodes, client)

    asyncio.run(bounded())


async def coordinator_of(nodes: Nodes, group: str = GROUP) -> int:
    """Who serves the group, once somebody does."""
    while True:
        for node_id in list(nodes.running):
            async with Asker(nodes.addresses[node_id]) as client:
                found = await client.ask(t.FindCoordinatorRequest(key=group), 0)
                if found.error_code == ErrorCode.NONE and found.node_id == node_id:
                    answer = await client.ask(t.DescribeGroupsRequest(groups=[group]), 0)
                    if answer.groups[0].error_code == ErrorCode.NONE:
                        return node_id
        await asyncio.sleep(0.01)


def joining(member_id: str = "", instance_id: str | None = None, **fields: Any) -> t.JoinGroupRequest:
    protocols = [t.JoinGroupRequestProtocol(name="range", metadata=subscription("t"))]
    request: dict[str, Any] = {
        "group_id": GROUP,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": "consumer",
        "protocols": protocols,
    }
    return t.JoinGroupRequest(**(request | fields))


def syncing(joined: Any, *, assigns: bool = True, **fields: Any) -> t.SyncGroupRequest:
    assignments = [
        t.SyncGroupRequestAssignment(member_id=each.member_id, assignment=each.member_id.encode())
        for each in joined.members
        if assigns
    ]
    request: dict[str, Any] = {
        "group_id": GROUP,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "assignments": assignments,
    }
    return t.SyncGroupRequest(**(request | fields))


async def join(client: Asker, version: int = 5, **fields: Any) -> Any:
    """The answer once the round has ended; whoever needs an id first gets one."""
    answer = await client.ask(joining(**fields), version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = await client.ask(joining(**(fields | {"member_id": answer.member_id})), version)
    assert answer.error_code == ErrorCode.NONE, answer
    return answer


async def stable(client: Asker, version: int = 5, **fields: Any) -> Any:
    """A group of one member, with its assignment."""
    joined = await join(client, version, **fields)
    synced = await client.ask(syncing(joined), 3)
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, joined.member_id.encode())
    return joined


def beating(joined: Any, **fields: Any) -> t.HeartbeatRequest:
    request = {"group_id": GROUP, "generation_id": joined.generation_id, "member_id": joined.member_id}
    return t.HeartbeatRequest(**(request | fields))


def committing(offset: int = 5, topic: str = "t", partition: int = 0, **fields: Any) -> t.OffsetCommitRequest:
    part = t.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata="m"
    )
    topics = [t.OffsetCommitRequestTopic(name=topic, partitions=[part])]
    return t.OffsetCommitRequest(**({"group_id": GROUP, "topics": topics} | fields))


async def commit(client: Asker, version: int = 5, **fields: Any) -> ErrorCode:
    answer = await client.ask(committing(**fields), version)
    ((partition,),) = (topic.partitions for topic in answer.topics)
    return ErrorCode(partition.error_code)


async def committed(client: Asker, version: int = 5, group: str = GROUP, topic: str = "t") -> Any:
    """What is told of partition 0."""
    if version >= 8:
        wanted = t.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
        groups = [t.OffsetFetchRequestGroup(group_id=group, topics=[wanted])]
        answer = await client.ask(t.OffsetFetchRequest(groups=groups), version)
        (found,) = answer.groups
        assert found.group_id == group
    else:
        old = t.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
        found = await client.ask(t.OffsetFetchRequest(group_id=group, topics=[old]), version)
    assert found.error_code == ErrorCode.NONE
    ((partition,),) = (each.partitions for each in found.topics)
    return partition


class TestFindCoordinator:
    def test_the_topic_is_made_when_somebody_first_asks_who_is_told_15_until_it_has_leaders(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            answer = await client.ask(t.FindCoordinatorRequest(key=GROUP), 0)
            assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)
            while answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                answer = await client.ask(t.FindCoordinatorRequest(key=GROUP), 0)
            assert (answer.error_code, answer.node_id) == (ErrorCode.NONE, 0)
            services = nodes.brokers[0].services
            topic = layout.parse_topic((await services.ask_store(Get(layout.topic_path(OFFSETS_TOPIC)))).data)
            assert list(topic.partitions) == list(range(nodes.groups.offsets_topic_num_partitions))
            found = await services.ask_store(Get(layout.topic_config_path(OFFSETS_TOPIC)))
            assert layout.parse_topic_config(found.data) == {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": "104857600",
            }

        run(test, is_ready=False)

    def test_metadata_of_the_topic_has_it_made_alike(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            request = t.MetadataRequest(topics=[t.MetadataRequestTopic(name=OFFSETS_TOPIC)])
            while not (topic := (await client.ask(request, 4)).topics[0]).partitions:
                pass
            assert len(topic.partitions) == nodes.groups.offsets_topic_num_partitions

        run(test, is_ready=False)

    @pytest.mark.parametrize("version", range(5))
    def test_it_is_the_leader_of_the_partition_that_the_groups_name_says(self, version: int) -> None:
        """All brokers say the same; the others do not serve it (16)."""

        async def test(nodes: Nodes, _: Asker) -> None:
            home = TopicPartition(OFFSETS_TOPIC, partition_for(GROUP, 4))
            leader = nodes.leader(home)
            for node_id in nodes.running:
                async with Asker(nodes.addresses[node_id]) as client:
                    request = t.FindCoordinatorRequest(key=GROUP)
                    if version >= 4:
                        request = t.FindCoordinatorRequest(coordinator_keys=[GROUP])
                    found = await client.ask(request, version)
                    found = found.coordinators[0] if version >= 4 else found
                    assert (found.error_code, found.node_id) == (ErrorCode.NONE, leader)
                    assert (found.host, found.port) == nodes.addresses[leader]
                    beat = await client.ask(t.HeartbeatRequest(group_id=GROUP, member_id="m"), 0)
                    is_home = node_id == leader
                    expected = ErrorCode.UNKNOWN_MEMBER_ID if is_home else ErrorCode.NOT_COORDINATOR
                    assert beat.error_code == expected

        run(test, count=2)

    def test_version_4_asks_about_several_at_once(self) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            answer = await client.ask(t.FindCoordinatorRequest(coordinator_keys=["a", "b", "a"]), 4)
            found = [(each.key, each.error_code, each.node_id) for each in answer.coordinators]
            assert found == [("a", 0, 0), ("b", 0, 0), ("a", 0, 0)]
            assert (await client.ask(t.FindCoordinatorRequest(), 4)).coordinators == []

        run(test)

    def test_too_few_brokers_for_the_replication_factor_is_15_and_no_topic_is_made(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            for _ in range(20):
                answer = await client.ask(t.FindCoordinatorRequest(key=GROUP), 2)
                assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert OFFSETS_TOPIC not in nodes.running[0].node.replicas.metadata.topic_ids

        run(test, groups=GroupConfig(offsets_topic_replication_factor=2), is_ready=False)

    @pytest.mark.parametrize("key_type", [1, 2, -1])
    @pytest.mark.parametrize("version", range(1, 5))
    def test_transactions_and_the_like_have_none_and_clients_are_not_to_ask_again(
        self, version: int, key_type: int
    ) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            keys = {"coordinator_keys": ["x"]} if version >= 4 else {"key": "x"}
            answer = await client.ask(t.FindCoordinatorRequest(key_type=key_type, **keys), version)
            found = answer.coordinators[0] if version >= 4 else answer
            assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)
            if key_type == 1:
                assert "transaction" in found.error_message

        run(test, is_ready=False)

    def test_the_topic_does_not_grow(self) -> None:
        """A group's offsets would not be where it is looked for."""

        async def test(nodes: Nodes, client: Asker) -> None:
            wanted = [
                t.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=9, assignments=None)
                for name in (OFFSETS_TOPIC, "t")
            ]
            answer = await client.ask(t.CreatePartitionsRequest(topics=wanted, timeout_ms=30_000), 3)
            told = {each.name: each.error_code for each in answer.results}
            assert told == {OFFSETS_TOPIC: ErrorCode.INVALID_PARTITIONS, "t": ErrorCode.NONE}

        run(test)


class TestJoinGroup:
    @pytest.mark.parametrize("version", range(10))
    def test_from_version_4_on_a_member_is_given_an_id_first(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            first = await client.ask(joining(), version)
            assert first.member_id.startswith("test-")
            if version < 4:
                assert (first.error_code, first.generation_id) == (ErrorCode.NONE, 1)
                return
            assert (first.error_code, first.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
            again = await client.ask(joining(first.member_id), version)
            assert (again.error_code, again.member_id) == (ErrorCode.NONE, first.member_id)

        run(test)

    @pytest.mark.parametrize("version", range(5, 10))
    def test_a_member_with_an_instance_id_needs_none(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            answer = await client.ask(joining(instance_id="i"), version)
            assert answer.error_code == ErrorCode.NONE
            assert answer.members[0].group_instance_id == "i"

        run(test)

    @pytest.mark.parametrize("version", range(10))
    def test_from_version_7_on_the_type_is_repeated_and_the_name_is_null_in_errors(
        self, version: int
    ) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            refused = await client.ask(joining(session_timeout_ms=1), version)
            assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
            assert refused.protocol_name == (None if version >= 7 else "")
            joined = await join(client, version)
            assert joined.protocol_name == "range"
            assert joined.protocol_type == ("consumer" if version >= 7 else None)

        run(test)

    @pytest.mark.parametrize("version", range(10))
    def test_the_leader_alone_is_told_what_all_members_said(self, version: int) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            first = await stable(client, version)
            async with Asker(nodes.addresses[0]) as other:
                second = asyncio.create_task(join(other, version))
                while (await client.ask(beating(first), 0)).error_code == ErrorCode.NONE:
                    pass
                leader = await join(client, version, member_id=first.member_id)
                member = await second
                assert (leader.leader, member.leader) == (first.member_id, first.member_id)
                told = {each.member_id: each.metadata for each in leader.members}
                assert told == dict.fromkeys([first.member_id, member.member_id], subscription("t"))
                assert (member.members, member.generation_id) == ([], 2)

        run(test)

    def test_a_join_that_waits_holds_up_what_follows_on_its_connection_only(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            member = await stable(client)
            async with Asker(nodes.addresses[0]) as other:
                offered = await other.ask(joining(), 5)
                waiting = other.send(joining(offered.member_id), 5)
                behind = other.send(t.ListGroupsRequest(), 0)
                while (await client.ask(beating(member), 0)).error_code == ErrorCode.NONE:
                    pass  # others are served meanwhile
                group = (await client.ask(t.DescribeGroupsRequest(groups=[GROUP]), 0)).groups[0]
                assert group.group_state == "PreparingRebalance"
                await join(client, member_id=member.member_id)
                joined = await other.answer(t.JoinGroupRequest, 5, waiting)
                assert joined.error_code == ErrorCode.NONE
                await other.answer(t.ListGroupsRequest, 0, behind)

        run(test)

    def test_a_client_that_leaves_while_its_join_waits_disturbs_nobody(self) -> None:
        """The round ends without it when its time is up; nobody is there to be answered."""

        async def test(nodes: Nodes, client: Asker) -> None:
            member = await stable(client, rebalance_timeout_ms=100)
            async with Asker(nodes.addresses[0]) as other:
                offered = await other.ask(joining(rebalance_timeout_ms=100), 5)
                other.send(joining(offered.member_id, rebalance_timeout_ms=100), 5)
                while (await client.ask(beating(member), 0)).error_code == ErrorCode.NONE:
                    pass
            connections = nodes.brokers[0].server.connections
            await nodes.until(lambda: len([each for each in connections if each.is_busy]) == 0)
            joined = await join(client, member_id=member.member_id, rebalance_timeout_ms=100)
            assert joined.generation_id == 2

        run(test)

    def test_a_node_that_stops_sends_those_who_wait_elsewhere(self) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            member = await stable(client)
            async with Asker(nodes.addresses[0]) as other:
                offered = await other.ask(joining(), 5)
                waiting = other.send(joining(offered.member_id), 5)
                while (await client.ask(beating(member), 0)).error_code == ErrorCode.NONE:
                    pass
                await nodes.stop(0)
                told = await other.answer(t.JoinGroupRequest, 5, waiting)
                assert told.error_code == ErrorCode.NOT_COORDINATOR

        run(test)


class TestSyncAndHeartbeat:
    @pytest.mark.parametrize("version", range(6))
    def test_everybody_gets_what_the_leader_assigned(self, version: int) -> None:
        """From version 5 on with the protocol's type and name, which clients compare."""

        async def test(_: Nodes, client: Asker) -> None:
            joined = await join(client)
            synced = await client.ask(syncing(joined), version)
            assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, joined.member_id.encode())
            named = (synced.protocol_type, synced.protocol_name)
            assert named == (("consumer", "range") if version >= 5 else (None, None))

        run(test)

    @pytest.mark.parametrize("fields", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}])
    def test_another_protocol_in_version_5_is_23(self, fields: dict[str, Any]) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            joined = await join(client)
            synced = await client.ask(syncing(joined, **fields), 5)
            assert synced.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

        run(test)

    @pytest.mark.parametrize("version", range(5))
    def test_a_heartbeat_tells_how_the_member_stands(self, version: int) -> None:
        async def test(nodes: Nodes, client: Asker) -> None:
            member = await stable(client)

            async def told(**fields: Any) -> ErrorCode:
                return ErrorCode((await client.ask(beating(member, **fields), version)).error_code)

            assert await told() is ErrorCode.NONE
            assert await told(member_id="x") is ErrorCode.UNKNOWN_MEMBER_ID
            assert await told(generation_id=7) is ErrorCode.ILLEGAL_GENERATION
            async with Asker(nodes.addresses[0]) as other:
                offered = await other.ask(joining(), 5)
                other.send(joining(offered.member_id), 5)
                while (error := await told()) is ErrorCode.NONE:
                    pass
                assert error is ErrorCode.REBALANCE_IN_PROGRESS

        run(test)

    @pytest.mark.parametrize("version", [3, 4])
    def test_who_was_replaced_by_a_later_self_is_fenced(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            earlier = await stable(client, instance_id="i")
            later = await client.ask(joining(instance_id="i"), 5)
            assert later.error_code == ErrorCode.NONE
            fenced = await client.ask(beating(earlier, group_instance_id="i"), version)
            assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID

        run(test)


class TestLeaveGroup:
    @pytest.mark.parametrize("version", range(6))
    def test_who_leaves_and_who_was_never_there(self, version: int) -> None:
        """Below version 3 one member, whose error is the answer's; from then on a list, each with its own."""

        async def test(_: Nodes, client: Asker) -> None:
            member = await stable(client)
            if version < 3:
                for member_id, error in [("x", ErrorCode.UNKNOWN_MEMBER_ID), (member.member_id, 0)]:
                    request = t.LeaveGroupRequest(group_id=GROUP, member_id=member_id)
                    assert (await client.ask(request, version)).error_code == error
            else:
                ids = ["x", member.member_id]
                members = [t.LeaveGroupRequestMemberIdentity(member_id=each) for each in ids]
                answer = await client.ask(t.LeaveGroupRequest(group_id=GROUP, members=members), version)
                assert answer.error_code == ErrorCode.NONE
                told = {each.member_id: each.error_code for each in answer.members}
                assert told == {"x": ErrorCode.UNKNOWN_MEMBER_ID, member.member_id: ErrorCode.NONE}
            group = (await client.ask(t.DescribeGroupsRequest(groups=[GROUP]), 0)).groups[0]
            assert group.group_state == "Empty"

        run(test)

    def test_a_static_member_is_removed_by_its_instance_id_alone(self) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            await stable(client, instance_id="i")
            members = [t.LeaveGroupRequestMemberIdentity(group_instance_id="i")]
            answer = await client.ask(t.LeaveGroupRequest(group_id=GROUP, members=members), 3)
            assert [each.error_code for each in answer.members] == [ErrorCode.NONE]

        run(test)


class TestOffsets:
    @pytest.mark.parametrize("version", range(2, 10))
    def test_what_is_committed_is_told_in_all_versions(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            assert await commit(client, version, offset=version) is ErrorCode.NONE
            for asked in range(1, 10):
                found = await committed(client, asked)
                assert (found.committed_offset, found.metadata, found.error_code) == (version, "m", 0)

        run(test)

    @pytest.mark.parametrize("version", range(1, 10))
    def test_nothing_committed_is_offset_minus_1_and_no_error(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            found = await committed(client, version)
            assert (found.committed_offset, found.metadata, found.error_code) == (-1, "", 0)
            assert found.committed_leader_epoch == -1

        run(test)

    @pytest.mark.parametrize("version", range(2, 10))
    def test_a_partition_that_is_not_known_is_3_and_the_others_are_committed(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            assert await commit(client, version, topic="x") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            part = t.OffsetCommitRequestPartition
            topics = [
                t.OffsetCommitRequestTopic(name="x", partitions=[part(committed_offset=1)]),
                t.OffsetCommitRequestTopic(
                    name="t", partitions=[part(committed_offset=2), part(partition_index=9)]
                ),
            ]
            answer = await client.ask(t.OffsetCommitRequest(group_id=GROUP, topics=topics), version)
            told = [[each.error_code for each in topic.partitions] for topic in answer.topics]
            assert told == [[3], [0, 3]]
            assert (await committed(client)).committed_offset == 2

        run(test)

    def test_generation_minus_1_without_a_member_is_legal_while_the_group_is_empty(self) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            assert await commit(client) is ErrorCode.NONE
            member = await stable(client)
            assert await commit(client) is ErrorCode.UNKNOWN_MEMBER_ID
            of_member = {"member_id": member.member_id, "generation_id_or_member_epoch": 1}
            assert await commit(client, **of_member) is ErrorCode.NONE
            wrong = of_member | {"generation_id_or_member_epoch": 2}
            assert await commit(client, **wrong) is ErrorCode.ILLEGAL_GENERATION

        run(test)

    def test_a_commit_while_assignments_are_made_is_27(self) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            joined = await join(client)
            of_member = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
            assert await commit(client, **of_member) is ErrorCode.REBALANCE_IN_PROGRESS

        run(test)

    @pytest.mark.parametrize("version", range(2, 10))
    def test_null_topics_are_all_that_the_group_has_committed(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            await commit(client)
            if version >= 8:
                groups = [t.OffsetFetchRequestGroup(group_id=GROUP, topics=None)]
                answer = (await client.ask(t.OffsetFetchRequest(groups=groups), version)).groups[0]
            else:
                answer = await client.ask(t.OffsetFetchRequest(group_id=GROUP, topics=None), version)
            assert [each.name for each in answer.topics] == ["t"]
            if version < 8:
                none = await client.ask(t.OffsetFetchRequest(group_id=GROUP, topics=[]), version)
                assert none.topics == []

        run(test)

    @pytest.mark.parametrize("version", [8, 9])
    def test_several_groups_are_asked_about_at_once(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            await commit(client)
            wanted = [t.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
            groups = [t.OffsetFetchRequestGroup(group_id=each, topics=wanted) for each in (GROUP, "other")]
            answer = await client.ask(t.OffsetFetchRequest(groups=groups), version)
            told = [(each.group_id, each.topics[0].partitions[0].committed_offset) for each in answer.groups]
            assert told == [(GROUP, 5), ("other", -1)]
            assert answer.topics == []

        run(test)

    @pytest.mark.parametrize("version", range(1, 10))
    def test_the_groups_error_stands_in_the_partitions_in_version_1_and_alone_later(
        self, version: int
    ) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            wanted = t.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
            request = t.OffsetFetchRequest(group_id=GROUP, topics=[wanted])
            if version >= 8:
                groups = [t.OffsetFetchRequestGroup(group_id=GROUP, topics=None)]
                request = t.OffsetFetchRequest(groups=groups)
            answer = await client.ask(request, version)
            if version == 1:
                assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
                return
            found = answer.groups[0] if version >= 8 else answer
            assert (found.error_code, found.topics) == (ErrorCode.NOT_COORDINATOR, [])

        run(test, is_ready=False)

    def test_offsets_of_a_deleted_topic_are_gone_with_it(self) -> None:
        """A topic of the same name begins at the start, and so does who reads it."""

        async def test(nodes: Nodes, client: Asker) -> None:
            await commit(client)
            answer = await client.ask(t.DeleteTopicsRequest(topic_names=["t"], timeout_ms=30_000), 3)
            assert answer.responses[0].error_code == ErrorCode.NONE
            while (await committed(client)).committed_offset != -1:
                pass

        run(test)

    def test_offsets_are_deleted_one_by_one(self) -> None:
        """Not those of a topic that the group reads (86), nor of an unknown group (69)."""

        async def test(_: Nodes, client: Asker) -> None:
            async def delete(topic: str, group: str = GROUP) -> tuple[int, list[int]]:
                part = t.OffsetDeleteRequestPartition(partition_index=0)
                topics = [t.OffsetDeleteRequestTopic(name=topic, partitions=[part])]
                answer = await client.ask(t.OffsetDeleteRequest(group_id=group, topics=topics), 0)
                return answer.error_code, [
                    each.error_code for topic in answer.topics for each in topic.partitions
                ]

            assert await delete("t", "other") == (ErrorCode.GROUP_ID_NOT_FOUND, [])
            await commit(client)
            assert await delete("x") == (0, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
            member = await stable(client)
            assert await delete("t") == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
            assert (await committed(client)).committed_offset == 5
            await client.ask(t.LeaveGroupRequest(group_id=GROUP, member_id=member.member_id), 0)
            assert await delete("t") == (0, [0])
            assert (await committed(client)).committed_offset == -1

        run(test)


class TestLookingAndDeleting:
    @pytest.mark.parametrize("version", range(6))
    def test_a_group_that_nobody_knows_is_dead_and_no_error(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            request = t.DescribeGroupsRequest(groups=["a", "b"])
            answer = await client.ask(request, version)
            told = [(each.group_id, each.group_state, each.error_code) for each in answer.groups]
            assert told == [("a", "Dead", 0), ("b", "Dead", 0)]

        run(test)

    @pytest.mark.parametrize("version", range(6))
    def test_members_are_told_and_what_one_may_do_if_that_is_asked(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            joined = await stable(client, instance_id="i")
            for is_asked in [False] + [True] * (version >= 3):
                request = t.DescribeGroupsRequest(groups=[GROUP], include_authorized_operations=is_asked)
                (group,) = (await client.ask(request, version)).groups
                named = (group.group_state, group.protocol_type, group.protocol_data)
                assert named == ("Stable", "consumer", "range")
                assert group.authorized_operations == (GROUP_OPERATIONS if is_asked else NOT_ASKED)
                (member,) = group.members
                assert (member.member_id, member.client_id) == (joined.member_id, "test")
                assert member.client_host == "/127.0.0.1"
                assert member.member_metadata == subscription("t")
                assert member.member_assignment == joined.member_id.encode()
                assert member.group_instance_id == ("i" if version >= 4 else None)

        run(test)

    @pytest.mark.parametrize("version", range(5))
    def test_groups_are_listed_by_state_from_version_4_on(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            await stable(client)
            await commit(client, group_id="offsets only")

            async def listed(*states: str) -> dict[str, tuple[str, str]]:
                answer = await client.ask(t.ListGroupsRequest(states_filter=list(states)), version)
                assert answer.error_code == ErrorCode.NONE
                return {each.group_id: (each.protocol_type, each.group_state) for each in answer.groups}

            found = await listed()
            assert found.keys() == {GROUP, "offsets only"}
            assert found[GROUP][0] == "consumer"
            if version >= 4:
                assert found[GROUP][1] == "Stable"
                assert (await listed("stable")).keys() == {GROUP}

        run(test)

    @pytest.mark.parametrize("version", range(3))
    def test_an_unknown_group_is_69_and_one_with_members_68(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            member = await stable(client)
            await commit(client, group_id="offsets only")

            async def delete() -> dict[str, int]:
                request = t.DeleteGroupsRequest(groups_names=["x", GROUP, "offsets only"])
                answer = await client.ask(request, version)
                return {each.group_id: each.error_code for each in answer.results}

            assert await delete() == {"x": 69, GROUP: 68, "offsets only": 0}
            await client.ask(t.LeaveGroupRequest(group_id=GROUP, member_id=member.member_id), 0)
            assert await delete() == {"x": 69, GROUP: 0, "offsets only": 69}

        run(test)


class TestSasl:
    @pytest.mark.parametrize("version", [0, 1])
    def test_there_is_no_mechanism(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            answer = await client.ask(t.SaslHandshakeRequest(mechanism="PLAIN"), version)
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, [])

        run(test, is_ready=False)

    @pytest.mark.parametrize("version", range(3))
    def test_nobody_can_log_in(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            answer = await client.ask(t.SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), version)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert "no SASL mechanism" in answer.error_message

        run(test, is_ready=False)
