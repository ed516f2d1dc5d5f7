"""Serve clients and followers: Produce, Fetch, DeleteRecords, ListOffsets, OffsetForLeaderEpoch, Metadata.

Each public function is one turn of the `ReplicaManager`: it reads or changes partitions and returns effects.
A request that cannot be answered yet waits in `manager.waiting`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidRecord
from logstore.replication import membership, reading
from logstore.replication.durability import Durability
from logstore.replication.effects import Address, Client, Effect, Reply, answer
from logstore.replication.errors import InvalidRequiredAcks, NotLeaderOrFollower, UnknownTopicId
from logstore.replication.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
    EpochAnswer,
    EpochQuery,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from logstore.replication.partition import ACKS_ALL, Partition
from logstore.replication.replica_manager import ReplicaManager
from logstore.replication.waiting import DelayedByPartition, DelayedFetch, Status

Q = TypeVar("Q")
A = TypeVar("A")

# --- produce -----------------------------------------------------------------------------------


def produce(manager: ReplicaManager, address: Client, body: ProduceRequest, now_ms: int) -> list[Effect]:
    """Append a client's batches; acks=all is answered once they are committed."""
    if body.acks not in (0, 1, ACKS_ALL):
        error = InvalidRequiredAcks(f"acks is {body.acks}; valid values are 0, 1 and -1 (all)")
        results = {known: ProduceResult(error.code, message=str(error)) for known in body.records}
        manager.effects.append(Reply(address.token, ProduceResponse(results)))
        return manager.end_turn(now_ms)
    statuses = {
        topic_partition: _append(manager, topic_partition, data, body.acks, now_ms)
        for topic_partition, data in body.records.items()
    }
    if body.acks == 0:
        has_failed = any(status.result.error is not ErrorCode.NONE for status in statuses.values())
        manager.effects.append(Reply(address.token, None, close=has_failed))
    elif body.acks == ACKS_ALL and any(status.is_pending for status in statuses.values()):
        operation = DelayedByPartition(
            statuses,
            now_ms + body.timeout_ms,
            progress=partial(append_result, manager),
            timed_out=lambda status: ProduceResult(ErrorCode.REQUEST_TIMED_OUT),
            reply=lambda results: manager.effects.append(Reply(address.token, ProduceResponse(results))),
        )
        manager.waiting.produces.try_complete_else_watch(operation, statuses, now_ms)
    else:
        results = {known: status.result for known, status in statuses.items()}
        manager.effects.append(Reply(address.token, ProduceResponse(results)))
    return manager.end_turn(now_ms)


def _append(
    manager: ReplicaManager, topic_partition: TopicPartition, data: bytes | memoryview, acks: int, now_ms: int
) -> Status[ProduceResult]:
    try:
        partition = manager.partitions.get(topic_partition) or manager.partition(topic_partition)
        info, _ = partition.append(data, acks, now_ms)
    except (EngineError, OSError) as error:
        blamed = error.record_errors if isinstance(error, InvalidRecord) else ()
        code = manager.guard(topic_partition, error)
        return Status(ProduceResult(code, message=str(error), record_errors=blamed))
    manager.waiting.wake(topic_partition)
    if partition.is_synced:
        manager.flushes.want(partition)
    result = ProduceResult(ErrorCode.NONE, info.first_offset, info.log_append_time_ms, info.log_start_offset)
    if acks != ACKS_ALL:
        return Status(result)
    # A batch that had been sent before may be of an earlier epoch.
    epoch = partition.log.epoch_for_offset(info.last_offset) if info.is_duplicate else partition.leader_epoch
    return PendingAppend(
        result._replace(durability=partition.durability),
        info.last_offset + 1,
        partition.tenure,
        is_pending=True,
        partition=partition,
        epoch=epoch,
    )


@dataclass(slots=True, kw_only=True)
class PendingAppend(Status[ProduceResult]):
    """An append that waits until it is committed: the replica that made it, and the batch's leader epoch."""

    partition: Partition
    epoch: int


def append_result(
    manager: ReplicaManager, topic_partition: TopicPartition, status: Status[ProduceResult]
) -> ProduceResult | None:
    """Return the result of a waiting append; None while it is pending."""
    assert isinstance(status, PendingAppend), "only appends wait here"
    partition = status.partition
    if manager.partitions.get(topic_partition) is not partition:
        return _result_without_replica(manager, topic_partition)
    if not partition.is_leader or partition.tenure != status.tenure:
        return _result_after_leading(manager, partition, status)
    if partition.log.high_watermark < status.offset:
        return None
    if len(partition.isr.maximal) < partition.min_insync:
        return ProduceResult(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    if not partition.is_synced:
        # The high watermark moved under today's level, whatever the level was when the wait began.
        return status.result._replace(durability=Durability.REPLICATED)
    return status.result


def _result_after_leading(
    manager: ReplicaManager, partition: Partition, status: PendingAppend
) -> ProduceResult | None:
    """Return the result of an append that this node made as a leader before its role changed.

    The log tells what became of it, once it agrees with the current leader's: the batch was cut, or it is
    there and will be committed. Until then, or until the request's deadline, the client waits.
    """
    log = partition.log
    if status.offset <= log.log_start_offset:
        # It may have been deleted as a committed batch, or never have reached the leader.
        return _unknown("the log starts behind the batch now")
    if not partition.holds(status.offset, status.epoch):
        mark("produce: its leader changed, and the batch was cut")
        return ProduceResult(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            message=f"broker {manager.config.node_id} does not lead {partition.topic_partition} any more, "
            "and the batch is not in the new leader's log; refresh metadata and send it again",
        )
    if not partition.knows_what_is_committed or log.high_watermark < status.offset:
        return None
    if _members_in_sync(manager, partition) < partition.min_insync:
        return ProduceResult(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    mark("produce: its leader changed, and the batch is committed")
    # The level at which the new leader moved the high watermark may be another one than is known here.
    return status.result._replace(durability=Durability.REPLICATED)


def _members_in_sync(manager: ReplicaManager, partition: Partition) -> int:
    """Return how many replicas are in sync, as far as a leader or a follower knows."""
    if partition.is_leader:
        return len(partition.isr.maximal)
    if manager.config.min_insync_wall:
        return partition.min_insync  # with fewer, the high watermark would not have passed the batch
    known = manager.metadata.partitions.get(partition.topic_partition)
    return len(known.isr) if known is not None else 0


def _result_without_replica(manager: ReplicaManager, topic_partition: TopicPartition) -> ProduceResult:
    """Return the result of an append whose log is gone: deleted, set aside or failed."""
    try:
        manager.partition(topic_partition)
    except NotLeaderOrFollower:
        return _unknown("this broker has no replica any more")
    except EngineError as error:
        return ProduceResult(error.code, message=str(error))
    return _unknown("the topic was deleted, and another one created under its name")


def _unknown(why: str) -> ProduceResult:
    return ProduceResult(
        ErrorCode.REQUEST_TIMED_OUT, message=f"whether the batch was committed is unknown: {why}"
    )


# --- fetch -------------------------------------------------------------------------------------


def fetch(manager: ReplicaManager, address: Address, body: FetchRequest, now_ms: int) -> list[Effect]:
    """Read for a consumer or a follower; with too few bytes, wait for more."""
    results, size, is_final = _read(manager, body)
    if body.replica_id >= 0:
        for topic_partition, result in results.items():
            if result.error is ErrorCode.NONE and result.diverging_epoch is None:
                _count_fetch(manager, topic_partition, body, now_ms)
    if is_final or body.max_wait_ms <= 0 or not body.partitions or size >= body.min_bytes:
        manager.effects.append(answer(address, FetchResponse(results)))
    else:
        operation = DelayedFetch(
            body.min_bytes,
            now_ms + body.max_wait_ms,
            read=partial(_read, manager, body),
            reply=lambda response: manager.effects.append(answer(address, response)),
        )
        # It was read just now. Partitions that this fetch moved are woken, and checked as the turn ends.
        manager.waiting.fetches.watch(operation, body.partitions)
    return manager.end_turn(now_ms)


def _read(manager: ReplicaManager, body: FetchRequest) -> tuple[dict[TopicPartition, FetchResult], int, bool]:
    """Return all results, their size in bytes, and whether one (an error, a divergence) cannot wait."""
    results: dict[TopicPartition, FetchResult] = {}
    room = body.max_bytes
    is_final = False
    for topic_partition, wanted in body.partitions.items():
        result = _read_one(manager, topic_partition, wanted, body, room)
        is_final |= result.error is not ErrorCode.NONE or result.diverging_epoch is not None
        is_final |= result.preferred_read_replica >= 0
        # An offset in an older segment than the end always has something to send.
        is_final = is_final or reading.is_behind_segment(
            manager.partitions[topic_partition], wanted.fetch_offset, to_log_end=body.replica_id >= 0
        )
        # A DeleteRecords request may wait until every follower knows the new log start offset.
        is_final |= 0 <= wanted.log_start_offset < result.log_start_offset
        room -= len(result.records)
        results[topic_partition] = result
    return results, body.max_bytes - room, is_final


def _read_one(
    manager: ReplicaManager,
    topic_partition: TopicPartition,
    wanted: FetchPartition,
    body: FetchRequest,
    room: int,
) -> FetchResult:
    try:
        return reading.read(
            _partition_to_read(manager, topic_partition, wanted.topic_id),
            body,
            wanted,
            max_bytes=max(min(wanted.max_bytes, room), 0),
            # The first batch of a response may have any size, or it could never be read.
            at_least_one=room == body.max_bytes,
        )
    except (EngineError, OSError) as error:
        return FetchResult(manager.guard(topic_partition, error))


def _partition_to_read(manager: ReplicaManager, topic_partition: TopicPartition, topic_id: str) -> Partition:
    """Return the replica here; raises `UnknownTopicId` if there is none and that topic id is unknown."""
    partition = manager.partitions.get(topic_partition)
    if partition is not None:
        return partition
    is_known = topic_partition in manager.offline or not topic_id
    if not is_known and manager.metadata.topic_ids.get(topic_partition.topic) != topic_id:
        raise UnknownTopicId(f"topic id {topic_id} is unknown here; refresh metadata")
    return manager.partition(topic_partition)


def _count_fetch(
    manager: ReplicaManager, topic_partition: TopicPartition, body: FetchRequest, now_ms: int
) -> None:
    """Take a follower's fetch as its acknowledgement of everything below the fetch offset."""
    partition = manager.partitions[topic_partition]
    is_awaited = manager.waiting.deletions.deadline_ms is not None
    before = partition.low_watermark if is_awaited else -1
    has_moved, pending = membership.record_fetch(
        partition,
        body.replica_id,
        body.partitions[topic_partition],
        now_ms,
        broker_epoch=body.broker_epoch,
        own_broker_epoch=manager.broker_epoch,
    )
    if has_moved or (is_awaited and partition.low_watermark != before):
        manager.waiting.wake(topic_partition)
    if pending is not None:
        manager.submit(partition, pending, now_ms)
    manager.report_synced(partition)


# --- delete records ----------------------------------------------------------------------------


def delete_records(
    manager: ReplicaManager, address: Address, body: DeleteRecordsRequest, now_ms: int
) -> list[Effect]:
    """Raise log start offsets; answered once every live replica reports the new start."""
    statuses = {
        topic_partition: _delete_records(manager, topic_partition, offset)
        for topic_partition, offset in body.partitions.items()
    }
    operation = DelayedByPartition(
        statuses,
        now_ms + body.timeout_ms,
        progress=partial(deletion_result, manager),
        timed_out=lambda status: status.result,
        reply=lambda results: manager.effects.append(answer(address, DeleteRecordsResponse(results))),
    )
    if not operation.try_complete(now_ms):
        if body.timeout_ms <= 0:
            operation.force_complete(now_ms)
        else:
            manager.waiting.deletions.try_complete_else_watch(operation, statuses, now_ms)
    return manager.end_turn(now_ms)


def _delete_records(
    manager: ReplicaManager, topic_partition: TopicPartition, offset: int
) -> Status[DeleteRecordsResult]:
    try:
        partition = manager.partition(topic_partition)
        target = partition.delete_records(offset)
    except (EngineError, OSError) as error:
        return Status(DeleteRecordsResult(manager.guard(topic_partition, error)))
    manager.waiting.wake(topic_partition)
    timed_out = DeleteRecordsResult(ErrorCode.REQUEST_TIMED_OUT, partition.low_watermark)
    return Status(timed_out, target, partition.tenure, is_pending=True)


def deletion_result(
    manager: ReplicaManager, topic_partition: TopicPartition, status: Status[DeleteRecordsResult]
) -> DeleteRecordsResult | None:
    """Return the result of a deletion; None while a live replica has not confirmed it."""
    try:
        partition = manager.partition(topic_partition)
    except EngineError as error:
        return DeleteRecordsResult(error.code)
    if not partition.is_leader or partition.tenure != status.tenure:
        mark("delete records: the leader changed while followers were deleting")
        return DeleteRecordsResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    low_watermark = partition.low_watermark
    return DeleteRecordsResult(ErrorCode.NONE, low_watermark) if low_watermark >= status.offset else None


# --- questions ---------------------------------------------------------------------------------


def list_offsets(
    manager: ReplicaManager, address: Address, body: ListOffsetsRequest, now_ms: int
) -> list[Effect]:
    """Answer with offsets by time."""

    def ask(partition: Partition, wanted: ListOffsetsPartition) -> ListOffsetsResult:
        return reading.list_offset(
            partition,
            wanted.timestamp,
            replica_id=body.replica_id,
            current_leader_epoch=wanted.current_leader_epoch,
            committed_only=body.committed_only,
        )

    results = _ask_each(manager, body.partitions, ask, ListOffsetsResult)
    manager.effects.append(answer(address, ListOffsetsResponse(results)))
    return manager.end_turn(now_ms)


def offset_for_leader_epoch(
    manager: ReplicaManager, address: Address, body: OffsetForLeaderEpochRequest, now_ms: int
) -> list[Effect]:
    """Answer with the end offsets of epochs in the leaders' logs here."""

    def ask(partition: Partition, query: EpochQuery) -> EpochAnswer:
        end = reading.end_of_epoch(partition, query.leader_epoch, query.current_leader_epoch)
        return EpochAnswer(ErrorCode.NONE, end.epoch, end.end_offset)

    results = _ask_each(manager, body.partitions, ask, EpochAnswer)
    manager.effects.append(answer(address, OffsetForLeaderEpochResponse(results)))
    return manager.end_turn(now_ms)


def _ask_each(
    manager: ReplicaManager,
    wanted: Mapping[TopicPartition, Q],
    ask: Callable[[Partition, Q], A],
    refusal: Callable[[ErrorCode], A],
) -> dict[TopicPartition, A]:
    """Ask each partition its question; one that refuses does not affect the others."""
    results: dict[TopicPartition, A] = {}
    for topic_partition, question in wanted.items():
        try:
            results[topic_partition] = ask(manager.partition(topic_partition), question)
        except (EngineError, OSError) as error:
            results[topic_partition] = refusal(manager.guard(topic_partition, error))
    return results


def describe_cluster(
    manager: ReplicaManager, address: Address, body: MetadataRequest, now_ms: int
) -> list[Effect]:
    """Answer with the metadata cache of this node."""
    return [answer(address, manager.metadata.describe(body))]
