"""What nodes, clients and the controller say to each other: Kafka's requests, as frozen data.

The names and fields are those of Kafka's protocol; the wire room turns them into bytes, the
simulation passes them as they are. What every produce and fetch is made of are tuples by name, which cost a
fifth of a frozen dataclass to make. Offsets are record numbers, times are epoch milliseconds, `-1`
is Kafka's "none" for epochs and offsets (0 is a valid epoch: never test one for truth).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import RecordError
from logstore.replication.durability import Durability
from logstore.segment.epochs import EpochEndOffset

CONSUMER_REPLICA_ID = -1
NO_LEADER = -1
NO_EPOCH = -1
BEING_DELETED = -2
"""As a leader: the topic is being deleted. As a leader epoch of StopReplica: whatever the epoch is."""
EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
LARGEST_TIMESTAMP = -3
"""As a time that is looked for: the record with the largest one (KIP-734)."""


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """Where a live broker can be reached; `epoch` is its incarnation."""

    broker_id: int
    host: str = ""
    port: int = 0
    epoch: int = -1
    rack: str = ""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition as the controller last wrote it to the metadata store.

    `all_synced`: what was acknowledged is on every ISR member's disk (`durability.py`). `min_insync`: how
    many must be in the ISR for the high watermark to move, whatever smaller number the broker knows of;
    `eligible` are not in it and hold all that is committed nevertheless.
    """

    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    replicas: tuple[int, ...]
    is_new: bool = False
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    durability: Durability = Durability.REPLICATED
    all_synced: bool = False
    min_insync: int = 0
    eligible: tuple[int, ...] = ()


# --- clients ----------------------------------------------------------------------------------


class ProduceRequest(NamedTuple):
    """Ready record batches for some partitions; `acks` is 0, 1 or -1 (all)."""

    records: Mapping[TopicPartition, bytes | memoryview]
    acks: int
    timeout_ms: int


class ProduceResult(NamedTuple):
    """`durability` is the level that acks=all reached; None for other acks, which promise neither.

    `record_errors`: the records of the batch that it was refused for, where single ones are to blame.
    """

    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str = ""
    durability: Durability | None = None
    record_errors: tuple[RecordError, ...] = ()


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    partitions: Mapping[TopicPartition, ProduceResult]


class FetchPartition(NamedTuple):
    """From where one partition is read.

    `current_leader_epoch` fences a reader of another leadership; `last_fetched_epoch` lets the
    leader see that the follower's log has diverged (KIP-595). Both are `-1` for clients without.
    `is_synced`: the follower has flushed everything below `fetch_offset`.
    """

    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    log_start_offset: int = -1
    topic_id: str = ""
    is_synced: bool = False


class FetchRequest(NamedTuple):
    """A read by a follower (`replica_id` ≥ 0) or a consumer (-1).

    A consumer that knows of racks says its own, empty for none; one that does not is served by leaders alone.
    `committed_only`: it reads no further than the last stable offset (`read_committed`), and is told which
    transactions below it were aborted. A follower reads to the end whatever it says.
    """

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: Mapping[TopicPartition, FetchPartition]
    broker_epoch: int = -1
    rack: str | None = None
    committed_only: bool = False


@dataclass(frozen=True, slots=True)
class Aborted:
    """A transaction that was aborted: its data, from `first_offset` to the marker, is to be left out."""

    producer_id: int
    first_offset: int


class FetchResult(NamedTuple):
    """`records` holds whole batches, never None; a diverging answer holds none.

    `preferred_read_replica`: ask that broker instead from now on; -1 for stay. Consumers hear of
    `last_stable_offset` too (-1: not told); `aborted` is None for those who did not ask for committed data.
    """

    error: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    records: bytes | memoryview = b""
    diverging_epoch: EpochEndOffset | None = None
    preferred_read_replica: int = -1
    last_stable_offset: int = -1
    aborted: tuple[Aborted, ...] | None = None


@dataclass(frozen=True, slots=True)
class FetchResponse:
    partitions: Mapping[TopicPartition, FetchResult]


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    timestamp: int
    current_leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """Offsets by time; `-1` is the end, `-2` the start, `-3` the record with the largest time.

    A replica sees up to the LEO, a client up to the high watermark, with `committed_only` up to the
    last stable offset.
    """

    replica_id: int
    partitions: Mapping[TopicPartition, ListOffsetsPartition]
    committed_only: bool = False


@dataclass(frozen=True, slots=True)
class ListOffsetsResult:
    error: ErrorCode
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse:
    partitions: Mapping[TopicPartition, ListOffsetsResult]


# --- followers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EpochQuery:
    current_leader_epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochRequest:
    """Where does this epoch end for you? (KIP-101, KIP-279)"""

    replica_id: int
    partitions: Mapping[TopicPartition, EpochQuery]


@dataclass(frozen=True, slots=True)
class EpochAnswer:
    error: ErrorCode
    epoch: int = NO_EPOCH
    end_offset: int = -1


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochResponse:
    partitions: Mapping[TopicPartition, EpochAnswer]


# --- controller to brokers --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    """What the receiver is to be for each partition: leader, or follower of `leader`.

    `configs` holds each topic's overrides under Kafka's names (`min.insync.replicas`, …), complete:
    a setting that is absent has the broker's default. It goes with every request, and a request
    whose partition states are no news at all may still bring new settings.

    `assigned` is None but in a full request: then it has every partition that the receiver holds a
    replica of, with its topic's id, be it in `partitions` or not. A log that it does not name is nobody's.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: Mapping[TopicPartition, PartitionState]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    live_leaders: tuple[BrokerEndpoint, ...] = ()
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    assigned: Mapping[TopicPartition, str] | None = None


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponse:
    error: ErrorCode
    partitions: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopReplicaPartition:
    leader_epoch: int
    delete: bool


@dataclass(frozen=True, slots=True)
class StopReplicaRequest:
    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: Mapping[TopicPartition, StopReplicaPartition]
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopReplicaResponse:
    error: ErrorCode
    partitions: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpdateMetadataRequest:
    """Always the full list of live brokers; partitions are merged into the cache.

    `shutting_down` are those of them that are about to stop: they join no ISR any more.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: Mapping[TopicPartition, PartitionState]
    live_brokers: tuple[BrokerEndpoint, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    shutting_down: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponse:
    error: ErrorCode


# --- brokers to the controller ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """A leader's wish for another ISR, valid only on top of exactly these epochs.

    `broker_epochs` (parallel to `new_isr`, -1 for unknown; or empty) says which incarnation of each
    member the leader saw fetching: a member that restarted since is refused (KIP-903). `all_synced`
    reports that every member has flushed what was committed before the partition became `synced`;
    `recovering` asks to leave the mark of an unclean election where it is.
    """

    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[int, ...]
    broker_epochs: tuple[int, ...] = ()
    all_synced: bool = False
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class AlterPartitionRequest:
    broker_id: int
    broker_epoch: int
    partitions: Mapping[TopicPartition, IsrProposal]


@dataclass(frozen=True, slots=True)
class AlterPartitionResult:
    """Without an error: the state as it is now; `min_insync` as in `PartitionState`."""

    error: ErrorCode
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    isr: tuple[int, ...] = ()
    partition_epoch: int = -1
    min_insync: int = 0


@dataclass(frozen=True, slots=True)
class AlterPartitionResponse:
    error: ErrorCode
    partitions: Mapping[TopicPartition, AlterPartitionResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequest:
    """A broker is about to stop: move its leaderships away, take it out of the ISRs."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ControlledShutdownResponse:
    """`remaining` are the partitions (of more than one replica) that the broker still leads."""

    error: ErrorCode
    remaining: tuple[TopicPartition, ...] = ()


# --- administration: clients to the controller ------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create: a replica assignment, or a count of partitions and replicas for a formula.

    `assignment` lists the replicas of each partition, preferred one first. `spread` names the
    formula when it is empty: `kafka` (increasing shift) or `round-robin` ((i + j) mod n).
    """

    name: str
    partitions: int = 1
    replication_factor: int = 1
    assignment: tuple[tuple[int, ...], ...] = ()
    spread: str = "kafka"
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest:
    """`validate_only`: say what would come of it, and do nothing."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class CreateTopicsResult:
    """`replicas` of each partition, as they were chosen; none with an error."""

    error: ErrorCode
    message: str = ""
    topic_id: str = ""
    replicas: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTopicsResponse:
    topics: Mapping[str, CreateTopicsResult]


@dataclass(frozen=True, slots=True)
class AdminResult:
    """How one item of an administrative request fared; `message` says what to do about an error."""

    error: ErrorCode
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    """Answered when the request is recorded; the logs go when every replica has confirmed."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse:
    topics: Mapping[str, AdminResult]


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The number of partitions a topic is to have; `assignment` may list the replicas of the new ones."""

    total: int
    assignment: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    """`validate_only` as for topics."""

    topics: Mapping[str, NewPartitions]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class CreatePartitionsResponse:
    topics: Mapping[str, AdminResult]


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest:
    """Settings to change, by topic: a text sets, None goes back to the default; others stay.

    `validate_only` as for topics.
    """

    topics: Mapping[str, Mapping[str, str | None]]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlterConfigsResponse:
    topics: Mapping[str, AdminResult]


class ElectionType(Enum):
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest:
    """Elect the preferred replica, or for want of any in sync one that is not. None: every partition."""

    election_type: ElectionType
    partitions: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True)
class ElectLeadersResponse:
    error: ErrorCode
    partitions: Mapping[TopicPartition, AdminResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest:
    """The replicas each partition is to have, in order; None calls off what is under way."""

    partitions: Mapping[TopicPartition, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsResponse:
    error: ErrorCode
    partitions: Mapping[TopicPartition, AdminResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsRequest:
    """None: whatever is under way."""

    partitions: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsResponse:
    error: ErrorCode
    partitions: Mapping[TopicPartition, OngoingReassignment] = field(default_factory=dict)


# --- administration: clients to leaders -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    """Delete what lies below these offsets (-1: below the high watermark), on every live replica."""

    partitions: Mapping[TopicPartition, int]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsResult:
    """`low_watermark`: the lowest log start offset among the live replicas."""

    error: ErrorCode
    low_watermark: int = -1


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse:
    partitions: Mapping[TopicPartition, DeleteRecordsResult]


# --- where everything is ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """Who is alive and who leads what; None: every topic. Any node answers, as it last heard."""

    topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """Topics that are not in `partitions` are not known here (yet). `controller_id` is -1 for unknown."""

    brokers: tuple[BrokerEndpoint, ...]
    controller_id: int
    partitions: Mapping[TopicPartition, PartitionState]


RequestBody: TypeAlias = (
    ProduceRequest
    | FetchRequest
    | ListOffsetsRequest
    | OffsetForLeaderEpochRequest
    | LeaderAndIsrRequest
    | StopReplicaRequest
    | UpdateMetadataRequest
    | AlterPartitionRequest
    | ControlledShutdownRequest
    | CreateTopicsRequest
    | DeleteTopicsRequest
    | CreatePartitionsRequest
    | AlterConfigsRequest
    | ElectLeadersRequest
    | AlterPartitionReassignmentsRequest
    | ListPartitionReassignmentsRequest
    | DeleteRecordsRequest
    | MetadataRequest
)
ResponseBody: TypeAlias = (
    ProduceResponse
    | FetchResponse
    | ListOffsetsResponse
    | OffsetForLeaderEpochResponse
    | LeaderAndIsrResponse
    | StopReplicaResponse
    | UpdateMetadataResponse
    | AlterPartitionResponse
    | ControlledShutdownResponse
    | CreateTopicsResponse
    | DeleteTopicsResponse
    | CreatePartitionsResponse
    | AlterConfigsResponse
    | ElectLeadersResponse
    | AlterPartitionReassignmentsResponse
    | ListPartitionReassignmentsResponse
    | DeleteRecordsResponse
    | MetadataResponse
)
