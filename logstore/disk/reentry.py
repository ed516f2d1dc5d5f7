"""Locks that a signal handler may meet in the middle of a call of its own thread.

Python runs a handler in the main thread, between two instructions of whatever that thread does. A plain lock
that the call holds would never come free there.
"""

from __future__ import annotations

import threading


def not_owned(lock: threading.RLock) -> threading.RLock:
    """Return the lock, for `with`. Raises `RuntimeError` if this thread holds it already."""
    if lock._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks
        raise RuntimeError(
            "a signal handler cannot make this call: it interrupted another one in the same thread. Set a "
            "flag in the handler, or raise an exception, as sys.exit() does"
        )
    return lock
