"""Work in threads: what waits for a disk must not keep the event loop waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_LOG_THREADS: Final = 8
"""More threads than processors: they wait for fsyncs, and the disk takes several at a time."""


def run_all(actions: Sequence[Callable[[], None]]) -> None:
    """Run the actions in several threads until all have ended. Raises the first one's error."""
    with ThreadPoolExecutor(min(_LOG_THREADS, len(actions) or 1), thread_name_prefix="logs") as pool:
        running = [pool.submit(act) for act in actions]
    for each in running:
        each.result()
