"""Processor time and memory of processes, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def cpu_s(pids: Iterable[int]) -> float:
    """Return the processor time of the processes so far, in user and in kernel mode, in seconds.

    /proc/PID/stat counts ticks of ten milliseconds; the scheduler's own count has nanoseconds and is per
    thread, so threads that have ended would be missing in it.
    """
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(pids: Iterable[int]) -> int:
    """Return the memory that the processes hold."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE")


def load() -> float:
    """Return the load average of the last minute: how busy the machine was with everything."""
    return os.getloadavg()[0]
