"""What a leader may do to its ISR. Pure: the proposal against the state, the order of checks fixed.

The order matters, because an answer that is true but not the first to be true misleads the leader:
a controller that is itself behind must say so before it calls anybody stale, and a repeated request
whose first try was applied must hear success before it hears of a version conflict.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.replication.controller.election import Incarnation
from logstore.replication.controller.eligible import with_eligible
from logstore.replication.durability import Durability
from logstore.replication.messages import IsrProposal
from logstore.replication.metastore.layout import UNKNOWN_BROKER_EPOCH, LeaderAndIsr


@dataclass(frozen=True, slots=True)
class Verdict:
    """NONE with a `write` is a change to make, NONE without one is the state already wanted."""

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
    """Whether `sender`'s proposal may be written over `state`, whose version is `partition_epoch`."""
    if proposal.leader_epoch > state.leader_epoch or proposal.partition_epoch > partition_epoch:
        # Somebody knows more than we do: then we are not the controller any more.
        return Verdict(ErrorCode.NOT_CONTROLLER)
    if proposal.leader_epoch < state.leader_epoch:
        mark("isr proposal: of an old leader epoch")
        return Verdict(ErrorCode.FENCED_LEADER_EPOCH)
    if sender != state.leader:
        return Verdict(ErrorCode.INVALID_REQUEST)
    becomes_synced = proposal.all_synced and state.durability is Durability.SYNCED and not state.all_synced
    is_so_already = (set(proposal.new_isr), proposal.recovering) == (set(state.isr), state.recovering)
    # One version later it is this very proposal whose answer was lost. Anything else that was written
    # since, a level for one, an answer does not tell: the leader must hear it all.
    was_written_so = partition_epoch == proposal.partition_epoch + 1 and (
        state.all_synced or not proposal.all_synced
    )
    if (
        is_so_already
        and not becomes_synced
        and (partition_epoch == proposal.partition_epoch or was_written_so)
    ):
        mark("isr proposal: it is the state already")
        return Verdict(ErrorCode.NONE)
    if proposal.partition_epoch < partition_epoch:
        mark("isr proposal: made over an old state")
        return Verdict(ErrorCode.INVALID_UPDATE_VERSION)
    if proposal.recovering and (len(proposal.new_isr) > 1 or not state.recovering):
        # A leader that lacks records admits nobody yet, and one that has recovered stays so.
        return Verdict(ErrorCode.INVALID_REQUEST)
    if not _well_formed(proposal, state.leader, replicas):
        return Verdict(ErrorCode.INVALID_REQUEST)
    if not _eligible(proposal, live, shutting_down):
        mark("isr proposal: a member is not alive, or about to go")
        return Verdict(ErrorCode.INELIGIBLE_REPLICA)
    recorded = dict(zip(state.isr, state.isr_broker_epochs, strict=True))
    written = replace(
        state,
        isr=proposal.new_isr,
        # A member that stays keeps the incarnation on record: if it restarted since, this
        # proposal does not prove that the new one has anything.
        isr_broker_epochs=tuple(
            recorded[member] if member in recorded else live[member].epoch for member in proposal.new_isr
        ),
        controller_epoch=controller_epoch,
        recovering=proposal.recovering,
        all_synced=state.all_synced or becomes_synced,
    )
    if becomes_synced:
        # The report is of ISR members: who is outside may have flushed nothing.
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
