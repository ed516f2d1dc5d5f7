"""Work in threads: waits for a disk must not block the event loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

_LOG_THREADS: Final = 8
"""More threads than processors: they wait for fsyncs, and the disk takes several at a time."""


def run_all(actions: Sequence[Callable[[], None]]) -> None:
    """Run the actions in several threads until all have ended. Raises the first one's error."""
    with ThreadPoolExecutor(min(_LOG_THREADS, len(actions) or 1), thread_name_prefix="logs") as pool:
        running = [pool.submit(act) for act in actions]
    for each in running:
        each.result()


def be_last() -> None:
    """Give the calling thread the lowest priority, where the system has priorities of threads."""
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
