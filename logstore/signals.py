"""Hold back signals while something must not be interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread


def may_raise() -> list[signal.Signals]:
    """Return the signals whose handlers may raise an exception at any moment of the main thread.

    Those of an event loop do not. They are not to be held back: the loop would hear of a signal twice.
    """
    if (asyncio := sys.modules.get("asyncio")) is not None and asyncio._get_running_loop() is not None:
        is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return [signal.SIGINT] if is_ours else []
    return [each for each in signal.Signals if callable(signal.getsignal(each))]


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
    try:
        before = {number: signal.signal(number, lambda each, _: held.append(each)) for number in numbers}
    except ValueError:  # a subinterpreter, whose main thread runs no handlers
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        for each in held:
            signal.raise_signal(each)
