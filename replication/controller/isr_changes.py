"""AlterPartition: leaders propose another ISR, the state node's version decides.

The leader epoch stays: the leader goes on, only the partition epoch moves. A proposal whose write
met another version is refused, not repeated, since it was made without knowing what is there now; the
leader is told the state that is, because it waits for that word with the larger of both ISRs.
Everything is judged on the copy (the version guards it), and the copy is read again after every conflict.
"""

from __future__ import annotations

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller.alter_partition import judge
from logstore.replication.controller.context import Context, KnownState, Steps
from logstore.replication.controller.errors import MetadataConflict
from logstore.replication.controller.partition_states import (
    ROUNDS,
    check_fence,
    describe_change,
    fenced_write,
    learn_state,
)
from logstore.replication.controller.reassigning import advance
from logstore.replication.messages import AlterPartitionRequest, AlterPartitionResponse, AlterPartitionResult
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Get, StoreError

_OVERTAKEN = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION)


def alter_partitions(
    context: Context,
    request: AlterPartitionRequest,
    results: dict[TopicPartition, AlterPartitionResult],
) -> Steps[AlterPartitionResponse]:
    """Judge each proposal and write those that stand; the answer has one result for each."""
    sender = context.brokers.get(request.broker_id)
    if sender is None or sender.endpoint.epoch != request.broker_epoch:
        mark("isr change: of a broker that is not registered so")
        return AlterPartitionResponse(ErrorCode.STALE_BROKER_EPOCH)
    results.clear()  # a try that failed half-way: what it wrote is found to be the state already wanted
    writes: dict[TopicPartition, layout.LeaderAndIsr] = {}
    for each, proposal in sorted(request.partitions.items()):
        known = context.states.get(each)
        if known is None or context.is_being_deleted(each.topic):
            mark("isr change: of a partition that is not there, or is about to go")
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
    overtaken = [each for each, result in results.items() if result.error in _OVERTAKEN]
    context.announce(overtaken, to=(request.broker_id,))
    # Also where nothing was left to write: a first try of this event may have written, and failed after that.
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
    writes: dict[TopicPartition, layout.LeaderAndIsr],
    results: dict[TopicPartition, AlterPartitionResult],
) -> Steps[None]:
    based_on = {each: context.states[each] for each in writes}
    remaining = list(writes)
    for _ in range(ROUNDS):
        if not remaining:
            return
        outcomes = yield tuple(
            fenced_write(context, each, writes[each], over=based_on[each]) for each in remaining
        )
        changed, in_doubt = [], []
        for each, outcome in zip(remaining, outcomes, strict=True):
            check_fence(outcome)
            if outcome.error is not None:
                in_doubt.append((each, outcome.error))
                continue
            stat = outcome.results[-1].stat
            assert stat is not None
            context.states[each] = KnownState(writes[each], stat.version)
            changed.append(each)
        reads = yield tuple(Get(layout.partition_state_path(each)) for each, _ in in_doubt)
        remaining, found = [], []
        for (each, error), read in zip(in_doubt, reads, strict=True):
            known = learn_state(context, each, read)
            if known is not None and known.state == writes[each]:
                mark("isr change: written though its reply was lost")
                changed.append(each)
            elif known == based_on[each] and error is StoreError.CONNECTION_LOSS:
                mark("isr change: written once more after a lost call")
                remaining.append(each)
            else:
                mark("isr change: the state has moved on")
                results[each] = AlterPartitionResult(ErrorCode.INVALID_UPDATE_VERSION)
                found.append(each)
        for each in changed:
            change = describe_change(based_on[each].state, context.states[each].state)
            context.record(each, change, "proposed by the leader")
        results.update({each: _result(ErrorCode.NONE, context.states[each]) for each in changed})
        context.announce_metadata(changed)
        context.announce(found)
    if remaining:
        raise MetadataConflict(f"the states of {', '.join(map(str, remaining))} could not be written")
