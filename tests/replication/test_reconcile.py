"""The truncation of a follower's log, and the leader's detection of a divergence (2.8, 6.2)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.replication.reconcile import Truncation, divergence_of, truncation_for
from logstore.segment.epochs import EpochEndOffset, EpochEntry, LeaderEpochCache


def decide(
    answer: tuple[int, int], own: list[tuple[int, int]], *, end: int, high_watermark: int = 0
) -> Truncation:
    cache = LeaderEpochCache(own)
    return truncation_for(
        EpochEndOffset(*answer),
        log_end_offset=end,
        high_watermark=high_watermark,
        own_end_of=lambda epoch: cache.end_offset_for(epoch, end),
    )


@pytest.mark.parametrize(
    ("answer", "own", "end", "expected"),
    [
        ((5, 156), [(5, 0)], 200, Truncation(156, True)),
        ((5, 202), [(5, 0)], 200, Truncation(200, True)),
        ((4, 143), [(3, 0), (5, 120)], 200, Truncation(120, False)),  # epoch 4 is unknown here
        ((3, 101), [(3, 0)], 120, Truncation(101, True)),
        ((-1, -1), [(5, 0)], 200, Truncation(100, True)),  # the leader cannot tell: the high watermark
        ((-1, 150), [(5, 0)], 200, Truncation(150, True)),  # a leader that predates KIP-279
        ((9, 150), [], 200, Truncation(150, True)),  # no epochs of our own
        ((1, 4), [(1, 0), (2, 2)], 3, Truncation(2, True)),  # S3: our own end of epoch 1 is lower
        ((1, 5), [(1, 0), (2, 5)], 5, Truncation(5, True)),  # S13b: nothing to drop but an epoch
    ],
)
def test_truncation_targets(
    answer: tuple[int, int], own: list[tuple[int, int]], end: int, expected: Truncation
) -> None:
    """3.3 row by row; the numbers of 6.5 where it has any."""
    assert decide(answer, own, end=end, high_watermark=100) == expected


def history(lengths: list[tuple[int, int]]) -> tuple[list[int], LeaderEpochCache]:
    """Runs of (epoch step, records) as the epoch of each record, and their cache."""
    epochs: list[int] = []
    cache = LeaderEpochCache()
    epoch = 0
    for step, count in lengths:
        epoch += step
        cache.assign(epoch, len(epochs))
        epochs += [epoch] * count
    return epochs, cache


RUNS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=5)


@given(shared=RUNS, mine=RUNS, theirs=RUNS)
@settings(derandomize=True, max_examples=500)
def test_rounds_end_and_leave_a_prefix_of_the_leaders_log(
    shared: list[tuple[int, int]], mine: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> None:
    """However two logs differ, asking until it is final leaves the follower with what both share.

    The follower's epochs after the shared part are even, the leader's odd: no epoch has two leaders.
    """
    common, _ = history(shared)
    last = max(common, default=0)

    def extended(runs: list[tuple[int, int]], parity: int) -> tuple[list[int], LeaderEpochCache]:
        epochs = list(common)
        cache = LeaderEpochCache()
        for offset, epoch in enumerate(common):
            if not cache.entries or cache.latest_epoch < epoch:
                cache.assign(epoch, offset)
        epoch = 2 * (last // 2) + 2 + parity
        for step, count in runs:
            epoch += 2 * step
            cache.assign(epoch, len(epochs))
            epochs += [epoch] * count
        return epochs, cache

    follower, own = extended(mine, 0)
    leader, leaders = extended(theirs, 1)
    # What a leader has under way: its own epoch, above all others, perhaps without a record.
    leaders.assign(max(own.latest_epoch, leaders.latest_epoch) + 1, len(leader))
    for _ in range(20):
        if own.latest_epoch < 0:
            break
        answer = leaders.end_offset_for(own.latest_epoch, len(leader))
        decision = truncation_for(
            answer,
            log_end_offset=len(follower),
            high_watermark=0,
            own_end_of=lambda epoch: own.end_offset_for(epoch, len(follower)),
        )
        assert decision.offset <= len(follower)
        del follower[decision.offset :]
        own.truncate_from_end(decision.offset)
        if decision.is_final:
            break
    else:
        raise AssertionError("no end")
    assert follower == leader[: len(follower)]
    assert len(follower) >= len(common), "nothing that both had is dropped"


# Fixture of 6.2: epochs 0:[0,1] 3:[2..7] 4:[8..12] 7:[13] 9:[14..16], leader epoch 10, log end 17.
FIXTURE = [EpochEntry(0, 0), EpochEntry(3, 2), EpochEntry(4, 8), EpochEntry(7, 13), EpochEntry(9, 14)]


def judge(last_fetched_epoch: int, offset: int, log_start: int = 0) -> object:
    cache = LeaderEpochCache([*FIXTURE, EpochEntry(10, 17)])
    cache.truncate_from_start(log_start)
    found = divergence_of(
        fetch_offset=offset,
        last_fetched_epoch=last_fetched_epoch,
        log_start_offset=log_start,
        end_of=cache.end_offset_for(last_fetched_epoch, 17),
    )
    return "out of range" if found.is_out_of_range else found.diverging


@pytest.mark.parametrize(
    ("epoch", "offset", "expected"),
    [
        (2, 5, (0, 2)),
        (0, 4, (0, 2)),
        (6, 6, (4, 13)),
        (5, 9, (4, 13)),
        (10, 18, (10, 17)),
        (0, 2, None),
        (7, 14, None),
        (9, 17, None),
        (10, 17, None),
        (11, 5, "out of range"),
    ],
)
def test_divergence_of_a_fetch(epoch: int, offset: int, expected: object) -> None:
    """6.2, the first table."""
    assert judge(epoch, offset) == expected


@pytest.mark.parametrize(
    ("log_start", "epoch", "offset", "expected"),
    [
        (5, 0, 0, "out of range"),
        (5, 2, 8, (2, 5)),
        (5, 0, 5, None),
        (5, 3, 5, None),
        (10, 5, 6, "out of range"),
        (10, 3, 6, "out of range"),
    ],
)
def test_divergence_above_a_log_start(log_start: int, epoch: int, offset: int, expected: object) -> None:
    """6.2: below the log start nothing can be compared; history older than it ends where it starts."""
    assert judge(epoch, offset, log_start) == expected
