"""Every message that is served, and its parts. Made by `python -m logstore.broker.wire.generate`.

How to read it stands in `declarations.py`; names are kio's, with the message's before its parts'. Tags
from 10000 on are ours, between nodes.
"""

from __future__ import annotations

from logstore.broker.wire.declarations import Struct, wire


class ProduceRequestPartitionProduceData(Struct):
    index: int = wire("int32", default=0)
    records: bytes | memoryview | None = wire("records", nullable="0+", default=b"")


class ProduceRequestTopicProduceData(Struct):
    name: str = wire("string", default="")
    partition_data: list[ProduceRequestPartitionProduceData] = wire(
        [ProduceRequestPartitionProduceData], factory=list
    )


class ProduceRequest(Struct, key=0, versions="3-11", flexible="9+"):
    transactional_id: str | None = wire("string", nullable="0+", default=None)
    acks: int = wire("int16", default=0)
    timeout_ms: int = wire("int32", default=0)
    topic_data: list[ProduceRequestTopicProduceData] = wire([ProduceRequestTopicProduceData], factory=list)
    asks_level: bool = wire("bool", versions="9+", tag=10000, ignorable=True, default=False)


class ProduceResponseBatchIndexAndErrorMessage(Struct):
    batch_index: int = wire("int32", default=0)
    batch_index_error_message: str | None = wire("string", nullable="0+", default=None)


class ProduceResponseLeaderIdAndEpoch(Struct):
    leader_id: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32", default=-1)


class ProduceResponsePartitionProduceResponse(Struct):
    index: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    base_offset: int = wire("int64", default=0)
    log_append_time_ms: int = wire("int64", default=-1)
    log_start_offset: int = wire("int64", versions="5+", ignorable=True, default=-1)
    record_errors: list[ProduceResponseBatchIndexAndErrorMessage] = wire(
        [ProduceResponseBatchIndexAndErrorMessage], versions="8+", ignorable=True, factory=list
    )
    error_message: str | None = wire("string", versions="8+", nullable="8+", ignorable=True, default=None)
    current_leader: ProduceResponseLeaderIdAndEpoch | None = wire(
        ProduceResponseLeaderIdAndEpoch, versions="10+", tag=0, default=None
    )
    level: int = wire("int8", versions="9+", tag=10000, default=-1)


class ProduceResponseTopicProduceResponse(Struct):
    name: str = wire("string", default="")
    partition_responses: list[ProduceResponsePartitionProduceResponse] = wire(
        [ProduceResponsePartitionProduceResponse], factory=list
    )


class ProduceResponseNodeEndpoint(Struct):
    node_id: int = wire("int32", default=0)
    host: str = wire("string", default="")
    port: int = wire("int32", default=0)
    rack: str | None = wire("string", nullable="0+", default=None)


class ProduceResponse(Struct, key=0, versions="3-11", flexible="9+"):
    responses: list[ProduceResponseTopicProduceResponse] = wire(
        [ProduceResponseTopicProduceResponse], factory=list
    )
    throttle_time_ms: int = wire("int32", default=0)
    node_endpoints: list[ProduceResponseNodeEndpoint] = wire(
        [ProduceResponseNodeEndpoint], versions="10+", tag=0, factory=list
    )


class FetchRequestReplicaState(Struct):
    replica_id: int = wire("int32", default=-1)
    replica_epoch: int = wire("int64", default=-1)


class FetchRequestFetchPartition(Struct):
    partition: int = wire("int32", default=0)
    current_leader_epoch: int = wire("int32", versions="9+", ignorable=True, default=-1)
    fetch_offset: int = wire("int64", default=0)
    last_fetched_epoch: int = wire("int32", versions="12+", default=-1)
    log_start_offset: int = wire("int64", versions="5+", ignorable=True, default=-1)
    partition_max_bytes: int = wire("int32", default=0)
    is_synced: bool = wire("bool", versions="12+", tag=10000, default=False)


class FetchRequestFetchTopic(Struct):
    topic: str = wire("string", versions="4-12", ignorable=True, default="")
    topic_id: bytes = wire("uuid", versions="13+", ignorable=True, default=bytes(16))
    partitions: list[FetchRequestFetchPartition] = wire([FetchRequestFetchPartition], factory=list)
    topic_name: str = wire("string", versions="13+", tag=10000, default="")


class FetchRequestForgottenTopic(Struct):
    topic: str = wire("string", versions="7-12", ignorable=True, default="")
    topic_id: bytes = wire("uuid", versions="13+", ignorable=True, default=bytes(16))
    partitions: list[int] = wire(["int32"], factory=list)


class FetchRequest(Struct, key=1, versions="4-16", flexible="12+"):
    cluster_id: str | None = wire(
        "string", versions="12+", nullable="0+", tag=0, ignorable=True, default=None
    )
    replica_id: int = wire("int32", versions="4-14", default=-1)
    replica_state: FetchRequestReplicaState | None = wire(
        FetchRequestReplicaState, versions="15+", tag=1, default=None
    )
    max_wait_ms: int = wire("int32", default=0)
    min_bytes: int = wire("int32", default=0)
    max_bytes: int = wire("int32", default=2147483647)
    isolation_level: int = wire("int8", default=0)
    session_id: int = wire("int32", versions="7+", ignorable=True, default=0)
    session_epoch: int = wire("int32", versions="7+", ignorable=True, default=-1)
    topics: list[FetchRequestFetchTopic] = wire([FetchRequestFetchTopic], factory=list)
    forgotten_topics_data: list[FetchRequestForgottenTopic] = wire(
        [FetchRequestForgottenTopic], versions="7+", factory=list
    )
    rack_id: str = wire("string", versions="11+", ignorable=True, default="")
    has_rack: bool = wire("bool", versions="12+", tag=10000, ignorable=True, default=True)


class FetchResponseEpochEndOffset(Struct):
    epoch: int = wire("int32", default=-1)
    end_offset: int = wire("int64", default=-1)


class FetchResponseLeaderIdAndEpoch(Struct):
    leader_id: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32", default=-1)


class FetchResponseSnapshotId(Struct):
    end_offset: int = wire("int64", default=-1)
    epoch: int = wire("int32", default=-1)


class FetchResponseAbortedTransaction(Struct):
    producer_id: int = wire("int64", default=0)
    first_offset: int = wire("int64", default=0)


class FetchResponsePartitionData(Struct):
    partition_index: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    high_watermark: int = wire("int64", default=0)
    last_stable_offset: int = wire("int64", default=-1)
    log_start_offset: int = wire("int64", versions="5+", ignorable=True, default=-1)
    diverging_epoch: FetchResponseEpochEndOffset | None = wire(
        FetchResponseEpochEndOffset, versions="12+", tag=0, default=None
    )
    current_leader: FetchResponseLeaderIdAndEpoch | None = wire(
        FetchResponseLeaderIdAndEpoch, versions="12+", tag=1, default=None
    )
    snapshot_id: FetchResponseSnapshotId | None = wire(
        FetchResponseSnapshotId, versions="12+", tag=2, default=None
    )
    aborted_transactions: list[FetchResponseAbortedTransaction] | None = wire(
        [FetchResponseAbortedTransaction], nullable="0+", factory=list
    )
    preferred_read_replica: int = wire("int32", versions="11+", default=-1)
    records: bytes | memoryview | None = wire("records", nullable="0+", default=b"")


class FetchResponseFetchableTopicResponse(Struct):
    topic: str = wire("string", versions="4-12", ignorable=True, default="")
    topic_id: bytes = wire("uuid", versions="13+", ignorable=True, default=bytes(16))
    partitions: list[FetchResponsePartitionData] = wire([FetchResponsePartitionData], factory=list)
    topic_name: str = wire("string", versions="13+", tag=10000, default="")


class FetchResponseNodeEndpoint(Struct):
    node_id: int = wire("int32", default=0)
    host: str = wire("string", default="")
    port: int = wire("int32", default=0)
    rack: str | None = wire("string", nullable="0+", default=None)


class FetchResponse(Struct, key=1, versions="4-16", flexible="12+"):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", versions="7+", ignorable=True, default=0)
    session_id: int = wire("int32", versions="7+", default=0)
    responses: list[FetchResponseFetchableTopicResponse] = wire(
        [FetchResponseFetchableTopicResponse], factory=list
    )
    node_endpoints: list[FetchResponseNodeEndpoint] = wire(
        [FetchResponseNodeEndpoint], versions="16+", tag=0, factory=list
    )


class ListOffsetsRequestListOffsetsPartition(Struct):
    partition_index: int = wire("int32", default=0)
    current_leader_epoch: int = wire("int32", versions="4+", ignorable=True, default=-1)
    timestamp: int = wire("int64", default=0)


class ListOffsetsRequestListOffsetsTopic(Struct):
    name: str = wire("string", default="")
    partitions: list[ListOffsetsRequestListOffsetsPartition] = wire(
        [ListOffsetsRequestListOffsetsPartition], factory=list
    )


class ListOffsetsRequest(Struct, key=2, versions="1-8", flexible="6+"):
    replica_id: int = wire("int32", default=0)
    isolation_level: int = wire("int8", versions="2+", default=0)
    topics: list[ListOffsetsRequestListOffsetsTopic] = wire(
        [ListOffsetsRequestListOffsetsTopic], factory=list
    )


class ListOffsetsResponseListOffsetsPartitionResponse(Struct):
    partition_index: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    timestamp: int = wire("int64", default=-1)
    offset: int = wire("int64", default=-1)
    leader_epoch: int = wire("int32", versions="4+", default=-1)


class ListOffsetsResponseListOffsetsTopicResponse(Struct):
    name: str = wire("string", default="")
    partitions: list[ListOffsetsResponseListOffsetsPartitionResponse] = wire(
        [ListOffsetsResponseListOffsetsPartitionResponse], factory=list
    )


class ListOffsetsResponse(Struct, key=2, versions="1-8", flexible="6+"):
    throttle_time_ms: int = wire("int32", versions="2+", ignorable=True, default=0)
    topics: list[ListOffsetsResponseListOffsetsTopicResponse] = wire(
        [ListOffsetsResponseListOffsetsTopicResponse], factory=list
    )


class MetadataRequestTopic(Struct):
    topic_id: bytes = wire("uuid", versions="10+", ignorable=True, default=bytes(16))
    name: str | None = wire("string", nullable="10+", default="")


class MetadataRequest(Struct, key=3, versions="0-12", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = wire([MetadataRequestTopic], nullable="1+", factory=list)
    allow_auto_topic_creation: bool = wire("bool", versions="4+", default=True)
    include_cluster_authorized_operations: bool = wire("bool", versions="8-10", default=False)
    include_topic_authorized_operations: bool = wire("bool", versions="8+", default=False)


class MetadataResponseBroker(Struct):
    node_id: int = wire("int32", default=0)
    host: str = wire("string", default="")
    port: int = wire("int32", default=0)
    rack: str | None = wire("string", versions="1+", nullable="1+", ignorable=True, default=None)


class MetadataResponsePartition(Struct):
    error_code: int = wire("int16", default=0)
    partition_index: int = wire("int32", default=0)
    leader_id: int = wire("int32", default=0)
    leader_epoch: int = wire("int32", versions="7+", ignorable=True, default=-1)
    replica_nodes: list[int] = wire(["int32"], factory=list)
    isr_nodes: list[int] = wire(["int32"], factory=list)
    offline_replicas: list[int] = wire(["int32"], versions="5+", ignorable=True, factory=list)


class MetadataResponseTopic(Struct):
    error_code: int = wire("int16", default=0)
    name: str | None = wire("string", nullable="12+", default="")
    topic_id: bytes = wire("uuid", versions="10+", ignorable=True, default=bytes(16))
    is_internal: bool = wire("bool", versions="1+", ignorable=True, default=False)
    partitions: list[MetadataResponsePartition] = wire([MetadataResponsePartition], factory=list)
    topic_authorized_operations: int = wire("int32", versions="8+", default=-2147483648)


class MetadataResponse(Struct, key=3, versions="0-12", flexible="9+"):
    throttle_time_ms: int = wire("int32", versions="3+", ignorable=True, default=0)
    brokers: list[MetadataResponseBroker] = wire([MetadataResponseBroker], factory=list)
    cluster_id: str | None = wire("string", versions="2+", nullable="2+", ignorable=True, default=None)
    controller_id: int = wire("int32", versions="1+", ignorable=True, default=-1)
    topics: list[MetadataResponseTopic] = wire([MetadataResponseTopic], factory=list)
    cluster_authorized_operations: int = wire("int32", versions="8-10", default=-2147483648)


class OffsetCommitRequestPartition(Struct):
    partition_index: int = wire("int32", default=0)
    committed_offset: int = wire("int64", default=0)
    committed_leader_epoch: int = wire("int32", versions="6+", ignorable=True, default=-1)
    committed_metadata: str | None = wire("string", nullable="0+", default="")


class OffsetCommitRequestTopic(Struct):
    name: str = wire("string", default="")
    partitions: list[OffsetCommitRequestPartition] = wire([OffsetCommitRequestPartition], factory=list)


class OffsetCommitRequest(Struct, key=8, versions="2-9", flexible="8+"):
    group_id: str = wire("string", default="")
    generation_id_or_member_epoch: int = wire("int32", default=-1)
    member_id: str = wire("string", default="")
    retention_time_ms: int = wire("int64", versions="2-4", ignorable=True, default=-1)
    group_instance_id: str | None = wire("string", versions="7+", nullable="7+", default=None)
    topics: list[OffsetCommitRequestTopic] = wire([OffsetCommitRequestTopic], factory=list)


class OffsetCommitResponsePartition(Struct):
    partition_index: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)


class OffsetCommitResponseTopic(Struct):
    name: str = wire("string", default="")
    partitions: list[OffsetCommitResponsePartition] = wire([OffsetCommitResponsePartition], factory=list)


class OffsetCommitResponse(Struct, key=8, versions="2-9", flexible="8+"):
    throttle_time_ms: int = wire("int32", versions="3+", ignorable=True, default=0)
    topics: list[OffsetCommitResponseTopic] = wire([OffsetCommitResponseTopic], factory=list)


class OffsetFetchRequestTopic(Struct):
    name: str = wire("string", default="")
    partition_indexes: list[int] = wire(["int32"], factory=list)


class OffsetFetchRequestTopics(Struct):
    name: str = wire("string", default="")
    partition_indexes: list[int] = wire(["int32"], factory=list)


class OffsetFetchRequestGroup(Struct):
    group_id: str = wire("string", default="")
    member_id: str | None = wire("string", versions="9+", nullable="9+", ignorable=True, default=None)
    member_epoch: int = wire("int32", versions="9+", ignorable=True, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = wire(
        [OffsetFetchRequestTopics], nullable="0+", factory=list
    )


class OffsetFetchRequest(Struct, key=9, versions="1-9", flexible="6+"):
    group_id: str = wire("string", versions="1-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = wire(
        [OffsetFetchRequestTopic], versions="1-7", nullable="2-7", factory=list
    )
    groups: list[OffsetFetchRequestGroup] = wire([OffsetFetchRequestGroup], versions="8+", factory=list)
    require_stable: bool = wire("bool", versions="7+", default=False)


class OffsetFetchResponsePartition(Struct):
    partition_index: int = wire("int32", default=0)
    committed_offset: int = wire("int64", default=0)
    committed_leader_epoch: int = wire("int32", versions="5+", ignorable=True, default=-1)
    metadata: str | None = wire("string", nullable="0+", default="")
    error_code: int = wire("int16", default=0)


class OffsetFetchResponseTopic(Struct):
    name: str = wire("string", default="")
    partitions: list[OffsetFetchResponsePartition] = wire([OffsetFetchResponsePartition], factory=list)


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = wire("int32", default=0)
    committed_offset: int = wire("int64", default=0)
    committed_leader_epoch: int = wire("int32", default=-1)
    metadata: str | None = wire("string", nullable="0+", default="")
    error_code: int = wire("int16", default=0)


class OffsetFetchResponseTopics(Struct):
    name: str = wire("string", default="")
    partitions: list[OffsetFetchResponsePartitions] = wire([OffsetFetchResponsePartitions], factory=list)


class OffsetFetchResponseGroup(Struct):
    group_id: str = wire("string", default="")
    topics: list[OffsetFetchResponseTopics] = wire([OffsetFetchResponseTopics], factory=list)
    error_code: int = wire("int16", default=0)


class OffsetFetchResponse(Struct, key=9, versions="1-9", flexible="6+"):
    throttle_time_ms: int = wire("int32", versions="3+", ignorable=True, default=0)
    topics: list[OffsetFetchResponseTopic] = wire([OffsetFetchResponseTopic], versions="1-7", factory=list)
    error_code: int = wire("int16", versions="2-7", ignorable=True, default=0)
    groups: list[OffsetFetchResponseGroup] = wire([OffsetFetchResponseGroup], versions="8+", factory=list)


class FindCoordinatorRequest(Struct, key=10, versions="0-4", flexible="3+"):
    key: str = wire("string", versions="0-3", default="")
    key_type: int = wire("int8", versions="1+", default=0)
    coordinator_keys: list[str] = wire(["string"], versions="4+", factory=list)


class FindCoordinatorResponseCoordinator(Struct):
    key: str = wire("string", default="")
    node_id: int = wire("int32", default=0)
    host: str = wire("string", default="")
    port: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)


class FindCoordinatorResponse(Struct, key=10, versions="0-4", flexible="3+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True, default=0)
    error_code: int = wire("int16", versions="0-3", default=0)
    error_message: str | None = wire("string", versions="1-3", nullable="1-3", ignorable=True, default=None)
    node_id: int = wire("int32", versions="0-3", default=0)
    host: str = wire("string", versions="0-3", default="")
    port: int = wire("int32", versions="0-3", default=0)
    coordinators: list[FindCoordinatorResponseCoordinator] = wire(
        [FindCoordinatorResponseCoordinator], versions="4+", factory=list
    )


class JoinGroupRequestProtocol(Struct):
    name: str = wire("string", default="")
    metadata: bytes = wire("bytes", default=b"")


class JoinGroupRequest(Struct, key=11, versions="0-9", flexible="6+"):
    group_id: str = wire("string", default="")
    session_timeout_ms: int = wire("int32", default=0)
    rebalance_timeout_ms: int = wire("int32", versions="1+", ignorable=True, default=-1)
    member_id: str = wire("string", default="")
    group_instance_id: str | None = wire("string", versions="5+", nullable="5+", default=None)
    protocol_type: str = wire("string", default="")
    protocols: list[JoinGroupRequestProtocol] = wire([JoinGroupRequestProtocol], factory=list)
    reason: str | None = wire("string", versions="8+", nullable="8+", ignorable=True, default=None)


class JoinGroupResponseMember(Struct):
    member_id: str = wire("string", default="")
    group_instance_id: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)
    metadata: bytes = wire("bytes", default=b"")


class JoinGroupResponse(Struct, key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int = wire("int32", versions="2+", ignorable=True, default=0)
    error_code: int = wire("int16", default=0)
    generation_id: int = wire("int32", default=-1)
    protocol_type: str | None = wire("string", versions="7+", nullable="7+", ignorable=True, default=None)
    protocol_name: str | None = wire("string", nullable="7+", default="")
    leader: str = wire("string", default="")
    skip_assignment: bool = wire("bool", versions="9+", default=False)
    member_id: str = wire("string", default="")
    members: list[JoinGroupResponseMember] = wire([JoinGroupResponseMember], factory=list)


class HeartbeatRequest(Struct, key=12, versions="0-4", flexible="4+"):
    group_id: str = wire("string", default="")
    generation_id: int = wire("int32", default=0)
    member_id: str = wire("string", default="")
    group_instance_id: str | None = wire("string", versions="3+", nullable="3+", default=None)


class HeartbeatResponse(Struct, key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True, default=0)
    error_code: int = wire("int16", default=0)


class LeaveGroupRequestMemberIdentity(Struct):
    member_id: str = wire("string", default="")
    group_instance_id: str | None = wire("string", nullable="0+", default=None)
    reason: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)


class LeaveGroupRequest(Struct, key=13, versions="0-5", flexible="4+"):
    group_id: str = wire("string", default="")
    member_id: str = wire("string", versions="0-2", default="")
    members: list[LeaveGroupRequestMemberIdentity] = wire(
        [LeaveGroupRequestMemberIdentity], versions="3+", factory=list
    )


class LeaveGroupResponseMemberResponse(Struct):
    member_id: str = wire("string", default="")
    group_instance_id: str | None = wire("string", nullable="0+", default="")
    error_code: int = wire("int16", default=0)


class LeaveGroupResponse(Struct, key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True, default=0)
    error_code: int = wire("int16", default=0)
    members: list[LeaveGroupResponseMemberResponse] = wire(
        [LeaveGroupResponseMemberResponse], versions="3+", factory=list
    )


class SyncGroupRequestAssignment(Struct):
    member_id: str = wire("string", default="")
    assignment: bytes = wire("bytes", default=b"")


class SyncGroupRequest(Struct, key=14, versions="0-5", flexible="4+"):
    group_id: str = wire("string", default="")
    generation_id: int = wire("int32", default=0)
    member_id: str = wire("string", default="")
    group_instance_id: str | None = wire("string", versions="3+", nullable="3+", default=None)
    protocol_type: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)
    protocol_name: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)
    assignments: list[SyncGroupRequestAssignment] = wire([SyncGroupRequestAssignment], factory=list)


class SyncGroupResponse(Struct, key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True, default=0)
    error_code: int = wire("int16", default=0)
    protocol_type: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)
    protocol_name: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)
    assignment: bytes = wire("bytes", default=b"")


class DescribeGroupsRequest(Struct, key=15, versions="0-5", flexible="5+"):
    groups: list[str] = wire(["string"], factory=list)
    include_authorized_operations: bool = wire("bool", versions="3+", default=False)


class DescribeGroupsResponseDescribedGroupMember(Struct):
    member_id: str = wire("string", default="")
    group_instance_id: str | None = wire("string", versions="4+", nullable="4+", ignorable=True, default=None)
    client_id: str = wire("string", default="")
    client_host: str = wire("string", default="")
    member_metadata: bytes = wire("bytes", default=b"")
    member_assignment: bytes = wire("bytes", default=b"")


class DescribeGroupsResponseDescribedGroup(Struct):
    error_code: int = wire("int16", default=0)
    group_id: str = wire("string", default="")
    group_state: str = wire("string", default="")
    protocol_type: str = wire("string", default="")
    protocol_data: str = wire("string", default="")
    members: list[DescribeGroupsResponseDescribedGroupMember] = wire(
        [DescribeGroupsResponseDescribedGroupMember], factory=list
    )
    authorized_operations: int = wire("int32", versions="3+", default=-2147483648)


class DescribeGroupsResponse(Struct, key=15, versions="0-5", flexible="5+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True, default=0)
    groups: list[DescribeGroupsResponseDescribedGroup] = wire(
        [DescribeGroupsResponseDescribedGroup], factory=list
    )


class ListGroupsRequest(Struct, key=16, versions="0-4", flexible="3+"):
    states_filter: list[str] = wire(["string"], versions="4+", factory=list)


class ListGroupsResponseListedGroup(Struct):
    group_id: str = wire("string", default="")
    protocol_type: str = wire("string", default="")
    group_state: str = wire("string", versions="4+", ignorable=True, default="")


class ListGroupsResponse(Struct, key=16, versions="0-4", flexible="3+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True, default=0)
    error_code: int = wire("int16", default=0)
    groups: list[ListGroupsResponseListedGroup] = wire([ListGroupsResponseListedGroup], factory=list)


class SaslHandshakeRequest(Struct, key=17, versions="0-1"):
    mechanism: str = wire("string", default="")


class SaslHandshakeResponse(Struct, key=17, versions="0-1"):
    error_code: int = wire("int16", default=0)
    mechanisms: list[str] = wire(["string"], factory=list)


class ApiVersionsRequest(Struct, key=18, versions="0-4", flexible="3+"):
    client_software_name: str = wire("string", versions="3+", ignorable=True, default="")
    client_software_version: str = wire("string", versions="3+", ignorable=True, default="")


class ApiVersionsResponseApiVersion(Struct):
    api_key: int = wire("int16", default=0)
    min_version: int = wire("int16", default=0)
    max_version: int = wire("int16", default=0)


class ApiVersionsResponseSupportedFeatureKey(Struct):
    name: str = wire("string", default="")
    min_version: int = wire("int16", default=0)
    max_version: int = wire("int16", default=0)


class ApiVersionsResponseFinalizedFeatureKey(Struct):
    name: str = wire("string", default="")
    max_version_level: int = wire("int16", default=0)
    min_version_level: int = wire("int16", default=0)


class ApiVersionsResponse(Struct, key=18, versions="0-4", flexible="3+"):
    error_code: int = wire("int16", default=0)
    api_keys: list[ApiVersionsResponseApiVersion] = wire([ApiVersionsResponseApiVersion], factory=list)
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True, default=0)
    supported_features: list[ApiVersionsResponseSupportedFeatureKey] = wire(
        [ApiVersionsResponseSupportedFeatureKey], versions="3+", tag=0, ignorable=True, factory=list
    )
    finalized_features_epoch: int = wire("int64", versions="3+", tag=1, ignorable=True, default=-1)
    finalized_features: list[ApiVersionsResponseFinalizedFeatureKey] = wire(
        [ApiVersionsResponseFinalizedFeatureKey], versions="3+", tag=2, ignorable=True, factory=list
    )
    zk_migration_ready: bool = wire("bool", versions="3+", tag=3, ignorable=True, default=False)


class CreateTopicsRequestCreatableReplicaAssignment(Struct):
    partition_index: int = wire("int32", default=0)
    broker_ids: list[int] = wire(["int32"], factory=list)


class CreateTopicsRequestCreatableTopicConfig(Struct):
    name: str = wire("string", default="")
    value: str | None = wire("string", nullable="0+", default="")


class CreateTopicsRequestCreatableTopic(Struct):
    name: str = wire("string", default="")
    num_partitions: int = wire("int32", default=0)
    replication_factor: int = wire("int16", default=0)
    assignments: list[CreateTopicsRequestCreatableReplicaAssignment] = wire(
        [CreateTopicsRequestCreatableReplicaAssignment], factory=list
    )
    configs: list[CreateTopicsRequestCreatableTopicConfig] = wire(
        [CreateTopicsRequestCreatableTopicConfig], factory=list
    )


class CreateTopicsRequest(Struct, key=19, versions="2-7", flexible="5+"):
    topics: list[CreateTopicsRequestCreatableTopic] = wire([CreateTopicsRequestCreatableTopic], factory=list)
    timeout_ms: int = wire("int32", default=60000)
    validate_only: bool = wire("bool", default=False)


class CreateTopicsResponseCreatableTopicConfigs(Struct):
    name: str = wire("string", default="")
    value: str | None = wire("string", nullable="0+", default="")
    read_only: bool = wire("bool", default=False)
    config_source: int = wire("int8", default=-1)
    is_sensitive: bool = wire("bool", default=False)


class CreateTopicsResponseCreatableTopicResult(Struct):
    name: str = wire("string", default="")
    topic_id: bytes = wire("uuid", versions="7+", ignorable=True, default=bytes(16))
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)
    topic_config_error_code: int = wire("int16", versions="5+", tag=0, ignorable=True, default=0)
    num_partitions: int = wire("int32", versions="5+", ignorable=True, default=-1)
    replication_factor: int = wire("int16", versions="5+", ignorable=True, default=-1)
    configs: list[CreateTopicsResponseCreatableTopicConfigs] | None = wire(
        [CreateTopicsResponseCreatableTopicConfigs],
        versions="5+",
        nullable="5+",
        ignorable=True,
        factory=list,
    )


class CreateTopicsResponse(Struct, key=19, versions="2-7", flexible="5+"):
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[CreateTopicsResponseCreatableTopicResult] = wire(
        [CreateTopicsResponseCreatableTopicResult], factory=list
    )


class DeleteTopicsRequestDeleteTopicState(Struct):
    name: str | None = wire("string", nullable="0+", default=None)
    topic_id: bytes = wire("uuid", default=bytes(16))


class DeleteTopicsRequest(Struct, key=20, versions="1-6", flexible="4+"):
    topic_names: list[str] = wire(["string"], versions="1-5", ignorable=True, factory=list)
    topics: list[DeleteTopicsRequestDeleteTopicState] = wire(
        [DeleteTopicsRequestDeleteTopicState], versions="6+", factory=list
    )
    timeout_ms: int = wire("int32", default=0)


class DeleteTopicsResponseDeletableTopicResult(Struct):
    name: str | None = wire("string", nullable="6+", default="")
    topic_id: bytes = wire("uuid", versions="6+", ignorable=True, default=bytes(16))
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)


class DeleteTopicsResponse(Struct, key=20, versions="1-6", flexible="4+"):
    throttle_time_ms: int = wire("int32", default=0)
    responses: list[DeleteTopicsResponseDeletableTopicResult] = wire(
        [DeleteTopicsResponseDeletableTopicResult], factory=list
    )


class DeleteRecordsRequestDeleteRecordsPartition(Struct):
    partition_index: int = wire("int32", default=0)
    offset: int = wire("int64", default=0)


class DeleteRecordsRequestDeleteRecordsTopic(Struct):
    name: str = wire("string", default="")
    partitions: list[DeleteRecordsRequestDeleteRecordsPartition] = wire(
        [DeleteRecordsRequestDeleteRecordsPartition], factory=list
    )


class DeleteRecordsRequest(Struct, key=21, versions="0-2", flexible="2+"):
    topics: list[DeleteRecordsRequestDeleteRecordsTopic] = wire(
        [DeleteRecordsRequestDeleteRecordsTopic], factory=list
    )
    timeout_ms: int = wire("int32", default=0)


class DeleteRecordsResponseDeleteRecordsPartitionResult(Struct):
    partition_index: int = wire("int32", default=0)
    low_watermark: int = wire("int64", default=0)
    error_code: int = wire("int16", default=0)


class DeleteRecordsResponseDeleteRecordsTopicResult(Struct):
    name: str = wire("string", default="")
    partitions: list[DeleteRecordsResponseDeleteRecordsPartitionResult] = wire(
        [DeleteRecordsResponseDeleteRecordsPartitionResult], factory=list
    )


class DeleteRecordsResponse(Struct, key=21, versions="0-2", flexible="2+"):
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[DeleteRecordsResponseDeleteRecordsTopicResult] = wire(
        [DeleteRecordsResponseDeleteRecordsTopicResult], factory=list
    )


class InitProducerIdRequest(Struct, key=22, versions="0-4", flexible="2+"):
    transactional_id: str | None = wire("string", nullable="0+", default="")
    transaction_timeout_ms: int = wire("int32", default=0)
    producer_id: int = wire("int64", versions="3+", default=-1)
    producer_epoch: int = wire("int16", versions="3+", default=-1)


class InitProducerIdResponse(Struct, key=22, versions="0-4", flexible="2+"):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    producer_id: int = wire("int64", default=-1)
    producer_epoch: int = wire("int16", default=0)


class OffsetForLeaderEpochRequestOffsetForLeaderPartition(Struct):
    partition: int = wire("int32", default=0)
    current_leader_epoch: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32", default=0)


class OffsetForLeaderEpochRequestOffsetForLeaderTopic(Struct):
    topic: str = wire("string", default="")
    partitions: list[OffsetForLeaderEpochRequestOffsetForLeaderPartition] = wire(
        [OffsetForLeaderEpochRequestOffsetForLeaderPartition], factory=list
    )


class OffsetForLeaderEpochRequest(Struct, key=23, versions="2-4", flexible="4+"):
    replica_id: int = wire("int32", versions="3+", ignorable=True, default=-2)
    topics: list[OffsetForLeaderEpochRequestOffsetForLeaderTopic] = wire(
        [OffsetForLeaderEpochRequestOffsetForLeaderTopic], factory=list
    )


class OffsetForLeaderEpochResponseEpochEndOffset(Struct):
    error_code: int = wire("int16", default=0)
    partition: int = wire("int32", default=0)
    leader_epoch: int = wire("int32", default=-1)
    end_offset: int = wire("int64", default=-1)


class OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(Struct):
    topic: str = wire("string", default="")
    partitions: list[OffsetForLeaderEpochResponseEpochEndOffset] = wire(
        [OffsetForLeaderEpochResponseEpochEndOffset], factory=list
    )


class OffsetForLeaderEpochResponse(Struct, key=23, versions="2-4", flexible="4+"):
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[OffsetForLeaderEpochResponseOffsetForLeaderTopicResult] = wire(
        [OffsetForLeaderEpochResponseOffsetForLeaderTopicResult], factory=list
    )


class DescribeAclsRequest(Struct, key=29, versions="1-3", flexible="2+"):
    resource_type_filter: int = wire("int8", default=0)
    resource_name_filter: str | None = wire("string", nullable="0+", default="")
    pattern_type_filter: int = wire("int8", default=3)
    principal_filter: str | None = wire("string", nullable="0+", default="")
    host_filter: str | None = wire("string", nullable="0+", default="")
    operation: int = wire("int8", default=0)
    permission_type: int = wire("int8", default=0)


class DescribeAclsResponseAclDescription(Struct):
    principal: str = wire("string", default="")
    host: str = wire("string", default="")
    operation: int = wire("int8", default=0)
    permission_type: int = wire("int8", default=0)


class DescribeAclsResponseDescribeAclsResource(Struct):
    resource_type: int = wire("int8", default=0)
    resource_name: str = wire("string", default="")
    pattern_type: int = wire("int8", default=3)
    acls: list[DescribeAclsResponseAclDescription] = wire([DescribeAclsResponseAclDescription], factory=list)


class DescribeAclsResponse(Struct, key=29, versions="1-3", flexible="2+"):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)
    resources: list[DescribeAclsResponseDescribeAclsResource] = wire(
        [DescribeAclsResponseDescribeAclsResource], factory=list
    )


class CreateAclsRequestAclCreation(Struct):
    resource_type: int = wire("int8", default=0)
    resource_name: str = wire("string", default="")
    resource_pattern_type: int = wire("int8", default=3)
    principal: str = wire("string", default="")
    host: str = wire("string", default="")
    operation: int = wire("int8", default=0)
    permission_type: int = wire("int8", default=0)


class CreateAclsRequest(Struct, key=30, versions="1-3", flexible="2+"):
    creations: list[CreateAclsRequestAclCreation] = wire([CreateAclsRequestAclCreation], factory=list)


class CreateAclsResponseAclCreationResult(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)


class CreateAclsResponse(Struct, key=30, versions="1-3", flexible="2+"):
    throttle_time_ms: int = wire("int32", default=0)
    results: list[CreateAclsResponseAclCreationResult] = wire(
        [CreateAclsResponseAclCreationResult], factory=list
    )


class DeleteAclsRequestDeleteAclsFilter(Struct):
    resource_type_filter: int = wire("int8", default=0)
    resource_name_filter: str | None = wire("string", nullable="0+", default="")
    pattern_type_filter: int = wire("int8", default=3)
    principal_filter: str | None = wire("string", nullable="0+", default="")
    host_filter: str | None = wire("string", nullable="0+", default="")
    operation: int = wire("int8", default=0)
    permission_type: int = wire("int8", default=0)


class DeleteAclsRequest(Struct, key=31, versions="1-3", flexible="2+"):
    filters: list[DeleteAclsRequestDeleteAclsFilter] = wire([DeleteAclsRequestDeleteAclsFilter], factory=list)


class DeleteAclsResponseDeleteAclsMatchingAcl(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)
    resource_type: int = wire("int8", default=0)
    resource_name: str = wire("string", default="")
    pattern_type: int = wire("int8", default=3)
    principal: str = wire("string", default="")
    host: str = wire("string", default="")
    operation: int = wire("int8", default=0)
    permission_type: int = wire("int8", default=0)


class DeleteAclsResponseDeleteAclsFilterResult(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)
    matching_acls: list[DeleteAclsResponseDeleteAclsMatchingAcl] = wire(
        [DeleteAclsResponseDeleteAclsMatchingAcl], factory=list
    )


class DeleteAclsResponse(Struct, key=31, versions="1-3", flexible="2+"):
    throttle_time_ms: int = wire("int32", default=0)
    filter_results: list[DeleteAclsResponseDeleteAclsFilterResult] = wire(
        [DeleteAclsResponseDeleteAclsFilterResult], factory=list
    )


class DescribeConfigsRequestDescribeConfigsResource(Struct):
    resource_type: int = wire("int8", default=0)
    resource_name: str = wire("string", default="")
    configuration_keys: list[str] | None = wire(["string"], nullable="0+", factory=list)


class DescribeConfigsRequest(Struct, key=32, versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsRequestDescribeConfigsResource] = wire(
        [DescribeConfigsRequestDescribeConfigsResource], factory=list
    )
    include_synonyms: bool = wire("bool", default=False)
    include_documentation: bool = wire("bool", versions="3+", default=False)


class DescribeConfigsResponseDescribeConfigsSynonym(Struct):
    name: str = wire("string", default="")
    value: str | None = wire("string", nullable="0+", default="")
    source: int = wire("int8", default=0)


class DescribeConfigsResponseDescribeConfigsResourceResult(Struct):
    name: str = wire("string", default="")
    value: str | None = wire("string", nullable="0+", default="")
    read_only: bool = wire("bool", default=False)
    config_source: int = wire("int8", default=-1)
    is_sensitive: bool = wire("bool", default=False)
    synonyms: list[DescribeConfigsResponseDescribeConfigsSynonym] = wire(
        [DescribeConfigsResponseDescribeConfigsSynonym], factory=list
    )
    config_type: int = wire("int8", versions="3+", ignorable=True, default=0)
    documentation: str | None = wire("string", versions="3+", nullable="3+", ignorable=True, default="")


class DescribeConfigsResponseDescribeConfigsResult(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)
    resource_type: int = wire("int8", default=0)
    resource_name: str = wire("string", default="")
    configs: list[DescribeConfigsResponseDescribeConfigsResourceResult] = wire(
        [DescribeConfigsResponseDescribeConfigsResourceResult], factory=list
    )


class DescribeConfigsResponse(Struct, key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: int = wire("int32", default=0)
    results: list[DescribeConfigsResponseDescribeConfigsResult] = wire(
        [DescribeConfigsResponseDescribeConfigsResult], factory=list
    )


class AlterConfigsRequestAlterableConfig(Struct):
    name: str = wire("string", default="")
    value: str | None = wire("string", nullable="0+", default="")


class AlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: int = wire("int8", default=0)
    resource_name: str = wire("string", default="")
    configs: list[AlterConfigsRequestAlterableConfig] = wire(
        [AlterConfigsRequestAlterableConfig], factory=list
    )


class AlterConfigsRequest(Struct, key=33, versions="0-2", flexible="2+"):
    resources: list[AlterConfigsRequestAlterConfigsResource] = wire(
        [AlterConfigsRequestAlterConfigsResource], factory=list
    )
    validate_only: bool = wire("bool", default=False)


class AlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)
    resource_type: int = wire("int8", default=0)
    resource_name: str = wire("string", default="")


class AlterConfigsResponse(Struct, key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: int = wire("int32", default=0)
    responses: list[AlterConfigsResponseAlterConfigsResourceResponse] = wire(
        [AlterConfigsResponseAlterConfigsResourceResponse], factory=list
    )


class DescribeLogDirsRequestDescribableLogDirTopic(Struct):
    topic: str = wire("string", default="")
    partitions: list[int] = wire(["int32"], factory=list)


class DescribeLogDirsRequest(Struct, key=35, versions="1-4", flexible="2+"):
    topics: list[DescribeLogDirsRequestDescribableLogDirTopic] | None = wire(
        [DescribeLogDirsRequestDescribableLogDirTopic], nullable="0+", factory=list
    )


class DescribeLogDirsResponseDescribeLogDirsPartition(Struct):
    partition_index: int = wire("int32", default=0)
    partition_size: int = wire("int64", default=0)
    offset_lag: int = wire("int64", default=0)
    is_future_key: bool = wire("bool", default=False)


class DescribeLogDirsResponseDescribeLogDirsTopic(Struct):
    name: str = wire("string", default="")
    partitions: list[DescribeLogDirsResponseDescribeLogDirsPartition] = wire(
        [DescribeLogDirsResponseDescribeLogDirsPartition], factory=list
    )


class DescribeLogDirsResponseDescribeLogDirsResult(Struct):
    error_code: int = wire("int16", default=0)
    log_dir: str = wire("string", default="")
    topics: list[DescribeLogDirsResponseDescribeLogDirsTopic] = wire(
        [DescribeLogDirsResponseDescribeLogDirsTopic], factory=list
    )
    total_bytes: int = wire("int64", versions="4+", ignorable=True, default=-1)
    usable_bytes: int = wire("int64", versions="4+", ignorable=True, default=-1)


class DescribeLogDirsResponse(Struct, key=35, versions="1-4", flexible="2+"):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", versions="3+", ignorable=True, default=0)
    results: list[DescribeLogDirsResponseDescribeLogDirsResult] = wire(
        [DescribeLogDirsResponseDescribeLogDirsResult], factory=list
    )


class SaslAuthenticateRequest(Struct, key=36, versions="0-2", flexible="2+"):
    auth_bytes: bytes = wire("bytes", default=b"")


class SaslAuthenticateResponse(Struct, key=36, versions="0-2", flexible="2+"):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)
    auth_bytes: bytes = wire("bytes", default=b"")
    session_lifetime_ms: int = wire("int64", versions="1+", ignorable=True, default=0)


class CreatePartitionsRequestCreatePartitionsAssignment(Struct):
    broker_ids: list[int] = wire(["int32"], factory=list)


class CreatePartitionsRequestCreatePartitionsTopic(Struct):
    name: str = wire("string", default="")
    count: int = wire("int32", default=0)
    assignments: list[CreatePartitionsRequestCreatePartitionsAssignment] | None = wire(
        [CreatePartitionsRequestCreatePartitionsAssignment], nullable="0+", factory=list
    )


class CreatePartitionsRequest(Struct, key=37, versions="0-3", flexible="2+"):
    topics: list[CreatePartitionsRequestCreatePartitionsTopic] = wire(
        [CreatePartitionsRequestCreatePartitionsTopic], factory=list
    )
    timeout_ms: int = wire("int32", default=0)
    validate_only: bool = wire("bool", default=False)


class CreatePartitionsResponseCreatePartitionsTopicResult(Struct):
    name: str = wire("string", default="")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)


class CreatePartitionsResponse(Struct, key=37, versions="0-3", flexible="2+"):
    throttle_time_ms: int = wire("int32", default=0)
    results: list[CreatePartitionsResponseCreatePartitionsTopicResult] = wire(
        [CreatePartitionsResponseCreatePartitionsTopicResult], factory=list
    )


class DeleteGroupsRequest(Struct, key=42, versions="0-2", flexible="2+"):
    groups_names: list[str] = wire(["string"], factory=list)


class DeleteGroupsResponseDeletableGroupResult(Struct):
    group_id: str = wire("string", default="")
    error_code: int = wire("int16", default=0)


class DeleteGroupsResponse(Struct, key=42, versions="0-2", flexible="2+"):
    throttle_time_ms: int = wire("int32", default=0)
    results: list[DeleteGroupsResponseDeletableGroupResult] = wire(
        [DeleteGroupsResponseDeletableGroupResult], factory=list
    )


class ElectLeadersRequestTopicPartitions(Struct):
    topic: str = wire("string", default="")
    partitions: list[int] = wire(["int32"], factory=list)


class ElectLeadersRequest(Struct, key=43, versions="0-2", flexible="2+"):
    election_type: int = wire("int8", versions="1+", default=0)
    topic_partitions: list[ElectLeadersRequestTopicPartitions] | None = wire(
        [ElectLeadersRequestTopicPartitions], nullable="0+", factory=list
    )
    timeout_ms: int = wire("int32", default=60000)


class ElectLeadersResponsePartitionResult(Struct):
    partition_id: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)


class ElectLeadersResponseReplicaElectionResult(Struct):
    topic: str = wire("string", default="")
    partition_result: list[ElectLeadersResponsePartitionResult] = wire(
        [ElectLeadersResponsePartitionResult], factory=list
    )


class ElectLeadersResponse(Struct, key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", versions="1+", default=0)
    replica_election_results: list[ElectLeadersResponseReplicaElectionResult] = wire(
        [ElectLeadersResponseReplicaElectionResult], factory=list
    )


class IncrementalAlterConfigsRequestAlterableConfig(Struct):
    name: str = wire("string", default="")
    config_operation: int = wire("int8", default=0)
    value: str | None = wire("string", nullable="0+", default="")


class IncrementalAlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: int = wire("int8", default=0)
    resource_name: str = wire("string", default="")
    configs: list[IncrementalAlterConfigsRequestAlterableConfig] = wire(
        [IncrementalAlterConfigsRequestAlterableConfig], factory=list
    )


class IncrementalAlterConfigsRequest(Struct, key=44, versions="0-1", flexible="1+"):
    resources: list[IncrementalAlterConfigsRequestAlterConfigsResource] = wire(
        [IncrementalAlterConfigsRequestAlterConfigsResource], factory=list
    )
    validate_only: bool = wire("bool", default=False)


class IncrementalAlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)
    resource_type: int = wire("int8", default=0)
    resource_name: str = wire("string", default="")


class IncrementalAlterConfigsResponse(Struct, key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: int = wire("int32", default=0)
    responses: list[IncrementalAlterConfigsResponseAlterConfigsResourceResponse] = wire(
        [IncrementalAlterConfigsResponseAlterConfigsResourceResponse], factory=list
    )


class AlterPartitionReassignmentsRequestReassignablePartition(Struct):
    partition_index: int = wire("int32", default=0)
    replicas: list[int] | None = wire(["int32"], nullable="0+", factory=list)


class AlterPartitionReassignmentsRequestReassignableTopic(Struct):
    name: str = wire("string", default="")
    partitions: list[AlterPartitionReassignmentsRequestReassignablePartition] = wire(
        [AlterPartitionReassignmentsRequestReassignablePartition], factory=list
    )


class AlterPartitionReassignmentsRequest(Struct, key=45, versions="0", flexible="0+"):
    timeout_ms: int = wire("int32", default=60000)
    topics: list[AlterPartitionReassignmentsRequestReassignableTopic] = wire(
        [AlterPartitionReassignmentsRequestReassignableTopic], factory=list
    )


class AlterPartitionReassignmentsResponseReassignablePartitionResponse(Struct):
    partition_index: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)


class AlterPartitionReassignmentsResponseReassignableTopicResponse(Struct):
    name: str = wire("string", default="")
    partitions: list[AlterPartitionReassignmentsResponseReassignablePartitionResponse] = wire(
        [AlterPartitionReassignmentsResponseReassignablePartitionResponse], factory=list
    )


class AlterPartitionReassignmentsResponse(Struct, key=45, versions="0", flexible="0+"):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)
    responses: list[AlterPartitionReassignmentsResponseReassignableTopicResponse] = wire(
        [AlterPartitionReassignmentsResponseReassignableTopicResponse], factory=list
    )


class ListPartitionReassignmentsRequestListPartitionReassignmentsTopics(Struct):
    name: str = wire("string", default="")
    partition_indexes: list[int] = wire(["int32"], factory=list)


class ListPartitionReassignmentsRequest(Struct, key=46, versions="0", flexible="0+"):
    timeout_ms: int = wire("int32", default=60000)
    topics: list[ListPartitionReassignmentsRequestListPartitionReassignmentsTopics] | None = wire(
        [ListPartitionReassignmentsRequestListPartitionReassignmentsTopics], nullable="0+", factory=list
    )


class ListPartitionReassignmentsResponseOngoingPartitionReassignment(Struct):
    partition_index: int = wire("int32", default=0)
    replicas: list[int] = wire(["int32"], factory=list)
    adding_replicas: list[int] = wire(["int32"], factory=list)
    removing_replicas: list[int] = wire(["int32"], factory=list)


class ListPartitionReassignmentsResponseOngoingTopicReassignment(Struct):
    name: str = wire("string", default="")
    partitions: list[ListPartitionReassignmentsResponseOngoingPartitionReassignment] = wire(
        [ListPartitionReassignmentsResponseOngoingPartitionReassignment], factory=list
    )


class ListPartitionReassignmentsResponse(Struct, key=46, versions="0", flexible="0+"):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: list[ListPartitionReassignmentsResponseOngoingTopicReassignment] = wire(
        [ListPartitionReassignmentsResponseOngoingTopicReassignment], factory=list
    )


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = wire("int32", default=0)


class OffsetDeleteRequestTopic(Struct):
    name: str = wire("string", default="")
    partitions: list[OffsetDeleteRequestPartition] = wire([OffsetDeleteRequestPartition], factory=list)


class OffsetDeleteRequest(Struct, key=47, versions="0"):
    group_id: str = wire("string", default="")
    topics: list[OffsetDeleteRequestTopic] = wire([OffsetDeleteRequestTopic], factory=list)


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)


class OffsetDeleteResponseTopic(Struct):
    name: str = wire("string", default="")
    partitions: list[OffsetDeleteResponsePartition] = wire([OffsetDeleteResponsePartition], factory=list)


class OffsetDeleteResponse(Struct, key=47, versions="0"):
    error_code: int = wire("int16", default=0)
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[OffsetDeleteResponseTopic] = wire([OffsetDeleteResponseTopic], factory=list)


class AlterPartitionRequestBrokerState(Struct):
    broker_id: int = wire("int32", default=0)
    broker_epoch: int = wire("int64", default=-1)


class AlterPartitionRequestPartitionData(Struct):
    partition_index: int = wire("int32", default=0)
    leader_epoch: int = wire("int32", default=0)
    new_isr_with_epochs: list[AlterPartitionRequestBrokerState] = wire(
        [AlterPartitionRequestBrokerState], factory=list
    )
    leader_recovery_state: int = wire("int8", default=0)
    partition_epoch: int = wire("int32", default=0)
    all_synced: bool = wire("bool", tag=10000, default=False)


class AlterPartitionRequestTopicData(Struct):
    topic_id: bytes = wire("uuid", default=bytes(16))
    partitions: list[AlterPartitionRequestPartitionData] = wire(
        [AlterPartitionRequestPartitionData], factory=list
    )
    topic_name: str = wire("string", tag=10000, default="")


class AlterPartitionRequest(Struct, key=56, versions="3", flexible="3+"):
    broker_id: int = wire("int32", default=0)
    broker_epoch: int = wire("int64", default=-1)
    topics: list[AlterPartitionRequestTopicData] = wire([AlterPartitionRequestTopicData], factory=list)


class AlterPartitionResponsePartitionData(Struct):
    partition_index: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    leader_id: int = wire("int32", default=0)
    leader_epoch: int = wire("int32", default=0)
    isr: list[int] = wire(["int32"], factory=list)
    leader_recovery_state: int = wire("int8", default=0)
    partition_epoch: int = wire("int32", default=0)
    min_insync: int = wire("int32", tag=10000, default=0)


class AlterPartitionResponseTopicData(Struct):
    topic_id: bytes = wire("uuid", default=bytes(16))
    partitions: list[AlterPartitionResponsePartitionData] = wire(
        [AlterPartitionResponsePartitionData], factory=list
    )
    topic_name: str = wire("string", tag=10000, default="")


class AlterPartitionResponse(Struct, key=56, versions="3", flexible="3+"):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    topics: list[AlterPartitionResponseTopicData] = wire([AlterPartitionResponseTopicData], factory=list)


class DescribeClusterRequest(Struct, key=60, versions="0-1", flexible="0+"):
    include_cluster_authorized_operations: bool = wire("bool", default=False)
    endpoint_type: int = wire("int8", versions="1+", default=1)


class DescribeClusterResponseDescribeClusterBroker(Struct):
    broker_id: int = wire("int32", default=0)
    host: str = wire("string", default="")
    port: int = wire("int32", default=0)
    rack: str | None = wire("string", nullable="0+", default=None)


class DescribeClusterResponse(Struct, key=60, versions="0-1", flexible="0+"):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", nullable="0+", default=None)
    endpoint_type: int = wire("int8", versions="1+", default=1)
    cluster_id: str = wire("string", default="")
    controller_id: int = wire("int32", default=-1)
    brokers: list[DescribeClusterResponseDescribeClusterBroker] = wire(
        [DescribeClusterResponseDescribeClusterBroker], factory=list
    )
    cluster_authorized_operations: int = wire("int32", default=-2147483648)
