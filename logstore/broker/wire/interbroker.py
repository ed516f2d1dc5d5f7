"""Messages between brokers that kio does not declare: Kafka's from the time of ZooKeeper.

Only the last version of each is declared, with its fields and their order, because no other is used here.
Additional fields of our controller are in tags from 10000 on, which other readers skip. `declarations.py`
explains the notation, `../node_messages.py` converts the messages. `receiver_id` is the broker that an order
is for: another broker may now listen at its address. `number` grows with every request of its sender, so that
a late one can be recognized; a correlation id is too short for that.
"""

from __future__ import annotations

from logstore.broker.wire.declarations import Struct, wire

# --- LeaderAndIsr: the receiver's role for each partition ---------------------------------------


class LeaderAndIsrRequestPartitionState(Struct):
    partition_index: int = wire("int32")
    controller_epoch: int = wire("int32")
    leader: int = wire("int32")
    leader_epoch: int = wire("int32")
    isr: list[int] = wire(["int32"])
    partition_epoch: int = wire("int32")
    replicas: list[int] = wire(["int32"])
    adding_replicas: list[int] = wire(["int32"])
    removing_replicas: list[int] = wire(["int32"])
    is_new: bool = wire("bool")
    leader_recovery_state: int = wire("int8")
    durability: int = wire("int8", tag=10000)
    all_synced: bool = wire("bool", tag=10001)
    min_insync: int = wire("int32", tag=10002)
    eligible: list[int] = wire(["int32"], tag=10003)


class LeaderAndIsrRequestConfig(Struct):
    name: str = wire("string")
    value: str = wire("string")


class LeaderAndIsrRequestTopicState(Struct):
    """A topic without partition states carries only its id and settings."""

    topic_name: str = wire("string")
    topic_id: bytes = wire("uuid")
    partition_states: list[LeaderAndIsrRequestPartitionState] = wire()
    configs: list[LeaderAndIsrRequestConfig] | None = wire(tag=10000, nullable="7+", default=None)


class LeaderAndIsrRequestLiveLeader(Struct):
    broker_id: int = wire("int32")
    host_name: str = wire("string")
    port: int = wire("int32")
    broker_epoch: int = wire("int64", tag=10000, default=-1)
    rack: str = wire("string", tag=10001)


class LeaderAndIsrRequestAssignedTopic(Struct):
    topic_name: str = wire("string")
    topic_id: bytes = wire("uuid")
    partition_indexes: list[int] = wire(["int32"])


class LeaderAndIsrRequest(Struct, key=4, versions="7", flexible="7"):
    """`type`: 1 incremental, 2 full, with all replicas of the receiver."""

    controller_id: int = wire("int32")
    is_kraft_controller: bool = wire("bool")
    controller_epoch: int = wire("int32")
    broker_epoch: int = wire("int64", default=-1)
    type: int = wire("int8")
    topic_states: list[LeaderAndIsrRequestTopicState] = wire()
    live_leaders: list[LeaderAndIsrRequestLiveLeader] = wire()
    assigned: list[LeaderAndIsrRequestAssignedTopic] | None = wire(tag=10000, nullable="7+", default=None)
    receiver_id: int = wire("int32", tag=10010, default=-1)
    number: int = wire("int64", tag=10011)


class LeaderAndIsrResponsePartitionError(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16")


class LeaderAndIsrResponseTopicError(Struct):
    topic_id: bytes = wire("uuid")
    partition_errors: list[LeaderAndIsrResponsePartitionError] = wire()
    topic_name: str = wire("string", tag=10000)


class LeaderAndIsrResponse(Struct, key=4, versions="7", flexible="7"):
    error_code: int = wire("int16")
    topics: list[LeaderAndIsrResponseTopicError] = wire()


# --- StopReplica: replicas that the receiver gives up -----------------------------------------


class StopReplicaRequestPartitionState(Struct):
    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32", default=-1)
    delete_partition: bool = wire("bool")


class StopReplicaRequestTopicState(Struct):
    topic_name: str = wire("string")
    partition_states: list[StopReplicaRequestPartitionState] = wire()
    topic_id: bytes = wire("uuid", tag=10000)


class StopReplicaRequest(Struct, key=5, versions="4", flexible="4"):
    controller_id: int = wire("int32")
    is_kraft_controller: bool = wire("bool")
    controller_epoch: int = wire("int32")
    broker_epoch: int = wire("int64", default=-1)
    topic_states: list[StopReplicaRequestTopicState] = wire()
    receiver_id: int = wire("int32", tag=10010, default=-1)
    number: int = wire("int64", tag=10011)


class StopReplicaResponsePartitionError(Struct):
    topic_name: str = wire("string")
    partition_index: int = wire("int32")
    error_code: int = wire("int16")


class StopReplicaResponse(Struct, key=5, versions="4", flexible="4"):
    error_code: int = wire("int16")
    partition_errors: list[StopReplicaResponsePartitionError] = wire()


# --- UpdateMetadata: live brokers and leaders -------------------------------------------------


class UpdateMetadataRequestPartitionState(Struct):
    partition_index: int = wire("int32")
    controller_epoch: int = wire("int32")
    leader: int = wire("int32")
    leader_epoch: int = wire("int32")
    isr: list[int] = wire(["int32"])
    zk_version: int = wire("int32")
    replicas: list[int] = wire(["int32"])
    offline_replicas: list[int] = wire(["int32"])
    durability: int = wire("int8", tag=10000)
    all_synced: bool = wire("bool", tag=10001)
    min_insync: int = wire("int32", tag=10002)
    eligible: list[int] = wire(["int32"], tag=10003)
    adding_replicas: list[int] = wire(["int32"], tag=10004)
    removing_replicas: list[int] = wire(["int32"], tag=10005)
    is_new: bool = wire("bool", tag=10006)


class UpdateMetadataRequestTopicState(Struct):
    """A topic without partition states carries only its id and settings."""

    topic_name: str = wire("string")
    topic_id: bytes = wire("uuid")
    partition_states: list[UpdateMetadataRequestPartitionState] = wire()


class UpdateMetadataRequestEndpoint(Struct):
    port: int = wire("int32")
    host: str = wire("string")
    listener: str = wire("string")
    security_protocol: int = wire("int16")


class UpdateMetadataRequestBroker(Struct):
    id: int = wire("int32")
    endpoints: list[UpdateMetadataRequestEndpoint] = wire()
    rack: str | None = wire("string", nullable="8+", default=None)
    broker_epoch: int = wire("int64", tag=10000, default=-1)


class UpdateMetadataRequest(Struct, key=6, versions="8", flexible="8"):
    controller_id: int = wire("int32")
    is_kraft_controller: bool = wire("bool")
    controller_epoch: int = wire("int32")
    broker_epoch: int = wire("int64", default=-1)
    topic_states: list[UpdateMetadataRequestTopicState] = wire()
    live_brokers: list[UpdateMetadataRequestBroker] = wire()
    type: int = wire("int8", tag=0)
    shutting_down: list[int] = wire(["int32"], tag=10000)
    all_topics: list[str] | None = wire(["string"], tag=10001, nullable="8+", default=None)
    receiver_id: int = wire("int32", tag=10010, default=-1)
    number: int = wire("int64", tag=10011)


class UpdateMetadataResponse(Struct, key=6, versions="8", flexible="8"):
    error_code: int = wire("int16")


# --- ControlledShutdown: a broker is about to stop --------------------------------------------


class ControlledShutdownRequest(Struct, key=7, versions="3", flexible="3"):
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64", default=-1)


class ControlledShutdownResponseRemainingPartition(Struct):
    topic_name: str = wire("string")
    partition_index: int = wire("int32")


class ControlledShutdownResponse(Struct, key=7, versions="3", flexible="3"):
    error_code: int = wire("int16")
    remaining_partitions: list[ControlledShutdownResponseRemainingPartition] = wire()
