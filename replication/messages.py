"""The requests and responses of nodes, clients and the controller: Kafka's, as immutable values.

Names and fields are Kafka's. `logstore/broker/wire` turns them into bytes; the simulation passes them as they
are. Times are epoch milliseconds. `-1` is Kafka's "none" for epochs and offsets; 0 is a valid epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import RecordError
from logstore.replication.durability import Durability
from logstore.replication.log_dir_messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from logstore.replication.transaction_messages import Aborted, WriteTxnMarkersRequest, WriteTxnMarkersResponse
from logstore.segment.epochs import EpochEndOffset

CONSUMER_REPLICA_ID = -1
DEBUGGING_REPLICA_ID = -2
"""In place of a replica id: a tool that compares replicas. Any replica serves it, to the end of its log."""
NO_SESSION = 0
FIRST_SESSION_EPOCH = 0
"""A request with all partitions, which asks for a fetch session."""
FINAL_SESSION_EPOCH = -1
"""A request with all partitions, without a fetch session."""
NO_LEADER = -1
NO_EPOCH = -1
BEING_DELETED = -2
"""In place of a leader: the topic is being deleted. As a leader epoch of StopReplica: any epoch."""
EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
LARGEST_TIMESTAMP = -3
"""In place of a timestamp in ListOffsets: the record with the largest timestamp (KIP-734)."""


class Endpoint(NamedTuple):
    """The address of one of a broker's listeners. The engine passes it on unread."""

    listener: str
    host: str
    port: int
    protocol: int = 0
    """Kafka's number of the security protocol."""


class BrokerEndpoint(NamedTuple):
    """The address of a live broker; `epoch` is its incarnation.

    A broker with named listeners has `endpoints`; `host` and `port` are then those of the first one.
    """

    broker_id: int
    host: str = ""
    port: int = 0
    epoch: int = -1
    rack: str = ""
    endpoints: tuple[Endpoint, ...] = ()

    def on(self, listener: str) -> tuple[str, int] | None:
        """Return host and port of the listener of this name; None if the broker does not have it."""
        if not self.endpoints or not listener:
            return self.host, self.port
        return next(((each.host, each.port) for each in self.endpoints if each.listener == listener), None)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition as the controller last wrote it to the metadata store.

    `all_synced`: every acknowledged record is on the disk of every ISR member (`durability.py`).
    `min_insync`: the ISR size that the high watermark requires, even if the broker knows a smaller number.
    `eligible` replicas are outside the ISR but hold all committed records.
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
    """Encoded batches for some partitions; `acks` is 0, 1 or -1 (all)."""

    records: Mapping[TopicPartition, bytes | memoryview]
    acks: int
    timeout_ms: int


class ProduceResult(NamedTuple):
    """The result for one partition.

    `durability` is the level that acks=all reached; None for other acks, which promise neither.
    `record_errors` names the records for which the batch was refused, if there are such records.
    """

    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str = ""
    durability: Durability | None = None
    record_errors: tuple[RecordError, ...] = ()


class ProduceResponse(NamedTuple):
    partitions: Mapping[TopicPartition, ProduceResult]


class FetchPartition(NamedTuple):
    """A read of one partition.

    `current_leader_epoch` fences a reader of another leadership. `last_fetched_epoch` lets the leader detect
    that the follower's log has diverged (KIP-595). Both are `-1` for clients that do not send them.
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

    `rack` is the consumer's rack, empty for none; without one (None) only leaders serve it. `committed_only`:
    read up to the last stable offset (`read_committed`), with the aborted transactions below it. A follower
    always reads to the end.
    """

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: Mapping[TopicPartition, FetchPartition]
    broker_epoch: int = -1
    rack: str | None = None
    committed_only: bool = False
    session_id: int = NO_SESSION
    session_epoch: int = FINAL_SESSION_EPOCH
    forgotten: tuple[TopicPartition, ...] = ()
    uses_ids: bool = False


class FetchResult(NamedTuple):
    """The result for one partition. `records` holds whole batches; a diverging result holds none.

    `preferred_read_replica`: fetch from that broker from now on; -1 for no change. `last_stable_offset` is
    for consumers, else -1. `aborted` is None without `committed_only`.
    """

    error: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    records: bytes | memoryview = b""
    diverging_epoch: EpochEndOffset | None = None
    preferred_read_replica: int = -1
    last_stable_offset: int = -1
    aborted: tuple[Aborted, ...] | None = None


class FetchResponse(NamedTuple):
    """The results; in a fetch session, only those with changes.

    `session_id` is 0 without a session. `error` is about the session: then there are no results. `topic_ids`
    are those by which the reader of a session knows its topics.
    """

    partitions: Mapping[TopicPartition, FetchResult]
    error: ErrorCode = ErrorCode.NONE
    session_id: int = NO_SESSION
    topic_ids: Mapping[str, str] = MappingProxyType({})  # for clients, from version 10 on


class ListOffsetsPartition(NamedTuple):
    timestamp: int
    current_leader_epoch: int = NO_EPOCH


class ListOffsetsRequest(NamedTuple):
    """Offsets by timestamp; `-1` is the end, `-2` the start, `-3` the record with the largest timestamp.

    The end is the log end offset for a replica, the high watermark for a client, and the last stable offset
    with `committed_only`.
    """

    replica_id: int
    partitions: Mapping[TopicPartition, ListOffsetsPartition]
    committed_only: bool = False


class ListOffsetsResult(NamedTuple):
    error: ErrorCode
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = NO_EPOCH


class ListOffsetsResponse(NamedTuple):
    partitions: Mapping[TopicPartition, ListOffsetsResult]


# --- followers --------------------------------------------------------------------------------


class EpochQuery(NamedTuple):
    current_leader_epoch: int
    leader_epoch: int


class OffsetForLeaderEpochRequest(NamedTuple):
    """A request for the end offsets of epochs in the leader's log (KIP-101, KIP-279)."""

    replica_id: int
    partitions: Mapping[TopicPartition, EpochQuery]


class EpochAnswer(NamedTuple):
    error: ErrorCode
    epoch: int = NO_EPOCH
    end_offset: int = -1


class OffsetForLeaderEpochResponse(NamedTuple):
    partitions: Mapping[TopicPartition, EpochAnswer]


# --- controller to brokers --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    """The receiver's role for each partition: leader, or follower of `leader`.

    `configs` holds all overrides of each topic under Kafka's names (`min.insync.replicas`, …); other settings
    have the broker's defaults. Every request includes it. A request may bring new settings without any new
    state.

    `assigned` is None except in a full request. There it lists every partition assigned to the receiver, with
    its topic id, even if it is not in `partitions`. A log that it does not list is a stray.
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


class StopReplicaPartition(NamedTuple):
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
    """The full list of live brokers, and partitions to merge into the cache.

    `shutting_down` are the live brokers about to stop: they join no ISR any more. `all_topics` is None
    except in a full request. There it lists every topic of the cluster: any other has been deleted.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: Mapping[TopicPartition, PartitionState]
    live_brokers: tuple[BrokerEndpoint, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    shutting_down: tuple[int, ...] = ()
    all_topics: tuple[str, ...] | None = None


class UpdateMetadataResponse(NamedTuple):
    error: ErrorCode


# --- brokers to the controller ----------------------------------------------------------------


class IsrProposal(NamedTuple):
    """An ISR that a leader proposes; it applies only to the state with exactly these epochs.

    `broker_epochs` (parallel to `new_isr`, -1 for unknown; or empty) holds the incarnation of each member
    that the leader saw fetching: a member that restarted since is refused (KIP-903). `all_synced` reports
    that every member has flushed the records committed before the partition became `synced`. `recovering`
    asks the controller to keep the mark of an unclean election.
    """

    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[int, ...]
    broker_epochs: tuple[int, ...] = ()
    all_synced: bool = False
    recovering: bool = False


class AlterPartitionRequest(NamedTuple):
    broker_id: int
    broker_epoch: int
    partitions: Mapping[TopicPartition, IsrProposal]


class AlterPartitionResult(NamedTuple):
    """The current state, unless there is an error; `min_insync` as in `PartitionState`."""

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


class ControlledShutdownRequest(NamedTuple):
    """The request of a stopping broker to move its leaderships and remove it from the ISRs."""

    broker_id: int
    broker_epoch: int


class ControlledShutdownResponse(NamedTuple):
    """`remaining` are the partitions (of more than one replica) that the broker still leads."""

    error: ErrorCode
    remaining: tuple[TopicPartition, ...] = ()


# --- administration: clients to the controller ------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create, with a replica assignment or with numbers of partitions and replicas.

    `assignment` lists the replicas of each partition, preferred leader first. If it is empty, `spread` names
    the formula: `kafka` (increasing shift) or `round-robin` ((i + j) mod n).
    """

    name: str
    partitions: int = 1
    replication_factor: int = 1
    assignment: tuple[tuple[int, ...], ...] = ()
    spread: str = "kafka"
    configs: Mapping[str, str] = field(default_factory=dict)


class CreateTopicsRequest(NamedTuple):
    """Topics to create; with `validate_only` only the answer is computed."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False


class CreateTopicsResult(NamedTuple):
    """The result for one topic, with the replicas chosen for each partition; none with an error."""

    error: ErrorCode
    message: str = ""
    topic_id: str = ""
    replicas: tuple[tuple[int, ...], ...] = ()


class CreateTopicsResponse(NamedTuple):
    topics: Mapping[str, CreateTopicsResult]


class AdminResult(NamedTuple):
    """The result of one item of an administrative request; `message` explains an error."""

    error: ErrorCode
    message: str = ""


class DeleteTopicsRequest(NamedTuple):
    """Topics to delete. The answer follows once the request is recorded; the logs are deleted later."""

    topics: tuple[str, ...]
    ids: Mapping[str, str] = MappingProxyType({})
    """The ids by which clients named some of them: a later topic of the name stays."""


class DeleteTopicsResponse(NamedTuple):
    topics: Mapping[str, AdminResult]


class NewPartitions(NamedTuple):
    """A topic's new number of partitions; `assignment` may list the replicas of the added ones."""

    total: int
    assignment: tuple[tuple[int, ...], ...] = ()


class CreatePartitionsRequest(NamedTuple):
    """`validate_only` as for topics."""

    topics: Mapping[str, NewPartitions]
    validate_only: bool = False


class CreatePartitionsResponse(NamedTuple):
    topics: Mapping[str, AdminResult]


class AlterConfigsRequest(NamedTuple):
    """Settings to change, by topic: a text sets, None restores the default; others stay.

    `validate_only` as for topics.
    """

    topics: Mapping[str, Mapping[str, str | None]]
    validate_only: bool = False


class AlterConfigsResponse(NamedTuple):
    topics: Mapping[str, AdminResult]


class ElectionType(Enum):
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class ElectLeadersRequest(NamedTuple):
    """Leaders to elect: the preferred replica, or an unclean one if none is in sync. None: all partitions."""

    election_type: ElectionType
    partitions: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True)
class ElectLeadersResponse:
    error: ErrorCode
    partitions: Mapping[TopicPartition, AdminResult] = field(default_factory=dict)


class AlterPartitionReassignmentsRequest(NamedTuple):
    """The new replicas of each partition, in order; None cancels a reassignment under way."""

    partitions: Mapping[TopicPartition, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsResponse:
    error: ErrorCode
    partitions: Mapping[TopicPartition, AdminResult] = field(default_factory=dict)


class ListPartitionReassignmentsRequest(NamedTuple):
    """The partitions to report; None for all reassignments under way."""

    partitions: tuple[TopicPartition, ...] | None = None


class OngoingReassignment(NamedTuple):
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsResponse:
    error: ErrorCode
    partitions: Mapping[TopicPartition, OngoingReassignment] = field(default_factory=dict)
    deletions: Mapping[str, str] = field(default_factory=dict)
    """Of all topics, if all were asked for: those being deleted, and what each waits for."""


# --- administration: clients to leaders -------------------------------------------------------


class DeleteRecordsRequest(NamedTuple):
    """Delete the records below these offsets (-1: the high watermark), on every live replica."""

    partitions: Mapping[TopicPartition, int]
    timeout_ms: int


class DeleteRecordsResult(NamedTuple):
    """`low_watermark`: the lowest log start offset among the live replicas."""

    error: ErrorCode
    low_watermark: int = -1


class DeleteRecordsResponse(NamedTuple):
    partitions: Mapping[TopicPartition, DeleteRecordsResult]


# --- where everything is ----------------------------------------------------------------------


class MetadataRequest(NamedTuple):
    """A request for live brokers and leaders; None for every topic. Any node answers from its cache."""

    topics: tuple[str, ...] | None = None


class MetadataResponse(NamedTuple):
    """Live brokers and leaders. Topics absent from `partitions` are unknown. `controller_id` may be -1."""

    brokers: tuple[BrokerEndpoint, ...]
    controller_id: int
    partitions: Mapping[TopicPartition, PartitionState]
    topic_ids: Mapping[str, str] = MappingProxyType({})  # for clients, from version 10 on


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
    | AlterReplicaLogDirsRequest
    | WriteTxnMarkersRequest
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
    | AlterReplicaLogDirsResponse
    | WriteTxnMarkersResponse
    | MetadataResponse
)
