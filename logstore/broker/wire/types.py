"""Every message that is served, and its parts. Made by `python -m logstore.broker.wire.generate`.

How to read it stands in `declarations.py`; names are kio's, with the message's before its parts'. Tags
from 10000 on are ours, between nodes.
"""

from __future__ import annotations

from logstore.broker.wire.declarations import Struct, wire


class ProduceRequestPartitionProduceData(Struct):
    index: int = wire("int32")
    records: bytes | memoryview | None = wire("records", nullable="0+")


class ProduceRequestTopicProduceData(Struct):
    name: str = wire("string")
    partition_data: list[ProduceRequestPartitionProduceData] = wire([ProduceRequestPartitionProduceData])


class ProduceRequest(Struct, key=0, versions="3-11", flexible="9+"):
    transactional_id: str | None = wire("string", nullable="0+", default=None)
    acks: int = wire("int16")
    timeout_ms: int = wire("int32")
    topic_data: list[ProduceRequestTopicProduceData] = wire([ProduceRequestTopicProduceData])
    asks_level: bool = wire("bool", versions="9+", tag=10000, ignorable=True)


class ProduceResponseBatchIndexAndErrorMessage(Struct):
    batch_index: int = wire("int32")
    batch_index_error_message: str | None = wire("string", nullable="0+", default=None)


class ProduceResponseLeaderIdAndEpoch(Struct):
    leader_id: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32", default=-1)


class ProduceResponsePartitionProduceResponse(Struct):
    index: int = wire("int32")
    error_code: int = wire("int16")
    base_offset: int = wire("int64")
    log_append_time_ms: int = wire("int64", default=-1)
    log_start_offset: int = wire("int64", versions="5+", ignorable=True, default=-1)
    record_errors: list[ProduceResponseBatchIndexAndErrorMessage] = wire(
        [ProduceResponseBatchIndexAndErrorMessage], versions="8+", ignorable=True
    )
    error_message: str | None = wire("string", versions="8+", nullable="8+", ignorable=True, default=None)
    current_leader: ProduceResponseLeaderIdAndEpoch | None = wire(
        ProduceResponseLeaderIdAndEpoch, versions="10+", tag=0
    )
    level: int = wire("int8", versions="9+", tag=10000, default=-1)


class ProduceResponseTopicProduceResponse(Struct):
    name: str = wire("string")
    partition_responses: list[ProduceResponsePartitionProduceResponse] = wire(
        [ProduceResponsePartitionProduceResponse]
    )


class ProduceResponseNodeEndpoint(Struct):
    node_id: int = wire("int32")
    host: str = wire("string")
    port: int = wire("int32")
    rack: str | None = wire("string", nullable="0+", default=None)


class ProduceResponse(Struct, key=0, versions="3-11", flexible="9+"):
    responses: list[ProduceResponseTopicProduceResponse] = wire([ProduceResponseTopicProduceResponse])
    throttle_time_ms: int = wire("int32")
    node_endpoints: list[ProduceResponseNodeEndpoint] = wire(
        [ProduceResponseNodeEndpoint], versions="10+", tag=0
    )


class FetchRequestReplicaState(Struct):
    replica_id: int = wire("int32", default=-1)
    replica_epoch: int = wire("int64", default=-1)


class FetchRequestFetchPartition(Struct):
    partition: int = wire("int32")
    current_leader_epoch: int = wire("int32", versions="9+", ignorable=True, default=-1)
    fetch_offset: int = wire("int64")
    last_fetched_epoch: int = wire("int32", versions="12+", default=-1)
    log_start_offset: int = wire("int64", versions="5+", ignorable=True, default=-1)
    partition_max_bytes: int = wire("int32")
    is_synced: bool = wire("bool", versions="12+", tag=10000)


class FetchRequestFetchTopic(Struct):
    topic: str = wire("string", versions="4-12", ignorable=True)
    topic_id: bytes = wire("uuid", versions="13+", ignorable=True)
    partitions: list[FetchRequestFetchPartition] = wire([FetchRequestFetchPartition])
    topic_name: str = wire("string", versions="13+", tag=10000)


class FetchRequestForgottenTopic(Struct):
    topic: str = wire("string", versions="7-12", ignorable=True)
    topic_id: bytes = wire("uuid", versions="13+", ignorable=True)
    partitions: list[int] = wire(["int32"])


class FetchRequest(Struct, key=1, versions="4-16", flexible="12+"):
    cluster_id: str | None = wire(
        "string", versions="12+", nullable="0+", tag=0, ignorable=True, default=None
    )
    replica_id: int = wire("int32", versions="4-14", default=-1)
    replica_state: FetchRequestReplicaState | None = wire(FetchRequestReplicaState, versions="15+", tag=1)
    max_wait_ms: int = wire("int32")
    min_bytes: int = wire("int32")
    max_bytes: int = wire("int32", default=2147483647)
    isolation_level: int = wire("int8")
    session_id: int = wire("int32", versions="7+", ignorable=True)
    session_epoch: int = wire("int32", versions="7+", ignorable=True, default=-1)
    topics: list[FetchRequestFetchTopic] = wire([FetchRequestFetchTopic])
    forgotten_topics_data: list[FetchRequestForgottenTopic] = wire(
        [FetchRequestForgottenTopic], versions="7+"
    )
    rack_id: str = wire("string", versions="11+", ignorable=True)
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
    producer_id: int = wire("int64")
    first_offset: int = wire("int64")


class FetchResponsePartitionData(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16")
    high_watermark: int = wire("int64")
    last_stable_offset: int = wire("int64", default=-1)
    log_start_offset: int = wire("int64", versions="5+", ignorable=True, default=-1)
    diverging_epoch: FetchResponseEpochEndOffset | None = wire(
        FetchResponseEpochEndOffset, versions="12+", tag=0
    )
    current_leader: FetchResponseLeaderIdAndEpoch | None = wire(
        FetchResponseLeaderIdAndEpoch, versions="12+", tag=1
    )
    snapshot_id: FetchResponseSnapshotId | None = wire(FetchResponseSnapshotId, versions="12+", tag=2)
    aborted_transactions: list[FetchResponseAbortedTransaction] | None = wire(
        [FetchResponseAbortedTransaction], nullable="0+"
    )
    preferred_read_replica: int = wire("int32", versions="11+", default=-1)
    records: bytes | memoryview | None = wire("records", nullable="0+")


class FetchResponseFetchableTopicResponse(Struct):
    topic: str = wire("string", versions="4-12", ignorable=True)
    topic_id: bytes = wire("uuid", versions="13+", ignorable=True)
    partitions: list[FetchResponsePartitionData] = wire([FetchResponsePartitionData])
    topic_name: str = wire("string", versions="13+", tag=10000)


class FetchResponseNodeEndpoint(Struct):
    node_id: int = wire("int32")
    host: str = wire("string")
    port: int = wire("int32")
    rack: str | None = wire("string", nullable="0+", default=None)


class FetchResponse(Struct, key=1, versions="4-16", flexible="12+"):
    throttle_time_ms: int = wire("int32")
    error_code: int = wire("int16", versions="7+", ignorable=True)
    session_id: int = wire("int32", versions="7+")
    responses: list[FetchResponseFetchableTopicResponse] = wire([FetchResponseFetchableTopicResponse])
    node_endpoints: list[FetchResponseNodeEndpoint] = wire([FetchResponseNodeEndpoint], versions="16+", tag=0)


class ListOffsetsRequestListOffsetsPartition(Struct):
    partition_index: int = wire("int32")
    current_leader_epoch: int = wire("int32", versions="4+", ignorable=True, default=-1)
    timestamp: int = wire("int64")


class ListOffsetsRequestListOffsetsTopic(Struct):
    name: str = wire("string")
    partitions: list[ListOffsetsRequestListOffsetsPartition] = wire([ListOffsetsRequestListOffsetsPartition])


class ListOffsetsRequest(Struct, key=2, versions="1-8", flexible="6+"):
    replica_id: int = wire("int32")
    isolation_level: int = wire("int8", versions="2+")
    topics: list[ListOffsetsRequestListOffsetsTopic] = wire([ListOffsetsRequestListOffsetsTopic])


class ListOffsetsResponseListOffsetsPartitionResponse(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16")
    timestamp: int = wire("int64", default=-1)
    offset: int = wire("int64", default=-1)
    leader_epoch: int = wire("int32", versions="4+", default=-1)


class ListOffsetsResponseListOffsetsTopicResponse(Struct):
    name: str = wire("string")
    partitions: list[ListOffsetsResponseListOffsetsPartitionResponse] = wire(
        [ListOffsetsResponseListOffsetsPartitionResponse]
    )


class ListOffsetsResponse(Struct, key=2, versions="1-8", flexible="6+"):
    throttle_time_ms: int = wire("int32", versions="2+", ignorable=True)
    topics: list[ListOffsetsResponseListOffsetsTopicResponse] = wire(
        [ListOffsetsResponseListOffsetsTopicResponse]
    )


class MetadataRequestTopic(Struct):
    topic_id: bytes = wire("uuid", versions="10+", ignorable=True)
    name: str | None = wire("string", nullable="10+")


class MetadataRequest(Struct, key=3, versions="0-12", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = wire([MetadataRequestTopic], nullable="1+")
    allow_auto_topic_creation: bool = wire("bool", versions="4+", default=True)
    include_cluster_authorized_operations: bool = wire("bool", versions="8-10")
    include_topic_authorized_operations: bool = wire("bool", versions="8+")


class MetadataResponseBroker(Struct):
    node_id: int = wire("int32")
    host: str = wire("string")
    port: int = wire("int32")
    rack: str | None = wire("string", versions="1+", nullable="1+", ignorable=True, default=None)


class MetadataResponsePartition(Struct):
    error_code: int = wire("int16")
    partition_index: int = wire("int32")
    leader_id: int = wire("int32")
    leader_epoch: int = wire("int32", versions="7+", ignorable=True, default=-1)
    replica_nodes: list[int] = wire(["int32"])
    isr_nodes: list[int] = wire(["int32"])
    offline_replicas: list[int] = wire(["int32"], versions="5+", ignorable=True)


class MetadataResponseTopic(Struct):
    error_code: int = wire("int16")
    name: str | None = wire("string", nullable="12+")
    topic_id: bytes = wire("uuid", versions="10+", ignorable=True)
    is_internal: bool = wire("bool", versions="1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = wire([MetadataResponsePartition])
    topic_authorized_operations: int = wire("int32", versions="8+", default=-2147483648)


class MetadataResponse(Struct, key=3, versions="0-12", flexible="9+"):
    throttle_time_ms: int = wire("int32", versions="3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = wire([MetadataResponseBroker])
    cluster_id: str | None = wire("string", versions="2+", nullable="2+", ignorable=True, default=None)
    controller_id: int = wire("int32", versions="1+", ignorable=True, default=-1)
    topics: list[MetadataResponseTopic] = wire([MetadataResponseTopic])
    cluster_authorized_operations: int = wire("int32", versions="8-10", default=-2147483648)


class OffsetCommitRequestPartition(Struct):
    partition_index: int = wire("int32")
    committed_offset: int = wire("int64")
    committed_leader_epoch: int = wire("int32", versions="6+", ignorable=True, default=-1)
    committed_metadata: str | None = wire("string", nullable="0+")


class OffsetCommitRequestTopic(Struct):
    name: str = wire("string")
    partitions: list[OffsetCommitRequestPartition] = wire([OffsetCommitRequestPartition])


class OffsetCommitRequest(Struct, key=8, versions="2-9", flexible="8+"):
    group_id: str = wire("string")
    generation_id_or_member_epoch: int = wire("int32", default=-1)
    member_id: str = wire("string")
    retention_time_ms: int = wire("int64", versions="2-4", ignorable=True, default=-1)
    group_instance_id: str | None = wire("string", versions="7+", nullable="7+", default=None)
    topics: list[OffsetCommitRequestTopic] = wire([OffsetCommitRequestTopic])


class OffsetCommitResponsePartition(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16")


class OffsetCommitResponseTopic(Struct):
    name: str = wire("string")
    partitions: list[OffsetCommitResponsePartition] = wire([OffsetCommitResponsePartition])


class OffsetCommitResponse(Struct, key=8, versions="2-9", flexible="8+"):
    throttle_time_ms: int = wire("int32", versions="3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = wire([OffsetCommitResponseTopic])


class OffsetFetchRequestTopic(Struct):
    name: str = wire("string")
    partition_indexes: list[int] = wire(["int32"])


class OffsetFetchRequestTopics(Struct):
    name: str = wire("string")
    partition_indexes: list[int] = wire(["int32"])


class OffsetFetchRequestGroup(Struct):
    group_id: str = wire("string")
    member_id: str | None = wire("string", versions="9+", nullable="9+", ignorable=True, default=None)
    member_epoch: int = wire("int32", versions="9+", ignorable=True, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = wire([OffsetFetchRequestTopics], nullable="0+")


class OffsetFetchRequest(Struct, key=9, versions="1-9", flexible="6+"):
    group_id: str = wire("string", versions="1-7")
    topics: list[OffsetFetchRequestTopic] | None = wire(
        [OffsetFetchRequestTopic], versions="1-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = wire([OffsetFetchRequestGroup], versions="8+")
    require_stable: bool = wire("bool", versions="7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: int = wire("int32")
    committed_offset: int = wire("int64")
    committed_leader_epoch: int = wire("int32", versions="5+", ignorable=True, default=-1)
    metadata: str | None = wire("string", nullable="0+")
    error_code: int = wire("int16")


class OffsetFetchResponseTopic(Struct):
    name: str = wire("string")
    partitions: list[OffsetFetchResponsePartition] = wire([OffsetFetchResponsePartition])


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = wire("int32")
    committed_offset: int = wire("int64")
    committed_leader_epoch: int = wire("int32", default=-1)
    metadata: str | None = wire("string", nullable="0+")
    error_code: int = wire("int16")


class OffsetFetchResponseTopics(Struct):
    name: str = wire("string")
    partitions: list[OffsetFetchResponsePartitions] = wire([OffsetFetchResponsePartitions])


class OffsetFetchResponseGroup(Struct):
    group_id: str = wire("string")
    topics: list[OffsetFetchResponseTopics] = wire([OffsetFetchResponseTopics])
    error_code: int = wire("int16")


class OffsetFetchResponse(Struct, key=9, versions="1-9", flexible="6+"):
    throttle_time_ms: int = wire("int32", versions="3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = wire([OffsetFetchResponseTopic], versions="1-7")
    error_code: int = wire("int16", versions="2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = wire([OffsetFetchResponseGroup], versions="8+")


class FindCoordinatorRequest(Struct, key=10, versions="0-4", flexible="3+"):
    key: str = wire("string", versions="0-3")
    key_type: int = wire("int8", versions="1+")
    coordinator_keys: list[str] = wire(["string"], versions="4+")


class FindCoordinatorResponseCoordinator(Struct):
    key: str = wire("string")
    node_id: int = wire("int32")
    host: str = wire("string")
    port: int = wire("int32")
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)


class FindCoordinatorResponse(Struct, key=10, versions="0-4", flexible="3+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True)
    error_code: int = wire("int16", versions="0-3")
    error_message: str | None = wire("string", versions="1-3", nullable="1-3", ignorable=True, default=None)
    node_id: int = wire("int32", versions="0-3")
    host: str = wire("string", versions="0-3")
    port: int = wire("int32", versions="0-3")
    coordinators: list[FindCoordinatorResponseCoordinator] = wire(
        [FindCoordinatorResponseCoordinator], versions="4+"
    )


class JoinGroupRequestProtocol(Struct):
    name: str = wire("string")
    metadata: bytes = wire("bytes")


class JoinGroupRequest(Struct, key=11, versions="0-9", flexible="6+"):
    group_id: str = wire("string")
    session_timeout_ms: int = wire("int32")
    rebalance_timeout_ms: int = wire("int32", versions="1+", ignorable=True, default=-1)
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", versions="5+", nullable="5+", default=None)
    protocol_type: str = wire("string")
    protocols: list[JoinGroupRequestProtocol] = wire([JoinGroupRequestProtocol])
    reason: str | None = wire("string", versions="8+", nullable="8+", ignorable=True, default=None)


class JoinGroupResponseMember(Struct):
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)
    metadata: bytes = wire("bytes")


class JoinGroupResponse(Struct, key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int = wire("int32", versions="2+", ignorable=True)
    error_code: int = wire("int16")
    generation_id: int = wire("int32", default=-1)
    protocol_type: str | None = wire("string", versions="7+", nullable="7+", ignorable=True, default=None)
    protocol_name: str | None = wire("string", nullable="7+")
    leader: str = wire("string")
    skip_assignment: bool = wire("bool", versions="9+")
    member_id: str = wire("string")
    members: list[JoinGroupResponseMember] = wire([JoinGroupResponseMember])


class HeartbeatRequest(Struct, key=12, versions="0-4", flexible="4+"):
    group_id: str = wire("string")
    generation_id: int = wire("int32")
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", versions="3+", nullable="3+", default=None)


class HeartbeatResponse(Struct, key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True)
    error_code: int = wire("int16")


class LeaveGroupRequestMemberIdentity(Struct):
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", nullable="0+", default=None)
    reason: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)


class LeaveGroupRequest(Struct, key=13, versions="0-5", flexible="4+"):
    group_id: str = wire("string")
    member_id: str = wire("string", versions="0-2")
    members: list[LeaveGroupRequestMemberIdentity] = wire([LeaveGroupRequestMemberIdentity], versions="3+")


class LeaveGroupResponseMemberResponse(Struct):
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", nullable="0+")
    error_code: int = wire("int16")


class LeaveGroupResponse(Struct, key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True)
    error_code: int = wire("int16")
    members: list[LeaveGroupResponseMemberResponse] = wire([LeaveGroupResponseMemberResponse], versions="3+")


class SyncGroupRequestAssignment(Struct):
    member_id: str = wire("string")
    assignment: bytes = wire("bytes")


class SyncGroupRequest(Struct, key=14, versions="0-5", flexible="4+"):
    group_id: str = wire("string")
    generation_id: int = wire("int32")
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", versions="3+", nullable="3+", default=None)
    protocol_type: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)
    protocol_name: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)
    assignments: list[SyncGroupRequestAssignment] = wire([SyncGroupRequestAssignment])


class SyncGroupResponse(Struct, key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True)
    error_code: int = wire("int16")
    protocol_type: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)
    protocol_name: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)
    assignment: bytes = wire("bytes")


class DescribeGroupsRequest(Struct, key=15, versions="0-5", flexible="5+"):
    groups: list[str] = wire(["string"])
    include_authorized_operations: bool = wire("bool", versions="3+")


class DescribeGroupsResponseDescribedGroupMember(Struct):
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", versions="4+", nullable="4+", ignorable=True, default=None)
    client_id: str = wire("string")
    client_host: str = wire("string")
    member_metadata: bytes = wire("bytes")
    member_assignment: bytes = wire("bytes")


class DescribeGroupsResponseDescribedGroup(Struct):
    error_code: int = wire("int16")
    group_id: str = wire("string")
    group_state: str = wire("string")
    protocol_type: str = wire("string")
    protocol_data: str = wire("string")
    members: list[DescribeGroupsResponseDescribedGroupMember] = wire(
        [DescribeGroupsResponseDescribedGroupMember]
    )
    authorized_operations: int = wire("int32", versions="3+", default=-2147483648)


class DescribeGroupsResponse(Struct, key=15, versions="0-5", flexible="5+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True)
    groups: list[DescribeGroupsResponseDescribedGroup] = wire([DescribeGroupsResponseDescribedGroup])


class ListGroupsRequest(Struct, key=16, versions="0-4", flexible="3+"):
    states_filter: list[str] = wire(["string"], versions="4+")


class ListGroupsResponseListedGroup(Struct):
    group_id: str = wire("string")
    protocol_type: str = wire("string")
    group_state: str = wire("string", versions="4+", ignorable=True)


class ListGroupsResponse(Struct, key=16, versions="0-4", flexible="3+"):
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True)
    error_code: int = wire("int16")
    groups: list[ListGroupsResponseListedGroup] = wire([ListGroupsResponseListedGroup])


class SaslHandshakeRequest(Struct, key=17, versions="0-1"):
    mechanism: str = wire("string")


class SaslHandshakeResponse(Struct, key=17, versions="0-1"):
    error_code: int = wire("int16")
    mechanisms: list[str] = wire(["string"])


class ApiVersionsRequest(Struct, key=18, versions="0-4", flexible="3+"):
    client_software_name: str = wire("string", versions="3+", ignorable=True)
    client_software_version: str = wire("string", versions="3+", ignorable=True)


class ApiVersionsResponseApiVersion(Struct):
    api_key: int = wire("int16")
    min_version: int = wire("int16")
    max_version: int = wire("int16")


class ApiVersionsResponseSupportedFeatureKey(Struct):
    name: str = wire("string")
    min_version: int = wire("int16")
    max_version: int = wire("int16")


class ApiVersionsResponseFinalizedFeatureKey(Struct):
    name: str = wire("string")
    max_version_level: int = wire("int16")
    min_version_level: int = wire("int16")


class ApiVersionsResponse(Struct, key=18, versions="0-4", flexible="3+"):
    error_code: int = wire("int16")
    api_keys: list[ApiVersionsResponseApiVersion] = wire([ApiVersionsResponseApiVersion])
    throttle_time_ms: int = wire("int32", versions="1+", ignorable=True)
    supported_features: list[ApiVersionsResponseSupportedFeatureKey] = wire(
        [ApiVersionsResponseSupportedFeatureKey], versions="3+", tag=0, ignorable=True
    )
    finalized_features_epoch: int = wire("int64", versions="3+", tag=1, ignorable=True, default=-1)
    finalized_features: list[ApiVersionsResponseFinalizedFeatureKey] = wire(
        [ApiVersionsResponseFinalizedFeatureKey], versions="3+", tag=2, ignorable=True
    )
    zk_migration_ready: bool = wire("bool", versions="3+", tag=3, ignorable=True)


class CreateTopicsRequestCreatableReplicaAssignment(Struct):
    partition_index: int = wire("int32")
    broker_ids: list[int] = wire(["int32"])


class CreateTopicsRequestCreatableTopicConfig(Struct):
    name: str = wire("string")
    value: str | None = wire("string", nullable="0+")


class CreateTopicsRequestCreatableTopic(Struct):
    name: str = wire("string")
    num_partitions: int = wire("int32")
    replication_factor: int = wire("int16")
    assignments: list[CreateTopicsRequestCreatableReplicaAssignment] = wire(
        [CreateTopicsRequestCreatableReplicaAssignment]
    )
    configs: list[CreateTopicsRequestCreatableTopicConfig] = wire([CreateTopicsRequestCreatableTopicConfig])


class CreateTopicsRequest(Struct, key=19, versions="2-7", flexible="5+"):
    topics: list[CreateTopicsRequestCreatableTopic] = wire([CreateTopicsRequestCreatableTopic])
    timeout_ms: int = wire("int32", default=60000)
    validate_only: bool = wire("bool")


class CreateTopicsResponseCreatableTopicConfigs(Struct):
    name: str = wire("string")
    value: str | None = wire("string", nullable="0+")
    read_only: bool = wire("bool")
    config_source: int = wire("int8", default=-1)
    is_sensitive: bool = wire("bool")


class CreateTopicsResponseCreatableTopicResult(Struct):
    name: str = wire("string")
    topic_id: bytes = wire("uuid", versions="7+", ignorable=True)
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)
    topic_config_error_code: int = wire("int16", versions="5+", tag=0, ignorable=True)
    num_partitions: int = wire("int32", versions="5+", ignorable=True, default=-1)
    replication_factor: int = wire("int16", versions="5+", ignorable=True, default=-1)
    configs: list[CreateTopicsResponseCreatableTopicConfigs] | None = wire(
        [CreateTopicsResponseCreatableTopicConfigs], versions="5+", nullable="5+", ignorable=True
    )


class CreateTopicsResponse(Struct, key=19, versions="2-7", flexible="5+"):
    throttle_time_ms: int = wire("int32")
    topics: list[CreateTopicsResponseCreatableTopicResult] = wire([CreateTopicsResponseCreatableTopicResult])


class DeleteTopicsRequestDeleteTopicState(Struct):
    name: str | None = wire("string", nullable="0+", default=None)
    topic_id: bytes = wire("uuid")


class DeleteTopicsRequest(Struct, key=20, versions="1-6", flexible="4+"):
    topic_names: list[str] = wire(["string"], versions="1-5", ignorable=True)
    topics: list[DeleteTopicsRequestDeleteTopicState] = wire(
        [DeleteTopicsRequestDeleteTopicState], versions="6+"
    )
    timeout_ms: int = wire("int32")


class DeleteTopicsResponseDeletableTopicResult(Struct):
    name: str | None = wire("string", nullable="6+")
    topic_id: bytes = wire("uuid", versions="6+", ignorable=True)
    error_code: int = wire("int16")
    error_message: str | None = wire("string", versions="5+", nullable="5+", ignorable=True, default=None)


class DeleteTopicsResponse(Struct, key=20, versions="1-6", flexible="4+"):
    throttle_time_ms: int = wire("int32")
    responses: list[DeleteTopicsResponseDeletableTopicResult] = wire(
        [DeleteTopicsResponseDeletableTopicResult]
    )


class DeleteRecordsRequestDeleteRecordsPartition(Struct):
    partition_index: int = wire("int32")
    offset: int = wire("int64")


class DeleteRecordsRequestDeleteRecordsTopic(Struct):
    name: str = wire("string")
    partitions: list[DeleteRecordsRequestDeleteRecordsPartition] = wire(
        [DeleteRecordsRequestDeleteRecordsPartition]
    )


class DeleteRecordsRequest(Struct, key=21, versions="0-2", flexible="2+"):
    topics: list[DeleteRecordsRequestDeleteRecordsTopic] = wire([DeleteRecordsRequestDeleteRecordsTopic])
    timeout_ms: int = wire("int32")


class DeleteRecordsResponseDeleteRecordsPartitionResult(Struct):
    partition_index: int = wire("int32")
    low_watermark: int = wire("int64")
    error_code: int = wire("int16")


class DeleteRecordsResponseDeleteRecordsTopicResult(Struct):
    name: str = wire("string")
    partitions: list[DeleteRecordsResponseDeleteRecordsPartitionResult] = wire(
        [DeleteRecordsResponseDeleteRecordsPartitionResult]
    )


class DeleteRecordsResponse(Struct, key=21, versions="0-2", flexible="2+"):
    throttle_time_ms: int = wire("int32")
    topics: list[DeleteRecordsResponseDeleteRecordsTopicResult] = wire(
        [DeleteRecordsResponseDeleteRecordsTopicResult]
    )


class InitProducerIdRequest(Struct, key=22, versions="0-4", flexible="2+"):
    transactional_id: str | None = wire("string", nullable="0+")
    transaction_timeout_ms: int = wire("int32")
    producer_id: int = wire("int64", versions="3+", default=-1)
    producer_epoch: int = wire("int16", versions="3+", default=-1)


class InitProducerIdResponse(Struct, key=22, versions="0-4", flexible="2+"):
    throttle_time_ms: int = wire("int32")
    error_code: int = wire("int16")
    producer_id: int = wire("int64", default=-1)
    producer_epoch: int = wire("int16")


class OffsetForLeaderEpochRequestOffsetForLeaderPartition(Struct):
    partition: int = wire("int32")
    current_leader_epoch: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32")


class OffsetForLeaderEpochRequestOffsetForLeaderTopic(Struct):
    topic: str = wire("string")
    partitions: list[OffsetForLeaderEpochRequestOffsetForLeaderPartition] = wire(
        [OffsetForLeaderEpochRequestOffsetForLeaderPartition]
    )


class OffsetForLeaderEpochRequest(Struct, key=23, versions="2-4", flexible="4+"):
    replica_id: int = wire("int32", versions="3+", ignorable=True, default=-2)
    topics: list[OffsetForLeaderEpochRequestOffsetForLeaderTopic] = wire(
        [OffsetForLeaderEpochRequestOffsetForLeaderTopic]
    )


class OffsetForLeaderEpochResponseEpochEndOffset(Struct):
    error_code: int = wire("int16")
    partition: int = wire("int32")
    leader_epoch: int = wire("int32", default=-1)
    end_offset: int = wire("int64", default=-1)


class OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(Struct):
    topic: str = wire("string")
    partitions: list[OffsetForLeaderEpochResponseEpochEndOffset] = wire(
        [OffsetForLeaderEpochResponseEpochEndOffset]
    )


class OffsetForLeaderEpochResponse(Struct, key=23, versions="2-4", flexible="4+"):
    throttle_time_ms: int = wire("int32")
    topics: list[OffsetForLeaderEpochResponseOffsetForLeaderTopicResult] = wire(
        [OffsetForLeaderEpochResponseOffsetForLeaderTopicResult]
    )


class DescribeAclsRequest(Struct, key=29, versions="1-3", flexible="2+"):
    resource_type_filter: int = wire("int8")
    resource_name_filter: str | None = wire("string", nullable="0+")
    pattern_type_filter: int = wire("int8", default=3)
    principal_filter: str | None = wire("string", nullable="0+")
    host_filter: str | None = wire("string", nullable="0+")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


class DescribeAclsResponseAclDescription(Struct):
    principal: str = wire("string")
    host: str = wire("string")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


class DescribeAclsResponseDescribeAclsResource(Struct):
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    pattern_type: int = wire("int8", default=3)
    acls: list[DescribeAclsResponseAclDescription] = wire([DescribeAclsResponseAclDescription])


class DescribeAclsResponse(Struct, key=29, versions="1-3", flexible="2+"):
    throttle_time_ms: int = wire("int32")
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)
    resources: list[DescribeAclsResponseDescribeAclsResource] = wire(
        [DescribeAclsResponseDescribeAclsResource]
    )


class CreateAclsRequestAclCreation(Struct):
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    resource_pattern_type: int = wire("int8", default=3)
    principal: str = wire("string")
    host: str = wire("string")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


class CreateAclsRequest(Struct, key=30, versions="1-3", flexible="2+"):
    creations: list[CreateAclsRequestAclCreation] = wire([CreateAclsRequestAclCreation])


class CreateAclsResponseAclCreationResult(Struct):
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)


class CreateAclsResponse(Struct, key=30, versions="1-3", flexible="2+"):
    throttle_time_ms: int = wire("int32")
    results: list[CreateAclsResponseAclCreationResult] = wire([CreateAclsResponseAclCreationResult])


class DeleteAclsRequestDeleteAclsFilter(Struct):
    resource_type_filter: int = wire("int8")
    resource_name_filter: str | None = wire("string", nullable="0+")
    pattern_type_filter: int = wire("int8", default=3)
    principal_filter: str | None = wire("string", nullable="0+")
    host_filter: str | None = wire("string", nullable="0+")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


class DeleteAclsRequest(Struct, key=31, versions="1-3", flexible="2+"):
    filters: list[DeleteAclsRequestDeleteAclsFilter] = wire([DeleteAclsRequestDeleteAclsFilter])


class DeleteAclsResponseDeleteAclsMatchingAcl(Struct):
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    pattern_type: int = wire("int8", default=3)
    principal: str = wire("string")
    host: str = wire("string")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


class DeleteAclsResponseDeleteAclsFilterResult(Struct):
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)
    matching_acls: list[DeleteAclsResponseDeleteAclsMatchingAcl] = wire(
        [DeleteAclsResponseDeleteAclsMatchingAcl]
    )


class DeleteAclsResponse(Struct, key=31, versions="1-3", flexible="2+"):
    throttle_time_ms: int = wire("int32")
    filter_results: list[DeleteAclsResponseDeleteAclsFilterResult] = wire(
        [DeleteAclsResponseDeleteAclsFilterResult]
    )


class DescribeConfigsRequestDescribeConfigsResource(Struct):
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    configuration_keys: list[str] | None = wire(["string"], nullable="0+")


class DescribeConfigsRequest(Struct, key=32, versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsRequestDescribeConfigsResource] = wire(
        [DescribeConfigsRequestDescribeConfigsResource]
    )
    include_synonyms: bool = wire("bool")
    include_documentation: bool = wire("bool", versions="3+")


class DescribeConfigsResponseDescribeConfigsSynonym(Struct):
    name: str = wire("string")
    value: str | None = wire("string", nullable="0+")
    source: int = wire("int8")


class DescribeConfigsResponseDescribeConfigsResourceResult(Struct):
    name: str = wire("string")
    value: str | None = wire("string", nullable="0+")
    read_only: bool = wire("bool")
    config_source: int = wire("int8", default=-1)
    is_sensitive: bool = wire("bool")
    synonyms: list[DescribeConfigsResponseDescribeConfigsSynonym] = wire(
        [DescribeConfigsResponseDescribeConfigsSynonym]
    )
    config_type: int = wire("int8", versions="3+", ignorable=True)
    documentation: str | None = wire("string", versions="3+", nullable="3+", ignorable=True)


class DescribeConfigsResponseDescribeConfigsResult(Struct):
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    configs: list[DescribeConfigsResponseDescribeConfigsResourceResult] = wire(
        [DescribeConfigsResponseDescribeConfigsResourceResult]
    )


class DescribeConfigsResponse(Struct, key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: int = wire("int32")
    results: list[DescribeConfigsResponseDescribeConfigsResult] = wire(
        [DescribeConfigsResponseDescribeConfigsResult]
    )


class AlterConfigsRequestAlterableConfig(Struct):
    name: str = wire("string")
    value: str | None = wire("string", nullable="0+")


class AlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    configs: list[AlterConfigsRequestAlterableConfig] = wire([AlterConfigsRequestAlterableConfig])


class AlterConfigsRequest(Struct, key=33, versions="0-2", flexible="2+"):
    resources: list[AlterConfigsRequestAlterConfigsResource] = wire([AlterConfigsRequestAlterConfigsResource])
    validate_only: bool = wire("bool")


class AlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)
    resource_type: int = wire("int8")
    resource_name: str = wire("string")


class AlterConfigsResponse(Struct, key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: int = wire("int32")
    responses: list[AlterConfigsResponseAlterConfigsResourceResponse] = wire(
        [AlterConfigsResponseAlterConfigsResourceResponse]
    )


class DescribeLogDirsRequestDescribableLogDirTopic(Struct):
    topic: str = wire("string")
    partitions: list[int] = wire(["int32"])


class DescribeLogDirsRequest(Struct, key=35, versions="1-4", flexible="2+"):
    topics: list[DescribeLogDirsRequestDescribableLogDirTopic] | None = wire(
        [DescribeLogDirsRequestDescribableLogDirTopic], nullable="0+"
    )


class DescribeLogDirsResponseDescribeLogDirsPartition(Struct):
    partition_index: int = wire("int32")
    partition_size: int = wire("int64")
    offset_lag: int = wire("int64")
    is_future_key: bool = wire("bool")


class DescribeLogDirsResponseDescribeLogDirsTopic(Struct):
    name: str = wire("string")
    partitions: list[DescribeLogDirsResponseDescribeLogDirsPartition] = wire(
        [DescribeLogDirsResponseDescribeLogDirsPartition]
    )


class DescribeLogDirsResponseDescribeLogDirsResult(Struct):
    error_code: int = wire("int16")
    log_dir: str = wire("string")
    topics: list[DescribeLogDirsResponseDescribeLogDirsTopic] = wire(
        [DescribeLogDirsResponseDescribeLogDirsTopic]
    )
    total_bytes: int = wire("int64", versions="4+", ignorable=True, default=-1)
    usable_bytes: int = wire("int64", versions="4+", ignorable=True, default=-1)


class DescribeLogDirsResponse(Struct, key=35, versions="1-4", flexible="2+"):
    throttle_time_ms: int = wire("int32")
    error_code: int = wire("int16", versions="3+", ignorable=True)
    results: list[DescribeLogDirsResponseDescribeLogDirsResult] = wire(
        [DescribeLogDirsResponseDescribeLogDirsResult]
    )


class SaslAuthenticateRequest(Struct, key=36, versions="0-2", flexible="2+"):
    auth_bytes: bytes = wire("bytes")


class SaslAuthenticateResponse(Struct, key=36, versions="0-2", flexible="2+"):
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)
    auth_bytes: bytes = wire("bytes")
    session_lifetime_ms: int = wire("int64", versions="1+", ignorable=True)


class CreatePartitionsRequestCreatePartitionsAssignment(Struct):
    broker_ids: list[int] = wire(["int32"])


class CreatePartitionsRequestCreatePartitionsTopic(Struct):
    name: str = wire("string")
    count: int = wire("int32")
    assignments: list[CreatePartitionsRequestCreatePartitionsAssignment] | None = wire(
        [CreatePartitionsRequestCreatePartitionsAssignment], nullable="0+"
    )


class CreatePartitionsRequest(Struct, key=37, versions="0-3", flexible="2+"):
    topics: list[CreatePartitionsRequestCreatePartitionsTopic] = wire(
        [CreatePartitionsRequestCreatePartitionsTopic]
    )
    timeout_ms: int = wire("int32")
    validate_only: bool = wire("bool")


class CreatePartitionsResponseCreatePartitionsTopicResult(Struct):
    name: str = wire("string")
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)


class CreatePartitionsResponse(Struct, key=37, versions="0-3", flexible="2+"):
    throttle_time_ms: int = wire("int32")
    results: list[CreatePartitionsResponseCreatePartitionsTopicResult] = wire(
        [CreatePartitionsResponseCreatePartitionsTopicResult]
    )


class DeleteGroupsRequest(Struct, key=42, versions="0-2", flexible="2+"):
    groups_names: list[str] = wire(["string"])


class DeleteGroupsResponseDeletableGroupResult(Struct):
    group_id: str = wire("string")
    error_code: int = wire("int16")


class DeleteGroupsResponse(Struct, key=42, versions="0-2", flexible="2+"):
    throttle_time_ms: int = wire("int32")
    results: list[DeleteGroupsResponseDeletableGroupResult] = wire([DeleteGroupsResponseDeletableGroupResult])


class ElectLeadersRequestTopicPartitions(Struct):
    topic: str = wire("string")
    partitions: list[int] = wire(["int32"])


class ElectLeadersRequest(Struct, key=43, versions="0-2", flexible="2+"):
    election_type: int = wire("int8", versions="1+")
    topic_partitions: list[ElectLeadersRequestTopicPartitions] | None = wire(
        [ElectLeadersRequestTopicPartitions], nullable="0+"
    )
    timeout_ms: int = wire("int32", default=60000)


class ElectLeadersResponsePartitionResult(Struct):
    partition_id: int = wire("int32")
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)


class ElectLeadersResponseReplicaElectionResult(Struct):
    topic: str = wire("string")
    partition_result: list[ElectLeadersResponsePartitionResult] = wire([ElectLeadersResponsePartitionResult])


class ElectLeadersResponse(Struct, key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int = wire("int32")
    error_code: int = wire("int16", versions="1+")
    replica_election_results: list[ElectLeadersResponseReplicaElectionResult] = wire(
        [ElectLeadersResponseReplicaElectionResult]
    )


class IncrementalAlterConfigsRequestAlterableConfig(Struct):
    name: str = wire("string")
    config_operation: int = wire("int8")
    value: str | None = wire("string", nullable="0+")


class IncrementalAlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    configs: list[IncrementalAlterConfigsRequestAlterableConfig] = wire(
        [IncrementalAlterConfigsRequestAlterableConfig]
    )


class IncrementalAlterConfigsRequest(Struct, key=44, versions="0-1", flexible="1+"):
    resources: list[IncrementalAlterConfigsRequestAlterConfigsResource] = wire(
        [IncrementalAlterConfigsRequestAlterConfigsResource]
    )
    validate_only: bool = wire("bool")


class IncrementalAlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)
    resource_type: int = wire("int8")
    resource_name: str = wire("string")


class IncrementalAlterConfigsResponse(Struct, key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: int = wire("int32")
    responses: list[IncrementalAlterConfigsResponseAlterConfigsResourceResponse] = wire(
        [IncrementalAlterConfigsResponseAlterConfigsResourceResponse]
    )


class AlterPartitionReassignmentsRequestReassignablePartition(Struct):
    partition_index: int = wire("int32")
    replicas: list[int] | None = wire(["int32"], nullable="0+")


class AlterPartitionReassignmentsRequestReassignableTopic(Struct):
    name: str = wire("string")
    partitions: list[AlterPartitionReassignmentsRequestReassignablePartition] = wire(
        [AlterPartitionReassignmentsRequestReassignablePartition]
    )


class AlterPartitionReassignmentsRequest(Struct, key=45, versions="0", flexible="0+"):
    timeout_ms: int = wire("int32", default=60000)
    topics: list[AlterPartitionReassignmentsRequestReassignableTopic] = wire(
        [AlterPartitionReassignmentsRequestReassignableTopic]
    )


class AlterPartitionReassignmentsResponseReassignablePartitionResponse(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)


class AlterPartitionReassignmentsResponseReassignableTopicResponse(Struct):
    name: str = wire("string")
    partitions: list[AlterPartitionReassignmentsResponseReassignablePartitionResponse] = wire(
        [AlterPartitionReassignmentsResponseReassignablePartitionResponse]
    )


class AlterPartitionReassignmentsResponse(Struct, key=45, versions="0", flexible="0+"):
    throttle_time_ms: int = wire("int32")
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)
    responses: list[AlterPartitionReassignmentsResponseReassignableTopicResponse] = wire(
        [AlterPartitionReassignmentsResponseReassignableTopicResponse]
    )


class ListPartitionReassignmentsRequestListPartitionReassignmentsTopics(Struct):
    name: str = wire("string")
    partition_indexes: list[int] = wire(["int32"])


class ListPartitionReassignmentsRequest(Struct, key=46, versions="0", flexible="0+"):
    timeout_ms: int = wire("int32", default=60000)
    topics: list[ListPartitionReassignmentsRequestListPartitionReassignmentsTopics] | None = wire(
        [ListPartitionReassignmentsRequestListPartitionReassignmentsTopics], nullable="0+"
    )


class ListPartitionReassignmentsResponseOngoingPartitionReassignment(Struct):
    partition_index: int = wire("int32")
    replicas: list[int] = wire(["int32"])
    adding_replicas: list[int] = wire(["int32"])
    removing_replicas: list[int] = wire(["int32"])


class ListPartitionReassignmentsResponseOngoingTopicReassignment(Struct):
    name: str = wire("string")
    partitions: list[ListPartitionReassignmentsResponseOngoingPartitionReassignment] = wire(
        [ListPartitionReassignmentsResponseOngoingPartitionReassignment]
    )


class ListPartitionReassignmentsResponse(Struct, key=46, versions="0", flexible="0+"):
    throttle_time_ms: int = wire("int32")
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: list[ListPartitionReassignmentsResponseOngoingTopicReassignment] = wire(
        [ListPartitionReassignmentsResponseOngoingTopicReassignment]
    )


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = wire("int32")


class OffsetDeleteRequestTopic(Struct):
    name: str = wire("string")
    partitions: list[OffsetDeleteRequestPartition] = wire([OffsetDeleteRequestPartition])


class OffsetDeleteRequest(Struct, key=47, versions="0"):
    group_id: str = wire("string")
    topics: list[OffsetDeleteRequestTopic] = wire([OffsetDeleteRequestTopic])


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16")


class OffsetDeleteResponseTopic(Struct):
    name: str = wire("string")
    partitions: list[OffsetDeleteResponsePartition] = wire([OffsetDeleteResponsePartition])


class OffsetDeleteResponse(Struct, key=47, versions="0"):
    error_code: int = wire("int16")
    throttle_time_ms: int = wire("int32")
    topics: list[OffsetDeleteResponseTopic] = wire([OffsetDeleteResponseTopic])


class AlterPartitionRequestBrokerState(Struct):
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64", default=-1)


class AlterPartitionRequestPartitionData(Struct):
    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")
    new_isr_with_epochs: list[AlterPartitionRequestBrokerState] = wire([AlterPartitionRequestBrokerState])
    leader_recovery_state: int = wire("int8")
    partition_epoch: int = wire("int32")
    all_synced: bool = wire("bool", tag=10000)


class AlterPartitionRequestTopicData(Struct):
    topic_id: bytes = wire("uuid")
    partitions: list[AlterPartitionRequestPartitionData] = wire([AlterPartitionRequestPartitionData])
    topic_name: str = wire("string", tag=10000)


class AlterPartitionRequest(Struct, key=56, versions="3", flexible="3+"):
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64", default=-1)
    topics: list[AlterPartitionRequestTopicData] = wire([AlterPartitionRequestTopicData])


class AlterPartitionResponsePartitionData(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16")
    leader_id: int = wire("int32")
    leader_epoch: int = wire("int32")
    isr: list[int] = wire(["int32"])
    leader_recovery_state: int = wire("int8")
    partition_epoch: int = wire("int32")
    min_insync: int = wire("int32", tag=10000)


class AlterPartitionResponseTopicData(Struct):
    topic_id: bytes = wire("uuid")
    partitions: list[AlterPartitionResponsePartitionData] = wire([AlterPartitionResponsePartitionData])
    topic_name: str = wire("string", tag=10000)


class AlterPartitionResponse(Struct, key=56, versions="3", flexible="3+"):
    throttle_time_ms: int = wire("int32")
    error_code: int = wire("int16")
    topics: list[AlterPartitionResponseTopicData] = wire([AlterPartitionResponseTopicData])


class DescribeClusterRequest(Struct, key=60, versions="0-1", flexible="0+"):
    include_cluster_authorized_operations: bool = wire("bool")
    endpoint_type: int = wire("int8", versions="1+", default=1)


class DescribeClusterResponseDescribeClusterBroker(Struct):
    broker_id: int = wire("int32")
    host: str = wire("string")
    port: int = wire("int32")
    rack: str | None = wire("string", nullable="0+", default=None)


class DescribeClusterResponse(Struct, key=60, versions="0-1", flexible="0+"):
    throttle_time_ms: int = wire("int32")
    error_code: int = wire("int16")
    error_message: str | None = wire("string", nullable="0+", default=None)
    endpoint_type: int = wire("int8", versions="1+", default=1)
    cluster_id: str = wire("string")
    controller_id: int = wire("int32", default=-1)
    brokers: list[DescribeClusterResponseDescribeClusterBroker] = wire(
        [DescribeClusterResponseDescribeClusterBroker]
    )
    cluster_authorized_operations: int = wire("int32", default=-2147483648)
