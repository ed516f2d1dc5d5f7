"""The one way in which a state node is written: read, decide, write if unchanged, tell.

A decision is only as good as the state it was made on, so each round reads the nodes again and
writes with the version it read. Whoever lost a race is read and decided once more. A write whose
reply was lost is recognised by its content at the next reading. Store, copy and announcement move
together, before anything else can happen: a state that was written is always told of, by this
controller or, if it dies first, by the next one's takeover. So is a state that turns out to be news:
somebody else wrote it, or we did in an event that has started again since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import election
from logstore.replication.controller.context import Context, KnownState, Steps
from logstore.replication.controller.eligible import with_min_insync
from logstore.replication.controller.errors import ControllerFenced, MetadataConflict
from logstore.replication.messages import NO_LEADER
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.operations import (
    ANY_VERSION,
    Check,
    Create,
    Get,
    Multi,
    Outcome,
    Set,
    StoreError,
)

ROUNDS = 10

Decide: TypeAlias = Callable[[TopicPartition, layout.LeaderAndIsr | None], layout.LeaderAndIsr | None]
"""(partition, its persisted state if any) → the state to write; None to leave it."""


def check_fence(outcome: Outcome) -> None:
    """Raise `ControllerFenced` if a fenced write failed because of its fence."""
    if outcome.error is not None and outcome.failed_index == 0:
        raise ControllerFenced("another controller has been elected")


def check_term(context: Context) -> Steps[None]:
    """Raise `ControllerFenced` if another controller has been elected by now."""
    for _ in range(ROUNDS):
        (outcome,) = yield (context.fenced(),)
        check_fence(outcome)
        if outcome.error is None:
            return
    raise MetadataConflict("the store does not say whether this is still the controller")


def learn_state(context: Context, topic_partition: TopicPartition, read: Outcome) -> KnownState | None:
    """Take a reading of a state node into the copy. An unreadable one is reported and forgotten."""
    path = layout.partition_state_path(topic_partition)
    context.unreadable.pop(path, None)
    context.states.pop(topic_partition, None)
    if read.stat is None:
        return None
    try:
        state = layout.parse_state(read.data)
    except CorruptMetadata as error:
        context.unreadable[path] = str(error)
        return None
    if state.controller_epoch > context.epoch:
        mark("states: one was written by a later controller")
        raise ControllerFenced(f"{topic_partition} was written by controller epoch {state.controller_epoch}")
    context.states[topic_partition] = known = KnownState(state, read.stat.version)
    return known


def fenced_write(
    context: Context, topic_partition: TopicPartition, state: layout.LeaderAndIsr, over: KnownState | None
) -> Multi:
    """The write of `state` over what was read: nothing (`None`) or a version; its outcome is the last result.

    A first state is for a topic that is there: its parents must not come back without what says who they are.
    """
    path, data = layout.partition_state_path(topic_partition), layout.encode_state(state)
    if over is None:
        is_there = Check(layout.topic_path(topic_partition.topic), ANY_VERSION)
        return context.fenced(is_there, Create(path, data, make_parents=True))
    return context.fenced(Set(path, data, over.partition_epoch))


def settle(
    context: Context,
    topic_partitions: Iterable[TopicPartition],
    decide: Decide,
    *,
    announce: bool = True,
    reason: str = "",
    on_change: Callable[[TopicPartition], None] = lambda topic_partition: None,
) -> Steps[None]:
    """Bring these partitions' state nodes to what `decide` says, and tell the brokers of each change.

    `announce=False` is for a takeover, which tells everybody everything afterwards. `reason` goes into the
    state-change log; `on_change` hears of each partition as soon as its write is known to have happened.
    Raises `ControllerFenced`, or `MetadataConflict` if a node keeps changing.
    """
    remaining = sorted(topic_partitions)
    attempted: dict[TopicPartition, layout.LeaderAndIsr] = {}
    replaced: dict[TopicPartition, layout.LeaderAndIsr] = {}
    new: set[TopicPartition] = set()
    found: set[TopicPartition] = set()
    for _ in range(ROUNDS):
        remaining = [
            each
            for each in remaining
            if each in context.replicas and not context.is_being_deleted(each.topic)
        ]
        if not remaining:
            return
        reads = yield tuple(Get(layout.partition_state_path(each)) for each in remaining)
        wanted: dict[TopicPartition, layout.LeaderAndIsr] = {}
        changed: list[TopicPartition] = []
        for each, read in zip(remaining, reads, strict=True):
            before = context.states.get(each)
            known = learn_state(context, each, read)
            if known is None and layout.partition_state_path(each) in context.unreadable:
                continue
            if known is not None and attempted.get(each) == known.state:
                mark("settle: written though its reply was lost")
                changed.append(each)
            elif (state := decide(each, known.state if known else None)) is not None:
                wanted[each] = state
            if known != before and each not in changed:
                mark("settle: a state is not what it was known to be")
                found.add(each)
        attempted.update(wanted)
        had_state = {each: context.states[each].state for each in wanted if each in context.states}
        replaced.update(had_state)
        writes = yield tuple(
            fenced_write(context, each, state, context.states.get(each)) for each, state in wanted.items()
        )
        remaining = []
        for (each, state), outcome in zip(wanted.items(), writes, strict=True):
            check_fence(outcome)
            if outcome.error is StoreError.NO_NODE and each not in had_state:
                mark("settle: a topic is gone before its first state, its watch will tell")
                continue
            if outcome.error is not None:
                mark("settle: somebody else wrote, or the call was lost")
                remaining.append(each)
                continue
            stat = outcome.results[-1].stat
            assert stat is not None
            context.states[each] = KnownState(state, stat.version)
            changed.append(each)
            if each not in had_state:
                new.add(each)
        for each in changed:
            context.record(each, describe_change(replaced.get(each), context.states[each].state), reason)
            on_change(each)
        if announce:
            # What is to be replaced is not told: whoever led in it may have started anew since.
            context.announce({*changed, *found.difference(remaining)}, new=new)
        found.intersection_update(remaining)
    if remaining:
        if announce:
            context.announce(found)
        raise MetadataConflict(f"the states of {', '.join(map(str, remaining))} kept changing")


def describe_change(before: layout.LeaderAndIsr | None, after: layout.LeaderAndIsr) -> str:
    """What a write meant, for the state-change log; `before` is None where there was no state."""
    if before is None:
        return "writes the first state"
    if after.leader == NO_LEADER and before.leader != NO_LEADER:
        return "leaves nobody to lead"
    if after.leader != before.leader:
        return "elects a leader outside the ISR" if after.leader not in before.isr else "elects a leader"
    if set(after.isr) != set(before.isr):
        return "changes the ISR"
    return "begins an epoch" if after.leader_epoch != before.leader_epoch else "writes a state"


def after_failures(context: Context) -> Decide:
    """Decide by who lives and what the topic asks: a first state, a leader, an ISR, a level, or nothing."""

    def decide(
        topic_partition: TopicPartition, state: layout.LeaderAndIsr | None
    ) -> layout.LeaderAndIsr | None:
        replicas = context.replicas[topic_partition]
        live = context.live(topic_partition)
        durability = context.durability(topic_partition.topic)
        min_insync = context.min_insync(topic_partition)
        if state is None:
            return election.first_state(
                replicas, context.staying(topic_partition), context.epoch, durability, min_insync
            )
        elected = election.next_state(
            state,
            replicas,
            live,
            context.epoch,
            shutting_down=context.shutting_down,
            failed=context.failed(topic_partition),
            refusing=context.refusing_brokers(topic_partition),
            unclean_enabled=context.unclean_enabled(topic_partition.topic),
        )
        wanted = election.at_level(elected or state, durability, context.epoch)
        wanted = with_min_insync(wanted, min_insync, replicas, context.epoch)
        return None if wanted == state else wanted

    return decide


def out_of_date(context: Context, decide: Decide) -> list[TopicPartition]:
    """The partitions for which `decide` would write, going by the copy."""
    return [
        each
        for each in sorted(context.replicas)
        if not context.is_being_deleted(each.topic)
        and layout.partition_state_path(each) not in context.unreadable
        and decide(each, known.state if (known := context.states.get(each)) else None) is not None
    ]
