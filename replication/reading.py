"""Reads of one partition: Fetch, ListOffsets, OffsetForLeaderEpoch. Nothing here changes it."""

from __future__ import annotations

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.errors import InconsistentTopicId, OffsetOutOfRange
from logstore.log.log import FetchIsolation
from logstore.log.read import (
    end_offset_for,
    offset_for_timestamp,
    offset_of_largest_timestamp,
    read_bytes,
    segment_base,
)
from logstore.replication.config import ReplicaSelector
from logstore.replication.errors import NotLeaderOrFollower, OffsetNotAvailable, UnknownLeaderEpoch
from logstore.replication.messages import (
    EARLIEST_TIMESTAMP,
    LARGEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    NO_LEADER,
    Aborted,
    FetchPartition,
    FetchRequest,
    FetchResult,
    ListOffsetsResult,
)
from logstore.replication.partition import Partition
from logstore.replication.reconcile import divergence_of
from logstore.replication.replica import UNKNOWN_BROKER_EPOCH
from logstore.replication.strays import is_of_another_incarnation
from logstore.segment.epochs import EpochEndOffset


def read(
    partition: Partition, request: FetchRequest, wanted: FetchPartition, *, max_bytes: int, at_least_one: bool
) -> FetchResult:
    """Read up to the end for a follower, below the high watermark for a consumer.

    A consumer that names its rack (empty for none) may be sent to a replica in that rack. It is then served
    by a follower, once the leader has confirmed in this epoch that their logs agree (KIP-392).

    The high watermark in the result is the one from before this fetch is counted. Raises the epoch errors,
    `NotLeaderOrFollower`, `InconsistentTopicId` and `OffsetOutOfRange`.
    """
    log, rack = partition.log, request.rack
    if is_of_another_incarnation(log.topic_id, wanted.topic_id):
        raise InconsistentTopicId(
            f"{partition.topic_partition} here has topic id {log.topic_id}, not {wanted.topic_id}"
        )
    is_follower = request.replica_id >= 0
    if rack is not None and _serves_as_follower(partition):
        partition.check_epoch(wanted.current_leader_epoch)
        check_agreed(partition)
    else:
        partition.check_leader(wanted.current_leader_epoch)
    if is_follower:
        _check_member(partition, request.replica_id, wanted.current_leader_epoch, request.broker_epoch)
    high_watermark, log_start_offset = log.high_watermark, log.log_start_offset
    is_at_end = wanted.fetch_offset == log.log_end_offset and not log.is_offline
    if is_follower and is_at_end and wanted.last_fetched_epoch in (NO_EPOCH, log.latest_epoch):
        # Of thousands of partitions nearly all are idle: nothing to read, nothing to compare.
        return FetchResult(ErrorCode.NONE, high_watermark, log_start_offset)
    if wanted.last_fetched_epoch != NO_EPOCH:
        divergence = divergence_of(
            fetch_offset=wanted.fetch_offset,
            last_fetched_epoch=wanted.last_fetched_epoch,
            log_start_offset=log_start_offset,
            end_of=log.end_offset_for_epoch(wanted.last_fetched_epoch),
        )
        if divergence.is_out_of_range:
            mark("fetch: a diverging follower lies outside of the log")
            raise OffsetOutOfRange(wanted.fetch_offset, log_start_offset, log.log_end_offset)
        if divergence.diverging is not None:
            return FetchResult(
                ErrorCode.NONE, high_watermark, log_start_offset, diverging_epoch=divergence.diverging
            )
    if rack and not is_follower:
        preferred = _preferred_replica(partition, rack, wanted.fetch_offset)
        if preferred is not None:
            mark("fetch: a consumer is sent to a replica in its rack")
            return FetchResult(
                ErrorCode.NONE, high_watermark, log_start_offset, preferred_read_replica=preferred
            )
    isolation = FetchIsolation.LOG_END if is_follower else _isolation(request.committed_only)
    # Taken before the read: everything below it is decided then, and its aborted transactions are known.
    last_stable_offset = -1 if is_follower else log.last_stable_offset
    end_offset = last_stable_offset if request.committed_only else high_watermark
    if not is_follower and log_start_offset <= wanted.fetch_offset == end_offset and not log.is_offline:
        # Most consumers wait at the end most of the time, and each empty answer comes here twice.
        return FetchResult(
            ErrorCode.NONE,
            high_watermark,
            log_start_offset,
            last_stable_offset=last_stable_offset,
            aborted=() if request.committed_only else None,
        )
    fetched = read_bytes(log, wanted.fetch_offset, max_bytes, isolation=isolation, at_least_one=at_least_one)
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


def _preferred_replica(partition: Partition, rack: str, fetch_offset: int) -> int | None:
    """Return the follower that a consumer in `rack` should fetch from; None for the leader.

    The leader itself if it is in that rack, else the live ISR member there that holds the offset and has the
    highest log end offset.
    """
    config = partition.config
    if config.replica_selector_class is ReplicaSelector.NONE or not partition.is_leader:
        return None
    if config.broker_rack == rack:
        return None
    candidates = [
        replica
        for replica_id, replica in sorted(partition.remote_replicas.items())
        if replica_id in partition.isr.committed
        and partition.metadata.rack_of(replica_id) == rack
        and max(replica.log_start_offset, 0) <= fetch_offset <= replica.log_end_offset
    ]
    if not candidates:
        return None
    return max(candidates, key=lambda replica: (replica.log_end_offset, replica.caught_up_ms)).replica_id


def is_behind_segment(partition: Partition, fetch_offset: int, *, to_log_end: bool) -> bool:
    """Whether the offset is in an older segment than the end of the readable log: the fetch need not wait."""
    log = partition.log
    end_offset = log.log_end_offset if to_log_end else log.high_watermark
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
    partition.check_leader(current_leader_epoch)
    log = partition.log
    if timestamp == EARLIEST_TIMESTAMP:
        epochs = log.epochs
        epoch = epochs[0].epoch if epochs and epochs[0].start_offset <= log.log_start_offset else NO_EPOCH
        return ListOffsetsResult(ErrorCode.NONE, -1, log.log_start_offset, epoch)
    is_replica = replica_id >= 0
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
