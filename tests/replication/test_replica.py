"""A leader's knowledge of a follower."""

from __future__ import annotations

import pytest

from logstore.replication.replica import NEVER_MS, UNKNOWN_OFFSET, RemoteReplica

LAG_MS = 100


def fetched(replica: RemoteReplica, offset: int, leader_end: int, now_ms: int) -> RemoteReplica:
    return replica.fetched(offset, log_start_offset=0, leader_end_offset=leader_end, now_ms=now_ms)


def test_a_new_replica_is_unknown() -> None:
    """6.3: nothing is known, and it has never been caught up, even where a clock starts at zero."""
    replica = RemoteReplica(1)
    assert replica.log_end_offset == replica.log_start_offset == UNKNOWN_OFFSET
    assert not replica.is_caught_up(0, now_ms=0, lag_time_max_ms=1 << 40)


def test_caught_up_means_the_end_as_of_the_previous_fetch() -> None:
    """6.3: fetch 5 @t1 with the leader at 10, 10 @t2 at 15, 15 @t3 at 15 -> never, t1, t3."""
    first = fetched(RemoteReplica(1), 5, 10, now_ms=1)
    second = fetched(first, 10, 15, now_ms=2)
    third = fetched(second, 15, 15, now_ms=3)
    assert [r.caught_up_ms for r in (first, second, third)] == [NEVER_MS, 1, 3]
    assert [r.last_fetch_leader_end_offset for r in (first, second, third)] == [10, 15, 15]


@pytest.mark.parametrize("in_isr", [True, False])
def test_a_re_elected_leader_keeps_what_it_knows(in_isr: bool) -> None:
    """6.3: the end stays; the clock of the lag starts anew for members and never started for others."""
    replica = fetched(RemoteReplica(1), 7, 10, now_ms=5).under_new_epoch(
        in_isr=in_isr, was_leader=True, leader_end_offset=12, now_ms=50
    )
    assert replica.log_end_offset == 7
    assert replica.last_fetch_leader_end_offset == 12
    assert replica.caught_up_ms == replica.last_fetch_ms == (50 if in_isr else NEVER_MS)


@pytest.mark.parametrize("in_isr", [True, False])
def test_a_new_leader_knows_nothing_of_its_followers(in_isr: bool) -> None:
    """6.3: all is unknown again; a member has the whole bound to show up."""
    replica = fetched(RemoteReplica(1), 7, 10, now_ms=5).under_new_epoch(
        in_isr=in_isr, was_leader=False, leader_end_offset=12, now_ms=50
    )
    assert replica.log_end_offset == replica.log_start_offset == UNKNOWN_OFFSET
    assert replica.last_fetch_leader_end_offset == UNKNOWN_OFFSET
    assert replica.last_fetch_ms == NEVER_MS
    assert replica.caught_up_ms == (50 if in_isr else NEVER_MS)


def test_a_replica_at_the_leaders_end_is_caught_up_however_long_it_was_silent() -> None:
    """6.3, KAFKA-7152: an idle topic must not churn its ISR."""
    replica = fetched(RemoteReplica(1), 10, 10, now_ms=0)
    assert replica.is_caught_up(10, now_ms=LAG_MS + 1, lag_time_max_ms=LAG_MS)
    assert not replica.is_caught_up(11, now_ms=LAG_MS + 1, lag_time_max_ms=LAG_MS)
    assert replica.is_caught_up(11, now_ms=LAG_MS, lag_time_max_ms=LAG_MS)


def test_a_late_copy_of_an_older_fetch_never_makes_a_replica_look_better() -> None:
    """Messages may be doubled and late: what an old fetch says again can only hold the leader back."""
    now = fetched(fetched(RemoteReplica(1), 5, 5, now_ms=1), 10, 10, now_ms=2)
    late = fetched(now, 5, 10, now_ms=3)
    assert late.log_end_offset == 5
    assert late.caught_up_ms == now.caught_up_ms
