"""One fsync for all who wait for it.

    A ──append──┐ sync ─────────┐
    B ────append┤ waits         ├ sync ────────┐     B leads for itself, C and D
    C ──────append waits        │ waits        ├─ done
    D ────────append waits      │ waits        ├─ done

Whoever comes while a sync is under way waits for the next one, because the one under way may have
looked at the file before the waiter wrote. Of those who wait, the first leads the next sync and the
others are woken when it is done: no thread is woken to find that it has to wait again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class GroupCommit:
    """Runs `sync` for groups of callers, never twice at a time. What `sync` raises, its leader raises;
    the others return and have to look for themselves whether the sync succeeded."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._mutex = threading.Lock()
        self._busy = False
        self._waiting: list[threading.Lock] = []
        self._leader: threading.Lock | None = None

    def join(self) -> None:
        """Return once a sync that began after this call did has ended."""
        me = self._enter()
        if me is not None and self._leader is not me:
            return  # somebody else's sync was ours too
        with self._mutex:
            crew, self._waiting = self._waiting, []
        try:
            self._sync()
        finally:
            self._hand_over()
            for other in crew:
                other.release()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold off every sync meanwhile; those who wait are served afterwards."""
        while (me := self._enter()) is not None and self._leader is not me:
            pass  # a sync that we waited through: what we want is the place of its leader
        try:
            yield
        finally:
            self._hand_over()

    def _enter(self) -> threading.Lock | None:
        """Take the lead if nobody has it (None), else wait until we are to lead or are done (our lock)."""
        with self._mutex:
            if not self._busy:
                self._busy = True
                return None
            me = threading.Lock()
            me.acquire()
            self._waiting.append(me)
        try:
            me.acquire()
        except BaseException:  # an interrupt: whoever waits behind us must not wait for us
            self._leave(me)
            raise
        return me

    def _leave(self, me: threading.Lock) -> None:
        with self._mutex:
            if me in self._waiting:
                self._waiting.remove(me)
            leads = self._leader is me
        if leads:
            self._hand_over()

    def _hand_over(self) -> None:
        with self._mutex:
            if not self._waiting:
                self._busy, self._leader = False, None
                return
            self._leader = self._waiting.pop(0)
            self._leader.release()
