"""Reads of one partition: Fetch, ListOffsets, OffsetForLeaderEpoch. Nothing here changes it."""

from __future__ import annotations

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.errors import InconsistentTopicId, OffsetOutOfRange
from logstore.log.log import FetchIsolation
from logstore.log.read import (
    end_offset_for,
    offset_for_timestamp,
    offset_of_largest_timestamp,
    read_checked,
    segment_base,
)
from logstore.replication.config import ReplicaSelector
from logstore.replication.errors import NotLeaderOrFollower, OffsetNotAvailable, UnknownLeaderEpoch
from logstore.replication.messages import (
    CONSUMER_REPLICA_ID,
    DEBUGGING_REPLICA_ID,
    EARLIEST_TIMESTAMP,
    LARGEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    NO_LEADER,
    FetchPartition,
    FetchRequest,
    FetchResult,
    ListOffsetsResult,
)
from logstore.replication.partition import Partition
from logstore.replication.reconcile import divergence_of
from logstore.replication.replica import UNKNOWN_BROKER_EPOCH
from logstore.replication.strays import is_of_another_incarnation
from logstore.replication.transaction_messages import Aborted
from logstore.replication.waiting import Amount
from logstore.segment.epochs import EpochEndOffset


def read(
    partition: Partition, request: FetchRequest, wanted: FetchPartition, *, max_bytes: int, at_least_one: bool
) -> FetchResult:
    """Read up to the end for a follower, below the high watermark for a consumer.

    A consumer that names its rack (empty for none) may be sent to a replica in that rack. It is then served
    by a follower, once the leader has confirmed in this epoch that their logs agree (KIP-392).

    The high watermark in the result is the one from before this fetch is counted. Raises the epoch errors,
    `NotLeaderOrFollower`, `InconsistentTopicId`, `OffsetOutOfRange`, and `DamagedLog` at damage.
    """
    admit(partition, request, wanted)
    log, rack = partition.log, request.rack
    is_follower = request.replica_id >= 0
    high_watermark, log_start_offset = log.high_watermark, log.log_start_offset
    is_at_end = wanted.fetch_offset == log.log_end_offset and not log.is_offline
    if is_follower and is_at_end and wanted.last_fetched_epoch in (NO_EPOCH, log.latest_epoch):
        # Of thousands of partitions nearly all are idle: nothing to read, nothing to compare.
        return FetchResult(ErrorCode.NONE, high_watermark, log_start_offset)
    # Taken before the read: everything below it is decided then, and its aborted transactions are known.
    last_stable_offset = -1 if is_follower else log.last_stable_offset
    if rack and not is_follower:
        preferred = _preferred_replica(partition, rack, wanted.fetch_offset)
        if preferred is not None:
            mark("fetch: a consumer is sent to a replica in its rack")
            return FetchResult(
                ErrorCode.NONE, high_watermark, log_start_offset, preferred_read_replica=preferred
            )
    diverging = _diverging(partition, wanted)
    if diverging is not None:
        return FetchResult(
            ErrorCode.NONE,
            high_watermark,
            log_start_offset,
            last_stable_offset=last_stable_offset,
            diverging_epoch=diverging,
        )
    reads_all = reads_to_log_end(request)
    isolation = FetchIsolation.LOG_END if reads_all else _isolation(request.committed_only)
    end_offset = last_stable_offset if request.committed_only else high_watermark
    if not reads_all and log_start_offset <= wanted.fetch_offset == end_offset and not log.is_offline:
        # Most consumers wait at the end most of the time, and each empty answer comes here twice.
        return FetchResult(
            ErrorCode.NONE,
            high_watermark,
            log_start_offset,
            last_stable_offset=last_stable_offset,
            aborted=() if request.committed_only else None,
        )
    fetched = read_checked(
        log, wanted.fetch_offset, max_bytes, isolation=isolation, at_least_one=at_least_one
    )
    aborted = None
    if isolation is FetchIsolation.TXN_COMMITTED:
        aborted = tuple(Aborted(each.producer_id, each.first_offset) for each in fetched.aborted)
    return FetchResult(
        ErrorCode.NONE,
        high_watermark,
        log_start_offset,
        fetched.records,
        last_stable_offset=last_stable_offset,
        aborted=aborted,
    )


def reads_to_log_end(request: FetchRequest) -> bool:
    """Whether the reader gets uncommitted records: a follower, or a tool that compares replicas."""
    return request.replica_id != CONSUMER_REPLICA_ID


def admit(partition: Partition, request: FetchRequest, wanted: FetchPartition) -> None:
    """Raise an error, as listed at `read`, unless this replica may answer the reader."""
    log = partition.log
    if is_of_another_incarnation(log.topic_id, wanted.topic_id):
        raise InconsistentTopicId(
            f"{partition.topic_partition} here has topic id {log.topic_id}, not {wanted.topic_id}"
        )
    if request.replica_id == DEBUGGING_REPLICA_ID:
        partition.check_epoch(wanted.current_leader_epoch)
    elif request.rack is not None and _serves_as_follower(partition):
        partition.check_epoch(wanted.current_leader_epoch)
        check_agreed(partition)
    else:
        partition.check_leader(wanted.current_leader_epoch)
    if request.replica_id >= 0:
        _check_member(partition, request.replica_id, wanted.current_leader_epoch, request.broker_epoch)


def _diverging(partition: Partition, wanted: FetchPartition) -> EpochEndOffset | None:
    """Return where the follower's log parts from this one; None if it does not. Raises `OffsetOutOfRange`."""
    log = partition.log
    if wanted.last_fetched_epoch == NO_EPOCH:
        return None
    divergence = divergence_of(
        fetch_offset=wanted.fetch_offset,
        last_fetched_epoch=wanted.last_fetched_epoch,
        log_start_offset=log.log_start_offset,
        end_of=log.end_offset_for_epoch(wanted.last_fetched_epoch),
    )
    if divergence.is_out_of_range:
        mark("fetch: a diverging follower lies outside of the log")
        raise OffsetOutOfRange(wanted.fetch_offset, log.log_start_offset, log.log_end_offset)
    return divergence.diverging


def amount(
    partition: Partition, request: FetchRequest, wanted: FetchPartition, start: tuple[int, int] | None
) -> Amount:
    """Return how much a waiting fetch could read now, without reading.

    `start` is the place of its first byte: base offset of the segment, position in it; None if unknown.
    Final is an error, a divergence, another replica to read from, an older segment than the end, a log start
    that the follower does not know, and bytes that cannot be counted.
    """
    log = partition.log
    try:
        admit(partition, request, wanted)
        is_diverging = _diverging(partition, wanted) is not None
    except EngineError:
        return Amount(0, is_final=True)
    is_inside = log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset
    is_redirected = (
        request.rack and _preferred_replica(partition, request.rack, wanted.fetch_offset) is not None
    )
    if is_diverging or not is_inside or is_redirected or log.is_offline:
        return Amount(0, is_final=True)
    if 0 <= wanted.log_start_offset < log.log_start_offset:
        # A DeleteRecords request may wait until every follower knows the new log start offset.
        return Amount(0, is_final=True)
    if wanted.fetch_offset >= readable_end(partition, request):
        return Amount(0)
    if request.min_bytes <= 1:
        return Amount(1)
    end = partition.place_of_end(is_log_end=reads_to_log_end(request))
    if start is None or end is None or start[0] != end[0]:
        return Amount(1, is_final=True)
    return Amount(min(max(end[1] - start[1], 1), wanted.max_bytes))


def readable_end(partition: Partition, request: FetchRequest) -> int:
    """Return the end of the records that the reader may get."""
    log = partition.log
    if reads_to_log_end(request):
        return log.log_end_offset
    return log.last_stable_offset if request.committed_only else log.high_watermark


def start_of(partition: Partition, request: FetchRequest, found: FetchResult) -> tuple[int, int] | None:
    """Return the start of a read that reached the end; None if it is unknown."""
    end = partition.place_of_end(is_log_end=reads_to_log_end(request))
    return end and (end[0], end[1] - len(found.records))


def _serves_as_follower(partition: Partition) -> bool:
    selects = partition.config.replica_selector_class is ReplicaSelector.RACK_AWARE
    return selects and not partition.leads and not partition.is_suspended and partition.leader_id != NO_LEADER


def check_agreed(partition: Partition) -> None:
    """Raise unless the leader has confirmed in this epoch that this log is a prefix of its own."""
    if partition.agreed_epoch != partition.leader_epoch:
        mark("fetch: a consumer asks a follower that has not compared logs with its new leader yet")
        raise NotLeaderOrFollower(
            f"broker {partition.config.node_id} has not compared its log of {partition.topic_partition} "
            "with the leader's yet; fetch from the leader"
        )


def _preferred_replica(partition: Partition, rack: str | None, fetch_offset: int) -> int | None:
    """Return the follower that a consumer in `rack` should fetch from; None for the leader.

    The leader itself if it is in that rack, else the live ISR member there that holds the offset and has the
    highest log end offset. Ties go to the one that was caught up last, then to the highest id.
    """
    config = partition.config
    if config.replica_selector_class is ReplicaSelector.NONE or not partition.is_leader:
        return None
    if not rack or config.broker_rack == rack:
        return None
    candidates = [
        replica
        for replica_id, replica in partition.remote_replicas.items()
        if replica_id in partition.isr.committed
        and partition.metadata.rack_of(replica_id) == rack
        and max(replica.log_start_offset, 0) <= fetch_offset <= replica.log_end_offset
    ]
    if not candidates:
        return None
    best = max(candidates, key=lambda each: (each.log_end_offset, each.caught_up_ms, each.replica_id))
    return best.replica_id


def is_behind_segment(partition: Partition, request: FetchRequest, fetch_offset: int) -> bool:
    """Whether the offset is in an older segment than the end of the readable log: the fetch need not wait."""
    log, end_offset = partition.log, readable_end(partition, request)
    if fetch_offset >= end_offset:
        return False
    return segment_base(log, fetch_offset) < segment_base(log, end_offset)


def _check_member(
    partition: Partition, replica_id: int, current_leader_epoch: int, broker_epoch: int
) -> None:
    replica = partition.remote_replicas.get(replica_id)
    if replica is None:
        if current_leader_epoch != NO_EPOCH:
            # It may know of an assignment that has not arrived here: let it retry.
            raise UnknownLeaderEpoch(
                f"broker {replica_id} is not a replica of {partition.topic_partition} here yet"
            )
        raise NotLeaderOrFollower(f"broker {replica_id} is not a replica of {partition.topic_partition}")
    newest = max(replica.broker_epoch, partition.metadata.broker_epoch(replica_id))
    if UNKNOWN_BROKER_EPOCH < broker_epoch < newest:
        mark("fetch: of an earlier life of a follower")
        raise NotLeaderOrFollower(
            f"fetch of an earlier life of broker {replica_id} (broker epoch {broker_epoch}, now {newest})"
        )


def end_of_epoch(partition: Partition, epoch: int, current_leader_epoch: int) -> EpochEndOffset:
    """Return where `epoch` ends in the leader's log (KIP-101).

    Raises the epoch errors and `NotLeaderOrFollower`.
    """
    partition.check_leader(current_leader_epoch)
    return partition.log.end_offset_for_epoch(epoch)


def list_offset(
    partition: Partition,
    timestamp: int,
    *,
    replica_id: int,
    current_leader_epoch: int,
    committed_only: bool = False,
) -> ListOffsetsResult:
    """Return the offset for a timestamp, for the largest timestamp, or of an end of the log.

    A replica sees the whole log, a client what is committed, with `committed_only` what is decided.

    Raises the epoch errors and `NotLeaderOrFollower`. Clients get `OffsetNotAvailable` until the high
    watermark reaches the start of this leadership: the answer could be below one of the former leader
    (KIP-207).
    """
    if replica_id == DEBUGGING_REPLICA_ID:
        partition.check_epoch(current_leader_epoch)
    else:
        partition.check_leader(current_leader_epoch)
    log = partition.log
    if timestamp == EARLIEST_TIMESTAMP:
        epochs = log.epochs
        epoch = epochs[0].epoch if epochs and epochs[0].start_offset <= log.log_start_offset else NO_EPOCH
        return ListOffsetsResult(ErrorCode.NONE, -1, log.log_start_offset, epoch)
    is_replica = replica_id != CONSUMER_REPLICA_ID
    bound = end_offset_for(log, FetchIsolation.LOG_END if is_replica else _isolation(committed_only))
    if timestamp == LATEST_TIMESTAMP:
        if not is_replica:
            _check_caught_up_with_epoch(partition)
        return ListOffsetsResult(ErrorCode.NONE, -1, bound, partition.leader_epoch)
    if timestamp == LARGEST_TIMESTAMP:
        found = offset_of_largest_timestamp(log)
    else:
        found = offset_for_timestamp(log, timestamp)
    if found is not None and found.offset < bound:
        return ListOffsetsResult(ErrorCode.NONE, found.timestamp_ms, found.offset, found.leader_epoch)
    if found is not None:
        _check_caught_up_with_epoch(partition)
    return ListOffsetsResult(ErrorCode.NONE)


def _check_caught_up_with_epoch(partition: Partition) -> None:
    if partition.is_catching_up:
        raise OffsetNotAvailable(
            f"{partition.topic_partition}: high watermark {partition.log.high_watermark} has not reached "
            f"{partition.epoch_start_offset}, the start of this leadership; retry"
        )


def _isolation(committed_only: bool) -> FetchIsolation:
    return FetchIsolation.TXN_COMMITTED if committed_only else FetchIsolation.HIGH_WATERMARK
