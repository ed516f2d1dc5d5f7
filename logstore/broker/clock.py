"""Stopwatches, for durations: the time of a node is an argument, and its clock is in `disk/files.py`."""

from __future__ import annotations

import time
from typing import Final

stopwatch_s: Final = time.perf_counter
"""Seconds since an arbitrary moment, to measure durations."""
processor_s: Final = time.thread_time
"""Seconds of processor time that the calling thread has used."""
