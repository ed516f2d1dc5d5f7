"""A node's clock: epoch milliseconds that never go back and never jump.

The wall clock is read once, when the process starts; from then on the monotonic clock advances the time.
Changing the system time does not affect how long a follower has been silent or a request has waited. The
clock runs while the process is stopped, so a pause shows as a gap. The price: if the wall clock was wrong at
the start, append times stay wrong until the process is restarted.
"""

from __future__ import annotations

import time
from typing import Final

from logstore.disk.files import wall_clock_ms


class SteadyClock:
    """Returns the time when called."""

    def __init__(self) -> None:
        self._anchor_ns = wall_clock_ms() * 1_000_000 - time.monotonic_ns()

    def __call__(self) -> int:
        return (self._anchor_ns + time.monotonic_ns()) // 1_000_000


stopwatch_s: Final = time.perf_counter
"""Seconds since an arbitrary moment, to measure durations."""
processor_s: Final = time.thread_time
"""Seconds of processor time that the calling thread has used."""
