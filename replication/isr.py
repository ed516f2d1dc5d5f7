"""The in-sync replicas as the leader knows them, and the rules for changing them. Pure.

    CommittedIsr ──propose──▶ PendingExpand / PendingShrink / PendingSync ──confirmed──▶ CommittedIsr
         ▲                                 │
         └── never written (refused), or a newer LeaderAndIsr

The ISR is kept in the metadata store. While a proposal is under way its outcome is unknown: the new member
may be persisted already (reply lost), or the old one may still be (request lost). So every possible member
counts: the *maximal* ISR is the union of both, and the high watermark waits for all of it.
`min.insync.replicas` applies to the *committed* ISR, the smaller promise.

States are compared by identity: an answer for a replaced state is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from logstore.disk.marks import mark
from logstore.replication.messages import IsrProposal
from logstore.replication.replica import UNKNOWN_BROKER_EPOCH, UNKNOWN_OFFSET, RemoteReplica


@dataclass(frozen=True, slots=True, eq=False)
class CommittedIsr:
    """No change in progress."""

    isr: frozenset[int]

    @property
    def committed(self) -> frozenset[int]:
        return self.isr

    @property
    def maximal(self) -> frozenset[int]:
        return self.isr


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """A change under way, based on `last`; its outcome is unknown."""

    last: CommittedIsr
    proposal: IsrProposal

    @property
    def committed(self) -> frozenset[int]:
        return self.last.isr

    @property
    def maximal(self) -> frozenset[int]:
        return self.last.isr


@dataclass(frozen=True, slots=True, eq=False)
class PendingExpand(_Pending):
    """An addition: `new_member` counts for the high watermark from the proposal on."""

    new_member: int

    @property
    def maximal(self) -> frozenset[int]:
        return self.last.isr | {self.new_member}


@dataclass(frozen=True, slots=True, eq=False)
class PendingShrink(_Pending):
    """A removal: `removed` count for the high watermark until the store has confirmed it."""

    removed: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class PendingSync(_Pending):
    """A report that all members, which stay, have flushed the committed records (`durability.py`)."""


PendingIsr: TypeAlias = PendingExpand | PendingShrink | PendingSync
IsrState: TypeAlias = CommittedIsr | PendingIsr


@dataclass(frozen=True, slots=True)
class LagBounds:
    """The limits past which a follower is out of sync: time, and (unless -1) messages behind."""

    time_max_ms: int
    messages_max: int = -1
    by_silence: bool = False


def lags_in_time(replica: RemoteReplica, leader_end_offset: int, now_ms: int, bounds: LagBounds) -> bool:
    """Whether a follower has not been at the leader's end for longer than `replica.lag.time.max.ms`.

    With `by_silence`: whether it has not fetched for longer than that, and is not at the end.
    """
    if bounds.by_silence:
        replica = replica.settled()
        is_silent = now_ms - max(replica.last_fetch_ms, replica.caught_up_ms) > bounds.time_max_ms
        return is_silent and replica.log_end_offset != leader_end_offset
    return not replica.is_caught_up(leader_end_offset, now_ms, bounds.time_max_ms)


def lags_in_messages(replica: RemoteReplica, leader_end_offset: int, bounds: LagBounds) -> bool:
    """Whether a follower lacks more records than `replica.lag.max.messages`.

    False while its end is unknown.
    """
    if bounds.messages_max < 0 or replica.log_end_offset == UNKNOWN_OFFSET:
        return False
    return leader_end_offset - replica.log_end_offset > bounds.messages_max


def members_to_drop(
    state: IsrState,
    leader_id: int,
    replicas: Mapping[int, RemoteReplica],
    leader_end_offset: int,
    now_ms: int,
    bounds: LagBounds,
) -> frozenset[int]:
    """Return the ISR members that lag by any enabled criterion; none while a change is under way."""
    if not isinstance(state, CommittedIsr):
        return frozenset()
    out = set()
    for member in state.isr - {leader_id}:
        replica = replicas.get(member)
        if replica is None or lags_in_time(replica, leader_end_offset, now_ms, bounds):
            mark("isr: a member was not at the end for too long")
            out.add(member)
        elif lags_in_messages(replica, leader_end_offset, bounds):
            mark("isr: a member lacks too many records")
            out.add(member)
    return frozenset(out)


def is_of_live_incarnation(replica: RemoteReplica, live_broker_epoch: int) -> bool:
    """Whether the registered incarnation has fetched last, as far as it is known which one that is."""
    return live_broker_epoch in (UNKNOWN_BROKER_EPOCH, replica.broker_epoch)


def may_join(
    replica: RemoteReplica,
    state: IsrState,
    *,
    high_watermark: int,
    epoch_start_offset: int,
    is_alive: bool,
    live_broker_epoch: int = UNKNOWN_BROKER_EPOCH,
    log_start_offset: int = 0,
) -> bool:
    """Whether a follower may be proposed for the ISR.

    The high watermark alone is not enough. Right after an election it may be below records that the old
    leader committed; only the start of this leader epoch surely covers them (KAFKA-7128). A fetch of another
    incarnation than the registered one, or of an unknown one, proves nothing (KIP-903). Below the leader's
    log start offset the logs cannot be compared: a follower with records there, which may never have been
    committed, must first learn that offset.
    """
    if not isinstance(state, CommittedIsr) or replica.replica_id in state.isr or not is_alive:
        return False
    if not is_of_live_incarnation(replica, live_broker_epoch):
        mark("isr: a fetch of another life than the one that lives proves nothing")
        return False
    if max(replica.log_start_offset, 0) < log_start_offset:
        return False
    return replica.log_end_offset >= max(high_watermark, epoch_start_offset)


def next_high_watermark(
    state: IsrState,
    *,
    leader_id: int,
    leader_end_offset: int,
    leader_safe_offset: int,
    replicas: Iterable[RemoteReplica],
    eligible: frozenset[int],
    min_insync: int,
    now_ms: int,
    lag_time_max_ms: int,
) -> int | None:
    """Return the highest offset for the high watermark; None while too few replicas are in sync.

    The maximal ISR counts, and every eligible follower that is caught up and so about to join. Without the
    latter the high watermark of a lone leader would always stay ahead of its followers, and they could never
    join. `leader_safe_offset` is the leader's own vote: its log end offset, or with `synced` durability its
    recovery point.
    """
    if len(state.committed) < min_insync:
        return None
    maximal = state.maximal
    candidate = leader_safe_offset
    seen = {leader_id}
    for replica in replicas:
        seen.add(replica.replica_id)
        if replica.replica_id in maximal or (
            replica.replica_id in eligible
            and replica.is_caught_up(leader_end_offset, now_ms, lag_time_max_ms)
        ):
            candidate = min(candidate, replica.log_end_offset)
    # The end of a member without a state here is unknown.
    return None if maximal - seen else candidate
