"""Requests and responses of the group coordinator: the wire's messages without their versions.

Fields have the wire's names, with its defaults where an older version lacks them. Partitions are mapping
keys, not lists within lists. Times are milliseconds. `None` is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition

NO_GENERATION = -1
NO_MEMBER_ID = ""

# --- membership -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Protocol:
    """An assignment protocol that a member supports, with the member's metadata for the leader."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest:
    """A join. `rebalance_timeout_ms` -1, as in version 0, means the session timeout.

    `require_known_member_id`, from version 4 on: a member without an id first gets one, with
    MEMBER_ID_REQUIRED (79). `support_skipping_assignment`: from version 9 on.
    """

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    protocol_type: str
    protocols: tuple[Protocol, ...]
    client_id: str = ""
    client_host: str = ""
    require_known_member_id: bool = False
    support_skipping_assignment: bool = False


@dataclass(frozen=True, slots=True)
class JoinGroupMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    """The answer to a join; `protocol_name` is None in errors, which versions below 7 send as ""."""

    error_code: ErrorCode = ErrorCode.NONE
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = NO_MEMBER_ID
    members: tuple[JoinGroupMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest:
    """A sync; `assignments` by member id come from the leader only, type and name from version 5 on."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    error_code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """A leaving member: by member id, or by instance id alone if an operator removes a static member."""

    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest:
    group_id: str
    members: tuple[MemberIdentity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResponse:
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    error_code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    """Versions below 3 name one member and have one error: the group's, else that member's."""

    error_code: ErrorCode = ErrorCode.NONE
    members: tuple[MemberResponse, ...] = ()


# --- offsets ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitPartition:
    """An offset to commit; `commit_timestamp_ms` -1 means now."""

    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None = None
    commit_timestamp_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """A commit; `retention_time_ms`, in versions 2 to 4, sets an expiry time; -1: none."""

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    partitions: Mapping[TopicPartition, OffsetCommitPartition]


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    partitions: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class OffsetFetchGroup:
    """A group to fetch; `partitions` None asks for all offsets of the group."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    groups: tuple[OffsetFetchGroup, ...]
    require_stable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchPartition:
    """A committed offset; the defaults are those of a partition without one."""

    committed_offset: int = -1
    committed_leader_epoch: int = -1
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchGroupResponse:
    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    partitions: Mapping[TopicPartition, OffsetFetchPartition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse:
    groups: tuple[OffsetFetchGroupResponse, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest:
    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    """With an error of the group, `partitions` is empty."""

    error_code: ErrorCode = ErrorCode.NONE
    partitions: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


# --- administration ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest:
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroupMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes = b""
    member_assignment: bytes = b""
    is_awaited: bool = False
    """Whether the round waits for a request of this member. Ours; Kafka's brokers do not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A described group; `protocol_data` (the protocol's name) and member metadata in a stable group only.

    Ours: epoch ms since when it is in this state, and when the round goes on without those it waits for (-1
    if unknown, or if it waits for no member).
    """

    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    state_since_ms: int = -1
    round_ends_ms: int = -1


@dataclass(frozen=True, slots=True)
class DescribeGroupsResponse:
    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    """A listing; the filters are names of states and types in any case, none for all."""

    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    """A list of groups; with COORDINATOR_LOAD_IN_PROGRESS (14) it may be incomplete."""

    error_code: ErrorCode = ErrorCode.NONE
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest:
    groups_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse:
    results: Mapping[str, ErrorCode]


GroupRequest: TypeAlias = (
    JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | OffsetFetchRequest
    | OffsetDeleteRequest
    | DescribeGroupsRequest
    | ListGroupsRequest
    | DeleteGroupsRequest
)

GroupResponse: TypeAlias = (
    JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | OffsetFetchResponse
    | OffsetDeleteResponse
    | DescribeGroupsResponse
    | ListGroupsResponse
    | DeleteGroupsResponse
)
