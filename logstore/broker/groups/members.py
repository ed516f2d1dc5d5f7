"""The members of one group: their ids, the protocols they share, and the leader. Pure state.

A member is dynamic (its id is given out by the coordinator) or static (KIP-345: it brings a
`group.instance.id`, and a restarted process takes over the place of its predecessor).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from logstore.broker.errors import CorruptGroupRecord
from logstore.broker.groups.records import MemberMetadata, decode_topics
from logstore.broker.groups.requests import (
    NO_MEMBER_ID,
    DescribedGroupMember,
    JoinGroupMember,
    JoinGroupRequest,
    Protocol,
)
from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark

MEMBER_BYTES: Final = 1_000
"""A member without its protocols, ids and assignment."""
_PENDING_BYTES: Final = 150


@dataclass(slots=True)
class Member:
    """One member. A token is that of a request which waits for an answer; None if no request waits."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    deadline_ms: int
    """Time at which the session expires."""
    assignment: bytes = b""
    join_token: Hashable | None = None
    sync_token: Hashable | None = None
    is_new: bool = False
    """Whether the member has not been part of a generation yet."""
    owes_sync: bool = False
    """Whether the member got the generation's JoinGroup response and has not sent SyncGroup yet."""
    is_restored: bool = False
    """Whether the member was loaded from the log and has not contacted this coordinator yet."""

    @property
    def can_expire(self) -> bool:
        """A member whose request waits here is alive; a new one may never send anything else."""
        return self.is_new or (self.join_token is None and self.sync_token is None)

    @property
    def size(self) -> int:
        """About how many bytes the member takes in memory."""
        return size_of(self.protocols, self.client_id) + len(self.member_id) + len(self.assignment)

    def renew(self, now_ms: int) -> None:
        """Renew the member's session."""
        self.deadline_ms = now_ms + self.session_timeout_ms

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for this protocol; empty if it does not support the protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol_name), b"")

    def recorded(self, protocol_name: str | None, assignment: bytes) -> MemberMetadata:
        """Return the member as the log keeps it."""
        return MemberMetadata(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol_name),
            assignment,
        )

    def described(
        self, protocol_name: str | None, *, is_stable: bool, is_awaited: bool
    ) -> DescribedGroupMember:
        """Return the member as DescribeGroups shows it; metadata and assignment of a stable group only."""
        return DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=self.metadata(protocol_name) if is_stable else b"",
            member_assignment=self.assignment if is_stable else b"",
            is_awaited=is_awaited,
        )


def size_of(protocols: Iterable[Protocol], client_id: str) -> int:
    """Return about how many bytes a member with these protocols takes in memory."""
    return MEMBER_BYTES + len(client_id) + sum(len(each.name) + len(each.metadata) for each in protocols)


def restored(each: MemberMetadata, protocol_name: str | None, now_ms: int) -> Member:
    """Return a member as the log has it; it has a full session from now on."""
    return Member(
        each.member_id,
        each.group_instance_id,
        each.client_id,
        each.client_host,
        each.rebalance_timeout_ms,
        each.session_timeout_ms,
        (Protocol(protocol_name or "", each.subscription),),
        now_ms + each.session_timeout_ms,
        each.assignment,
        is_restored=True,
    )


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Return the rebalance timeout; version 0 has the session timeout for both."""
    timeout_ms = request.rebalance_timeout_ms
    return timeout_ms if timeout_ms >= 0 else request.session_timeout_ms


class Members:
    """All members, in the order in which they joined. The order decides ties and the next leader."""

    def __init__(self) -> None:
        self.leader_id: str | None = None
        self.pending_ids: dict[str, int] = {}
        """Ids that were given out and not used yet, and when each one expires."""
        self._by_id: dict[str, Member] = {}
        self._static_ids: dict[str, str] = {}
        # Kept, not counted at each request: a thousand members join one after the other.
        self._bytes = 0
        self._supporters = Counter[str]()
        """How many members support each protocol."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    @property
    def size(self) -> int:
        """About how many bytes the members and the ids given out take in memory."""
        pending = sum(map(len, self.pending_ids)) + _PENDING_BYTES * len(self.pending_ids)
        return pending + self._bytes

    def id_of_instance(self, group_instance_id: str | None) -> str | None:
        """Return the member id that a static member has at present."""
        return None if group_instance_id is None else self._static_ids.get(group_instance_id)

    # --- coming and going -------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        if (earlier := self._by_id.get(member.member_id)) is not None:  # a record that names one twice
            self._count(earlier, -1)
        self._count(member, 1)
        self._by_id[member.member_id] = member
        if member.group_instance_id is not None:
            self._static_ids[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: Member) -> None:
        """Remove a member; the next in order leads if it was the leader."""
        del self._by_id[member.member_id]
        self._count(member, -1)
        if member.group_instance_id is not None:
            del self._static_ids[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._by_id), None)

    def replace(self, earlier_id: str, member: Member) -> None:
        """Put `member` into the place, and the position in order, of the member `earlier_id`."""
        self._count(self._by_id[earlier_id], -1)
        self._count(member, 1)
        self._by_id = {
            (member.member_id if each == earlier_id else each): (member if each == earlier_id else known)
            for each, known in self._by_id.items()
        }
        assert member.group_instance_id is not None
        self._static_ids[member.group_instance_id] = member.member_id
        if self.leader_id == earlier_id:
            self.leader_id = member.member_id

    def subscribe(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def assign(self, member: Member, assignment: bytes) -> None:
        self._bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def _count(self, member: Member, by: int) -> None:
        self._bytes += by * member.size
        self._supporters.update(dict.fromkeys((each.name for each in member.protocols), by))
        if by < 0:
            self._supporters = +self._supporters  # names that nobody has any more

    def elect_leader(self) -> bool:
        """Keep a leader that has joined, else take the first member that has; False if none has."""
        assert self.leader_id is not None, "members without a leader"
        if self._by_id[self.leader_id].join_token is None:
            joined = next((each for each in self if each.join_token is not None), None)
            if joined is None:
                return False
            mark("groups: the leader did not join in time")
            self.leader_id = joined.member_id
        return True

    # --- checks -----------------------------------------------------------------------------------

    def error_of(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return NONE for a member, else UNKNOWN_MEMBER_ID (25) or FENCED_INSTANCE_ID (82)."""
        if group_instance_id is not None:
            current_id = self._static_ids.get(group_instance_id)
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                if self._by_id[current_id].is_restored:
                    # Possibly a later process, whose rebalance the previous coordinator did not finish.
                    # A fenced client gives up, so this one gets an error that makes it rejoin.
                    mark("groups: an unknown self of a static member asks a new coordinator")
                    return ErrorCode.UNKNOWN_MEMBER_ID
                mark("groups: an earlier self of a static member is fenced")
                return ErrorCode.FENCED_INSTANCE_ID
        member = self._by_id.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member.is_restored = False
        return ErrorCode.NONE

    @property
    def joined_count(self) -> int:
        """Number of members that wait for the end of the join phase."""
        return sum(each.join_token is not None for each in self)

    @property
    def longest_rebalance_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self), default=0)

    # --- protocols --------------------------------------------------------------------------------

    def common_protocols(self) -> set[str] | None:
        """Return the protocols that all members support; None without members."""
        count = len(self)
        return (
            {name for name, supporters in self._supporters.items() if supporters == count} if count else None
        )

    def voted_protocol(self) -> str:
        """Return the elected protocol: a vote for each first common one; ties go by order."""
        common = self.common_protocols()
        assert common, "members without a common protocol"
        votes = Counter(next(each.name for each in m.protocols if each.name in common) for m in self)
        return max(votes, key=votes.__getitem__)

    def topics(self, protocol_name: str | None) -> frozenset[str] | None:
        """Return all topics that consumers subscribe to; None if a subscription cannot be decoded."""
        try:
            return frozenset().union(*(decode_topics(each.metadata(protocol_name)) for each in self))
        except CorruptGroupRecord:
            mark("groups: a subscription cannot be read")
            return None

    def listed(self, protocol_name: str | None) -> tuple[JoinGroupMember, ...]:
        """Return the member list that the leader receives."""
        return tuple(
            JoinGroupMember(each.member_id, each.group_instance_id, each.metadata(protocol_name))
            for each in self
        )

    def identified(self, member_id: str, group_instance_id: str | None) -> str:
        """Return the member id; looked up by instance id where a request names that alone."""
        if member_id == NO_MEMBER_ID and group_instance_id is not None:
            return self.id_of_instance(group_instance_id) or NO_MEMBER_ID
        return member_id
