"""Locks and flags that a signal handler may meet in the middle of a call of its own thread.

Python runs a handler in the main thread, between two instructions of whatever that thread does. A plain lock
that the call holds would never come free there. If the handler raises, as for Ctrl-C, an `Event` or a
`Future` may keep its lock for ever, and a thread that sets it would hang.
"""

from __future__ import annotations

import threading
from contextlib import suppress


def not_owned(lock: threading.RLock) -> threading.RLock:
    """Return the lock, for `with`. Raises `RuntimeError` if this thread holds it already."""
    if lock._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks
        raise RuntimeError(
            "a signal handler cannot make this call: it interrupted another one in the same thread. Set a "
            "flag in the handler, or raise an exception, as sys.exit() does"
        )
    return lock


class Flag:
    """As `threading.Event`, for a thread that an exception may interrupt: no two threads share a lock."""

    __slots__ = ("_bells", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._bells: list[threading.Lock] = []
        """One for each thread that waits, which holds it."""

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all that wait. After an interrupt, another call wakes the rest."""
        self._is_set = True
        for bell in self._bells.copy():
            with suppress(RuntimeError):  # it was rung already
                bell.release()

    def clear(self) -> None:
        """Let those wait who come from now on."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Return True once it is set, and False after `timeout` seconds."""
        if self._is_set:
            return True
        bell = threading.Lock()
        bell.acquire()
        self._bells.append(bell)
        try:
            # Set since the first look: whoever set it may not have seen the bell.
            return self.is_set() or bell.acquire(timeout=-1 if timeout is None else timeout)
        finally:
            self._bells.remove(bell)
