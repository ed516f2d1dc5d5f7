"""One fsync for every thread that waits for it.

    A ──append──┐ sync ────────┐               ┌─append─┐ waits ┐
    B ────append┤ waits        ├ sync ─────────┼─append─┤ waits ├ sync ───┐
    C ──────append waits       │ waits         ├─append─┤ waits │ waits   ├─
    D ────────append waits     │ waits         └─append─┴───────┘ waits   │

A thread that arrives during a sync waits for the next one, because the running sync may have looked at the
file before the thread wrote. One of them leads the next sync and wakes the others when it is done.

Writers that are woken together return together, because one interpreter runs them all. So the next sync waits
for as many as the last one served, and for those who came meanwhile. The first of them looks at the clock,
the last of them leads. That wait is short, and each one in vain makes the next ones rarer: a single writer
never waits, and writers that arrive at random hardly do. Without it, two halves of them would sync in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from logstore.disk.reentry import not_owned

PATIENCE_S = 50e-6
"""How long the first waits for each of the others: a few thread switches of the interpreter."""
MOST_SYNCS_AT_ONCE = 127
"""The most syncs without a wait, after many waits in vain."""


class _State(Enum):
    IDLE = "nobody is here"
    GATHERING = "the first of those who wait waits for company"
    TAKEN = "somebody leads a sync, or holds all of them off"


class _Waiter:
    __slots__ = ("bell", "gathers", "is_served", "leads", "thread")

    def __init__(self) -> None:
        self.gathers = self.leads = self.is_served = False
        self.thread = threading.get_ident()
        self.bell = _silent_bell()


def _silent_bell() -> threading.Lock:
    bell = threading.Lock()
    bell.acquire()
    return bell


class GroupCommit:
    """Runs `sync` for groups of callers, never twice at a time.

    The leader raises the error of a failed `sync`, or what interrupts it. If an interrupt comes just before
    or after the sync, the others wait until that thread calls again.
    """

    def __init__(self, sync: Callable[[], None], *, patience_s: float = PATIENCE_S) -> None:
        self._sync = sync
        self._patience_s = patience_s
        self._mutex = threading.RLock()
        self._state = _State.IDLE
        self._waiting: list[_Waiter] = []
        self._excluding: list[_Waiter] = []
        self._crew: list[_Waiter] = []
        """Those whom the sync under way serves."""
        self._leader = 0
        """The thread that leads, or holds all off, while the state is TAKEN."""
        self._company = 1
        """The number of callers expected for the next sync."""
        self._wait_after = 0
        self._penalty = 0

    def join(self) -> bool:
        """Return once a sync that began after this call has ended; False if another led it and failed."""
        me = self._comes_to_lead()
        if me is not None:
            return me.is_served
        is_done = False
        try:
            with self._mutex:
                self._crew, self._waiting = self._waiting, []
            self._sync()
            is_done = True
        finally:
            with self._mutex:
                crew, self._crew = self._crew, []
                self._expect(1 + len(crew) + len(self._waiting))
                next_bell = self._next(self._company)
            for each in crew:
                each.gathers, each.is_served = False, is_done
                each.bell.release()
            # Last: those who were served may be back in time for the next sync.
            _ring(next_bell)
        return True

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Block every sync inside the block; waiting callers are served afterwards."""
        with not_owned(self._mutex):
            self._take_back()
            me = None
            if self._state is _State.TAKEN:
                me = _Waiter()
                self._excluding.append(me)
            else:
                self._leader = threading.get_ident()
            self._state = _State.TAKEN
        if me is not None:
            self._sleep(me, me.bell)
        try:
            yield
        finally:
            self._pass_on()

    # --- waiting ----------------------------------------------------------------------------------

    def _comes_to_lead(self) -> _Waiter | None:
        """Wait for company, or for the sync under way; the waiter that we were if another's sync was ours."""
        with not_owned(self._mutex):
            self._take_back()
            is_free = self._state is not _State.TAKEN
            if is_free and len(self._waiting) + 1 >= self._company:
                if self._state is _State.GATHERING:
                    self._penalty = 0
                self._leader = threading.get_ident()
                self._state = _State.TAKEN
                return None
            me = _Waiter()
            self._waiting.append(me)
            if self._state is _State.IDLE:
                me.gathers, self._state = True, _State.GATHERING
        while True:
            bell = me.bell  # first: who asks us to gather says so, changes the bell, and rings the old one
            if not self._sleep(me, bell, self._patience_s * self._company if me.gathers else -1):
                if self._gives_up(me):
                    return None
            elif not me.gathers:
                return None if me.leads else me

    def _gives_up(self, me: _Waiter) -> bool:
        """Lead those who came; False if somebody else took the lead just now, or more has happened since."""
        with self._mutex:
            me.gathers = False
            if self._state is not _State.GATHERING or me not in self._waiting:
                return False
            self._waiting.remove(me)
            self._leader = threading.get_ident()
            self._state = _State.TAKEN
            self._penalty = min(2 * self._penalty + 1, MOST_SYNCS_AT_ONCE)
            self._wait_after = self._penalty
            return True

    def _take_back(self) -> None:
        """Give up a lead that this thread kept because Ctrl-C, or a signal handler, ended its call."""
        if self._state is _State.TAKEN and self._leader == threading.get_ident():
            self._waiting[:0], self._crew = self._crew, []
            self._state = _State.IDLE

    def _expect(self, company: int) -> None:
        if self._wait_after:
            self._wait_after -= 1
            company = 1
        self._company = company

    def _sleep(self, me: _Waiter, bell: threading.Lock, patience_s: float = -1) -> bool:
        """Until the bell rings; False if patience ended before that."""
        try:
            return bell.acquire(timeout=patience_s)
        except BaseException:  # an interrupt: whoever waits behind us must not wait for us
            with self._mutex:
                gathered = self._state is _State.GATHERING and self._waiting[:1] == [me]
                for among in (self._waiting, self._excluding):
                    if me in among:
                        among.remove(me)
            if me.leads or gathered:
                self._pass_on()
            raise

    # --- waking -----------------------------------------------------------------------------------

    def _pass_on(self) -> None:
        with self._mutex:
            next_bell = self._next()
        _ring(next_bell)

    def _next(self, company: int = 1) -> threading.Lock | None:
        """The bell of whose turn it is: to lead, or to gather company if fewer wait for a sync.

        Those who want to be alone come first, or they might never be.
        """
        among = self._excluding or self._waiting
        if not among:
            self._state = _State.IDLE
            return None
        first = among[0]
        bell = first.bell
        if among is self._waiting and len(among) < company:
            self._state = _State.GATHERING
            first.gathers, first.bell = True, _silent_bell()
        else:
            self._state = _State.TAKEN
            first.gathers, first.leads = False, True
            self._leader = first.thread
            among.pop(0)
        return bell


def _ring(bell: threading.Lock | None) -> None:
    if bell is not None:
        bell.release()
