"""A leader's followers: their fetches, and the ISR changes that it proposes and adopts.

`isr.py` has the rules.
"""

from __future__ import annotations

from enum import Enum

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.replication.config import LagCriterion
from logstore.replication.isr import (
    CommittedIsr,
    LagBounds,
    PendingExpand,
    PendingIsr,
    PendingShrink,
    PendingSync,
    may_join,
    members_to_drop,
)
from logstore.replication.messages import AlterPartitionResult, FetchPartition, IsrProposal
from logstore.replication.partition import Partition
from logstore.replication.replica import UNKNOWN_BROKER_EPOCH, RemoteReplica


class IsrOutcome(Enum):
    """The meaning of an answer to an ISR proposal."""

    STALE = "for a state that was replaced"
    ADOPTED = "persisted"
    REVERTED = "never written"
    UNKNOWN = "refused, or perhaps not: the maximal ISR stands until the controller's next request"
    RESEND = "no usable answer"


_NEVER_WRITTEN = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
_OVERTAKEN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


def record_fetch(
    partition: Partition,
    replica_id: int,
    wanted: FetchPartition,
    now_ms: int,
    *,
    broker_epoch: int,
    own_broker_epoch: int,
) -> tuple[bool, PendingExpand | None]:
    """Count a follower's successful read: whether the high watermark moved, and a proposal to add it.

    Only the first read of a request counts: a later read of a waiting fetch adds nothing, and one that
    failed or diverged is no evidence about our log. With `synced` durability only flushed claims count: a
    follower without that flag does not know the level yet.
    """
    if partition.is_synced and not wanted.is_synced:
        mark("durability: a follower claims what it has not flushed")
        return False, None
    replica = partition.remote_replicas[replica_id].fetched(
        wanted.fetch_offset,
        log_start_offset=wanted.log_start_offset,
        leader_end_offset=partition.log.log_end_offset,
        now_ms=now_ms,
        broker_epoch=broker_epoch,
    )
    partition.remote_replicas[replica_id] = replica
    # The expansion first: once proposed, the new member counts for the high watermark.
    pending = _propose_expand(partition, replica, own_broker_epoch)
    return partition.advance_high_watermark(now_ms), pending


def _propose_expand(
    partition: Partition, replica: RemoteReplica, own_broker_epoch: int
) -> PendingExpand | None:
    assert partition.epoch_start_offset is not None, "only a leader counts fetches"
    isr = partition.isr
    if not isinstance(isr, CommittedIsr) or not may_join(
        replica,
        isr,
        high_watermark=partition.log.high_watermark,
        epoch_start_offset=partition.epoch_start_offset,
        is_alive=partition.metadata.may_be_in_sync(replica.replica_id),
        live_broker_epoch=partition.metadata.broker_epoch(replica.replica_id),
        log_start_offset=partition.log.log_start_offset,
    ):
        return None
    proposal = _proposal(partition, isr.isr | {replica.replica_id}, own_broker_epoch)
    partition.isr = pending = PendingExpand(isr, proposal, replica.replica_id)
    return pending


def propose_shrink(partition: Partition, now_ms: int, *, own_broker_epoch: int) -> PendingShrink | None:
    """Propose to remove the members that lag. They count until the store has confirmed it."""
    isr, config = partition.isr, partition.config
    if not partition.is_leader or not isinstance(isr, CommittedIsr):
        return None
    removed = members_to_drop(
        isr,
        config.node_id,
        partition.remote_replicas,
        partition.log.log_end_offset,
        now_ms,
        LagBounds(
            config.replica_lag_time_max_ms,
            config.replica_lag_max_messages,
            by_silence=config.replica_lag_criterion is LagCriterion.SILENCE,
        ),
    )
    if not removed:
        return None
    proposal = _proposal(partition, isr.isr - removed, own_broker_epoch)
    partition.isr = pending = PendingShrink(isr, proposal, removed)
    return pending


def propose_synced(partition: Partition, *, own_broker_epoch: int) -> PendingSync | None:
    """Report that every ISR member has flushed all committed records, once after a switch to `synced`.

    Records committed under former leaders lie below the start of this leadership.
    """
    isr = partition.isr
    is_switching = partition.is_leader and partition.is_synced and not partition.all_synced
    if not is_switching or not isinstance(isr, CommittedIsr):
        return None
    assert partition.epoch_start_offset is not None, "a leader knows the start of its epoch"
    bound = max(partition.log.high_watermark, partition.epoch_start_offset)
    known = partition.remote_replicas
    ends = [known[member].log_end_offset for member in isr.isr if member in known]
    if len(ends) < len(isr.isr) - 1 or min((partition.log.recovery_point, *ends)) < bound:
        return None
    mark("durability: a switched partition is reported as synced")
    proposal = _proposal(partition, isr.isr, own_broker_epoch)._replace(all_synced=True)
    partition.isr = pending = PendingSync(isr, proposal)
    return pending


def _proposal(partition: Partition, isr: frozenset[int], own_broker_epoch: int) -> IsrProposal:
    epochs = {known.replica_id: known.broker_epoch for known in partition.remote_replicas.values()}
    epochs[partition.config.node_id] = own_broker_epoch
    members = tuple(sorted(isr))
    return IsrProposal(
        partition.leader_epoch,
        partition.partition_epoch,
        members,
        tuple(epochs.get(member, UNKNOWN_BROKER_EPOCH) for member in members),
    )


def on_isr_answer(partition: Partition, pending: PendingIsr, answer: AlterPartitionResult) -> IsrOutcome:
    """Take the controller's answer to `pending`."""
    if partition.isr is not pending:
        mark("isr: an answer to a proposal that was replaced")
        return IsrOutcome.STALE
    if answer.error is ErrorCode.NONE:
        is_older = answer.partition_epoch < partition.partition_epoch
        if answer.leader_epoch != partition.leader_epoch or is_older:
            return IsrOutcome.STALE
        # An equal partition epoch repeats an answer that was applied before.
        partition.isr = CommittedIsr(frozenset(answer.isr))
        partition.partition_epoch = answer.partition_epoch
        # The answer may carry another number, of a state that reaches this node only here.
        partition.agreed_min_insync = answer.min_insync
        if isinstance(pending, PendingExpand):
            mark("isr: a member has joined")
            partition.counters.isr_expands += 1
        elif isinstance(pending, PendingShrink):
            mark("isr: members have left")
            partition.counters.isr_shrinks += 1
        else:
            partition.all_synced = True
        return IsrOutcome.ADOPTED
    if answer.error in _NEVER_WRITTEN:
        mark("isr: a proposal was refused for good")
        partition.isr = pending.last
        return IsrOutcome.REVERTED
    if answer.error in _OVERTAKEN:
        mark("isr: the controller has overtaken a proposal")
        return IsrOutcome.UNKNOWN
    return IsrOutcome.RESEND
