"""The timer of a node: calls for a tick when the engine's next deadline has come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

APART_MS: Final = 5
"""Ticks are at least this far apart: of a thousand waiting fetches, ten end at once. Searches for the next
deadline are, too."""


class Ticker:
    """Calls `tick` at the deadlines that `deadline_ms` returns, or some milliseconds later."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        deadline_ms: Callable[[], int | None],
        tick: Callable[[], None],
    ) -> None:
        self._loop, self._clock, self._deadline_ms, self._tick = loop, clock, deadline_ms, tick
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = self._ticked_ms = self._looked_ms = 0
        self._is_stopped = False

    def stop(self) -> None:
        """Call for no more ticks."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Look for the next deadline, now or soon. Call it whenever there may be an earlier one."""
        if self._is_stopped:
            return
        now_ms = self._clock()
        if self._timer is not None and self._timer_ms <= now_ms + APART_MS:
            return  # that call handles earlier deadlines too
        if self._looked_ms <= now_ms < self._looked_ms + APART_MS:
            # Finding the next deadline costs a tenth of a produce, so a busy broker does it once in a while.
            self._call_at(self._looked_ms + APART_MS, self._look_again, now_ms)
            return
        self._looked_ms = now_ms
        deadline_ms = self._deadline_ms()
        if deadline_ms is not None:
            deadline_ms = max(deadline_ms, self._ticked_ms + APART_MS)
        self._call_at(deadline_ms, self._call_for_tick, now_ms)

    def _call_at(self, time_ms: int | None, act: Callable[[], None], now_ms: int) -> None:
        """Set the only timer, or none."""
        if self._timer is not None:
            if time_ms == self._timer_ms:
                return
            self._timer.cancel()
            self._timer = None
        if time_ms is not None:
            # A millisecond late rather than early: an early tick does nothing and has to be repeated.
            delay_s = max(time_ms - now_ms, 0) / 1000 + 0.001
            self._timer, self._timer_ms = self._loop.call_later(delay_s, act), time_ms

    def _look_again(self) -> None:
        self._timer = None
        self.look()

    def _call_for_tick(self) -> None:
        self._timer = None
        self._ticked_ms = self._clock()
        self._tick()
