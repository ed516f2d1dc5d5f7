"""Changes of an ISR: leaders propose them (AlterPartition), Kafka's brokers write them and notify.

    AlterPartition ──▶ judge each proposal on the copy ──▶ write over that version ──▶ result for each
    /isr_change_notification ──▶ read the listed states again ──▶ send to all brokers ──▶ remove the notice

The leader epoch stays: the leader continues, and only the partition epoch moves. A proposal whose write met
another version is refused, not repeated: it was made without knowing the new state. The leader is sent that
state, because it keeps counting with the larger of both ISRs until then.

A notice is served with the states as they are now, not as they were when it was written (KAFKA-5879). A lost
notice costs only fresh metadata: no decision is made on the copy alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.context import Context, KnownState, Steps
from logstore.replication.controller.election import Incarnation, with_eligible
from logstore.replication.controller.procedure import learn_state, read_notices, remove_notices, settle
from logstore.replication.controller.reassignment import advance
from logstore.replication.durability import Durability
from logstore.replication.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    IsrProposal,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import UNKNOWN_BROKER_EPOCH, LeaderAndIsr
from logstore.replication.metastore.operations import Get

# --- judging a proposal: pure -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """NONE with a `write` is a change to make; NONE without one means that the state is as proposed."""

    error: ErrorCode
    write: LeaderAndIsr | None = None


def judge(
    proposal: IsrProposal,
    state: LeaderAndIsr,
    partition_epoch: int,
    replicas: tuple[int, ...],
    *,
    sender: int,
    live: Mapping[int, Incarnation],
    shutting_down: Collection[int],
    controller_epoch: int,
) -> Verdict:
    """Return whether `sender`'s proposal may be written over `state`, whose version is `partition_epoch`.

    The order of the checks matters, because the first error decides what the leader does: a controller that
    is itself outdated must report that before it reports another as stale, and a repeated request whose
    first try was applied must get NONE, not a version conflict.
    """
    if proposal.leader_epoch > state.leader_epoch or proposal.partition_epoch > partition_epoch:
        # The leader knows a later state: this is not the controller any more.
        return Verdict(ErrorCode.NOT_CONTROLLER)
    if proposal.leader_epoch < state.leader_epoch:
        mark("isr proposal: of an old leader epoch")
        return Verdict(ErrorCode.FENCED_LEADER_EPOCH)
    if sender != state.leader:
        return Verdict(ErrorCode.INVALID_REQUEST)
    becomes_synced = proposal.all_synced and state.durability is Durability.SYNCED and not state.all_synced
    is_so_already = (set(proposal.new_isr), proposal.recovering) == (set(state.isr), state.recovering)
    # One version later it is this very proposal, whose answer was lost. The answer does not carry other
    # changes, such as a new level; the leader must get those from the full state.
    was_written_so = partition_epoch == proposal.partition_epoch + 1 and (
        state.all_synced or not proposal.all_synced
    )
    is_current = partition_epoch == proposal.partition_epoch
    if is_so_already and not becomes_synced and (is_current or was_written_so):
        mark("isr proposal: the state is as proposed")
        return Verdict(ErrorCode.NONE)
    if not is_current:
        mark("isr proposal: based on an old state")
        return Verdict(ErrorCode.INVALID_UPDATE_VERSION)
    if proposal.recovering:
        # A leader that lacks records changes nothing yet, and one that has recovered stays recovered.
        return Verdict(ErrorCode.INVALID_REQUEST)
    if not _well_formed(proposal, state.leader, replicas):
        return Verdict(ErrorCode.INVALID_REQUEST)
    if not _eligible(proposal, live, shutting_down):
        mark("isr proposal: a member is dead or shutting down")
        return Verdict(ErrorCode.INELIGIBLE_REPLICA)
    # A member that stays keeps its recorded incarnation: if it has restarted, this proposal does not prove
    # that the new incarnation holds anything.
    epochs = {member: live[member].epoch for member in proposal.new_isr if member not in state.isr}
    epochs.update(zip(state.isr, state.isr_broker_epochs, strict=True))
    written = replace(
        state,
        isr=proposal.new_isr,
        isr_broker_epochs=tuple(epochs[member] for member in proposal.new_isr),
        controller_epoch=controller_epoch,
        recovering=False,
        all_synced=state.all_synced or becomes_synced,
    )
    if becomes_synced:
        # The report covers ISR members only: other replicas may have flushed nothing.
        return Verdict(ErrorCode.NONE, replace(written, eligible=()))
    return Verdict(ErrorCode.NONE, with_eligible(state, written, replicas))


def _well_formed(proposal: IsrProposal, leader: int, replicas: tuple[int, ...]) -> bool:
    isr = proposal.new_isr
    return (
        leader in isr
        and len(set(isr)) == len(isr)
        and set(isr) <= set(replicas)
        and len(proposal.broker_epochs) in (0, len(isr))
    )


def _eligible(proposal: IsrProposal, live: Mapping[int, Incarnation], shutting_down: Collection[int]) -> bool:
    epochs = proposal.broker_epochs or (UNKNOWN_BROKER_EPOCH,) * len(proposal.new_isr)
    return all(
        member in live and member not in shutting_down and epoch in (UNKNOWN_BROKER_EPOCH, live[member].epoch)
        for member, epoch in zip(proposal.new_isr, epochs, strict=True)
    )


# --- proposals of leaders ---------------------------------------------------------------------


def alter_partitions(
    context: Context, request: AlterPartitionRequest, results: dict[TopicPartition, AlterPartitionResult]
) -> Steps[AlterPartitionResponse]:
    """Judge each proposal, write the accepted ones, and answer with a result for each."""
    if not context.has_incarnation(request.broker_id, request.broker_epoch):
        mark("isr change: of a former registration")
        return AlterPartitionResponse(ErrorCode.STALE_BROKER_EPOCH)
    results.clear()  # of a try that failed half-way: its writes are now found as the state already
    writes: dict[TopicPartition, LeaderAndIsr] = {}
    for each, proposal in sorted(request.partitions.items()):
        known = context.states.get(each)
        if known is None or context.is_being_deleted(each.topic):
            mark("isr change: of a partition that is missing or being deleted")
            results[each] = AlterPartitionResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        verdict = judge(
            proposal,
            known.state,
            known.partition_epoch,
            context.replicas[each],
            sender=request.broker_id,
            live=context.live(each),
            shutting_down=context.shutting_down,
            controller_epoch=context.epoch,
        )
        if verdict.write is not None:
            writes[each] = verdict.write
        else:
            mark("isr change: nothing to write, or refused")
            results[each] = _result(verdict.error, known)
    yield from _write(context, writes, results)
    overtaken = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION)
    context.announce(
        [each for each, result in results.items() if result.error in overtaken], to=(request.broker_id,)
    )
    # Also if nothing was left to write: a first try of this event may have written, and failed afterwards.
    yield from advance(context, request.partitions)
    return AlterPartitionResponse(ErrorCode.NONE, results)


def _result(error: ErrorCode, known: KnownState) -> AlterPartitionResult:
    if error is not ErrorCode.NONE:
        return AlterPartitionResult(error)
    state, partition_epoch = known
    return AlterPartitionResult(
        error, state.leader, state.leader_epoch, state.isr, partition_epoch, state.min_insync
    )


def _write(
    context: Context,
    writes: Mapping[TopicPartition, LeaderAndIsr],
    results: dict[TopicPartition, AlterPartitionResult],
) -> Steps[None]:
    """Write over the copy that was judged; where another writer was faster, the proposal is refused."""
    based_on = {each: context.states[each] for each in writes}

    def decide(each: TopicPartition, state: LeaderAndIsr | None) -> LeaderAndIsr | None:
        if context.states.get(each) == based_on[each]:
            return writes[each]
        mark("isr change: the state was changed by another writer")
        results[each] = AlterPartitionResult(ErrorCode.INVALID_UPDATE_VERSION)
        return None

    def written(each: TopicPartition) -> None:
        results[each] = _result(ErrorCode.NONE, context.states[each])

    def tell(changed: set[TopicPartition], found: set[TopicPartition], new: object) -> None:
        # The proposing leader gets the result, and the followers need no new role.
        context.announce_metadata(changed)
        context.announce(found)

    yield from settle(
        context, writes, decide, reason="proposed by the leader", on_change=written, tell=tell, from_copy=True
    )
    for each in sorted(writes.keys() - results.keys()):  # the node cannot be read any more
        results[each] = AlterPartitionResult(ErrorCode.INVALID_UPDATE_VERSION)


# --- notices of Kafka's brokers ---------------------------------------------------------------


def isr_changed(context: Context) -> Steps[None]:
    """Read the listed states again and announce them to all brokers; a reassignment may wait for that.

    A notice that cannot be parsed is reported and removed.
    """
    notices = yield from read_notices(context, layout.ISR_NOTIFICATIONS_PATH)
    listed: set[TopicPartition] = set()
    for notice in notices:
        partitions = context.parsed(
            notice.path, notice.outcome(), layout.parse_partitions, report_as=layout.ISR_NOTIFICATIONS_PATH
        )
        if partitions is None:
            mark("isr notifications: one is unreadable")
        listed.update(partitions or ())
    known = sorted(listed & context.replicas.keys())
    if known:
        mark("isr notifications: states are read again")
    reads = yield tuple(Get(layout.partition_state_path(each)) for each in known)
    for each, read in zip(known, reads, strict=True):
        learn_state(context, each, read)
        context.record(each, "reads a state again", "an ISR notification")
    context.announce_metadata(known)
    yield from advance(context, known)
    yield from remove_notices(context, notices)
