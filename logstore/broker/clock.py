"""The clock that a node's engine runs by: epoch milliseconds that never go back and never jump.

Read from the wall once, when the process starts, and from then on advanced by the monotonic clock: how
long a follower has been silent, or a request has waited, must not depend on somebody setting the time.
It goes on while the process is stopped, so a pause shows as a gap. The price: a wall clock that was wrong
at the start, and corrected since, stays wrong here (in append times) until the process is started anew.
"""

from __future__ import annotations

import time
from typing import Final

from logstore.disk.clock import wall_clock_ms


class SteadyClock:
    """Call it for the time."""

    def __init__(self) -> None:
        self._anchor_ns = wall_clock_ms() * 1_000_000 - time.monotonic_ns()

    def __call__(self) -> int:
        return (self._anchor_ns + time.monotonic_ns()) // 1_000_000


stopwatch_s: Final = time.perf_counter
"""Seconds since some moment: what took how long."""
