"""What the tests of service share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from logstore.broker.groups import service
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.requests import (
    GroupRequest,
    GroupResponse,
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
from logstore.broker.groups.served import OFFSETS_TOPIC, partition_for
from logstore.broker.groups.service import GroupService
from logstore.broker.runtime import Asked
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, set_offsets_and_epoch, walk
from logstore.replication.effects import DamageFound
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
        self.errors: list[Exception] = []
        """Of the next reads."""
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

    def read_checked(self, offset: int, max_bytes: int, *, isolation: object) -> Any:
        """One batch at a time: pieces are as small as they can be."""
        if self.errors:
            raise self.errors.pop()
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
        partitions = dict.fromkeys((T0, T1), object())
        self.metadata = SimpleNamespace(topic_ids=self.topic_ids, partitions=partitions, deleted=())
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
        self.damages: list[DamageFound] = []
        self.commits_at_once = True
        self.stored: dict[str, Outcome] = {}
        self.after_change: Then = lambda: None
        self.after_turn: dict[Then, None] = {}

    def turn(self) -> None:
        """Call what the runtime calls after a turn."""
        self.after_change()
        for serve in tuple(self.after_turn):
            serve()

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

    def deliver(self, event: DamageFound) -> None:
        self.damages.append(event)

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
        self.turn()

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
        for each in topic_partitions:
            self.metadata.partitions.pop(each, None)
        self.metadata.deleted = topic_partitions
        self.turn()

    def _roles_changed(self) -> None:
        self.counters.role_changes += 1
        self.turn()

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
        self.engine.after_change = self.service.after_change
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


def run(test: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    async def bounded() -> None:
        world = World(**settings)
        try:
            async with asyncio.timeout(30):
                await test(world)
        finally:
            world.service.close()

    def read_checked(log: FakeLog, *wanted: Any, **settings: Any) -> Any:
        return log.read_checked(*wanted, **settings)

    with patch.object(service, "read_checked", read_checked), patch.object(service, "_READ_AGAIN_S", 0.0):
        asyncio.run(bounded())
