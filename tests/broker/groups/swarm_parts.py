"""Nodes, clients and the log of the simulated group coordinator, without faults."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from logstore.broker.groups.coordinator import Coordinator
from logstore.broker.groups.loading import Loader
from logstore.broker.groups.requests import (
    DeleteGroupsRequest,
    GroupRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    Protocol,
    SyncGroupRequest,
    SyncGroupResponse,
)
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from tests.broker.groups.desk import subscription

if TYPE_CHECKING:
    from tests.broker.groups.swarm import World


GROUPS = ("g", "h")
PARTITIONS = 2
WHERE = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0))
"""Everybody reads t, nobody u."""
SESSIONS_MS = (6_000, 20_000)
REBALANCE_MS = 8_000
QUIET_MS = 1_000_000
"""Within which all has to be well again: a new member may wait for five minutes."""


class Violation(AssertionError):
    """What must hold does not."""


@dataclass
class Entry:
    """One batch in a partition's log; `token` is to be told when it is committed, None if nobody waits."""

    batch: bytes
    base_offset: int
    token: int | None


@dataclass
class Partition:
    entries: list[Entry] = field(default_factory=list)
    committed: int = 0
    epoch: int = 0
    leader: int = 0
    next_offset: int = 0


class Node:
    """One coordinator, and what it has not heard of yet."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.coordinator: Coordinator
        self.loading: dict[int, tuple[int, Loader]] = {}
        self.resigned: dict[int, int] = {}
        """Partitions that others lead, and the epochs of it that this node has not heard of."""
        self.late: list[int] = []
        """Its appends that ended with its leadership."""


class Client:
    """One process of an application, which follows the protocol as clients do."""

    def __init__(self, name: str, group_id: str, instance_id: str | None, world: World) -> None:
        self.name = name
        self.group_id = group_id
        self.instance_id = instance_id
        self.world = world
        self.is_new = world.rng.random() < 0.7
        """Whether it knows the newer versions."""
        self.session_ms = world.rng.choice(SESSIONS_MS)
        self.is_gone = False
        self.start()

    def start(self) -> None:
        """A process without a past."""
        self.member_id = ""
        self.joined: JoinGroupResponse | None = None
        self.has_assignment = False
        self.waits_for: Hashable | None = None

    def next_request(self) -> GroupRequest:
        rng = self.world.rng
        if self.joined is None:
            protocols = (Protocol("range", subscription("t")),)
            return JoinGroupRequest(
                group_id=self.group_id,
                session_timeout_ms=self.session_ms,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type="consumer",
                protocols=protocols,
                client_id=self.name,
                require_known_member_id=self.is_new and self.instance_id is None,
                support_skipping_assignment=self.is_new,
            )
        who: dict[str, Any] = {
            "group_id": self.group_id,
            "generation_id": self.joined.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }
        if not self.has_assignment:
            return SyncGroupRequest(**who, assignments=self.world.proposal(self, self.joined))
        action = rng.random()
        if action < 0.35 and not self.world.is_quiet:
            some = rng.sample(WHERE, rng.randint(1, len(WHERE)))
            values = {each: OffsetCommitPartition(committed_offset=self.world.next_number()) for each in some}
            return OffsetCommitRequest(**who, partitions=values)
        if action < 0.45:
            return OffsetFetchRequest((OffsetFetchGroup(self.group_id),), rng.random() < 0.3)
        if action < 0.48 and not self.world.is_quiet:
            return LeaveGroupRequest(
                group_id=self.group_id,
                members=(MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id),),
            )
        if action < 0.53 and not self.world.is_quiet:
            self.join_again()
            return self.next_request()
        return HeartbeatRequest(**who)

    def join_again(self) -> None:
        self.joined, self.has_assignment = None, False

    def hear(self, response: Any) -> None:
        match response:
            case JoinGroupResponse(error_code=ErrorCode.NONE):
                self.member_id, self.joined, self.has_assignment = response.member_id, response, False
            case JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED):
                self.member_id = response.member_id
            case SyncGroupResponse(error_code=ErrorCode.NONE):
                self.has_assignment = True
            case LeaveGroupResponse():
                self.start()
            case OffsetCommitResponse(errors):
                for error in errors.values():
                    self._hear_error(error)
            case OffsetFetchResponse():
                pass
            case _:
                self._hear_error(response.error_code)

    def _hear_error(self, error: ErrorCode) -> None:
        match error:
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self.start()
            case ErrorCode.ILLEGAL_GENERATION | ErrorCode.REBALANCE_IN_PROGRESS:
                self.join_again()
            case ErrorCode.FENCED_INSTANCE_ID | ErrorCode.GROUP_MAX_SIZE_REACHED:
                self.is_gone = True
            case ErrorCode.NONE | ErrorCode.NOT_COORDINATOR | ErrorCode.COORDINATOR_NOT_AVAILABLE:
                pass
            case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                pass
            case _:
                raise Violation(f"{self.name} is told {error!r}")


class Operator(Client):
    """Deletes what it may not, commits for others, removes members: and never looks back."""

    def next_request(self) -> GroupRequest:
        rng, group_id = self.world.rng, self.group_id
        match rng.randrange(4):
            case 0:
                return DeleteGroupsRequest((group_id,))
            case 1:
                return OffsetDeleteRequest(group_id, tuple(rng.sample(WHERE, 2)))
            case 2:
                member = MemberIdentity(group_instance_id=f"i{rng.randrange(2)}")
                return LeaveGroupRequest(group_id=group_id, members=(member,))
        value = OffsetCommitPartition(committed_offset=self.world.next_number())
        return OffsetCommitRequest(group_id=group_id, partitions={rng.choice(WHERE): value})

    def hear(self, response: Any) -> None:
        """Whatever it was."""


Key: TypeAlias = tuple[str, TopicPartition]


@dataclass
class Asked:
    """A request on its way: who asked whom, and what had been acknowledged and removed then."""

    client: Client
    request: GroupRequest
    node: int
    floor: dict[Key, int]
    ceiling: dict[Key, int]
    tombstones: dict[Key, int]
    newest: int
