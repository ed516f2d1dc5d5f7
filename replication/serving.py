"""Serve clients and followers: Produce, Fetch, DeleteRecords, ListOffsets, OffsetForLeaderEpoch, Metadata.

Each public function is one turn of the `ReplicaManager`: it reads or changes partitions and returns effects.
A request that cannot be answered yet waits in `manager.waiting`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidRecord, InvalidTimestamp
from logstore.log.append import AppendInfo
from logstore.replication import healing, membership, reading
from logstore.replication.config import ReplicaSelector
from logstore.replication.durability import Durability
from logstore.replication.effects import Address, Client, Effect, Reply, answer
from logstore.replication.errors import InvalidRequiredAcks, NotLeaderOrFollower, UnknownTopicId
from logstore.replication.fetch_sessions import FetchSession
from logstore.replication.isr import CommittedIsr
from logstore.replication.messages import (
    CONSUMER_REPLICA_ID,
    FIRST_SESSION_EPOCH,
    NO_SESSION,
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
from logstore.replication.replica_manager import ReplicaManager, place_of, settle_fetch
from logstore.replication.waiting import Amount, DelayedByPartition, DelayedFetch, Status

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
            address=address,
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
        blamed = error.record_errors if isinstance(error, InvalidRecord | InvalidTimestamp) else ()
        code = manager.guard(topic_partition, error)
        return Status(ProduceResult(code, message=str(error), record_errors=blamed))
    manager.waiting.wake(topic_partition)
    manager.flushes.want(partition)
    result = ProduceResult(ErrorCode.NONE, info.first_offset, info.log_append_time_ms, info.log_start_offset)
    return Status(result) if acks != ACKS_ALL else until_committed(partition, info, result)


def until_committed(partition: Partition, info: AppendInfo, result: ProduceResult) -> PendingAppend:
    """Return the status of an append that `result` answers once it is committed."""
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
    manager.now_ms = now_ms
    sessions = manager.waiting.sessions
    session = sessions.open(body, manager.metadata.broker_epoch(body.replica_id), now_ms)
    if isinstance(session, ErrorCode):
        manager.effects.append(answer(address, FetchResponse({}, session)))
        return manager.end_turn(now_ms)
    if session.waiting is not None:
        mark("fetch session: a request overtakes one that waits")
        session.waiting.is_overtaken = True
        manager.waiting.fetches.complete(session.waiting, now_ms)
    results, is_final = _read(manager, session, body)
    if body.replica_id >= 0:
        for topic_partition, result in results.items():
            if result.error is ErrorCode.NONE and result.diverging_epoch is None:
                _count_fetch(manager, topic_partition, session.wanted[topic_partition], body, now_ms)
            else:
                settle_fetch(manager.partitions, topic_partition, session)
        session.clock.last_fetch_ms = now_ms
    needed = min(body.min_bytes, body.max_bytes)
    is_final = is_final or body.max_wait_ms <= 0 or not session.wanted
    if is_final or sum(len(result.records) for result in results.values()) >= needed:
        manager.effects.append(answer(address, _respond(manager, session, body, results)))
        sessions.release(session)
    else:
        _wait(manager, address, session, body, results, now_ms)
    return manager.end_turn(now_ms)


def _wait(
    manager: ReplicaManager,
    address: Address,
    session: FetchSession,
    body: FetchRequest,
    results: dict[TopicPartition, FetchResult],
    now_ms: int,
) -> None:
    """Let a fetch wait. What it has read is dropped, and read again when it is complete."""
    sessions = manager.waiting.sessions
    needed, starts = min(body.min_bytes, body.max_bytes), session.starts
    if body.min_bytes > 1:
        for known, result in results.items():
            starts[known] = reading.start_of(manager.partitions[known], body, result)

    def amount_of(topic_partition: TopicPartition) -> Amount:
        partition = manager.partitions.get(topic_partition)
        if partition is None:
            return Amount(0, is_final=True)
        wanted = session.wanted[topic_partition]
        found = reading.amount(partition, body, wanted, starts.get(topic_partition))
        return Amount(0) if found.bytes and _is_held_back(manager, partition, body) else found

    def watch(topic_partition: TopicPartition) -> None:
        start = starts.get(topic_partition)
        place = (
            place_of(manager.partitions, topic_partition)
            if start is not None and len(session.wanted) == 1
            else None
        )
        is_plain = body.replica_id == CONSUMER_REPLICA_ID and not body.committed_only
        if is_plain and start is not None and place is not None and place.segment == start[0]:
            # A thousand such fetches may wait for one busy partition: it passes over them in one step.
            sessions.watch_from(session, topic_partition, place, start[1] + needed)
        else:
            sessions.watch(session, topic_partition)

    def end(is_answered: bool) -> None:
        session.waiting = None
        if not is_answered:
            sessions.close(session.id)
        elif waiting.is_overtaken:
            response = FetchResponse({}, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            manager.effects.append(answer(address, response))
        else:
            found, _ = _read(manager, session, body, waiting.results)
            manager.effects.append(answer(address, _respond(manager, session, body, found)))
        sessions.release(session)

    waiting = session.waiting = DelayedFetch(
        needed,
        now_ms + body.max_wait_ms,
        address=address,
        results=results,
        amount_of=amount_of,
        watch=watch,
        end=end,
    )
    manager.waiting.fetches.watch(waiting, ())
    # It was read just now. Partitions that this fetch moved are woken, and looked at as the turn ends.
    for topic_partition in session.restless:
        watch(topic_partition)


def _read(
    manager: ReplicaManager,
    session: FetchSession,
    body: FetchRequest,
    known: Mapping[TopicPartition, FetchResult] = MappingProxyType({}),
) -> tuple[dict[TopicPartition, FetchResult], bool]:
    """Return the results of all partitions that do not rest, and whether one of them cannot wait.

    An error, a divergence and another replica to read from cannot. `known` results are not read again.
    """
    results: dict[TopicPartition, FetchResult] = {}
    room = body.max_bytes
    is_final = False
    for topic_partition in list(session.restless):
        found = known.get(topic_partition)
        if found is not None:
            results[topic_partition] = found
            continue
        wanted = session.wanted[topic_partition]
        is_held = _is_held_back(manager, manager.partitions.get(topic_partition), body)
        result = _read_one(manager, topic_partition, wanted, body, 0 if is_held else room)
        is_final |= result.error is not ErrorCode.NONE or result.diverging_epoch is not None
        is_final |= result.preferred_read_replica >= 0
        # An offset in an older segment than the end always has something to send.
        is_final = is_final or (
            not is_held
            and reading.is_behind_segment(manager.partitions[topic_partition], body, wanted.fetch_offset)
        )
        # A DeleteRecords request may wait until every follower knows the new log start offset.
        is_final |= 0 <= wanted.log_start_offset < result.log_start_offset
        room -= len(result.records)
        results[topic_partition] = result
    return results, is_final


def _respond(
    manager: ReplicaManager,
    session: FetchSession,
    body: FetchRequest,
    results: dict[TopicPartition, FetchResult],
) -> FetchResponse:
    """Return the response; in a session, let the partitions rest that have nothing left to send or decide."""
    if manager.throttle.bound is not None and body.replica_id >= 0:
        _count_throttled(manager, results)
    if session.id == NO_SESSION:
        return FetchResponse(results)
    for topic_partition, result in results.items():
        partition = manager.partitions.get(topic_partition)
        if partition is not None and _may_rest(partition, session, body, topic_partition, result):
            del session.restless[topic_partition]
            if body.min_bytes > 1:
                session.starts[topic_partition] = reading.start_of(partition, body, result)
            manager.waiting.sessions.watch(session, topic_partition)
    is_full = body.session_epoch == FIRST_SESSION_EPOCH
    news = session.news(results)
    found = results if is_full else news
    return FetchResponse(found, ErrorCode.NONE, session.id, session.topic_ids(found))


def _may_rest(
    partition: Partition,
    session: FetchSession,
    body: FetchRequest,
    topic_partition: TopicPartition,
    result: FetchResult,
) -> bool:
    """Whether fetching the partition again would have no effect until it moves.

    A follower at the end of a log that is committed as a whole, in the ISR, is counted by the clock of its
    session from here on.
    """
    if result.error is not ErrorCode.NONE or len(result.records) or result.diverging_epoch is not None:
        return False
    wanted, log = session.wanted[topic_partition], partition.log
    if body.replica_id < 0:
        is_redirected = (
            bool(body.rack) and partition.config.replica_selector_class is not ReplicaSelector.NONE
        )
        return not is_redirected and wanted.fetch_offset == reading.readable_end(partition, body)
    replica = partition.remote_replicas.get(body.replica_id)
    if (
        replica is None
        or not wanted.fetch_offset == replica.log_end_offset == log.log_end_offset == log.high_watermark
        or 0 <= wanted.log_start_offset < log.log_start_offset
        or not isinstance(partition.isr, CommittedIsr)
        or body.replica_id not in partition.isr.committed
        or (partition.is_synced and not (wanted.is_synced and partition.all_synced))
    ):
        return False
    partition.remote_replicas[body.replica_id] = replica.resting(session.clock)
    return True


def _is_held_back(manager: ReplicaManager, partition: Partition | None, body: FetchRequest) -> bool:
    """Whether a follower gets nothing of a partition now, because of the throttle.

    Members of a proposed ISR count as in sync: the high watermark waits for them.
    """
    throttle = manager.throttle
    return (
        throttle.bound is not None
        and partition is not None
        and body.replica_id >= 0
        and body.replica_id not in partition.isr.maximal
        and throttle.lists(partition)
        and throttle.is_exceeded(manager.now_ms)
    )


def _count_throttled(manager: ReplicaManager, results: Mapping[TopicPartition, FetchResult]) -> None:
    for topic_partition, result in results.items():
        partition = manager.partitions.get(topic_partition)
        if partition is not None and len(result.records) and manager.throttle.lists(partition):
            manager.throttle.record(len(result.records), manager.now_ms)


def _read_one(
    manager: ReplicaManager,
    topic_partition: TopicPartition,
    wanted: FetchPartition,
    body: FetchRequest,
    room: int,
) -> FetchResult:
    try:
        partition = _partition_to_read(manager, topic_partition, wanted.topic_id)
        result = reading.read(
            partition,
            body,
            wanted,
            max_bytes=max(min(wanted.max_bytes, room), 0),
            # The first batch of a response may have any size, or it could never be read.
            at_least_one=room == body.max_bytes,
        )
        healing.after_read(manager, partition)
        return result
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
    manager: ReplicaManager,
    topic_partition: TopicPartition,
    wanted: FetchPartition,
    body: FetchRequest,
    now_ms: int,
) -> None:
    """Take a follower's fetch as its acknowledgement of everything below the fetch offset."""
    partition = manager.partitions[topic_partition]
    is_awaited = manager.waiting.deletions.deadline_ms is not None
    before = partition.low_watermark if is_awaited else -1
    has_moved, pending = membership.record_fetch(
        partition,
        body.replica_id,
        wanted,
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
    """Raise log start offsets; answered once each replica that is alive or may lead reports the new start."""
    statuses = {
        topic_partition: _delete_records(manager, topic_partition, offset)
        for topic_partition, offset in body.partitions.items()
    }
    operation = DelayedByPartition(
        statuses,
        now_ms + body.timeout_ms,
        address=address,
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
    """Return the result of a deletion; None until every replica that is alive or may lead confirms it."""
    try:
        partition = manager.partition(topic_partition)
    except EngineError as error:
        return DeleteRecordsResult(error.code)
    if not partition.is_leader or partition.tenure != status.tenure:
        mark("delete records: the leader changed while followers were deleting")
        return DeleteRecordsResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    low_watermark = partition.low_watermark
    if low_watermark < status.offset or partition.may_be_led_from_outside:
        return None
    return DeleteRecordsResult(ErrorCode.NONE, low_watermark)


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
