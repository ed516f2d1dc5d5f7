"""Where a follower cuts its log, given what the leader says about an epoch. Pure.

Two logs agree up to some point and differ after it; the point is found by epochs, never by the high
watermark, which a follower learns one fetch late (KIP-101). The follower names the latest epoch it
has; the leader answers with the largest epoch it knows up to that one, and where it ends for it:

    leader    1 1 1 1 3            asked for 2, answers (epoch 1, end 4)
    follower  1 1 2                own end of epoch 1 is 2: cut there

If the leader's epoch is unknown here as well, the cut goes to the end of the nearest older epoch,
and the question is asked again (KIP-279). Each such round drops at least one epoch, so it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from logstore.disk.marks import mark
from logstore.segment.epochs import EpochEndOffset

UNDEFINED = -1


class Truncation(NamedTuple):
    """Cut the log to end at `offset`; ask again unless `is_final`."""

    offset: int
    is_final: bool


def truncation_for(
    answer: EpochEndOffset,
    *,
    log_end_offset: int,
    high_watermark: int,
    own_end_of: Callable[[int], EpochEndOffset],
) -> Truncation:
    """What the leader's `answer` means for a log that ends at `log_end_offset`.

    `own_end_of` is the follower's own epoch lookup. An answer without an end (the leader knows
    nothing that old) leaves only the high watermark to go by; one without an epoch comes from a
    leader that predates KIP-279.
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
    """The leader's view of a fetch: undefined means it cannot compare, None that the logs agree."""

    diverging: EpochEndOffset | None
    is_out_of_range: bool


def divergence_of(
    *,
    fetch_offset: int,
    last_fetched_epoch: int,
    log_start_offset: int,
    end_of: EpochEndOffset,
) -> Divergence:
    """Whether a follower that ends at `fetch_offset` in `last_fetched_epoch` has left the leader's log.

    `end_of` is the leader's own answer for that epoch. Below the log start nothing can be compared.
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
