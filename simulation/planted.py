"""Bugs put in on purpose: each switches one rule of the real code off, and the checkers must notice.

A checker that never fails is no checker. The registry is what shows that the simulation would have found
these mistakes, most of which some release of Kafka had; `tests/simulation/test_planted.py` holds the
first seed that finds each one. Production code knows nothing of this: rules are replaced from outside,
for as long as the context manager is open, in this process only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import logstore.log_manager
import logstore.scan
import replication.partition
from checkpoint.errors import ErrorCode
from logstore.log import FetchIsolation, Log
from logstore.producer_state import ProducerState
from replication.controller import election, isr_changes, partition_states
from replication.controller.context import Context
from replication.follower import Followers
from replication.isr import PendingExpand, PendingShrink
from replication.metastore.operations import ANY_VERSION, Check, Multi, Set
from replication.node import Node
from replication.partition import Partition
from replication.reconcile import Divergence, Truncation
from replication.replica_manager import ReplicaManager


@dataclass(frozen=True, slots=True)
class Plant:
    """One mistake: what it is, and how to make it. A rare one takes more than 500 seeds to be noticed."""

    name: str
    mistake: str
    patch: Callable[[ExitStack], None]
    is_rare: bool = False


PLANTS: dict[str, Plant] = {}


@contextmanager
def planted(name: str) -> Iterator[Plant]:
    """Make this mistake until the block ends. Raises `KeyError` for a name that is not registered."""
    plant = PLANTS[name]
    with ExitStack() as stack:
        plant.patch(stack)
        yield plant


def _plant(
    mistake: str, *, is_rare: bool = False
) -> Callable[[Callable[[ExitStack], None]], Callable[[ExitStack], None]]:
    def register(patch: Callable[[ExitStack], None]) -> Callable[[ExitStack], None]:
        name = patch.__name__.replace("_", "-")
        PLANTS[name] = Plant(name, mistake, patch, is_rare)
        return patch

    return register


def _swap(stack: ExitStack, owner: Any, name: str, value: object) -> Any:
    """Replace an attribute, where it is defined, until the stack unwinds; returns what was there."""
    if isinstance(owner, type):
        owner = next(each for each in owner.__mro__ if name in each.__dict__)
    before = owner.__dict__[name]
    setattr(owner, name, value)
    stack.callback(setattr, owner, name, before)
    return before


# --- truncation -------------------------------------------------------------------------------


@_plant("a follower cuts its log to its high watermark before it fetches (KIP-101)")
def truncate_by_high_watermark(stack: ExitStack) -> None:
    def add(self: Followers, partition: Partition) -> None:
        partition.truncate_to(partition.log.high_watermark)
        real(self, partition)

    real = _swap(stack, Followers, "add", add)


@_plant("a leader does not compare epochs: whoever fetches inside its log is taken for equal to it")
def divergence_not_noticed(stack: ExitStack) -> None:
    def divergence_of(**_: object) -> Divergence:
        return Divergence(None, False)

    _swap(stack, replication.partition, "divergence_of", divergence_of)


@_plant("a follower believes the leader's end offset whatever epoch it is for (KIP-279)")
def answer_without_epoch(stack: ExitStack) -> None:
    def truncation_for(answer: Any, **facts: Any) -> Truncation:
        return real(answer._replace(epoch=-1), **facts)  # type: ignore[no-any-return]

    real = _swap(stack, replication.partition, "truncation_for", truncation_for)


@_plant("the high watermark beside a diverging answer is taken over before the log is cut (KAFKA-14704)")
def diverging_answer_believed(stack: ExitStack) -> None:
    def on_fetched(self: Any, partition: Partition, state: Any, result: Any) -> Any:
        if result.diverging_epoch is not None:
            before = partition.log.high_watermark
            if partition.log.set_high_watermark(result.high_watermark) != before:
                return None
        return real(self, partition, state, result)

    real = _swap(stack, Followers, "_on_fetched", on_fetched)


@_plant("batches below the log end are appended all the same: what follows them is dropped")
def append_below_the_end(stack: ExitStack) -> None:
    def add(self: Followers, partition: Partition) -> None:
        real(self, partition)
        topic_partition = partition.topic_partition
        _, fetcher = self._partitions[topic_partition]
        state = fetcher.states[topic_partition]
        # Where a follower begins that trusts its high watermark, but does not cut.
        fetcher.put(topic_partition, replace(state, fetch_offset=partition.log.high_watermark))

    def on_fetched(self: Any, partition: Partition, state: Any, result: Any) -> Any:
        if result.records:
            partition.log.truncate_to(int.from_bytes(bytes(result.records[:8]), "big"))
        if state.fetch_offset != partition.log.log_end_offset:
            state = state.at(partition.log.log_end_offset, state.last_fetched_epoch)
        return real_on_fetched(self, partition, state, result)

    real = _swap(stack, Followers, "add", add)
    real_on_fetched = _swap(stack, Followers, "_on_fetched", on_fetched)


@_plant("a leader that has not written yet leaves no trace of its epoch (KAFKA-7415)")
def epoch_not_noted_at_election(stack: ExitStack) -> None:
    _swap(stack, Log, "assign_epoch", lambda self, epoch, start_offset: None)


# --- the high watermark -----------------------------------------------------------------------


@_plant("the high watermark is the largest end among the replicas, not the smallest")
def high_watermark_from_the_fastest(stack: ExitStack) -> None:
    def next_high_watermark(state: Any, **facts: Any) -> int | None:
        if real(state, **facts) is None:
            return None
        ends: list[int] = [replica.log_end_offset for replica in facts["replicas"]]
        safe: int = facts["leader_safe_offset"]
        return min(max([*ends, 0]), safe)

    real = _swap(stack, replication.partition, "next_high_watermark", next_high_watermark)


@_plant("a proposed smaller ISR counts before the store has confirmed it")
def shrink_before_it_is_confirmed(stack: ExitStack) -> None:
    _swap(stack, PendingShrink, "maximal", property(lambda self: self.last.isr - self.removed))


@_plant("a proposed new member does not count while its proposal is under way")
def expansion_not_counted(stack: ExitStack) -> None:
    def next_high_watermark(state: Any, **facts: Any) -> int | None:
        return real(state, **{**facts, "eligible": frozenset()})  # type: ignore[no-any-return]

    _swap(stack, PendingExpand, "maximal", property(lambda self: self.last.isr))
    real = _swap(stack, replication.partition, "next_high_watermark", next_high_watermark)


@_plant("a follower joins the ISR at the high watermark, short of the epoch's start (KAFKA-7128)")
def no_epoch_start_gate(stack: ExitStack) -> None:
    def may_join(replica: Any, state: Any, **facts: Any) -> bool:
        return bool(real(replica, state, **{**facts, "epoch_start_offset": 0}))

    real = _swap(stack, replication.partition, "may_join", may_join)


@_plant("a follower joins the ISR wherever its log ends")
def anybody_joins(stack: ExitStack) -> None:
    def may_join(replica: Any, state: Any, **facts: Any) -> bool:
        return bool(real(replica, state, **{**facts, "epoch_start_offset": 0, "high_watermark": 0}))

    real = _swap(stack, replication.partition, "may_join", may_join)


@_plant("a leader does not look at the epoch a fetch was made in (KIP-320)")
def no_epoch_fence_on_fetch(stack: ExitStack) -> None:
    _swap(stack, Partition, "check_epoch", lambda self, current_leader_epoch: None)


@_plant("acks=all is answered when the leader has the record")
def acknowledged_too_early(stack: ExitStack) -> None:
    def progress(self: Any, topic_partition: Any, status: Any) -> ErrorCode | None:
        found: ErrorCode | None = real(self, topic_partition, status)
        return ErrorCode.NONE if found is None else found

    real = _swap(stack, ReplicaManager, "_progress", progress)


@_plant("acks=all is taken by any number of in-sync replicas")
def min_insync_ignored(stack: ExitStack) -> None:
    _swap(stack, Partition, "min_insync", property(lambda self: 1))


@_plant("consumers are given whatever the leader has")
def served_above_the_high_watermark(stack: ExitStack) -> None:
    def bound(self: Log, isolation: FetchIsolation) -> int:
        return real(self, FetchIsolation.LOG_END)  # type: ignore[no-any-return]

    real = _swap(stack, Log, "_bound", bound)


@_plant("a leader that loses its session goes on, and leads again in the same epoch after a restart")
def epoch_resumed_after_a_loss(stack: ExitStack) -> None:
    _swap(stack, Partition, "check_new_state", lambda self, state: None)
    _swap(stack, election, "standing", _everybody_is_intact)


def _everybody_is_intact(recorded_epoch: int, incarnation: Any) -> election.Standing:
    return election.Standing.DEAD if incarnation is None else election.Standing.INTACT


# --- elections and the store ------------------------------------------------------------------


@_plant("a replica outside the ISR is elected though nobody allowed it")
def elected_outside_the_isr(stack: ExitStack) -> None:
    _swap(stack, Context, "unclean_enabled", lambda self, topic: True)


@_plant("a replica that came back with a loss counts as a member that kept everything (R1, R2)")
def losses_not_noticed(stack: ExitStack) -> None:
    def standing(recorded_epoch: int, incarnation: Any) -> election.Standing:
        if incarnation is not None:
            incarnation = replace(incarnation, clean=True)
        return real(recorded_epoch, incarnation)  # type: ignore[no-any-return]

    real = _swap(stack, election, "standing", standing)


@_plant("an unclean start followed by an orderly stop passes for no loss at all")
def loss_forgotten_at_the_next_stop(stack: ExitStack) -> None:
    _swap(stack, Node, "is_clean", property(lambda self: True))


@_plant(
    "an update of the metadata that was given up as lost and comes late replaces a newer one", is_rare=True
)
def late_metadata_wins(stack: ExitStack) -> None:
    def update_metadata(self: ReplicaManager, *request: Any) -> Any:
        self._newest_metadata = (-1, -1)
        return real(self, *request)

    real = _swap(stack, ReplicaManager, "update_metadata", update_metadata)


@_plant("a broker keeps it to itself that its log dir failed (F2)", is_rare=True)
def dead_disk_kept_secret(stack: ExitStack) -> None:
    _swap(stack, Node, "_tell_of_failed_logs", lambda self, now_ms: [])


@_plant("a controller that was replaced writes on: nothing checks its epoch")
def zombie_controller_writes(stack: ExitStack) -> None:
    def fenced(self: Any, *writes: Any) -> Multi:
        return Multi((Check("/", ANY_VERSION), *writes))

    _swap(stack, Context, "fenced", fenced)


@_plant("state nodes are written whatever version they have")
def unconditional_writes(stack: ExitStack) -> None:
    def fenced_write(context: Any, topic_partition: Any, state: Any, over: Any) -> Multi:
        multi = real(context, topic_partition, state, over)
        return Multi(
            tuple(
                replace(write, version=ANY_VERSION) if isinstance(write, Set) else write
                for write in multi.writes
            )
        )

    real = _swap(stack, partition_states, "fenced_write", fenced_write)
    _swap(stack, isr_changes, "fenced_write", fenced_write)


@_plant("a new leader keeps the epoch of the one before it")
def epoch_not_raised(stack: ExitStack) -> None:
    def next_state(state: Any, *facts: Any, **more: Any) -> Any:
        found = real(state, *facts, **more)
        return None if found is None else replace(found, leader_epoch=state.leader_epoch)

    real = _swap(stack, election, "next_state", next_state)


# --- producers --------------------------------------------------------------------------------


@_plant("idempotence is switched off: a batch that is sent again is appended again")
def repeats_not_recognised(stack: ExitStack) -> None:
    _swap(stack, ProducerState, "check", lambda self, batch, *facts, **more: None)


# --- retention --------------------------------------------------------------------------------


@_plant("a follower joins the ISR before it heard where the leader's log begins")
def joins_below_the_log_start(stack: ExitStack) -> None:
    def may_join(*args: Any, **kwargs: Any) -> bool:
        return bool(real(*args, **{**kwargs, "log_start_offset": 0}))

    real = _swap(stack, replication.partition, "may_join", may_join)


@_plant("a follower cuts nothing below its log start, also if its leader's log ends there")
def cut_stops_at_the_log_start(stack: ExitStack) -> None:
    def truncate_to(self: Partition, offset: int, **why: Any) -> None:
        real(self, max(offset, self.log.log_start_offset), **why)

    real = _swap(stack, Partition, "truncate_to", truncate_to)


# --- the disk ---------------------------------------------------------------------------------


@_plant("recovery does not compare checksums")
def recovery_without_checksums(stack: ExitStack) -> None:
    def checked(self: Any, fault: Any) -> Any:
        self._checksums = [int.from_bytes(header[17:21], "big") for header in self._headers]
        return real(self, fault)

    real = _swap(stack, logstore.scan._Walk, "checked", checked)


@_plant("a flush moves the recovery point and syncs nothing")
def flush_without_sync(stack: ExitStack) -> None:
    def sync_segments(self: Log, end_offset: int) -> None:
        self._recovery_point = max(self._recovery_point, end_offset)

    _swap(stack, Log, "_sync_segments", sync_segments)


@_plant("durability `synced` counts what followers have not flushed")
def followers_count_unflushed(stack: ExitStack) -> None:
    _swap(stack, ReplicaManager, "_is_flushed_to", lambda self, partition, offset: True)


@_plant("an unclean stop passes for a clean one")
def clean_marker_left_behind(stack: ExitStack) -> None:
    _swap(stack, logstore.log_manager, "remove_clean_shutdown", lambda disk, directory: None)


@_plant("a high watermark checkpoint outlives a cut of its log", is_rare=True)
def watermark_outlives_the_cut(stack: ExitStack) -> None:
    def lower_bounds(self: Any, log: Any, offset: int) -> None:
        before, self.high_watermarks = self.high_watermarks, {}
        real(self, log, offset)
        self.high_watermarks = before

    real = _swap(stack, logstore.log_manager._LogDir, "lower_bounds", lower_bounds)
