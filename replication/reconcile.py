"""Decide where a follower truncates its log, given the leader's end of an epoch. Pure.

Two logs agree up to an offset and differ after it. Epochs find that offset; the high watermark cannot,
because a follower learns it one fetch late (KIP-101). The follower names its latest epoch. The leader answers
with its own largest epoch up to that one, and where that epoch ends:

    leader    1 1 1 1 3            asked for 2, answers (epoch 1, end 4)
    follower  1 1 2                own end of epoch 1 is 2: cut there

If the leader's epoch is unknown here too, the follower truncates to the end of its nearest older epoch and
asks again (KIP-279). Each round drops at least one epoch, so this ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from logstore.disk.marks import mark
from logstore.segment.epochs import EpochEndOffset

UNDEFINED = -1


class Truncation(NamedTuple):
    """Truncate the log to end at `offset`; ask again unless `is_final`."""

    offset: int
    is_final: bool


def truncation_for(
    answer: EpochEndOffset,
    *,
    log_end_offset: int,
    high_watermark: int,
    own_end_of: Callable[[int], EpochEndOffset],
) -> Truncation:
    """Return the truncation that the leader's `answer` requires of a log that ends at `log_end_offset`.

    `own_end_of` looks up an epoch in the follower's log. After an answer without an end (the leader has no
    epoch that old) only the high watermark is left. An answer without an epoch comes from a leader older than
    KIP-279.
    """
    if answer.end_offset == UNDEFINED:
        return Truncation(min(high_watermark, log_end_offset), True)
    if answer.epoch == UNDEFINED:
        return Truncation(min(answer.end_offset, log_end_offset), True)
    own = own_end_of(answer.epoch)
    if own.end_offset == UNDEFINED:
        return Truncation(min(answer.end_offset, log_end_offset), True)
    if own.epoch != answer.epoch:
        return Truncation(min(own.end_offset, log_end_offset), False)
    if answer.end_offset < min(own.end_offset, log_end_offset):
        mark("reconcile: the leader's part of a common epoch is shorter")
    return Truncation(min(own.end_offset, answer.end_offset, log_end_offset), True)


class Divergence(NamedTuple):
    """The leader's view of a fetch: `diverging` is None if the logs agree, or cannot be compared."""

    diverging: EpochEndOffset | None
    is_out_of_range: bool


def divergence_of(
    *,
    fetch_offset: int,
    last_fetched_epoch: int,
    log_start_offset: int,
    end_of: EpochEndOffset,
) -> Divergence:
    """Return whether a follower that ends at `fetch_offset` in `last_fetched_epoch` diverges from the leader.

    `end_of` is the leader's own end of that epoch. Below the log start offset nothing can be compared.
    """
    if end_of.end_offset == UNDEFINED or end_of.epoch == UNDEFINED or fetch_offset < log_start_offset:
        return Divergence(None, True)
    if end_of.epoch < last_fetched_epoch:
        mark("divergence: the follower's last epoch is not the leader's")
        return Divergence(end_of, False)
    if end_of.end_offset < fetch_offset:
        mark("divergence: the follower has more of its last epoch than the leader")
        return Divergence(end_of, False)
    return Divergence(None, False)
