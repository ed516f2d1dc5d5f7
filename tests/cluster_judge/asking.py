"""The requests of stories to one cluster; each function returns the codes and offsets of the answers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.files import wall_clock_ms
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from tests.broker.handlers.administering import creatable
from tests.cluster_judge.sides import Side
from tests.cluster_judge.views import Place

_TIMEOUT_MS: Final = 15_000
_WRITE_MS: Final = 6_000
"""Longer than a session: the ISR has shrunk before."""
_SHORT_MS: Final = 1_500
"""For requests that may wait in vain."""
_COORDINATOR_S: Final = 8.0
"""How long a group may be without a coordinator."""
_TOPIC, _BROKER = 2, 4


def code(number: int) -> str:
    try:
        return ErrorCode(number).name
    except ValueError:
        return str(number)


def kill(side: Side, number: int) -> None:
    side.end(number, signal.SIGKILL)


def kill_all(side: Side, numbers: Sequence[int]) -> None:
    """Kill brokers before any of them has noticed another's end."""
    for number in numbers:
        side.end(number, signal.SIGKILL)


def stop(side: Side, number: int) -> None:
    side.end(number, signal.SIGTERM)


def create(side: Side, name: str, lists: Sequence[Sequence[int]], settings: Mapping[str, str]) -> str:
    request = t.CreateTopicsRequest(topics=[creatable(name, lists, settings)], timeout_ms=_TIMEOUT_MS)
    return code(side.ask_controller(request, 4).topics[0].error_code)


def validate(side: Side, name: str, factor: int) -> str:
    topic = t.CreateTopicsRequestCreatableTopic(name=name, num_partitions=1, replication_factor=factor)
    request = t.CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS, validate_only=True)
    return code(side.ask_controller(request, 4).topics[0].error_code)


def produce(
    side: Side, name: str, partition: int, acks: int, values: Sequence[bytes], **producer: Any
) -> Any:
    leader = side.leader(name, partition)
    if leader not in side.awake:
        return "no leader"
    return produce_at(side, leader, name, partition, values, acks, **producer)


def produce_at(
    side: Side,
    number: int,
    name: str,
    partition: int,
    values: Sequence[bytes],
    acks: int = -1,
    **producer: Any,
) -> Any:
    # A producer whose last batch is old is forgotten at the next check.
    now_ms = wall_clock_ms()
    records = [Record(offset, now_ms, None, value) for offset, value in enumerate(values)]
    rows = encode_batch(records, **producer)
    part = t.ProduceRequestPartitionProduceData(index=partition, records=rows)
    topic = t.ProduceRequestTopicProduceData(name=name, partition_data=[part])
    request = t.ProduceRequest(acks=acks, timeout_ms=_WRITE_MS, topic_data=[topic])
    found = side.ask(number, request, 8).responses[0].partition_responses[0]
    return [code(found.error_code), found.base_offset]


def elect(side: Side, kind: int, name: str, partition: int) -> Any:
    topic = t.ElectLeadersRequestTopicPartitions(topic=name, partitions=[partition])
    request = t.ElectLeadersRequest(election_type=kind, topic_partitions=[topic], timeout_ms=_TIMEOUT_MS)
    found = side.ask_controller(request, 1)
    results = [part for each in found.replica_election_results for part in each.partition_result]
    return [code(found.error_code), *(code(each.error_code) for each in results)]


def reassign(side: Side, *moves: tuple[str, int, Sequence[int] | None]) -> Any:
    """Give partitions other replicas, in one request; None cancels a reassignment."""
    parts: dict[str, list[t.AlterPartitionReassignmentsRequestReassignablePartition]] = {}
    for name, partition, replicas in moves:
        part = t.AlterPartitionReassignmentsRequestReassignablePartition(
            partition_index=partition, replicas=None if replicas is None else list(replicas)
        )
        parts.setdefault(name, []).append(part)
    topics = [
        t.AlterPartitionReassignmentsRequestReassignableTopic(name=name, partitions=each)
        for name, each in parts.items()
    ]
    found = side.ask_controller(
        t.AlterPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=topics), 0
    )
    codes = {
        (topic.name, part.partition_index): code(part.error_code)
        for topic in found.responses
        for part in topic.partitions
    }
    return [code(found.error_code), *(codes.get((name, partition)) for name, partition, _ in moves)]


def reassignments(side: Side) -> Any:
    """Return the reassignments that are under way."""
    found = side.ask_controller(t.ListPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=None), 0)
    return [
        (topic.name, part.partition_index, part.replicas, part.adding_replicas, part.removing_replicas)
        for topic in found.topics
        for part in topic.partitions
    ]


def grow(side: Side, name: str, count: int, lists: Sequence[Sequence[int]]) -> str:
    added = [t.CreatePartitionsRequestCreatePartitionsAssignment(broker_ids=list(each)) for each in lists]
    topic = t.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=count, assignments=added)
    found = side.ask_controller(t.CreatePartitionsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS), 1)
    return code(found.results[0].error_code)


def delete(side: Side, name: str) -> str:
    request = t.DeleteTopicsRequest(topic_names=[name], timeout_ms=_SHORT_MS)
    return code(side.ask_controller(request, 4).responses[0].error_code)


def delete_records(side: Side, name: str, partition: int, offset: int) -> Any:
    leader = side.leader(name, partition)
    if leader not in side.awake:
        return "no leader"
    part = t.DeleteRecordsRequestDeleteRecordsPartition(partition_index=partition, offset=offset)
    topic = t.DeleteRecordsRequestDeleteRecordsTopic(name=name, partitions=[part])
    request = t.DeleteRecordsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
    found = side.ask(leader, request, 1).topics[0].partitions[0]
    return [code(found.error_code), found.low_watermark]


SET, RESET, APPEND, SUBTRACT = range(4)


def set_topic(side: Side, name: str, key: str, value: str | None, operation: int = SET) -> str:
    return _set(side, _TOPIC, name, key, value, operation)


def set_all_of_topic(side: Side, name: str, settings: Mapping[str, str]) -> str:
    """Give a topic these settings alone."""
    configs = [t.AlterConfigsRequestAlterableConfig(name=key, value=value) for key, value in settings.items()]
    resource = t.AlterConfigsRequestAlterConfigsResource(
        resource_type=_TOPIC, resource_name=name, configs=configs
    )
    found = side.ask_controller(t.AlterConfigsRequest(resources=[resource]), 1)
    return code(found.responses[0].error_code)


def set_default(side: Side, key: str, value: str | None) -> str:
    """Change a setting of all brokers."""
    return _set(side, _BROKER, "", key, value)


def _set(side: Side, kind: int, name: str, key: str, value: str | None, operation: int = SET) -> str:
    change = t.IncrementalAlterConfigsRequestAlterableConfig(
        name=key, config_operation=operation if value is not None else RESET, value=value
    )
    resource = t.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[change]
    )
    found = side.ask_controller(t.IncrementalAlterConfigsRequest(resources=[resource]), 0)
    return code(found.responses[0].error_code)


def set_quota(side: Side, entity: Mapping[str, str | None], key: str, value: float | None) -> str:
    """Bound what an entity may do; None takes the bound away."""
    parts = [
        t.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
        for kind, name in entity.items()
    ]
    change = t.AlterClientQuotasRequestOpData(key=key, value=value or 0.0, remove=value is None)
    entry = t.AlterClientQuotasRequestEntryData(entity=parts, ops=[change])
    found = side.ask_controller(t.AlterClientQuotasRequest(entries=[entry]), 0)
    return code(found.entries[0].error_code)


def commit(side: Side, group: str, name: str, offset: int) -> str:
    """Commit an offset of a group that has no members."""
    part = t.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = t.OffsetCommitRequest(
        group_id=group, topics=[t.OffsetCommitRequestTopic(name=name, partitions=[part])]
    )

    def found(number: int) -> int:
        error: int = side.ask(number, request, 7).topics[0].partitions[0].error_code
        return error

    return _of_coordinator(side, group, found)[0]


def committed(side: Side, group: str) -> Any:
    """Return the offsets that a group has committed."""
    offsets: list[Any] = []

    def found(number: int) -> int:
        answer = side.ask(number, t.OffsetFetchRequest(group_id=group, topics=None), 5)
        offsets[:] = [
            (topic.name, part.partition_index, part.committed_offset)
            for topic in answer.topics
            for part in topic.partitions
        ]
        error: int = answer.error_code
        return error

    return [*_of_coordinator(side, group, found), sorted(offsets)]


_RETRIABLE: Final = (
    *(ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    *(ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT),
)


def _of_coordinator(side: Side, group: str, ask: Callable[[int], int]) -> list[str]:
    """Ask the coordinator of a group until it has an answer, or for long."""
    end = time.monotonic() + _COORDINATOR_S
    while True:
        found = side.ask(side.awake[0], t.FindCoordinatorRequest(key=group), 1)
        error = found.error_code or (ask(found.node_id) if found.node_id in side.awake else _RETRIABLE[0])
        if error not in _RETRIABLE or time.monotonic() > end:
            return [code(error)]
        time.sleep(0.1)


def move(side: Side, number: int, name: str, partition: int) -> str:
    """Ask a broker to keep a replica in another of its log dirs."""
    here = [
        path
        for path, topic, part in side.log_dirs(number, [name])
        if part.partition_index == partition and topic == name
    ]
    paths = [str(each) for each in side.servers.log_dirs(number)]
    topics = t.AlterReplicaLogDirsRequestAlterReplicaLogDirTopic(name=name, partitions=[partition])
    wanted = next(each for each in paths if each not in here)
    directory = t.AlterReplicaLogDirsRequestAlterReplicaLogDir(path=wanted, topics=[topics])
    found = side.ask(number, t.AlterReplicaLogDirsRequest(dirs=[directory]), 1)
    return code(found.results[0].partitions[0].error_code)


def list_offsets_at(side: Side, number: int, name: str, partition: int, _values: Sequence[bytes]) -> Any:
    """Ask a broker for the end of a partition, whoever leads it."""
    error, offset = side.offset(number, Place(name, partition), -1, 0)
    return [code(error), offset]


def end_of_epoch_at(side: Side, number: int, name: str, partition: int, _values: Sequence[bytes]) -> Any:
    """Ask a broker where the first leader epoch ends."""
    part = t.OffsetForLeaderEpochRequestOffsetForLeaderPartition(partition=partition, leader_epoch=0)
    topic = t.OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic=name, partitions=[part])
    request = t.OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
    found = side.ask(number, request, 3).topics[0].partitions[0]
    return [code(found.error_code), found.leader_epoch, found.end_offset]


def fetch_at(side: Side, number: int, name: str, partition: int, _values: Sequence[bytes]) -> Any:
    """Ask a broker for the records, as a consumer without a rack."""
    found = side.fetch(number, Place(name, partition), 0)
    return [code(found.error_code), found.high_watermark, found.log_start_offset]


ANYONE: Final[Mapping[str, Callable[[Side, int, str, int, Sequence[bytes]], Any]]] = {
    "produce": produce_at,
    "list offsets": list_offsets_at,
    "end of epoch": end_of_epoch_at,
    "fetch": fetch_at,
}
