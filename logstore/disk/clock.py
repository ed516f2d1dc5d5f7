"""The wall clock, for the shells that are not given one: time is an argument everywhere else."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000
