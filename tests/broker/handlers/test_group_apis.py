"""Groups, offsets, SASL: the rules of docs/reference/protocol-traps.md, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.served import OFFSETS_TOPIC, partition_for
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Get
from tests.broker.asking import Asker
from tests.broker.groups.desk import subscription
from tests.broker.handlers.group_requests import GROUP, beating, join, joining, run, stable, syncing
from tests.broker.nodes import Nodes


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
            is_of_librdkafka = key_type == 1 and version < 3
            refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            error = refusal if is_of_librdkafka else ErrorCode.INVALID_REQUEST
            assert (found.error_code, found.node_id) == (error, -1)
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

    @pytest.mark.parametrize(
        "fields",
        [
            {"protocol_type": "connect"},
            {"protocol_name": "sticky"},
            {"protocol_type": None},
            {"protocol_name": None},
        ],
    )
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
