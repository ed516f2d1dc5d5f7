"""Virtual time: a heap of future events, the record of past ones, and their digest.

    (time, tie, number, callback) ─▶ one callback at a time, at its virtual millisecond

Callbacks of the same millisecond are ordered by a tie drawn from the seed, not by the order of the calls
alone. `stamp` adds a fact to the digest of the run, `note` to its text.
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
    """Counters of a run's events; they also prove that the faults took place."""

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
    """The heap of one run, and the record of the events that came off it."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        self.now_ms = START_MS
        self.suspended_ms = 0
        """How long everything was suspended."""
        self.tally = Tally()
        self.recent: deque[tuple[int, object]] = deque(maxlen=_RECENT)
        self.digest = blake2b(digest_size=16)
        self._trace = trace
        self._heap: list[tuple[int, float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self._ties = stream(seed, "ties")

    @property
    def is_traced(self) -> bool:
        """Whether notes are printed."""
        return self._trace is not None

    def draw_tie(self) -> float:
        """Return an event's place among the others of its millisecond."""
        return self._ties.random()

    def at(self, delay_ms: int, callback: Callable[..., object], *arguments: object) -> None:
        """Call `callback` in `delay_ms`; the seed orders callbacks of the same millisecond."""
        self.push(self.now_ms + delay_ms, self._ties.random(), callback, arguments)

    def push(
        self, at_ms: int, tie: float, callback: Callable[..., object], arguments: tuple[object, ...]
    ) -> None:
        """Call `callback` at `at_ms`; equal ties keep the order of these calls."""
        self._number += 1
        heappush(self._heap, (at_ms, tie, self._number, callback, arguments))

    def step(self) -> bool:
        """Process the next event; False if there is none."""
        if not self._heap:
            return False
        at_ms, _, _, callback, arguments = heappop(self._heap)
        self.now_ms = at_ms
        self.tally.events += 1
        callback(*arguments)
        return True

    def suspend(self, for_ms: int) -> None:
        """Delay every future event by `for_ms`."""
        # All by the same time: it stays a heap.
        self._heap = [(at_ms + for_ms, *others) for at_ms, *others in self._heap]  # type: ignore[misc]
        self.suspended_ms += for_ms
        self.now_ms += for_ms

    def was_nothing(self) -> None:
        """Do not count the current event: it had become void."""
        self.tally.events -= 1

    def note(self, *facts: object) -> None:
        """Add facts to the trace; they are formatted only when printed."""
        self.recent.append((self.now_ms, facts))
        if self._trace is not None:
            self._trace(f"{self.now_ms - START_MS:>7} {describe(facts)}")

    def stamp(self, text: str) -> None:
        """Add text to the digest."""
        self.digest.update(text.encode())
