"""Messages between nodes that kio does not declare: Kafka's of the time when ZooKeeper kept its metadata.

Only the last version of each is declared, with its fields and order, for that one alone is spoken here. What
our controller tells beyond them is in tags from 10000 on, which any other reader skips; see
`declarations.py` for the notation and `../interbroker/` for the meaning. `receiver_id` is the broker that
an order is for: another one may listen now where it did. `number` grows with every request of its sender, so
that one which comes late is known for what it is; a correlation id is too short for that.
"""

from __future__ import annotations

from logstore.broker.wire.declarations import Struct, wire

# --- LeaderAndIsr: what the receiver is to be for each partition -------------------------------


class LeaderAndIsrRequestPartitionState(Struct):
    partition_index: int = wire("int32", default=0)
    controller_epoch: int = wire("int32", default=0)
    leader: int = wire("int32", default=0)
    leader_epoch: int = wire("int32", default=0)
    isr: list[int] = wire(["int32"], factory=list)
    partition_epoch: int = wire("int32", default=0)
    replicas: list[int] = wire(["int32"], factory=list)
    adding_replicas: list[int] = wire(["int32"], factory=list)
    removing_replicas: list[int] = wire(["int32"], factory=list)
    is_new: bool = wire("bool", default=False)
    leader_recovery_state: int = wire("int8", default=0)
    durability: int = wire("int8", tag=10000, default=0)
    all_synced: bool = wire("bool", tag=10001, default=False)
    min_insync: int = wire("int32", tag=10002, default=0)
    eligible: list[int] = wire(["int32"], tag=10003, factory=list)


class LeaderAndIsrRequestConfig(Struct):
    name: str = wire("string", default="")
    value: str = wire("string", default="")


class LeaderAndIsrRequestTopicState(Struct):
    """One without partition states only tells of the topic."""

    topic_name: str = wire("string", default="")
    topic_id: bytes = wire("uuid", default=bytes(16))
    partition_states: list[LeaderAndIsrRequestPartitionState] = wire(
        [LeaderAndIsrRequestPartitionState], factory=list
    )
    configs: list[LeaderAndIsrRequestConfig] | None = wire(
        [LeaderAndIsrRequestConfig], tag=10000, nullable="7+", default=None
    )


class LeaderAndIsrRequestLiveLeader(Struct):
    broker_id: int = wire("int32", default=0)
    host_name: str = wire("string", default="")
    port: int = wire("int32", default=0)
    broker_epoch: int = wire("int64", tag=10000, default=-1)
    rack: str = wire("string", tag=10001, default="")


class LeaderAndIsrRequestAssignedTopic(Struct):
    topic_name: str = wire("string", default="")
    topic_id: bytes = wire("uuid", default=bytes(16))
    partition_indexes: list[int] = wire(["int32"], factory=list)


class LeaderAndIsrRequest(Struct, key=4, versions="7", flexible="7"):
    """`type`: 1 for news, 2 for all that the receiver has."""

    controller_id: int = wire("int32", default=0)
    is_kraft_controller: bool = wire("bool", default=False)
    controller_epoch: int = wire("int32", default=0)
    broker_epoch: int = wire("int64", default=-1)
    type: int = wire("int8", default=0)
    topic_states: list[LeaderAndIsrRequestTopicState] = wire([LeaderAndIsrRequestTopicState], factory=list)
    live_leaders: list[LeaderAndIsrRequestLiveLeader] = wire([LeaderAndIsrRequestLiveLeader], factory=list)
    assigned: list[LeaderAndIsrRequestAssignedTopic] | None = wire(
        [LeaderAndIsrRequestAssignedTopic], tag=10000, nullable="7+", default=None
    )
    receiver_id: int = wire("int32", tag=10010, default=-1)
    number: int = wire("int64", tag=10011, default=0)


class LeaderAndIsrResponsePartitionError(Struct):
    partition_index: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)


class LeaderAndIsrResponseTopicError(Struct):
    topic_id: bytes = wire("uuid", default=bytes(16))
    partition_errors: list[LeaderAndIsrResponsePartitionError] = wire(
        [LeaderAndIsrResponsePartitionError], factory=list
    )
    topic_name: str = wire("string", tag=10000, default="")


class LeaderAndIsrResponse(Struct, key=4, versions="7", flexible="7"):
    error_code: int = wire("int16", default=0)
    topics: list[LeaderAndIsrResponseTopicError] = wire([LeaderAndIsrResponseTopicError], factory=list)


# --- StopReplica: what the receiver is to be no more ------------------------------------------


class StopReplicaRequestPartitionState(Struct):
    partition_index: int = wire("int32", default=0)
    leader_epoch: int = wire("int32", default=-1)
    delete_partition: bool = wire("bool", default=False)


class StopReplicaRequestTopicState(Struct):
    topic_name: str = wire("string", default="")
    partition_states: list[StopReplicaRequestPartitionState] = wire(
        [StopReplicaRequestPartitionState], factory=list
    )
    topic_id: bytes = wire("uuid", tag=10000, default=bytes(16))


class StopReplicaRequest(Struct, key=5, versions="4", flexible="4"):
    controller_id: int = wire("int32", default=0)
    is_kraft_controller: bool = wire("bool", default=False)
    controller_epoch: int = wire("int32", default=0)
    broker_epoch: int = wire("int64", default=-1)
    topic_states: list[StopReplicaRequestTopicState] = wire([StopReplicaRequestTopicState], factory=list)
    receiver_id: int = wire("int32", tag=10010, default=-1)
    number: int = wire("int64", tag=10011, default=0)


class StopReplicaResponsePartitionError(Struct):
    topic_name: str = wire("string", default="")
    partition_index: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)


class StopReplicaResponse(Struct, key=5, versions="4", flexible="4"):
    error_code: int = wire("int16", default=0)
    partition_errors: list[StopReplicaResponsePartitionError] = wire(
        [StopReplicaResponsePartitionError], factory=list
    )


# --- UpdateMetadata: who is alive and who leads what ------------------------------------------


class UpdateMetadataRequestPartitionState(Struct):
    partition_index: int = wire("int32", default=0)
    controller_epoch: int = wire("int32", default=0)
    leader: int = wire("int32", default=0)
    leader_epoch: int = wire("int32", default=0)
    isr: list[int] = wire(["int32"], factory=list)
    zk_version: int = wire("int32", default=0)
    replicas: list[int] = wire(["int32"], factory=list)
    offline_replicas: list[int] = wire(["int32"], factory=list)
    durability: int = wire("int8", tag=10000, default=0)
    all_synced: bool = wire("bool", tag=10001, default=False)
    min_insync: int = wire("int32", tag=10002, default=0)
    eligible: list[int] = wire(["int32"], tag=10003, factory=list)
    adding_replicas: list[int] = wire(["int32"], tag=10004, factory=list)
    removing_replicas: list[int] = wire(["int32"], tag=10005, factory=list)
    is_new: bool = wire("bool", tag=10006, default=False)


class UpdateMetadataRequestTopicState(Struct):
    """One without partition states only tells of the topic."""

    topic_name: str = wire("string", default="")
    topic_id: bytes = wire("uuid", default=bytes(16))
    partition_states: list[UpdateMetadataRequestPartitionState] = wire(
        [UpdateMetadataRequestPartitionState], factory=list
    )


class UpdateMetadataRequestEndpoint(Struct):
    port: int = wire("int32", default=0)
    host: str = wire("string", default="")
    listener: str = wire("string", default="")
    security_protocol: int = wire("int16", default=0)


class UpdateMetadataRequestBroker(Struct):
    id: int = wire("int32", default=0)
    endpoints: list[UpdateMetadataRequestEndpoint] = wire([UpdateMetadataRequestEndpoint], factory=list)
    rack: str | None = wire("string", nullable="8+", default=None)
    broker_epoch: int = wire("int64", tag=10000, default=-1)


class UpdateMetadataRequest(Struct, key=6, versions="8", flexible="8"):
    controller_id: int = wire("int32", default=0)
    is_kraft_controller: bool = wire("bool", default=False)
    controller_epoch: int = wire("int32", default=0)
    broker_epoch: int = wire("int64", default=-1)
    topic_states: list[UpdateMetadataRequestTopicState] = wire(
        [UpdateMetadataRequestTopicState], factory=list
    )
    live_brokers: list[UpdateMetadataRequestBroker] = wire([UpdateMetadataRequestBroker], factory=list)
    type: int = wire("int8", tag=0, default=0)
    shutting_down: list[int] = wire(["int32"], tag=10000, factory=list)
    receiver_id: int = wire("int32", tag=10010, default=-1)
    number: int = wire("int64", tag=10011, default=0)


class UpdateMetadataResponse(Struct, key=6, versions="8", flexible="8"):
    error_code: int = wire("int16", default=0)


# --- ControlledShutdown: a broker asks to be let go -------------------------------------------


class ControlledShutdownRequest(Struct, key=7, versions="3", flexible="3"):
    broker_id: int = wire("int32", default=0)
    broker_epoch: int = wire("int64", default=-1)


class ControlledShutdownResponseRemainingPartition(Struct):
    topic_name: str = wire("string", default="")
    partition_index: int = wire("int32", default=0)


class ControlledShutdownResponse(Struct, key=7, versions="3", flexible="3"):
    error_code: int = wire("int16", default=0)
    remaining_partitions: list[ControlledShutdownResponseRemainingPartition] = wire(
        [ControlledShutdownResponseRemainingPartition], factory=list
    )
