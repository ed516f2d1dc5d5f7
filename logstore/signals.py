"""Hold back signals while something must not be interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread


@contextmanager
def held_back(*numbers: signal.Signals) -> Iterator[None]:
    """Let these signals act at the end of the block only.

    Python runs their handlers in the main thread; in any other thread this does nothing. A mask of signals
    would not do: the kernel gives a signal to another thread, and Python runs the handler all the same.
    """
    if current_thread() is not main_thread():
        yield
        return
    held: list[int] = []
    before = {number: signal.signal(number, lambda each, _: held.append(each)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        for each in held:
            signal.raise_signal(each)
