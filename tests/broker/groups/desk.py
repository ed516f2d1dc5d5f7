"""A coordinator with a log of its own, and members by hand: every test says what happens when."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from logstore.broker.groups.answers import Answer
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.coordinator import Coordinator
from logstore.broker.groups.requests import (
    GroupRequest,
    GroupResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
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
from logstore.broker.groups.served import Append, Effect, partition_for
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, set_offsets_and_epoch

R = TypeVar("R")
GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
START_MS = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    """As a consumer writes it, version 0: topics, no user data."""
    names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


RANGE = (Protocol("range", subscription("t")),)


@dataclass
class Log:
    """The partitions of __consumer_offsets: what is in here is committed."""

    batches: dict[int, bytearray] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def append(self, partition: int, batch: bytes, epoch: int) -> int:
        base_offset = self.ends.get(partition, 0)
        placed = bytearray(batch)
        set_offsets_and_epoch(placed, base_offset=base_offset, leader_epoch=epoch)
        self.batches.setdefault(partition, bytearray()).extend(placed)
        self.ends[partition] = Batch(bytes(placed)).next_offset
        return base_offset


class Desk:
    """One coordinator for all partitions, unless told otherwise. Appends end at once unless they are held."""

    def __init__(self, *, log: Log | None = None, load: bool = True, seed: int = 7, **settings: Any) -> None:
        self.config = GroupConfig(**settings)
        self.log = log if log is not None else Log()
        self.now_ms = START_MS
        self.seed = seed
        self.coordinator = Coordinator(self.config, rng=random.Random(seed), now_ms=self.now_ms)
        self.answers: dict[Hashable, GroupResponse] = {}
        self.holds_appends = False
        self.held: list[Append] = []
        self.append_error = ErrorCode.NONE
        self._tokens = count(1)
        if load:
            for partition in range(self.config.offsets_topic_num_partitions):
                self.load(partition, 0)

    # --- effects ------------------------------------------------------------------------------

    def load(self, partition: int, epoch: int) -> None:
        loader = self.coordinator.begin_load(partition, epoch)
        assert loader is not None
        loader.feed(bytes(self.log.batches.get(partition, b"")))
        self.run(self.coordinator.end_load(partition, epoch, self.now_ms))

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.token not in self.answers, f"{effect.token} is answered twice"
                self.answers[effect.token] = effect.response
            elif self.holds_appends:
                self.held.append(effect)
            else:
                self.end_append(effect, self.append_error)

    def end_append(
        self, append: Append, error: ErrorCode = ErrorCode.NONE, *, reaches_log: bool = False
    ) -> None:
        base_offset = -1
        if error is ErrorCode.NONE or reaches_log:
            base_offset = self.log.append(append.partition, append.batch, append.leader_epoch)
        self.run(self.coordinator.appended(append.token, error, base_offset, self.now_ms))

    def release(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """End all appends that are held."""
        held, self.held = self.held, []
        for append in held:
            self.end_append(append, error)

    def pass_ms(self, duration_ms: int) -> None:
        """Time passes; ticks come exactly when they are due."""
        end_ms = self.now_ms + duration_ms
        while (due_ms := self.coordinator.deadline_ms) <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.run(self.coordinator.tick(self.now_ms))
            assert self.coordinator.deadline_ms > self.now_ms, "whatever is due is done"
        self.now_ms = end_ms

    def successor(self, **settings: Any) -> Desk:
        """Another node that has read the same log."""
        other = Desk(log=self.log, load=False, seed=self.seed + 1, **settings)
        other.now_ms = self.now_ms
        for partition in range(other.config.offsets_topic_num_partitions):
            other.load(partition, 1)
        return other

    # --- asking -------------------------------------------------------------------------------

    def ask(self, request: GroupRequest) -> int:
        """Its token, by which `answers` has the answer as soon as there is one."""
        token = next(self._tokens)
        self.run(self.coordinator.handle(request, token, self.now_ms))
        return token

    def answer(self, request: GroupRequest, kind: type[R]) -> R:
        answer = self.answers[self.ask(request)]
        assert isinstance(answer, kind)
        return answer

    def join(self, **wanted: Any) -> int:
        request: dict[str, Any] = {
            "group_id": GROUP,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "client_id": "c",
            "client_host": "/h",
        }
        return self.ask(JoinGroupRequest(**(request | wanted)))

    def joined(self, token: int) -> JoinGroupResponse:
        answer = self.answers[token]
        assert isinstance(answer, JoinGroupResponse)
        return answer

    def sync(
        self, joined: JoinGroupResponse, assignments: Mapping[str, bytes] | None = None, **more: Any
    ) -> int:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=assignments or {},
            **more,
        )
        return self.ask(request)

    def synced(self, token: int) -> SyncGroupResponse:
        answer = self.answers[token]
        assert isinstance(answer, SyncGroupResponse)
        return answer

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=GROUP, generation_id=generation, member_id=member_id, group_instance_id=instance_id
        )
        return self.answer(request, HeartbeatResponse).error_code

    def leave(self, *members: MemberIdentity) -> LeaveGroupResponse:
        return self.answer(LeaveGroupRequest(group_id=GROUP, members=members), LeaveGroupResponse)

    def commit_later(self, offsets: Mapping[TopicPartition, int], **more: Any) -> int:
        partitions = {
            each: OffsetCommitPartition(committed_offset=offset, committed_metadata="m")
            for each, offset in offsets.items()
        }
        return self.ask(OffsetCommitRequest(**({"group_id": GROUP, "partitions": partitions} | more)))

    def commit(self, offsets: Mapping[TopicPartition, int], **more: Any) -> ErrorCode:
        """The one error that all partitions have."""
        answer = self.answers[self.commit_later(offsets, **more)]
        assert isinstance(answer, OffsetCommitResponse)
        (error,) = set(answer.partitions.values())
        return error

    def fetch(
        self, *partitions: TopicPartition, group_id: str = GROUP, require_stable: bool = False
    ) -> Mapping[TopicPartition, OffsetFetchPartition]:
        asked = OffsetFetchGroup(group_id, partitions or None)
        (found,) = self.answer(OffsetFetchRequest((asked,), require_stable), OffsetFetchResponse).groups
        assert found.error_code is ErrorCode.NONE
        return found.partitions

    # --- whole rounds -------------------------------------------------------------------------

    def stable(self, count: int = 1, **wanted: Any) -> list[JoinGroupResponse]:
        """A group of so many members, stable, each assigned its own number; the leader comes first."""
        tokens = [self.join(**wanted) for _ in range(count)]
        self.pass_ms(2 * DELAY_MS)
        return self.settle(*tokens)

    def settle(self, *tokens: int) -> list[JoinGroupResponse]:
        """All of these have joined: the leader assigns, all sync."""
        members = sorted(map(self.joined, tokens), key=lambda each: each.member_id != each.leader)
        assignments = {each.member_id: b"%d" % number for number, each in enumerate(members)}
        syncs = [self.sync(each, assignments if not number else None) for number, each in enumerate(members)]
        for number, token in enumerate(syncs):
            if self.answers.get(token) is not None:
                assert self.synced(token).error_code is ErrorCode.NONE
                assert self.synced(token).assignment == b"%d" % number
        return members


PARTITION = partition_for(GROUP, 50)
"""Where the group is."""
