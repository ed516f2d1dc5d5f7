"""A steady clock, for waits and durations; `files.py` has the wall's.

A test that freezes or moves time (freezegun, time-machine) does so for the wall's only: freezegun replaces
`time.monotonic` as well, and whoever waits by it waits for ever.
"""

from __future__ import annotations

import sys
import time
from functools import partial

if sys.platform == "win32":  # pragma: no cover
    steady_s, steady_ns = time.monotonic, time.monotonic_ns
else:
    steady_s = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    """Return the seconds since an arbitrary moment, by a clock that nobody sets."""
    steady_ns = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)
    """The same in nanoseconds."""
