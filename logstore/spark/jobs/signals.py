"""Signals while a job runs. Only the main thread handles signals; in others, nothing changes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object] | signal.Handlers


def job_signals() -> AbstractContextManager[None]:
    """Let SIGTERM end a job as Ctrl-C does, so that Spark is stopped.

    SIGPIPE, which ends a command whose reader has gone, would also end a job without a word when it writes to
    a socket that Spark has closed. It is ignored, and the write fails.
    """
    return _handled({"SIGTERM": signal.default_int_handler, "SIGPIPE": signal.SIG_IGN})


@contextmanager
def first_signal() -> Iterator[threading.Event]:
    """Yield the event that the first SIGINT or SIGTERM sets; the next one interrupts."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            signal.default_int_handler(number, frame)
        asked.set()

    with _handled({"SIGINT": ask, "SIGTERM": ask}):
        yield asked


@contextmanager
def _handled(handlers: Mapping[str, Handler]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = {getattr(signal, name): handler for name, handler in handlers.items() if hasattr(signal, name)}
    before = {number: signal.signal(number, handler) for number, handler in known.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
