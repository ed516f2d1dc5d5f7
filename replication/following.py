"""The follower's path of one partition: append fetched batches, reconcile with the leader, truncate."""

from __future__ import annotations

from logstore.disk.files import Buffer
from logstore.disk.marks import mark
from logstore.errors import OutOfResources, UnexpectedAppendOffset
from logstore.log import truncate
from logstore.log.append_fetched import append_as_follower
from logstore.log.upkeep import advance_log_start_offset
from logstore.replication.messages import NO_EPOCH
from logstore.replication.partition import Partition
from logstore.replication.reconcile import Truncation, truncation_for
from logstore.segment.epochs import EpochEndOffset


def agree(partition: Partition) -> None:
    """Note that this log is a prefix of the leader's: a fetch from its end did not diverge.

    The high watermark in the answer was taken over. Until then the log, and its high watermark, may be of a
    history that an unclean election discarded.
    """
    partition.agreed_epoch = partition.leader_epoch


def append_fetched(
    partition: Partition, records: Buffer, *, high_watermark: int, log_start_offset: int
) -> None:
    """Append the leader's batches, then take over its high watermark and log start offset.

    The high watermark may go down: a new leader may know an older one. Raises the log's refusals, among them
    one for a batch of an epoch above ours.
    """
    log = partition.log
    end_offset = log.log_end_offset
    if log.log_start_offset < end_offset <= log_start_offset and log.latest_epoch < partition.leader_epoch:
        # The whole log lies below the leader's start, where nothing can be compared. It may never have been
        # committed, and neither may its producer state: those producers will send their batches again.
        mark("partition: nothing here can be compared with the leader's log, which begins behind it")
        restart_at(partition, end_offset)
    if records:
        try:
            append_as_follower(log, records, leader_epoch=partition.leader_epoch)
        except UnexpectedAppendOffset as error:
            # The leader's log starts inside a batch, and batches are not split: an empty log starts where
            # that batch does. In any other log this is a broken fetch.
            is_empty = log.log_start_offset == log.log_end_offset
            is_inside = error.first_offset < log.log_end_offset <= error.last_offset
            if not (is_inside and is_empty):
                raise
            why = "the leader's log starts inside a batch"
            truncate.truncate_fully_and_start_at(log, error.first_offset, why=why)
            append_as_follower(log, records, leader_epoch=partition.leader_epoch)
        except OutOfResources:
            # What is here is a prefix of the leader's log all the same, and clients of a former leader may
            # wait to learn what became of it.
            log.set_high_watermark(min(max(high_watermark, log.high_watermark), log.log_end_offset))
            agree(partition)
            raise
        partition.counters.replicated_bytes += len(records)
    before = log.high_watermark
    known_here = min(high_watermark, log.log_end_offset)
    if known_here < log.high_watermark:
        mark("partition: a new leader knows of fewer committed records than its follower")
        partition.counters.watermarks_lowered += 1
    log.set_high_watermark(known_here)
    if log_start_offset > log.log_start_offset:
        try:
            advance_log_start_offset(log, min(log_start_offset, log.high_watermark))
        except OutOfResources:
            # The log still serves records that the leader has deleted, so no more of it counts as committed.
            log.set_high_watermark(min(before, log.high_watermark))
            raise


def reconcile(partition: Partition, answer: EpochEndOffset) -> Truncation:
    """Truncate the log where it diverges from the leader's; return whether another request is needed."""
    log = partition.log
    decision = truncation_for(
        answer,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        own_end_of=log.end_offset_for_epoch,
    )
    why = f"epoch {answer.epoch} ends at {answer.end_offset} for {_leader(partition)}"
    try:
        truncate_to(partition, decision.offset, why=why)
        if log.log_start_offset == log.log_end_offset and NO_EPOCH < answer.epoch < log.latest_epoch:
            # Nothing but deleted batches, of an epoch that the leader's log does not have there. Its next
            # batches may be older, and could not be written behind them.
            mark("partition: deleted batches of another history go")
            restart_at(partition, log.log_end_offset, why=why)
    except OutOfResources:
        # No room in quarantine for what goes. Clients that wait to learn what became of it learn it now.
        mark("follower: it has to cut its log, and has no room in quarantine")
        partition.doomed = partition.leader_epoch, decision.offset
        raise
    return decision


def truncate_to(
    partition: Partition, offset: int, *, why: str = "it parts from the leader's log there"
) -> None:
    """Truncate the log to end at `offset`, with epochs that have no records below it."""
    log, counters = partition.log, partition.counters
    lost = log.log_end_offset - max(offset, log.log_start_offset)
    if lost > 0:
        counters.truncations += 1
        counters.records_truncated += lost
        # Legal only after an unclean election or a lost disk; anything else is a bug elsewhere.
        counters.truncations_below_high_watermark += offset < log.high_watermark
    # Also if no record goes: an epoch that starts at the end has no records and must go (KAFKA-10706), or the
    # leader would answer "diverging" for ever.
    truncate.truncate_to(log, offset, why=why)


def restart_at(partition: Partition, offset: int, *, why: str = "") -> None:
    """Drop the whole log and start it at `offset`, by default because the leader's log starts there."""
    log = partition.log
    partition.counters.truncations += 1
    partition.counters.records_truncated += log.log_end_offset - log.log_start_offset
    why = why or f"the log of {_leader(partition)} starts at {offset}"
    truncate.truncate_fully_and_start_at(log, offset, why=why)


def _leader(partition: Partition) -> str:
    return f"leader {partition.leader_id} of epoch {partition.leader_epoch}"
