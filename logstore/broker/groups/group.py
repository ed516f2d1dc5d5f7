"""One consumer group: its members, and the rebalances in which they agree on an assignment. Pure.

          first join           all joined, or timeout          assignment written
    Empty ──────────▶ PreparingRebalance ──────▶ CompletingRebalance ──────▶ Stable
      ▲                  │     ▲  ▲                       │                    │
      └── last one left ─┘     │  └── member joins/leaves ┘                    │
                               └─────────── member joins/leaves ───────────────┘
    Dead: an empty group while its tombstones are being written; clients get a retriable error

A rebalance: each member sends JoinGroup and waits. When all have joined, or the rebalance timeout has passed,
the generation rises by one, the members' protocol is elected, and the leader alone receives the member list.
All members then send SyncGroup and wait for the leader's assignment. Nobody receives it before the log has
it: a generation that a member knows is a generation that the next coordinator knows.

Static members (KIP-345) bring an instance id. A join with a known one takes over the place and the assignment
of the earlier process without a rebalance; the earlier process is fenced.

    group       the state, and what can be read off it
    joining     JoinGroup           syncing    SyncGroup, and the outcome of writes
    rebalance   the join phase      sessions   Heartbeat, LeaveGroup, expiry, unloading

These functions take the time and return decisions: answers to waiting requests, by the token that came with
each, and generations to write, whose outcome comes back through `syncing.persisted`. `sessions.tick` is to be
called once `deadline_ms` has passed. A crash loses everything but the last generation written.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from logstore.broker.groups.answers import Outbox
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.join_phase import JoinPhase
from logstore.broker.groups.members import Member, Members
from logstore.broker.groups.records import GroupMetadata
from logstore.broker.groups.requests import (
    DescribedGroup,
    JoinGroupResponse,
    ListedGroup,
    OffsetCommitRequest,
)
from logstore.disk.errors import ErrorCode

CONSUMER: Final = "consumer"
"""The protocol type whose subscriptions the coordinator can decode."""


class State(Enum):
    """The state of a group, by the names of DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Replacement:
    """A static member that returned to a stable group, until the log has it."""

    member: Member
    generation: int
    leader_id: str | None
    """The leader before the replacement."""
    skips_assignment: bool


class Group:
    """One group. Tokens are opaque and never None; each is answered once."""

    def __init__(self, group_id: str, config: GroupConfig, now_ms: int) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.state_timestamp_ms = now_ms
        """Time at which the group entered this state; -1 if that was never written."""
        self.generation = 0
        self.protocol_type: str | None = None
        """None: no member ever joined, the group only keeps offsets."""
        self.protocol_name: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        """The topics that this generation's consumers read; None if unknown."""
        self.members = Members()
        self.config = config
        self.joining = JoinPhase(0)
        self.sync_deadline_ms = 0
        self._tickets = 0
        self.proposal: tuple[int, dict[str, bytes]] | None = None
        """The leader's assignment while it is being written, with its ticket."""
        self.replacements: dict[int, Replacement] = {}
        self.outbox = Outbox()

    @property
    def leader_id(self) -> str | None:
        return self.members.leader_id

    @property
    def is_vacant(self) -> bool:
        """Whether the group has no members and none is about to join."""
        return self.state is State.EMPTY and not self.members.pending_ids

    @property
    def phase(self) -> tuple[State, int]:
        return self.state, self.generation

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `sessions.tick` must be called; None: never."""
        if self.state is State.DEAD:
            return None
        deadlines = [*self.members.pending_ids.values()]
        deadlines += (each.deadline_ms for each in self.members if each.can_expire)
        if self.state is State.PREPARING_REBALANCE:
            deadlines.append(self.joining.deadline_ms)
        elif any(each.owes_sync for each in self.members):
            deadlines.append(self.sync_deadline_ms)
        return min(deadlines, default=None)

    def learn_topics(self) -> None:
        """Record the topics to which this generation's members subscribe."""
        is_consumer = self.protocol_type == CONSUMER
        self.subscribed_topics = self.members.topics(self.protocol_name) if is_consumer else None

    def become(self, state: State, now_ms: int) -> None:
        """Enter a state."""
        self.state, self.state_timestamp_ms = state, now_ms

    def joined(self, member: Member, *, with_members: bool = False) -> JoinGroupResponse:
        """Return the answer to a member's join; the leader alone receives the member list."""
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            member_id=member.member_id,
            members=self.members.listed(self.protocol_name) if with_members else (),
        )

    def persist(self, assignments: dict[str, bytes]) -> int:
        """Decide to write this generation with these assignments, by member id; return the ticket."""
        self._tickets += 1
        metadata = GroupMetadata(
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.leader_id,
            self.state_timestamp_ms,
            tuple(each.recorded(self.protocol_name, assignments[each.member_id]) for each in self.members),
        )
        self.outbox.persist(self._tickets, metadata)
        return self._tickets

    def remove(self, member: Member, error: ErrorCode) -> None:
        """Remove a member; a request of its that waits is answered with `error`."""
        self.outbox.fail(member, error)
        self.members.remove(member)

    def commit_error(self, request: OffsetCommitRequest, now_ms: int) -> ErrorCode:
        """Return whether these offsets may be committed: by a member of this generation, which is renewed.

        Requests without a generation are accepted while the group is empty.
        """
        if self.state is State.EMPTY and request.generation_id < 0:
            return ErrorCode.NONE
        error = self.error_of(request.member_id, request.group_instance_id, request.generation_id)
        if error is not ErrorCode.NONE:
            return error
        if self.state is State.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self.members[request.member_id].renew(now_ms)
        return ErrorCode.NONE

    def error_of(self, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        """Check in this order: dead group, fenced or unknown member, other generation."""
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.error_of(member_id, group_instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def describe(self) -> DescribedGroup:
        """Return the group as DescribeGroups shows it."""
        name, is_stable = self.protocol_name, self.state is State.STABLE
        return DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=(self.protocol_name or "") if is_stable else "",
            members=tuple(
                each.described(name, is_stable=is_stable, is_awaited=self._awaits(each))
                for each in self.members
            ),
            state_since_ms=self.state_timestamp_ms,
            round_ends_ms=self._round_ends_ms,
        )

    def _awaits(self, member: Member) -> bool:
        """Return whether the round waits for the member: for its JoinGroup, or for its SyncGroup."""
        if self.state is State.PREPARING_REBALANCE:
            return member.join_token is None
        return self.state is State.COMPLETING_REBALANCE and member.owes_sync

    @property
    def _round_ends_ms(self) -> int:
        """The time at which the round goes on without the members that it waits for; -1 in no round."""
        if self.state is State.PREPARING_REBALANCE:
            return self.joining.deadline_ms
        return self.sync_deadline_ms if self.state is State.COMPLETING_REBALANCE else -1

    def listed(self) -> ListedGroup:
        """Return the group as ListGroups shows it."""
        return ListedGroup(self.group_id, self.protocol_type or "", self.state.value)

    def reads(self, topic: str) -> bool:
        """Return whether a member subscribes to `topic`; True if that is unknown."""
        return self.subscribed_topics is None or topic in self.subscribed_topics
