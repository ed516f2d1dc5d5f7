"""Offsets, descriptions and deletion of groups, and SASL, over the wire."""

from __future__ import annotations

import pytest

from logstore.broker.handlers.groups import GROUP_OPERATIONS
from logstore.broker.handlers.metadata import NOT_ASKED
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from tests.broker.asking import Asker
from tests.broker.groups.desk import subscription
from tests.broker.handlers.group_requests import GROUP, commit, committed, join, run, stable
from tests.broker.nodes import Nodes


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

    @pytest.mark.parametrize("version", range(6))
    def test_groups_are_listed_by_state_from_version_4_on_and_by_type_from_5_on(self, version: int) -> None:
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
            for kind in ("Classic", "consumer") if version >= 5 else ():
                answer = await client.ask(t.ListGroupsRequest(types_filter=[kind]), version)
                told = {(each.group_id, each.group_type) for each in answer.groups}
                expected = {(GROUP, "classic"), ("offsets only", "classic")}
                assert told == (expected if kind == "Classic" else set())

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
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])

        run(test, is_ready=False)

    @pytest.mark.parametrize("version", range(3))
    def test_nobody_can_log_in(self, version: int) -> None:
        async def test(_: Nodes, client: Asker) -> None:
            answer = await client.ask(t.SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), version)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert "no SASL" in answer.error_message

        run(test, is_ready=False)
