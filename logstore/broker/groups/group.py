"""One consumer group: who is in it, and the rounds in which its members agree on who reads what. Pure.

          first join             all joined, or time is up      assignment written
    Empty ──────────▶ PreparingRebalance ──────▶ CompletingRebalance ──────▶ Stable
      ▲                  │     ▲  ▲                       │                    │
      └─ nobody is left ─┘     │  └ members come, or go ──┘                    │
                               └─────────── members come, or go ───────────────┘
    Dead: an empty group while its tombstones are being written, and whoever asks is to ask again

A round: every member joins and waits; when all have, or the rebalance timeout has passed, the generation
rises by one, a protocol that all know is voted for, and the leader alone is told what all members said.
Everybody then asks for its assignment (sync) and waits for the leader's, which is answered to nobody before
the log has it: a generation that somebody was given is a generation that the next coordinator knows.

Static members (KIP-345) have an instance id of their own. Who joins with a known one takes the place and
the assignment of its earlier self, without a round, and the earlier self is fenced from then on.

Methods take the time and return decisions: answers to those who wait, by the token that came with the
request, and generations to be written, whose outcome comes back through `persisted`. `tick` is called once
`deadline_ms` has passed. A crash of the coordinator forgets all of this but the last generation written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from logstore.broker.errors import CorruptGroupRecord
from logstore.broker.groups.config import GroupConfig
from logstore.broker.groups.records import GroupMetadata, MemberMetadata, decode_topics
from logstore.broker.groups.requests import (
    NO_MEMBER_ID,
    DescribedGroup,
    DescribedGroupMember,
    GroupResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    MemberIdentity,
    MemberResponse,
    OffsetCommitRequest,
    Protocol,
    SyncGroupRequest,
    SyncGroupResponse,
)
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark

CONSUMER: Final = "consumer"
"""The protocol type whose subscriptions can be read here."""

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a new member may wait for its first generation: it cannot send heartbeats meanwhile."""

SHORTEST_WAIT_MS: Final = 1_000
"""Between two looks at a round that nobody has joined: members may ask for a rebalance timeout of 0."""


class State(Enum):
    """By the names that DescribeGroups and ListGroups have for them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Answer:
    """What to answer to the request that came with `token`."""

    token: Hashable
    response: GroupResponse


@dataclass(frozen=True, slots=True)
class Persist:
    """Write this generation to the log, then say how it went: `persisted(ticket, …)`."""

    ticket: int
    metadata: GroupMetadata


Decision: TypeAlias = Answer | Persist


@dataclass(slots=True)
class _Member:
    """`join_token` and `sync_token` are those of its requests that wait, None if none does."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    deadline_ms: int
    assignment: bytes = b""
    join_token: Hashable | None = None
    sync_token: Hashable | None = None
    is_new: bool = False
    """It has not been in a generation yet."""
    owes_sync: bool = False
    """It was told of the generation and has not asked for its assignment."""
    is_unheard: bool = False
    """It is known from the log alone, and has said nothing to this coordinator."""

    @property
    def can_expire(self) -> bool:
        """Who waits for us is alive; only of a new member nothing else would ever be heard."""
        return self.is_new or (self.join_token is None and self.sync_token is None)

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol_name), b"")


@dataclass(frozen=True, slots=True)
class _Replacement:
    """A static member that came back to a stable group, until that is written."""

    member: _Member
    generation: int
    leader_id: str | None
    """Who led before."""
    skips_assignment: bool


class Group:
    """One group. Tokens are never looked into and never None; every one is answered once."""

    def __init__(self, group_id: str, config: GroupConfig, now_ms: int) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.state_timestamp_ms = now_ms
        """Since when it is in this state; -1 if that was never written down."""
        self.generation = 0
        self.protocol_type: str | None = None
        """None: nobody has ever joined, the group only keeps offsets."""
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        """What this generation's consumers read; None if that cannot be told."""
        self._config = config
        self._members: dict[str, _Member] = {}
        self._static_ids: dict[str, str] = {}
        self._pending_ids: dict[str, int] = {}
        """Ids that were given out and not used yet, and when each is forgotten."""
        self._join_deadline_ms = 0
        self._initial_left_ms: int | None = None
        """How much longer a first round may be put off while members come; None in every other round."""
        self._initial_delay_ms = 0
        self._new_member_added = False
        self._sync_deadline_ms = 0
        self._tickets = 0
        self._proposal: tuple[int, dict[str, bytes]] | None = None
        """The leader's assignment while it is being written, with its ticket."""
        self._replacements: dict[int, _Replacement] = {}
        self._decisions: list[Decision] = []

    @classmethod
    def loaded(cls, group_id: str, metadata: GroupMetadata, config: GroupConfig, now_ms: int) -> Group:
        """The group as the log has it; each member has a whole session from now on."""
        group = cls(group_id, config, now_ms)
        group.generation = metadata.generation
        group.protocol_type = metadata.protocol_type or None
        group.protocol_name = metadata.protocol
        group.leader_id = metadata.leader
        for each in metadata.members:
            group._members[each.member_id] = _Member(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                each.session_timeout_ms,
                (Protocol(metadata.protocol or "", each.subscription),),
                now_ms + each.session_timeout_ms,
                each.assignment,
                is_unheard=True,
            )
            if each.group_instance_id is not None:
                group._static_ids[each.group_instance_id] = each.member_id
        group.state = State.STABLE if group._members else State.EMPTY
        group.state_timestamp_ms = metadata.state_timestamp_ms
        group.subscribed_topics = group._topics()
        if len(group._members) > config.group_max_size:
            mark("groups: a loaded group is larger than it may be")
            group._prepare_rebalance(now_ms)
        return group

    @property
    def size(self) -> int:
        return len(self._members)

    @property
    def is_vacant(self) -> bool:
        """Nobody is in it or about to be."""
        return self.state is State.EMPTY and not self._pending_ids

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has something to do; None: never."""
        return min(self._deadlines(), default=None)

    def _deadlines(self) -> Iterator[int]:
        if self.state is State.DEAD:
            return
        yield from self._pending_ids.values()
        owes_sync = False
        for member in self._members.values():
            owes_sync |= member.owes_sync
            if member.can_expire:
                yield member.deadline_ms
        if self.state is State.PREPARING_REBALANCE:
            yield self._join_deadline_ms
        elif owes_sync:
            yield self._sync_deadline_ms

    # --- joining ------------------------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, token: Hashable, now_ms: int, *, id_suffix: str
    ) -> list[Decision]:
        """Let a member in, or in again; `id_suffix` makes a new member's id unique.

        The answer comes when the round ends: 79 with an id to join with, 81 the group is full, 82 and 25 as
        for all requests, 23 no protocol that all others know, 15 ask again.
        """
        if self.state is State.DEAD:
            mark("groups: somebody joins a group that is being deleted")
            self._refuse_join(request, token, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._has_room_for(request):
            mark("groups: a member finds the group full")
            self._forget(request.member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._decide(token, JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif not self._supports(request):
            self._refuse_join(request, token, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id == NO_MEMBER_ID:
            self._join_new(request, token, now_ms, id_suffix)
        elif request.member_id in self._pending_ids:
            self._join_pending(request, token, now_ms)
        else:
            self._join_known(request, token, now_ms)
        self._finish_joining(now_ms)
        return self._taken()

    def _join_new(self, request: JoinGroupRequest, token: Hashable, now_ms: int, id_suffix: str) -> None:
        instance_id = request.group_instance_id
        member_id = f"{request.client_id if instance_id is None else instance_id}-{id_suffix}"
        if instance_id in self._static_ids:
            assert instance_id is not None
            self._replace_static(self._static_ids[instance_id], member_id, request, token, now_ms)
        elif instance_id is None and request.require_known_member_id:
            self._pending_ids[member_id] = now_ms + request.session_timeout_ms
            error = ErrorCode.MEMBER_ID_REQUIRED
            self._decide(token, JoinGroupResponse(error_code=error, member_id=member_id))
        else:
            self._add(member_id, request, token, now_ms)

    def _join_pending(self, request: JoinGroupRequest, token: Hashable, now_ms: int) -> None:
        if request.group_instance_id is not None:
            # Such ids are given to dynamic members only.
            self._refuse_join(request, token, ErrorCode.UNKNOWN_MEMBER_ID)
            return
        del self._pending_ids[request.member_id]
        self._add(request.member_id, request, token, now_ms)

    def _join_known(self, request: JoinGroupRequest, token: Hashable, now_ms: int) -> None:
        error = self._member_error(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            self._refuse_join(request, token, error)
            return
        member = self._members[request.member_id]
        is_leader = member.member_id == self.leader_id
        match self.state:
            case State.PREPARING_REBALANCE:
                self._update(member, request, token)
            case State.COMPLETING_REBALANCE if member.protocols == request.protocols:
                mark("groups: a member joins again, its answer was lost")
                self._decide(token, self._joined(member, self._listed() if is_leader else ()))
            case State.STABLE if member.protocols == request.protocols and not is_leader:
                self._decide(token, self._joined(member))
            case _:
                # Other subscriptions; or the leader, which saw that topics have changed.
                self._update(member, request, token)
                self._prepare_rebalance(now_ms)

    def _add(self, member_id: str, request: JoinGroupRequest, token: Hashable, now_ms: int) -> None:
        if not self._members:
            self.protocol_type = request.protocol_type
        if self.state is State.PREPARING_REBALANCE and self.generation == 0:
            self._new_member_added = True
        self._members[member_id] = _Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            _rebalance_timeout_ms(request),
            request.session_timeout_ms,
            request.protocols,
            now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
            join_token=token,
            is_new=True,
        )
        if request.group_instance_id is not None:
            self._static_ids[request.group_instance_id] = member_id
        if self.leader_id is None:
            self.leader_id = member_id
        self._prepare_rebalance(now_ms)

    def _update(self, member: _Member, request: JoinGroupRequest, token: Hashable) -> None:
        member.protocols = request.protocols
        member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
        member.session_timeout_ms = request.session_timeout_ms
        if member.join_token is not None:
            # Its client has given that one up; its connection may still wait for an answer.
            mark("groups: a join is overtaken by the next one of its member")
            self._answer_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.join_token = token

    def _replace_static(
        self, earlier_id: str, member_id: str, request: JoinGroupRequest, token: Hashable, now_ms: int
    ) -> None:
        earlier, leader_id = self._members[earlier_id], self.leader_id
        self._dismiss(earlier, ErrorCode.FENCED_INSTANCE_ID)
        member = replace(
            earlier,
            member_id=member_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            deadline_ms=now_ms
            + (NEW_MEMBER_JOIN_TIMEOUT_MS if earlier.is_new else request.session_timeout_ms),
            join_token=token,
            is_unheard=False,
        )
        self._put_in_place_of(earlier_id, member)
        if self.state is State.STABLE and self._voted_protocol() == self.protocol_name:
            mark("groups: a static member comes back to a stable group")
            ticket = self._persist({each.member_id: each.assignment for each in self._members.values()})
            skips = request.support_skipping_assignment
            self._replacements[ticket] = _Replacement(member, self.generation, leader_id, skips)
        elif self.state is not State.PREPARING_REBALANCE:
            # The leader may be assigning to the earlier id at this moment.
            mark("groups: a static member comes back while assignments are made, or votes otherwise")
            self._prepare_rebalance(now_ms)

    def _put_in_place_of(self, member_id: str, member: _Member) -> None:
        """The same place in the order too: it decides ties and who leads next."""
        self._members = {
            (member.member_id if each == member_id else each): (member if each == member_id else known)
            for each, known in self._members.items()
        }
        assert member.group_instance_id is not None
        self._static_ids[member.group_instance_id] = member.member_id
        if self.leader_id == member_id:
            self.leader_id = member.member_id

    def _has_room_for(self, request: JoinGroupRequest) -> bool:
        """Whoever is known has a place; while a round is being joined, places go to who joined it first."""
        most = self._config.group_max_size
        member_id = request.member_id
        if member_id == NO_MEMBER_ID and request.group_instance_id is not None:
            member_id = self._static_ids.get(request.group_instance_id, NO_MEMBER_ID)
        member = self._members.get(member_id)
        match self.state:
            case State.PREPARING_REBALANCE:
                joined = sum(each.join_token is not None for each in self._members.values())
                return joined < most or (member is not None and member.join_token is not None)
            case State.COMPLETING_REBALANCE | State.STABLE:
                return member is not None or len(self._members) < most
        return True

    def _supports(self, request: JoinGroupRequest) -> bool:
        """Whether there is a protocol that all members know, and this one."""
        if self.state is State.EMPTY:
            return bool(request.protocol_type and request.protocols)
        if request.protocol_type != self.protocol_type:
            return False
        common = self._common_protocols()
        return any(common is None or each.name in common for each in request.protocols)

    def _common_protocols(self) -> set[str] | None:
        """What all members know; None if there are none."""
        common: set[str] | None = None
        for member in self._members.values():
            names = {each.name for each in member.protocols}
            common = names if common is None else common & names
        return common

    def _voted_protocol(self) -> str:
        """Each member votes for the first of its own that all know; a tie goes to the one named first."""
        common = self._common_protocols()
        assert common, f"group {self.group_id}: members without a protocol in common"
        votes = Counter(
            next(each.name for each in member.protocols if each.name in common)
            for member in self._members.values()
        )
        return max(votes, key=votes.__getitem__)

    # --- rounds -------------------------------------------------------------------------------

    def _prepare_rebalance(self, now_ms: int) -> None:
        """Begin a round, unless one is being joined already."""
        if self.state is State.PREPARING_REBALANCE:
            return
        if self.state is State.COMPLETING_REBALANCE:
            self._end_syncing(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        for member in self._members.values():
            member.owes_sync = False
        timeout_ms = self._longest_rebalance_ms()
        self._initial_left_ms = None
        if self.state is State.EMPTY:
            # More members are likely to follow the first: one round for all of them.
            timeout_ms, longest_ms = self._config.group_initial_rebalance_delay_ms, timeout_ms
            self._initial_delay_ms = timeout_ms
            self._initial_left_ms = max(longest_ms - timeout_ms, 0)
        self._join_deadline_ms = now_ms + timeout_ms
        self._new_member_added = False
        self._become(State.PREPARING_REBALANCE, now_ms)

    def _finish_joining(self, now_ms: int) -> None:
        """End the round of joining if all are there, or its time is up."""
        if self.state is not State.PREPARING_REBALANCE:
            return
        is_over = now_ms >= self._join_deadline_ms
        if self._initial_left_ms is None:
            if not is_over and (
                self._pending_ids or any(each.join_token is None for each in self._members.values())
            ):
                return
        elif not is_over:
            return
        elif self._new_member_added and self._initial_left_ms:
            mark("groups: a first round waits for still more members")
            self._new_member_added = False
            delay_ms = min(self._config.group_initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms = max(self._initial_left_ms - self._initial_delay_ms, 0)
            self._initial_delay_ms = delay_ms
            self._join_deadline_ms = now_ms + delay_ms
            return
        self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        for member in list(self._members.values()):
            if member.join_token is None and member.group_instance_id is None:
                mark("groups: a member did not join in time")
                self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if self._members and not self._elect_leader():
            # Static members only, none of which has come back yet: until their sessions end.
            mark("groups: nobody joined in time, and static members keep their places")
            self._initial_left_ms = None
            self._join_deadline_ms = now_ms + max(self._longest_rebalance_ms(), SHORTEST_WAIT_MS)
            return
        self.generation += 1
        if not self._members:
            self.protocol_name = self.leader_id = None
            self.subscribed_topics = self._topics()
            self._become(State.EMPTY, now_ms)
            self._persist({})
            return
        self.protocol_name = self._voted_protocol()
        self.subscribed_topics = self._topics()
        self._become(State.COMPLETING_REBALANCE, now_ms)
        self._sync_deadline_ms = now_ms + self._longest_rebalance_ms()
        for member in self._members.values():
            if member.join_token is not None:
                listed = self._listed() if member.member_id == self.leader_id else ()
                self._decide(member.join_token, self._joined(member, listed))
                member.join_token = None
            member.deadline_ms = now_ms + member.session_timeout_ms
            member.is_new, member.owes_sync = False, True

    def _elect_leader(self) -> bool:
        """Keep a leader who has joined, else take the first who has; False if nobody has."""
        assert self.leader_id is not None, f"group {self.group_id}: members without a leader"
        if self._members[self.leader_id].join_token is None:
            joined = next((each for each in self._members.values() if each.join_token is not None), None)
            if joined is None:
                return False
            mark("groups: the leader did not join in time")
            self.leader_id = joined.member_id
        return True

    def _longest_rebalance_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self._members.values()), default=0)

    def _become(self, state: State, now_ms: int) -> None:
        self.state, self.state_timestamp_ms = state, now_ms

    # --- syncing ------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, token: Hashable, now_ms: int) -> list[Decision]:
        """Give a member its assignment, when there is one; the leader brings everybody's along."""
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            self._decide(token, SyncGroupResponse(error_code=error))
            return self._taken()
        member = self._members[request.member_id]
        member.owes_sync = False
        if self.state is State.STABLE:
            member.deadline_ms = now_ms + member.session_timeout_ms
            self._decide(token, self._synced(member))
            return self._taken()
        if member.sync_token is not None:
            mark("groups: a sync is overtaken by the next one of its member")
            self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_token = token
        if member.member_id == self.leader_id:
            self._propose(request)
        return self._taken()

    def _sync_error(self, request: SyncGroupRequest) -> ErrorCode:
        error = self._error_of(request.member_id, request.group_instance_id, request.generation_id)
        if error is not ErrorCode.NONE:
            return error
        if request.protocol_type not in (None, self.protocol_type) or request.protocol_name not in (
            None,
            self.protocol_name,
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is State.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _propose(self, request: SyncGroupRequest) -> None:
        if self._proposal is not None:
            # The first one is on its way to the log; a generation has one assignment.
            mark("groups: the leader assigns again while its assignment is written")
            return
        assignments = {each: request.assignments.get(each, b"") for each in self._members}
        self._proposal = (self._persist(assignments), assignments)

    def _end_syncing(self, error: ErrorCode, now_ms: int) -> None:
        """Send all who wait for this generation's assignment away."""
        self._proposal = None
        for member in self._members.values():
            member.assignment = b""
            if member.sync_token is not None:
                self._answer_sync(member, error)
                member.deadline_ms = now_ms + member.session_timeout_ms

    # --- what was written ---------------------------------------------------------------------

    def _persist(self, assignments: dict[str, bytes]) -> int:
        self._tickets += 1
        members = tuple(
            MemberMetadata(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                each.session_timeout_ms,
                each.metadata(self.protocol_name),
                assignments[each.member_id],
            )
            for each in self._members.values()
        )
        metadata = GroupMetadata(
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.leader_id,
            self.state_timestamp_ms,
            members,
        )
        self._decisions.append(Persist(self._tickets, metadata))
        return self._tickets

    def persisted(self, ticket: int, error: ErrorCode, now_ms: int) -> list[Decision]:
        """How a `Persist` ended; `error` is what waiting members are told, NONE if the log has it.

        Of an empty generation nobody is told: if it was lost, the one before it comes back and expires.
        """
        if self._proposal is not None and self._proposal[0] == ticket:
            self._assigned(self._proposal[1], error, now_ms)
        elif replacement := self._replacements.pop(ticket, None):
            self._replaced(replacement, error, now_ms)
        self._finish_joining(now_ms)
        return self._taken()

    def _assigned(self, assignments: dict[str, bytes], error: ErrorCode, now_ms: int) -> None:
        assert self.state is State.COMPLETING_REBALANCE, self.state
        if error is not ErrorCode.NONE:
            mark("groups: an assignment could not be written")
            self._end_syncing(error, now_ms)
            self._prepare_rebalance(now_ms)
            return
        self._proposal = None
        self._become(State.STABLE, now_ms)
        for member in self._members.values():
            member.assignment = assignments[member.member_id]
            if member.sync_token is not None:
                self._decide(member.sync_token, self._synced(member))
                member.sync_token = None
                member.deadline_ms = now_ms + member.session_timeout_ms

    def _replaced(self, replacement: _Replacement, error: ErrorCode, now_ms: int) -> None:
        member = replacement.member
        if (
            self._members.get(member.member_id) is not member
            or member.join_token is None
            or self.state is not State.STABLE
            or self.generation != replacement.generation
        ):
            # It was replaced again or has left; or a round began, whose end it waits for.
            mark("groups: a static member's return is overtaken while it is written")
            return
        member.deadline_ms = now_ms + member.session_timeout_ms
        if error is not ErrorCode.NONE:
            # It keeps the place all the same, until its process asks again: the log may have it nevertheless,
            # and to serve the earlier self once more would be to serve one that the next coordinator fences.
            mark("groups: a static member's return could not be written")
            self._decide(member.join_token, JoinGroupResponse(error_code=error))
            member.join_token = None
            return
        if replacement.skips_assignment:
            is_leader = member.member_id == self.leader_id
            response = self._joined(member, self._listed() if is_leader else ())
            response = replace(response, skip_assignment=is_leader)
        else:
            # Older clients that read that they lead would assign, and a stable group would not listen.
            response = replace(self._joined(member), leader=replacement.leader_id or "")
        self._decide(member.join_token, response)
        member.join_token = None

    # --- staying, leaving, being forgotten ----------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest, token: Hashable, now_ms: int) -> list[Decision]:
        """Somebody is alive; 27 tells it to join the round that has begun."""
        error = self._error_of(request.member_id, request.group_instance_id, request.generation_id)
        if error is ErrorCode.NONE:
            self._renew(request.member_id, now_ms)
            if self.state is State.PREPARING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        self._decide(token, HeartbeatResponse(error))
        return self._taken()

    def leave(self, request: LeaveGroupRequest, token: Hashable, now_ms: int) -> list[Decision]:
        """Members go, each by its id, or by its instance id alone; the others begin a round."""
        if self.state is State.DEAD:
            self._decide(token, LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return self._taken()
        members = tuple(
            MemberResponse(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=self._leave(each, now_ms),
            )
            for each in request.members
        )
        self._decide(token, LeaveGroupResponse(members=members))
        self._finish_joining(now_ms)
        return self._taken()

    def _leave(self, who: MemberIdentity, now_ms: int) -> ErrorCode:
        member_id = who.member_id
        if member_id in self._pending_ids:
            mark("groups: somebody leaves who never joined")
            del self._pending_ids[member_id]
            return ErrorCode.NONE
        if member_id == NO_MEMBER_ID and who.group_instance_id is not None:
            member_id = self._static_ids.get(who.group_instance_id, NO_MEMBER_ID)
        error = self._member_error(member_id, who.group_instance_id)
        if error is ErrorCode.NONE:
            self._lose(self._members[member_id], now_ms)
        return error

    def tick(self, now_ms: int) -> list[Decision]:
        """Do what is due: forget who was silent for a session, end rounds whose time is up."""
        if self.state is State.DEAD:
            return []
        for member_id in [each for each, deadline_ms in self._pending_ids.items() if deadline_ms <= now_ms]:
            mark("groups: an id that was given out is not used in time")
            del self._pending_ids[member_id]
        for member in list(self._members.values()):
            if member.can_expire and member.deadline_ms <= now_ms:
                self._lose(member, now_ms)
        late = [each for each in self._members.values() if each.owes_sync]
        if late and now_ms >= self._sync_deadline_ms:
            mark("groups: a member does not ask for its assignment in time")
            for member in late:
                self._lose(member, now_ms)
        self._finish_joining(now_ms)
        return self._taken()

    def unload(self) -> list[Decision]:
        """Another node is the coordinator now: whoever waits is to look for it."""
        for member in self._members.values():
            self._dismiss(member, ErrorCode.NOT_COORDINATOR)
        return self._taken()

    def start_deletion(self) -> None:
        """Its tombstones are being written: nobody gets in until that has ended."""
        assert self.state is State.EMPTY, self.state
        self.state = State.DEAD

    def cancel_deletion(self) -> None:
        """They could not be written: it is as empty as before, and since then."""
        assert self.state is State.DEAD, self.state
        self.state = State.EMPTY

    def _lose(self, member: _Member, now_ms: int) -> None:
        self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._prepare_rebalance(now_ms)

    def _forget(self, member_id: str, error: ErrorCode) -> None:
        self._pending_ids.pop(member_id, None)
        if member := self._members.get(member_id):
            self._remove(member, error)

    def _remove(self, member: _Member, error: ErrorCode) -> None:
        """`error` is what it is told if it waits for something."""
        self._dismiss(member, error)
        del self._members[member.member_id]
        if member.group_instance_id is not None:
            del self._static_ids[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._members), None)

    def _renew(self, member_id: str, now_ms: int) -> None:
        member = self._members[member_id]
        member.deadline_ms = now_ms + member.session_timeout_ms

    # --- checks -------------------------------------------------------------------------------

    def commit_error(self, request: OffsetCommitRequest, now_ms: int) -> ErrorCode:
        """Whether these offsets may be committed: by a member of this generation, which is alive then.

        Without generation by anybody, as long as the group is empty.
        """
        if self.state is State.EMPTY and request.generation_id < 0:
            return ErrorCode.NONE
        error = self._error_of(request.member_id, request.group_instance_id, request.generation_id)
        if error is not ErrorCode.NONE:
            return error
        if self.state is State.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._renew(request.member_id, now_ms)
        return ErrorCode.NONE

    def _error_of(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Dead, fenced, unknown or of another generation, in this order."""
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._member_error(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            current_id = self._static_ids.get(instance_id)
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                if self._members[current_id].is_unheard:
                    # Perhaps a later self, whose round the coordinator before us did not bring to its end:
                    # that one is not to give up, as fenced ones do, but to join again.
                    mark("groups: an unknown self of a static member asks a new coordinator")
                    return ErrorCode.UNKNOWN_MEMBER_ID
                mark("groups: an earlier self of a static member is fenced")
                return ErrorCode.FENCED_INSTANCE_ID
        member = self._members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member.is_unheard = False
        return ErrorCode.NONE

    # --- answers ------------------------------------------------------------------------------

    def _decide(self, token: Hashable, response: GroupResponse) -> None:
        self._decisions.append(Answer(token, response))

    def _taken(self) -> list[Decision]:
        taken, self._decisions = self._decisions, []
        return taken

    def _refuse_join(self, request: JoinGroupRequest, token: Hashable, error: ErrorCode) -> None:
        self._decide(token, JoinGroupResponse(error_code=error, member_id=request.member_id))

    def _answer_join(self, member: _Member, error: ErrorCode) -> None:
        """Tell a member that waits that it waits in vain; who is unknown from now on has no id."""
        member_id = NO_MEMBER_ID if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
        self._decide(member.join_token, JoinGroupResponse(error_code=error, member_id=member_id))
        member.join_token = None

    def _answer_sync(self, member: _Member, error: ErrorCode) -> None:
        self._decide(member.sync_token, SyncGroupResponse(error_code=error))
        member.sync_token = None

    def _dismiss(self, member: _Member, error: ErrorCode) -> None:
        if member.join_token is not None:
            self._answer_join(member, error)
        if member.sync_token is not None:
            self._answer_sync(member, error)

    def _joined(self, member: _Member, members: tuple[JoinGroupMember, ...] = ()) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            member_id=member.member_id,
            members=members,
        )

    def _synced(self, member: _Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def _listed(self) -> tuple[JoinGroupMember, ...]:
        """What the leader is told of everybody."""
        return tuple(
            JoinGroupMember(each.member_id, each.group_instance_id, each.metadata(self.protocol_name))
            for each in self._members.values()
        )

    # --- telling ------------------------------------------------------------------------------

    def describe(self) -> DescribedGroup:
        is_stable = self.state is State.STABLE
        members = tuple(
            DescribedGroupMember(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata(self.protocol_name) if is_stable else b"",
                member_assignment=each.assignment if is_stable else b"",
            )
            for each in self._members.values()
        )
        return DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=(self.protocol_name or "") if is_stable else "",
            members=members,
        )

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, self.protocol_type or "", self.state.value)

    def reads(self, topic: str) -> bool:
        """Whether a member is subscribed to `topic`; True too where that cannot be told."""
        return self.subscribed_topics is None or topic in self.subscribed_topics

    def _topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        try:
            return frozenset().union(
                *(decode_topics(each.metadata(self.protocol_name)) for each in self._members.values())
            )
        except CorruptGroupRecord:
            mark("groups: a subscription cannot be read")
            return None


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Version 0 has one timeout for both."""
    timeout_ms = request.rebalance_timeout_ms
    return timeout_ms if timeout_ms >= 0 else request.session_timeout_ms
