"""The coordinator's shell over an engine by hand: elections, appends and reads end when a test says so."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.records import encode_offset_key
from logstore.broker.groups.requests import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupRequest,
    GroupResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchGroup,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
    Protocol,
    SyncGroupRequest,
    SyncGroupResponse,
)
from logstore.broker.groups.served import OFFSETS_TOPIC, Append, Effect, partition_for
from logstore.broker.groups.service import GroupService
from logstore.broker.runtime import Asked
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, encode_batch_of_pairs, set_offsets_and_epoch, walk
from logstore.replication.messages import ProduceRequest, ProduceResponse, ProduceResult
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Get, Operation, Outcome, Stat, StoreError

GROUP = "g"
PARTITIONS = 3
HOME = partition_for(GROUP, PARTITIONS)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Then = Callable[[], None]


class FakeLog:
    """What a partition's log shows of itself; `high_watermark` moves when a test says so."""

    def __init__(self) -> None:
        self.log_start_offset = self.log_end_offset = self.high_watermark = 0
        self.is_offline = False
        self._batches: list[tuple[bytes, int]] = []

    def append(self, data: bytes, *, commit: bool = True) -> int:
        placed = bytearray(data)
        set_offsets_and_epoch(placed, base_offset=self.log_end_offset, leader_epoch=0)
        base_offset, self.log_end_offset = self.log_end_offset, Batch(bytes(placed)).next_offset
        self._batches.append((bytes(placed), self.log_end_offset))
        if commit:
            self.high_watermark = self.log_end_offset
        return base_offset

    def keys(self) -> list[object]:
        return [record.key for data, _ in self._batches for each in walk(data) for record in each.records()]

    def read_bytes(self, offset: int, max_bytes: int, *, isolation: object) -> Any:
        """One batch at a time: pieces are as small as they can be."""
        for data, next_offset in self._batches:
            if next_offset > offset and not self.is_offline:
                assert next_offset <= self.high_watermark, "what is not committed is not read"
                return SimpleNamespace(records=data, next_offset=next_offset)
        return SimpleNamespace(records=b"", next_offset=offset)


class Engine:
    """A `Runtime` as far as the service needs one."""

    def __init__(self) -> None:
        self.logs = [FakeLog() for _ in range(PARTITIONS)]
        self.topic_ids: dict[str, str] = {}
        self.metadata = SimpleNamespace(topic_ids=self.topic_ids, partitions={}, deleted=())
        self.partitions: dict[TopicPartition, Any] = {}
        self.counters = SimpleNamespace(role_changes=0)
        self.node = SimpleNamespace(
            replicas=SimpleNamespace(
                metadata=self.metadata, partitions=self.partitions, counters=self.counters
            )
        )
        self.clock_ms = 1_700_000_000_000
        self.is_in_doubt = False
        self.line: list[Then] = []
        self.reads: list[Then] = []
        self.asked: list[tuple[ProduceRequest, Asked]] = []
        self.commits_at_once = True
        self.stored: dict[str, Outcome] = {}
        self.after_turn: Then = lambda: None

    def now_ms(self) -> int:
        return self.clock_ms

    def in_line(self, act: Then, refused: Callable[[str], None]) -> None:
        if self.is_in_doubt:
            self.line.append(act)
        else:
            act()

    def in_thread(self, work: Then) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def read() -> None:
            try:
                work()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self.reads.append(read)
        return done

    def ask(self, body: ProduceRequest, asked: Asked) -> None:
        self.asked.append((body, asked))
        if self.commits_at_once:
            self.end_append()

    async def ask_store(self, operation: Operation) -> Outcome:
        assert isinstance(operation, Get)
        return self.stored.get(operation.path, Outcome(StoreError.NO_NODE))

    # --- what befalls it ----------------------------------------------------------------------

    def end_append(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """End the oldest append, as it would in its turn."""
        body, asked = self.asked.pop(0)
        if not asked.is_wanted():
            asked.refused("not wanted")
            return
        ((topic_partition, data),) = body.records.items()
        offset = -1
        if not error:
            offset = self.logs[topic_partition.partition].append(bytes(data))
        asked.then(ProduceResponse({topic_partition: ProduceResult(error, offset)}))

    def make_topic(self, topic_id: str = "id-1", partitions: int = PARTITIONS) -> None:
        """It is in the store, and metadata tells of it."""
        node = layout.TopicAssignment(topic_id, {number: (0,) for number in range(partitions)})
        stat = cast(Stat, SimpleNamespace(version=0))
        path = layout.topic_path(OFFSETS_TOPIC)
        self.stored[path] = Outcome(None, data=layout.encode_topic(node), stat=stat)
        self.topic_ids[OFFSETS_TOPIC] = topic_id
        for number in range(partitions):
            self.metadata.partitions[TopicPartition(OFFSETS_TOPIC, number)] = object()
        self.after_turn()

    def lead(self, epoch: int, *numbers: int) -> None:
        for number in numbers or range(PARTITIONS):
            self.partitions[TopicPartition(OFFSETS_TOPIC, number)] = SimpleNamespace(
                is_leader=True, leader_epoch=epoch, log=self.logs[number]
            )
        self._roles_changed()

    def resign(self, number: int = HOME) -> None:
        self.partitions[TopicPartition(OFFSETS_TOPIC, number)].is_leader = False
        self._roles_changed()

    def delete(self, *topic_partitions: TopicPartition) -> None:
        self.metadata.deleted = topic_partitions
        self.after_turn()

    def _roles_changed(self) -> None:
        self.counters.role_changes += 1
        self.after_turn()

    async def read(self, *, all_of_it: bool = True) -> None:
        """Let threads do what they have to; one piece, or all there is."""
        await settle()
        while self.reads:
            self.reads.pop(0)()
            await settle()
            if not all_of_it:
                return


async def settle() -> None:
    """Whatever does not wait for anything is done."""
    for _ in range(10):
        await asyncio.sleep(0)


class World:
    def __init__(self, **settings: Any) -> None:
        self.engine = Engine()
        config = GroupConfig(**{"group_initial_rebalance_delay_ms": 0, **settings})
        runtime = cast(Any, self.engine)
        self.service = GroupService(runtime, config, ask_store=self.engine.ask_store, random=random.Random(1))
        self.engine.after_turn = self.service.after_turn
        self.refused: list[str] = []

    async def serve(self) -> None:
        """All partitions are led, and loaded."""
        self.engine.make_topic()
        self.engine.lead(0)
        await self.engine.read()

    def ask(self, request: GroupRequest) -> list[GroupResponse]:
        """The answers so far: none or one, now or later."""
        answers: list[GroupResponse] = []
        self.service.ask(request, answers.append, self.refused.append)
        return answers

    def commit(self, offset: int, at: TopicPartition = T0) -> list[GroupResponse]:
        values = {at: OffsetCommitPartition(committed_offset=offset)}
        return self.ask(OffsetCommitRequest(group_id=GROUP, partitions=values))

    async def stable(self, session_timeout_ms: int = 6_000) -> JoinGroupResponse:
        """A group of one member, which has its assignment."""
        joining = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=session_timeout_ms,
            protocol_type="consumer",
            protocols=(Protocol("range", b""),),
        )
        answers = self.ask(joining)
        while not answers:
            await asyncio.sleep(0.001)
        (joined,) = answers
        assert isinstance(joined, JoinGroupResponse)
        assert joined.error_code is ErrorCode.NONE
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments={joined.member_id: b""},
        )
        assert isinstance(self.ask(request)[0], SyncGroupResponse)
        return joined

    def committed(self, at: TopicPartition = T0) -> int | ErrorCode:
        """What the group has committed, or why that is not told."""
        (answer,) = self.ask(OffsetFetchRequest((OffsetFetchGroup(GROUP, (at,)),)))
        assert isinstance(answer, OffsetFetchResponse)
        (found,) = answer.groups
        if found.error_code:
            return found.error_code
        partition: OffsetFetchPartition = found.partitions[at]
        return partition.committed_offset


def error_of(answers: list[GroupResponse], at: TopicPartition = T0) -> ErrorCode:
    (answer,) = answers
    assert isinstance(answer, OffsetCommitResponse)
    return answer.partitions[at]


def state_of(world: World) -> str:
    (answer,) = world.ask(DescribeGroupsRequest((GROUP,)))
    assert isinstance(answer, DescribeGroupsResponse)
    return answer.groups[0].group_state


def run(test: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    async def bounded() -> None:
        world = World(**settings)
        try:
            async with asyncio.timeout(30):
                await test(world)
        finally:
            world.service.close()

    asyncio.run(bounded())


class TestElections:
    def test_nothing_is_served_before_the_topic_is_known(self) -> None:
        async def test(world: World) -> None:
            assert world.service.home_of(GROUP) is None
            assert world.committed() is ErrorCode.NOT_COORDINATOR

        run(test)

    def test_a_partition_is_served_once_its_log_is_read(self) -> None:
        async def test(world: World) -> None:
            world.engine.make_topic()
            world.engine.lead(0)
            await settle()
            assert world.service.home_of(GROUP) == TopicPartition(OFFSETS_TOPIC, HOME)
            assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await world.engine.read()
            assert world.committed() == -1

        run(test)

    def test_the_next_leader_knows_what_was_committed(self) -> None:
        """It reads the log in as many pieces as it takes."""

        async def test(world: World) -> None:
            await world.serve()
            for offset in range(5):
                assert error_of(world.commit(offset)) is ErrorCode.NONE
            next_leader = World()
            next_leader.engine.logs = world.engine.logs
            await next_leader.serve()
            assert next_leader.committed() == 4
            next_leader.service.close()

        run(test)

    def test_the_log_is_read_when_its_end_as_of_the_election_is_committed(self) -> None:
        """What was told to somebody can then not be taken back."""

        async def test(world: World) -> None:
            log = world.engine.logs[HOME]
            batch = encode_batch_of_pairs([(encode_offset_key(GROUP, T0), None)], timestamp_ms=1)
            log.append(batch)
            log.append(batch, commit=False)
            world.engine.make_topic()
            world.engine.lead(3, HOME)
            await settle()
            assert not world.engine.reads
            log.high_watermark = log.log_end_offset
            world.engine.after_turn()
            await world.engine.read()
            assert world.committed() == -1

        run(test)

    def test_who_ceases_to_lead_says_so_and_forgets(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.commit(7)
            world.engine.resign()
            assert world.committed() is ErrorCode.NOT_COORDINATOR
            world.engine.lead(2, HOME)
            await world.engine.read()
            assert world.committed() == 7

        run(test)

    def test_a_leader_that_is_taken_back_in_its_epoch_reads_its_log_again(self) -> None:
        """Its session was over, and nobody else was elected."""

        async def test(world: World) -> None:
            await world.serve()
            world.engine.resign()
            world.engine.lead(0, HOME)
            assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await world.engine.read()
            assert world.committed() == -1

        run(test)

    def test_a_leader_that_goes_on_in_a_new_epoch_need_not_read(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.engine.lead(1)
            assert world.committed() == -1
            assert not world.engine.reads

        run(test)

    def test_what_is_read_for_an_earlier_leadership_is_for_nobody(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.commit(1)
            world.engine.resign()
            world.engine.lead(1, HOME)
            world.commit(2)
            assert len(world.engine.reads) == 1
            world.engine.resign()
            world.engine.lead(1, HOME)
            await world.engine.read(all_of_it=False)
            assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await world.engine.read()
            assert world.committed() == 1

        run(test)

    def test_a_log_that_cannot_be_read_leaves_its_groups_unserved_and_the_others_served(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test(world: World) -> None:
            world.engine.logs[HOME].append(encode_batch_of_pairs([(b"\0\2\0\1g", b"\0\7")], timestamp_ms=1))
            await world.serve()
            assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            other = next(each for each in "abcdef" if partition_for(each, PARTITIONS) != HOME)
            (answer,) = world.ask(DescribeGroupsRequest((other,)))
            assert isinstance(answer, DescribeGroupsResponse)
            assert answer.groups[0].error_code is ErrorCode.NONE

        with caplog.at_level(logging.ERROR):
            run(test)
        assert f"cannot load {OFFSETS_TOPIC}-{HOME}" in caplog.text

    def test_a_log_that_failed_does_not_pass_for_a_short_one(self) -> None:
        """After a failed sync a log shows what is on the disk for sure, and that may be less."""

        async def test(world: World) -> None:
            await world.serve()
            world.commit(1)
            world.engine.resign()
            world.engine.lead(1, HOME)
            world.engine.logs[HOME].is_offline = True
            await world.engine.read()
            assert world.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

        run(test)


class TestTheTopic:
    def test_its_partitions_are_counted_in_the_store(self) -> None:
        """Metadata may tell of some of them first: a group would be looked for in the wrong one."""

        async def test(world: World) -> None:
            world.engine.make_topic()
            for number in range(1, PARTITIONS):
                del world.engine.metadata.partitions[TopicPartition(OFFSETS_TOPIC, number)]
            await settle()
            assert world.service.home_of(GROUP) == TopicPartition(OFFSETS_TOPIC, HOME)

        run(test)

    def test_a_store_that_does_not_answer_is_asked_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("logstore.broker.groups.service._STORE_AGAIN_S", 0.0)

        async def test(world: World) -> None:
            world.engine.make_topic()
            path = layout.topic_path(OFFSETS_TOPIC)
            told = world.engine.stored[path]
            world.engine.stored[path] = Outcome(StoreError.CONNECTION_LOSS)
            await settle()
            assert world.service.home_of(GROUP) is None
            world.engine.stored[path] = told
            await settle()
            assert world.service.home_of(GROUP) is not None

        run(test)

    def test_a_topic_that_is_made_anew_begins_with_nothing(self) -> None:
        """Its epochs begin anew, and it may have another number of partitions."""

        async def test(world: World) -> None:
            await world.serve()
            world.engine.lead(5)
            world.commit(7)
            for number in range(PARTITIONS):
                world.engine.resign(number)
            world.engine.metadata.partitions.clear()
            assert world.service.home_of(GROUP) is None, "it is to be made"
            world.engine.logs = [FakeLog() for _ in range(PARTITIONS)]
            world.engine.make_topic("id-2", 1)
            world.engine.lead(0, 0)
            await world.engine.read()
            assert world.service.home_of(GROUP) == TopicPartition(OFFSETS_TOPIC, 0)
            assert world.committed() == -1

        run(test)

    def test_offsets_of_a_topic_that_is_deleted_go(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.commit(7)
            world.commit(8, T1)
            world.engine.delete(T0)
            assert (world.committed(), world.committed(T1)) == (-1, 8)

        run(test)

    def test_a_topic_that_a_thousand_groups_have_read_may_go(self) -> None:
        """Appends that end at once do not pile up on each other."""

        async def test(world: World) -> None:
            await world.serve()
            values = {T0: OffsetCommitPartition(committed_offset=5)}
            for number in range(1000):
                world.ask(OffsetCommitRequest(group_id=f"g{number}", partitions=values))
            assert world.service.coordinator.committed_offsets == 1000
            world.engine.delete(T0)
            assert world.service.coordinator.committed_offsets == 0

        run(test)

    def test_offsets_of_a_topic_that_is_deleted_while_the_log_is_read_go(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.commit(7)
            world.commit(8, T1)
            world.engine.resign()
            world.engine.lead(1, HOME)
            world.engine.delete(T0)
            world.engine.delete(TopicPartition("other", 0))
            await world.engine.read()
            assert (world.committed(), world.committed(T1)) == (-1, 8)

        run(test)


class TestAppends:
    def test_a_commit_is_answered_when_it_is_in_the_log(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.engine.commits_at_once = False
            answers = world.commit(7)
            ((body, _),) = world.engine.asked
            assert (body.acks, body.timeout_ms) == (-1, 5_000)
            assert (answers, world.committed()) == ([], -1)
            world.engine.end_append()
            assert error_of(answers) is ErrorCode.NONE
            assert world.committed() == 7

        run(test)

    def test_an_append_that_fails_counts_for_nothing(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            world.engine.commits_at_once = False
            answers = world.commit(7)
            world.engine.end_append(ErrorCode.NOT_ENOUGH_REPLICAS)
            assert error_of(answers) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert world.committed() == -1

        run(test)

    def test_an_append_that_waits_in_line_is_not_made_in_another_epoch(self) -> None:
        """The log would hold what the groups that were read from it do not know of."""

        async def test(world: World) -> None:
            await world.serve()
            world.engine.commits_at_once = False
            answers = world.commit(7)
            world.engine.resign()
            world.engine.lead(2, HOME)
            assert error_of(answers) is ErrorCode.NOT_COORDINATOR
            world.engine.end_append()
            assert world.engine.logs[HOME].log_end_offset == 0
            await world.engine.read()
            assert world.committed() == -1

        run(test)

    def test_an_append_that_is_refused_is_over(self) -> None:
        """The node stops: whoever waits looks for the next coordinator."""

        async def test(world: World) -> None:
            await world.serve()
            world.engine.commits_at_once = False
            answers = world.commit(7)
            world.engine.asked.pop()[1].refused("this broker stops")
            assert error_of(answers) is ErrorCode.NOT_COORDINATOR

        run(test)

    def test_effects_are_carried_out_in_the_order_in_which_they_were_decided(self) -> None:
        """What comes of the first, at once where nobody else is in sync, does not overtake the second."""

        def append(token: int) -> Append:
            return Append(HOME, 0, encode_batch_of_pairs([(b"%d" % token, None)], timestamp_ms=1), token)

        class Decided:
            deadline_ms = 2**62

            def handle(self, request: object, token: object, now_ms: int) -> list[Effect]:
                return [append(1), append(2)]

            def appended(self, token: int, error: ErrorCode, base_offset: int, now_ms: int) -> list[Effect]:
                return [append(3)] if token == 1 else []

        async def test(world: World) -> None:
            await world.serve()
            world.service.coordinator = cast(Any, Decided())
            world.commit(5)
            assert world.engine.logs[HOME].keys() == [b"1", b"2", b"3"]

        run(test)


class TestTime:
    def test_sessions_end_by_a_timer(self) -> None:
        async def test(world: World) -> None:
            await world.serve()
            joined = await world.stable(session_timeout_ms=5)
            world.engine.clock_ms += 60_000
            while state_of(world) != "Empty":
                await asyncio.sleep(0.001)
            request = HeartbeatRequest(
                group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
            )
            assert world.ask(request) == [HeartbeatResponse(ErrorCode.UNKNOWN_MEMBER_ID)]

        run(test, group_min_session_timeout_ms=1)


class TestDoubt:
    def test_a_node_in_doubt_serves_nobody_and_lets_no_session_end(self) -> None:
        """What is in its memory may be long out of date; the word of the session's end comes first."""

        async def test(world: World) -> None:
            await world.serve()
            world.commit(7)
            world.engine.is_in_doubt = True
            answers = world.ask(OffsetFetchRequest((OffsetFetchGroup(GROUP, (T0,)),)))
            world.service._time_is_up()
            assert (answers, len(world.engine.line)) == ([], 2)
            world.engine.resign()
            world.engine.is_in_doubt = False
            for act in world.engine.line:
                act()
            (answer,) = answers
            assert isinstance(answer, OffsetFetchResponse)
            assert answer.groups[0].error_code is ErrorCode.NOT_COORDINATOR

        run(test)


class TestTheEnd:
    def test_a_bug_costs_its_client_the_connection_and_nobody_else_anything(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test(world: World) -> None:
            await world.serve()
            assert world.ask(cast(Any, object())) == []
            assert world.refused == ["the group coordinator failed"]
            assert world.committed() == -1

        with caplog.at_level(logging.CRITICAL):
            run(test)

    def test_nothing_is_begun_once_it_is_closed(self) -> None:
        async def test(world: World) -> None:
            world.engine.make_topic()
            world.engine.lead(0)
            await settle()
            assert len(world.engine.reads) == 1
            world.service.close()
            await world.engine.read()
            assert not world.engine.reads
            assert world.service._timer is None or world.service._timer.cancelled()

        run(test)
