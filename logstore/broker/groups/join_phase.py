"""Decide when the join phase of a rebalance ends. Pure.

A rebalance waits until all members have joined or the longest rebalance timeout has passed. The first
rebalance of an empty group waits `group.initial.rebalance.delay.ms` instead, and once more for each delay in
which new members arrived, up to the rebalance timeout: one round then serves a whole fleet that starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from logstore.disk.marks import mark

SHORTEST_WAIT_MS: Final = 1_000
"""Time between two checks of a join phase without members: they may request a rebalance timeout of 0."""


@dataclass(slots=True)
class JoinPhase:
    """The join phase of one rebalance."""

    deadline_ms: int
    initial_left_ms: int | None = None
    """Remaining time by which a first rebalance may be delayed; None in any other rebalance."""
    delay_ms: int = 0
    has_new_members: bool = False

    @classmethod
    def first(cls, now_ms: int, *, delay_ms: int, longest_ms: int) -> JoinPhase:
        """Begin the first rebalance of an empty group."""
        return cls(now_ms + delay_ms, max(longest_ms - delay_ms, 0), delay_ms)

    def is_over(self, now_ms: int, *, all_joined: bool, initial_delay_ms: int) -> bool:
        """Return whether the join phase ends now; extends the delay of a first rebalance if it must."""
        is_late = now_ms >= self.deadline_ms
        if self.initial_left_ms is None:
            return is_late or all_joined
        if not is_late:
            return False
        if not (self.has_new_members and self.initial_left_ms):
            return True
        mark("groups: a first round waits for still more members")
        self.has_new_members = False
        delay_ms = min(initial_delay_ms, self.initial_left_ms)
        self.initial_left_ms = max(self.initial_left_ms - self.delay_ms, 0)
        self.delay_ms = delay_ms
        self.deadline_ms = now_ms + delay_ms
        return False

    def wait_for_static_members(self, now_ms: int, longest_ms: int) -> None:
        """Wait again: only static members are left, and none of them has come back yet."""
        mark("groups: nobody joined in time, and static members keep their places")
        self.initial_left_ms = None
        self.deadline_ms = now_ms + max(longest_ms, SHORTEST_WAIT_MS)
