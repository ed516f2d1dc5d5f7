"""The rules over the ISR and the high watermark, as pure functions."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.replication.isr import (
    CommittedIsr,
    IsrState,
    LagBounds,
    PendingExpand,
    PendingShrink,
    lags_in_messages,
    lags_in_time,
    may_join,
    members_to_drop,
    next_high_watermark,
)
from logstore.replication.messages import IsrProposal
from logstore.replication.replica import RemoteReplica

LEADER = 0
PROPOSAL = IsrProposal(1, 1, ())
LAG_MS = 100


def replica(replica_id: int, end: int, *, caught_up_ms: int = 0, epoch: int = -1) -> RemoteReplica:
    return RemoteReplica(replica_id, log_end_offset=end, caught_up_ms=caught_up_ms, broker_epoch=epoch)


def committed(*members: int) -> CommittedIsr:
    return CommittedIsr(frozenset(members))


def high_watermark(
    state: IsrState,
    *replicas: RemoteReplica,
    end: int,
    eligible: tuple[int, ...] = (),
    min_insync: int = 1,
    now_ms: int = 0,
    safe: int | None = None,
) -> int | None:
    return next_high_watermark(
        state,
        leader_id=LEADER,
        leader_end_offset=end,
        leader_safe_offset=end if safe is None else safe,
        replicas=replicas,
        eligible=frozenset(eligible),
        min_insync=min_insync,
        now_ms=now_ms,
        lag_time_max_ms=LAG_MS,
    )


def test_a_pending_expansion_counts_the_new_member_at_once() -> None:
    """S28: the store may have it already, so the high watermark waits for it."""
    state = PendingExpand(committed(0, 1), PROPOSAL, 2)
    assert state.committed == {0, 1}
    assert state.maximal == {0, 1, 2}
    assert high_watermark(state, replica(1, 12), replica(2, 10, caught_up_ms=-1000), end=12) == 10


def test_a_pending_shrink_still_counts_who_is_to_go() -> None:
    """S29: the store may still list it, and it may be elected."""
    state = PendingShrink(committed(0, 1, 2), PROPOSAL, frozenset({2}))
    assert state.maximal == state.committed == {0, 1, 2}
    assert high_watermark(state, replica(1, 12), replica(2, 8), end=12) == 8


def test_who_is_about_to_join_holds_the_high_watermark() -> None:
    """2.4, S32: else a leader alone would run ahead of every follower, which then never joins."""
    follower = replica(1, 8, caught_up_ms=0)
    assert high_watermark(committed(0), follower, end=12, eligible=(1,)) == 8
    assert high_watermark(committed(0), follower, end=12, eligible=(1,), now_ms=LAG_MS + 1) == 12
    assert high_watermark(committed(0), follower, end=12) == 12, "one that shuts down is not waited for"


def test_an_unknown_end_holds_the_high_watermark() -> None:
    """A new leader does not know its followers' ends: it commits nothing until they fetch."""
    assert high_watermark(committed(0, 1), replica(1, -1), end=12) == -1
    assert high_watermark(committed(0, 1), end=12) is None, "a member without any state: the same"


def test_too_few_in_sync_is_a_wall() -> None:
    """KAFKA-15583, S36: nothing new becomes visible below min.insync.replicas."""
    assert high_watermark(committed(0), replica(1, 12), end=12, min_insync=2) is None
    assert high_watermark(committed(0, 1), replica(1, 12), end=12, min_insync=2) == 12


def test_the_leaders_own_vote_is_what_it_has_made_safe() -> None:
    """SYNCED durability: the followers have flushed it, the leader has not."""
    assert high_watermark(committed(0, 1), replica(1, 12), end=12, safe=9) == 9


@given(
    ends=st.lists(st.integers(-1, 20), min_size=2, max_size=4),
    members=st.sets(st.integers(1, 4)),
    change=st.integers(1, 4),
    expands=st.booleans(),
)
@settings(derandomize=True, max_examples=300)
def test_no_possible_isr_lacks_a_committed_record(
    ends: list[int], members: set[int], change: int, expands: bool
) -> None:
    """I8: whichever way a proposal ends, every member of the ISR then persisted holds what is committed."""
    members = {m for m in members if m <= len(ends)}
    change = min(change, len(ends))
    base = CommittedIsr(frozenset(members | {LEADER}))
    state: IsrState
    if expands and change not in members:
        state = PendingExpand(base, PROPOSAL, change)
        outcomes = [base.isr, base.isr | {change}]
    elif change in members:
        state = PendingShrink(base, PROPOSAL, frozenset({change}))
        outcomes = [base.isr, base.isr - {change}]
    else:
        state, outcomes = base, [base.isr]
    replicas = [replica(number + 1, end) for number, end in enumerate(ends)]
    candidate = high_watermark(state, *replicas, end=20, now_ms=10 * LAG_MS)
    assert candidate is not None
    for isr, member in itertools.product(outcomes, range(1, len(ends) + 1)):
        assert member not in isr or ends[member - 1] >= candidate


def test_lag_in_time_and_lag_in_messages_are_judged_apart() -> None:
    """1.3: both criteria exist; the second is off unless asked for, and needs a known end."""
    slow = replica(1, 5, caught_up_ms=0)
    time_only, both = LagBounds(LAG_MS), LagBounds(LAG_MS, 4)
    assert not lags_in_time(slow, 10, LAG_MS, time_only)
    assert lags_in_time(slow, 10, LAG_MS + 1, time_only)
    assert not lags_in_messages(slow, 10, time_only)
    assert lags_in_messages(slow, 10, both)
    assert not lags_in_messages(slow, 9, both), "exactly the bound is fine"
    assert not lags_in_messages(replica(1, -1), 10, both)
    assert lags_in_messages(slow, 6, LagBounds(LAG_MS, 0))


def test_members_to_drop() -> None:
    """2.6: laggards and strangers, never the leader, nobody while a change is under way."""
    replicas = {1: replica(1, 10, caught_up_ms=0), 2: replica(2, 5, caught_up_ms=0)}
    bounds = LagBounds(LAG_MS)
    state = committed(LEADER, 1, 2, 3)
    assert members_to_drop(state, LEADER, replicas, 10, LAG_MS + 1, bounds) == {2, 3}
    assert members_to_drop(state, LEADER, replicas, 10, LAG_MS, bounds) == {3}
    pending = PendingShrink(state, PROPOSAL, frozenset({2}))
    assert members_to_drop(pending, LEADER, replicas, 10, LAG_MS + 1, bounds) == frozenset()


def joins(
    follower: RemoteReplica,
    state: IsrState,
    *,
    high_watermark: int,
    epoch_start: int,
    alive: bool = True,
    epoch: int = -1,
    log_start: int = 0,
) -> bool:
    return may_join(
        follower,
        state,
        high_watermark=high_watermark,
        epoch_start_offset=epoch_start,
        is_alive=alive,
        live_broker_epoch=epoch,
        log_start_offset=log_start,
    )


def test_who_may_join() -> None:
    """2.5: at the high watermark and at the start of this epoch, alive, the same life, nothing under way."""
    alone = committed(LEADER)
    assert joins(replica(1, 10), alone, high_watermark=10, epoch_start=10)
    assert not joins(replica(1, 9), alone, high_watermark=10, epoch_start=0)
    assert not joins(replica(1, 7), alone, high_watermark=6, epoch_start=10), "KAFKA-7128, S30"
    assert not joins(replica(1, 10), alone, high_watermark=10, epoch_start=10, alive=False)
    assert not joins(replica(1, 10, epoch=3), alone, high_watermark=10, epoch_start=10, epoch=4), "KIP-903"
    assert joins(replica(1, 10, epoch=4), alone, high_watermark=10, epoch_start=10, epoch=4)
    assert not joins(replica(1, 10), alone, high_watermark=10, epoch_start=10, epoch=4), (
        "may be a former life"
    )
    assert not joins(replica(1, 10), committed(LEADER, 1), high_watermark=10, epoch_start=10)
    pending = PendingExpand(alone, PROPOSAL, 2)
    assert not joins(replica(1, 10), pending, high_watermark=10, epoch_start=10), "I20: one at a time"


def test_who_serves_what_the_leader_has_deleted_may_not_join() -> None:
    """Below the leader's start nothing can be compared: it may be of an epoch that never committed it."""
    alone = committed(LEADER)
    late = replace(replica(1, 10), log_start_offset=4)
    assert not joins(late, alone, high_watermark=10, epoch_start=0, log_start=5)
    assert joins(replace(late, log_start_offset=5), alone, high_watermark=10, epoch_start=0, log_start=5)
    assert not joins(replica(1, 10), alone, high_watermark=10, epoch_start=0, log_start=1), "never told"
