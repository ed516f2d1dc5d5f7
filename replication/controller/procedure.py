"""The pattern of every procedure of the controller: read, decide, write if unchanged, announce.

    read ──▶ decide ──▶ one Multi: the fence, then writes conditional on what was read ──▶ announce it
     ▲                                    │
     └── another writer was faster, or the reply is lost: at most `ROUNDS` times, then `MetadataConflict`

* `write_unchanged`   any nodes: read them, decide on the writes, and again until the write succeeds
* `write_all`         writes that depend on nothing read, together
* `settle`            partition states: the only place where a state node is written without its topic node
* notices             nodes by which tools and brokers notify the controller: read, acted on, removed
* `one_by_one`        requests with several items: each gets its own result, once

A decision is only as good as the state it was made on. So each round reads the nodes again and writes with
the versions that it read. A write whose reply was lost is recognised by its content at the next reading.
Every write checks `/controller_epoch` in the same transaction: a controller that was replaced fails with
`ControllerFenced` and changes nothing.

Store, copy and announcement change together, before the next event: a state that was written is always
announced, by this controller or, if it dies first, by the next one's takeover. So is a state that turns out
to be new to us: another writer's, or our own from an event that has started again since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias, TypeVar

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import election
from logstore.replication.controller.context import Context, KnownState, Steps
from logstore.replication.controller.errors import ControllerFenced, MetadataConflict
from logstore.replication.messages import NO_LEADER, AdminResult
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr, partition_state_path
from logstore.replication.metastore.operations import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Delete,
    Get,
    Outcome,
    Set,
    Stat,
    StoreError,
    Write,
)

ROUNDS = 10

Item = TypeVar("Item", str, TopicPartition)
K = TypeVar("K")
R = TypeVar("R")
W = TypeVar("W")


def check_fence(outcome: Outcome) -> None:
    """Raise `ControllerFenced` if a fenced write failed because of its fence."""
    if outcome.error is not None and outcome.failed_index == 0:
        raise ControllerFenced("another controller has been elected")


def check_term(context: Context) -> Steps[None]:
    """Raise `ControllerFenced` if another controller has been elected since."""
    yield from write_all(context, {"/controller_epoch": ()}, "could not be checked")


def write_unchanged(
    context: Context,
    reads: Sequence[Get | Children],
    decide: Callable[..., Sequence[Write]],
    *,
    read_after: bool = False,
) -> Steps[Outcome | None]:
    """Read, write what `decide(*outcomes)` returns, and repeat until that succeeds.

    Returns the outcome of the Multi (the fence's result comes first), or None once there is nothing to write.
    `read_after`: read once more after a write that succeeded, until there is nothing to write.
    Raises `ControllerFenced`, or `MetadataConflict` if the nodes keep changing.
    """
    for _ in range(ROUNDS):
        writes = decide(*(yield tuple(reads)))
        if not writes:
            return None
        (outcome,) = yield (context.fenced(*writes),)
        check_fence(outcome)
        if outcome.error is None and not read_after:
            return outcome
    raise MetadataConflict(f"{', '.join(read.path for read in reads)} kept changing")


def write_all(
    context: Context,
    writes: Mapping[str, Sequence[Write]],
    failure: str,
    *,
    done: Callable[[str], None] = lambda name: None,
) -> Steps[None]:
    """Issue these fenced writes together, and again those that may not have been applied.

    A node that exists counts as created. `done` is called for each name as soon as its write is certain.
    """
    remaining = dict(writes)
    for _ in range(ROUNDS):
        outcomes = yield tuple(context.fenced(*each) for each in remaining.values())
        for name, outcome in zip(list(remaining), outcomes, strict=True):
            check_fence(outcome)
            if outcome.error in (None, StoreError.NODE_EXISTS):
                del remaining[name]
                done(name)
        if not remaining:
            return
    raise MetadataConflict(f"{', '.join(remaining)} {failure}")


# --- partition states -------------------------------------------------------------------------

Decide: TypeAlias = Callable[[TopicPartition, LeaderAndIsr | None], LeaderAndIsr | None]
"""(partition, its persisted state if any) → the state to write; None to leave it."""

Tell: TypeAlias = Callable[[set[TopicPartition], set[TopicPartition], set[TopicPartition]], None]
"""(partitions whose state was written, whose state was not as known, whose state is the first)"""


def learn_state(context: Context, topic_partition: TopicPartition, read: Outcome) -> KnownState | None:
    """Take a reading of a state node into the copy. An unreadable one is reported and dropped."""
    context.states.pop(topic_partition, None)
    state = context.parsed(partition_state_path(topic_partition), read, layout.parse_state)
    if state is None or read.stat is None:
        return None
    if state.controller_epoch > context.epoch:
        mark("states: one was written by a later controller")
        raise ControllerFenced(f"{topic_partition} was written by controller epoch {state.controller_epoch}")
    context.states[topic_partition] = known = KnownState(state, read.stat.version)
    return known


def state_writes(
    topic_partition: TopicPartition, state: LeaderAndIsr, over: KnownState | None
) -> tuple[Write, ...]:
    """Return the write of `state` over the version that was read, or over nothing (None).

    A first state checks that its topic exists: the node's parents must not come back without the topic.
    """
    path, data = partition_state_path(topic_partition), layout.encode_state(state)
    if over is None:
        is_there = Check(layout.topic_path(topic_partition.topic), ANY_VERSION)
        return is_there, Create(path, data, make_parents=True)
    return (Set(path, data, over.partition_epoch),)


def _write_states(
    context: Context, wanted: Mapping[TopicPartition, LeaderAndIsr], *, together: int
) -> Steps[dict[TopicPartition, Outcome]]:
    """Write these states over the known ones, `together` in a transaction; return the outcome of each.

    If one write is refused, its whole transaction is. The other partitions in it then get CONNECTION_LOSS:
    try them again.
    """
    writes = {each: state_writes(each, state, context.states.get(each)) for each, state in wanted.items()}
    names = list(wanted)
    batches = [names[start : start + together] for start in range(0, len(names), together)]
    outcomes = yield tuple(
        context.fenced(*chain.from_iterable(writes[each] for each in batch)) for batch in batches
    )
    found: dict[TopicPartition, Outcome] = {}
    for batch, outcome in zip(batches, outcomes, strict=True):
        check_fence(outcome)
        end = 1  # the fence comes first
        for each in batch:
            start, end = end, end + len(writes[each])
            if outcome.error is None:
                found[each] = Outcome(results=outcome.results[start:end])
            elif outcome.failed_index < 0 or start <= outcome.failed_index < end:
                found[each] = Outcome(outcome.error)
            else:
                mark("settle: another partition stopped the transaction")
                found[each] = Outcome(StoreError.CONNECTION_LOSS)
    return found


def settle(
    context: Context,
    topic_partitions: Iterable[TopicPartition],
    decide: Decide,
    *,
    reason: str,
    tell: Tell | None = None,
    on_change: Callable[[TopicPartition], None] = lambda topic_partition: None,
    from_copy: bool = False,
) -> Steps[None]:
    """Write the states that `decide` returns for these partitions, and announce each change to the brokers.

    `tell` replaces the announcement to replicas and brokers. `reason` goes into the state-change log;
    `on_change` is called for each partition as soon as its write is certain. `from_copy` decides on the copy
    first, which the version check guards, and reads only what could not be written.
    Raises `ControllerFenced`, or `MetadataConflict` if a node keeps changing.
    """

    def announce(changed: set[TopicPartition], found: set[TopicPartition], new: set[TopicPartition]) -> None:
        context.announce(changed | found, new=new)

    tell = tell or announce
    remaining = sorted(topic_partitions)
    attempted: dict[TopicPartition, LeaderAndIsr] = {}
    replaced: dict[TopicPartition, LeaderAndIsr] = {}
    new: set[TopicPartition] = set()
    found: set[TopicPartition] = set()
    for number in range(ROUNDS):
        remaining = [
            each
            for each in remaining
            if each in context.replicas and not context.is_being_deleted(each.topic)
        ]
        if not remaining:
            return
        reads: Sequence[Outcome | None] = [None] * len(remaining)
        if number or not from_copy:
            reads = yield tuple(Get(partition_state_path(each)) for each in remaining)
        wanted: dict[TopicPartition, LeaderAndIsr] = {}
        changed: list[TopicPartition] = []
        for each, read in zip(remaining, reads, strict=True):
            before = context.states.get(each)
            known = before if read is None else learn_state(context, each, read)
            if known is None and partition_state_path(each) in context.unreadable:
                continue
            if known is not None and attempted.get(each) == known.state:
                mark("settle: written though its reply was lost")
                changed.append(each)
            elif (state := decide(each, known.state if known else None)) is not None:
                wanted[each] = state
            if known != before and each not in changed:
                mark("settle: a state is new to us")
                found.add(each)
        attempted.update(wanted)
        had_state = {each: context.states[each].state for each in wanted if each in context.states}
        replaced.update(had_state)
        # From the second round on one by one: what stands in the way of one partition must not stop others.
        together = context.config.partitions_per_transaction if number == 0 else 1
        outcomes = yield from _write_states(context, wanted, together=together)
        remaining = []
        for each, state in wanted.items():
            outcome = outcomes[each]
            if outcome.error is StoreError.NO_NODE and each not in had_state:
                mark("settle: a topic is gone before its first state")
            elif outcome.error is not None:
                mark("settle: another writer was faster, or the call was lost")
                remaining.append(each)
            else:
                context.states[each] = KnownState(state, version_written(outcome))
                changed.append(each)
                if each not in had_state:
                    new.add(each)
        for each in changed:
            context.record(each, describe_change(replaced.get(each), context.states[each].state), reason)
            on_change(each)
        # A state about to be replaced is not announced: its leader may have restarted since.
        tell(set(changed), found.difference(remaining), new)
        found.intersection_update(remaining)
    if remaining:
        tell(set(), found, set())
        raise MetadataConflict(f"the states of {', '.join(map(str, remaining))} kept changing")


def version_written(outcome: Outcome) -> int:
    """Return the version of the node that the last write of a Multi left."""
    stat = outcome.results[-1].stat
    assert stat is not None
    return stat.version


def describe_change(before: LeaderAndIsr | None, after: LeaderAndIsr) -> str:
    """Return the change in words, for the state-change log; `before` is None for a first state."""
    if before is None:
        return "writes the first state"
    if after.leader == NO_LEADER and before.leader != NO_LEADER:
        return "leaves the partition without a leader"
    if after.leader != before.leader:
        return "elects a leader outside the ISR" if after.leader not in before.isr else "elects a leader"
    if set(after.isr) != set(before.isr):
        return "changes the ISR"
    return "begins an epoch" if after.leader_epoch != before.leader_epoch else "writes a state"


def after_failures(context: Context) -> Decide:
    """Decide by the live brokers and the topic's settings: a first state, leader, ISR, level, or nothing."""

    def decide(topic_partition: TopicPartition, state: LeaderAndIsr | None) -> LeaderAndIsr | None:
        replicas = context.replicas[topic_partition]
        durability = context.durability(topic_partition.topic)
        min_insync = context.min_insync(topic_partition)
        if state is None:
            staying = context.staying(topic_partition)
            return election.first_state(replicas, staying, context.epoch, durability, min_insync)
        unclean_enabled = context.unclean_enabled(topic_partition.topic)
        elected = elected_state(context, topic_partition, state, unclean_enabled=unclean_enabled)
        wanted = election.at_level(elected or state, durability, context.epoch)
        wanted = election.with_min_insync(wanted, min_insync, replicas, context.epoch)
        return None if wanted == state else wanted

    return decide


def elected_state(
    context: Context, topic_partition: TopicPartition, state: LeaderAndIsr, *, unclean_enabled: bool
) -> LeaderAndIsr | None:
    """Return the state that the live brokers call for; None if it is this one."""
    return election.next_state(
        state,
        context.replicas[topic_partition],
        context.live(topic_partition),
        context.epoch,
        shutting_down=context.shutting_down,
        failed=context.failed(topic_partition),
        refusing=context.refusing_brokers(topic_partition),
        unclean_enabled=unclean_enabled,
    )


def out_of_date(context: Context, decide: Decide) -> list[TopicPartition]:
    """Return the partitions for which `decide` would write, judged on the copy."""
    return [
        each
        for each in sorted(context.replicas)
        if not context.is_being_deleted(each.topic)
        and partition_state_path(each) not in context.unreadable
        and decide(each, known.state if (known := context.states.get(each)) else None) is not None
    ]


# --- notices ----------------------------------------------------------------------------------


class Notice(NamedTuple):
    """A node that notifies the controller of something; it is removed after the reaction.

        /admin/preferred_replica_election              one node, removed when its elections are over
        /isr_change_notification/isr_change_<n>        children: each handled once
        /log_dir_event_notification/log_dir_event_<n>

    A controller that dies before the removal leaves the notice to the next one, which repeats the reaction
    or finds it done.
    """

    path: str
    data: bytes
    stat: Stat

    def outcome(self) -> Outcome:
        """Return the reading of the node."""
        return Outcome(data=self.data, stat=self.stat)


def read_notices(context: Context, directory: str) -> Steps[list[Notice]]:
    """Return the notices in `directory`, oldest first; the same read sets the watch."""
    (listing,) = yield (Children(directory, watch=True),)
    paths = [f"{directory}/{name}" for name in listing.children]
    reads = yield tuple(Get(path) for path in paths)
    found = zip(paths, reads, strict=True)
    return [Notice(path, read.data, read.stat) for path, read in found if read.stat is not None]


def remove_notices(context: Context, notices: Iterable[Notice]) -> Steps[None]:
    """Remove the notices that were read: a new node in the same place, or a newer version, stays.

    Raises `ControllerFenced`, or `MetadataConflict` if the store's replies keep getting lost.
    """
    remaining = list(notices)
    for _ in range(ROUNDS):
        if not remaining:
            return
        outcomes = yield tuple(
            context.fenced(Delete(notice.path, notice.stat.version)) for notice in remaining
        )
        in_doubt = []
        for notice, outcome in zip(remaining, outcomes, strict=True):
            check_fence(outcome)
            if outcome.error is StoreError.CONNECTION_LOSS:
                in_doubt.append(notice)
        reads = yield tuple(Get(notice.path) for notice in in_doubt)
        remaining = []
        for notice, read in zip(in_doubt, reads, strict=True):
            # The path may hold a new notice, which has not been read.
            if read.stat is not None and read.stat.created_txid == notice.stat.created_txid:
                remaining.append(notice)
            else:
                mark("notices: the reply to a removal was lost, but the notice is gone")
    if remaining:
        raise MetadataConflict(f"{', '.join(notice.path for notice in remaining)} could not be removed")


# --- requests of several items ----------------------------------------------------------------


def one_by_one(
    wanted: Mapping[Item, W],
    results: dict[Item, AdminResult],
    carry_out: Callable[[Item, W], Steps[AdminResult | None]],
) -> Steps[None]:
    """Carry out, in sorted order, the items without a result; None from `carry_out` is success.

    `results` outlives the event: an event that starts again continues from there, and a term that ends
    half-way answers with it. An `EngineError` is the item's result, except `ControllerFenced` and
    `MetadataConflict`, which end the event.
    """
    for item, what in sorted(wanted.items(), key=lambda pair: pair[0]):
        if item in results:
            continue
        try:
            results[item] = (yield from carry_out(item, what)) or AdminResult(ErrorCode.NONE)
        except (MetadataConflict, ControllerFenced):
            raise
        except EngineError as error:
            results[item] = AdminResult(error.code, str(error))


def of_all(items: Iterable[K], results: Mapping[K, R], result: Callable[[ErrorCode, str], R]) -> dict[K, R]:
    """Return a result for every item; those that the term did not reach get NOT_CONTROLLER."""
    refusal = result(ErrorCode.NOT_CONTROLLER, "the controller changed; ask the active controller")
    return {item: results.get(item, refusal) for item in items}
