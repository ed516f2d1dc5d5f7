"""Virtual time: one heap of what is to happen, what did happen, and its digest.

    (time, tie, number, callback) ─▶ one callback at a time, at its virtual millisecond

Among callbacks of one millisecond a tie drawn from the seed decides, never the order in which they were
asked for alone. `stamp` enters a fact into the digest of the run, `note` into its text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any

from logstore.testing.describe import describe
from logstore.testing.swarm import stream

START_MS = 1_000_000
_RECENT = 60


@dataclass(slots=True)
class Tally:
    """What happened in a run; for people, and to see that the faults did happen."""

    events: int = 0
    turns: int = 0
    kills: int = 0
    power_cuts: int = 0
    stops: int = 0
    pauses: int = 0
    cuts: int = 0
    sessions_expired: int = 0
    depositions: int = 0
    dead_disks: int = 0
    full_disks: int = 0
    rotten_bits: int = 0
    deaths_in_start: int = 0
    elections: int = 0
    unclean_elections: int = 0
    truncations: int = 0
    batches_deleted: int = 0
    isr_changes: int = 0
    sent: int = 0
    acked: int = 0
    consumed: int = 0
    operator_elections: int = 0
    commands: int = 0
    topics_deleted: int = 0
    reassignments: int = 0


class Timeline:
    """The heap of one run, and the record of what came off it."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        self.now_ms = START_MS
        self.suspended_ms = 0
        """How long nothing at all happened."""
        self.tally = Tally()
        self.recent: deque[tuple[int, object]] = deque(maxlen=_RECENT)
        self.digest = blake2b(digest_size=16)
        self._trace = trace
        self._heap: list[tuple[int, float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self._ties = stream(seed, "ties")

    @property
    def is_traced(self) -> bool:
        """Whether somebody reads the text of notes."""
        return self._trace is not None

    def draw_tie(self) -> float:
        """Where something stands among what happens in the same millisecond."""
        return self._ties.random()

    def at(self, delay_ms: int, callback: Callable[..., object], *arguments: object) -> None:
        """Call back in `delay_ms`; among callbacks of one millisecond the seed decides."""
        self.push(self.now_ms + delay_ms, self._ties.random(), callback, arguments)

    def push(
        self, at_ms: int, tie: float, callback: Callable[..., object], arguments: tuple[object, ...]
    ) -> None:
        """Call back at `at_ms`; equal ties keep the order of these calls."""
        self._number += 1
        heappush(self._heap, (at_ms, tie, self._number, callback, arguments))

    def step(self) -> bool:
        """Let the next thing happen; False if nothing is left to happen."""
        if not self._heap:
            return False
        at_ms, _, _, callback, arguments = heappop(self._heap)
        self.now_ms = at_ms
        self.tally.events += 1
        callback(*arguments)
        return True

    def suspend(self, for_ms: int) -> None:
        """Whatever is to happen happens so much later."""
        # All by the same: it stays a heap.
        self._heap = [(at_ms + for_ms, *others) for at_ms, *others in self._heap]  # type: ignore[misc]
        self.suspended_ms += for_ms
        self.now_ms += for_ms

    def was_nothing(self) -> None:
        """What just came off the heap had become void: it does not count as an event."""
        self.tally.events -= 1

    def note(self, *facts: object) -> None:
        """Enter something into the trace: as text only if somebody asks."""
        self.recent.append((self.now_ms, facts))
        if self._trace is not None:
            self._trace(f"{self.now_ms - START_MS:>7} {describe(facts)}")

    def stamp(self, text: str) -> None:
        """Enter something into the digest."""
        self.digest.update(text.encode())
