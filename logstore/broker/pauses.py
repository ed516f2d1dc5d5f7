"""The event loop's use of time: pauses with their causes, and idleness. Pure: time is an argument.

Times are seconds of one clock. Two measures of a pause, because neither sees everything:

* A wake-up of the loop that ran turns of the engine is timed from its first turn to the loop's next round.
* A beat that fires late was held up by anything at all: decoding, a group's work, garbage collection, a
  stopped process. It misses at most `BEAT_S` of such a pause.

Idle is the time in which the loop's thread uses no processor. It also is idle while it waits for a disk or
for its turn on a processor; pauses tell of these.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sized
from typing import Final, NamedTuple

from logstore.loggers import logger_of

BEAT_S: Final = 0.05
"""Seconds between two beats."""
TURN_BUDGET_S: Final = 0.05
"""A turn of the engine should take no longer; a longer one is named in the log."""
NOTABLE_S: Final = 0.001
"""A shorter pause is no pause."""
_MINUTE_S: Final = 60.0

_log = logger_of(__name__)


class PauseReport(NamedTuple):
    """The pauses of an event loop, for metrics and health."""

    longest_s: float
    last_minute_s: float
    bound_s: float
    over_bound: int
    longest_turn_s: float
    longest_turn: str
    idle: float = 1.0
    """The share of the last minute in which the loop's thread used no processor, 0 to 1."""

    @property
    def is_slow(self) -> bool:
        """Return whether a pause of the last minute exceeded the bound."""
        return self.last_minute_s > self.bound_s


class Pauses:
    """Keeps the longest pauses of one event loop: since its start, and of the last minute."""

    def __init__(self, bound_s: float) -> None:
        """A pause of more than `bound_s` is logged as a warning and reported by `/healthz`."""
        self._bound_s = bound_s
        self._longest_s = 0.0
        self._over_bound = 0
        self._longest_turn_s, self._longest_turn = 0.0, ""
        self._turn_s, self._turn = 0.0, ""
        self._until_s = 0.0
        """The end of the last pause: the beat that it made late does not count it again."""
        self._recent: deque[tuple[float, float]] = deque()
        """End and length of the pauses of the last minute that no later one exceeds; lengths fall."""
        self._spent: deque[tuple[float, float]] = deque()
        """Time and processor time, a second apart, from a minute ago on; the last is the newest."""

    def beat(self, processor_s: float, now_s: float) -> None:
        """Take note of the processor time that the loop's thread has used until `now_s`."""
        spent = self._spent
        if len(spent) > 1 and spent[-1][0] - spent[-2][0] < 1.0:
            spent.pop()
        spent.append((now_s, processor_s))
        while len(spent) > 2 and spent[1][0] <= now_s - _MINUTE_S:
            spent.popleft()

    @property
    def _idle(self) -> float:
        if len(self._spent) < 2:
            return 1.0
        (began_s, before_s), (ended_s, after_s) = self._spent[0], self._spent[-1]
        return 1.0 - min((after_s - before_s) / (ended_s - began_s), 1.0) if ended_s > began_s else 1.0

    def turn(self, seconds: float, what: Callable[[], str]) -> None:
        """Take note of a turn of the engine; `what` names it if that is needed."""
        if seconds > self._turn_s:
            self._turn_s, self._turn = seconds, what()
        if seconds > self._longest_turn_s:
            self._longest_turn_s, self._longest_turn = seconds, self._turn

    def blocked(self, seconds: float, now_s: float) -> None:
        """Take note that the loop was blocked for `seconds` until `now_s`."""
        turn_s, turn = self._turn_s, self._turn
        self._turn_s, self._turn = 0.0, ""
        seconds = min(seconds, now_s - self._until_s)
        if seconds < NOTABLE_S:
            return
        self._until_s = now_s
        while self._recent and self._recent[-1][1] <= seconds:
            self._recent.pop()
        self._recent.append((now_s, seconds))
        self._forget(now_s)
        is_longest = seconds > self._longest_s
        self._longest_s = max(self._longest_s, seconds)
        is_over = seconds > self._bound_s
        self._over_bound += is_over
        if is_over or (is_longest and seconds > TURN_BUDGET_S):
            _log.log(
                logging.WARNING if is_over else logging.INFO,
                "the event loop was blocked for %.0f ms%s; %s",
                1000 * seconds,
                f", more than event.loop.pause.warn.ms={1000 * self._bound_s:.0f}" if is_over else "",
                f"its longest turn took {1000 * turn_s:.0f} ms: {turn}" if turn else "not by the engine",
            )

    def _forget(self, now_s: float) -> None:
        while self._recent and self._recent[0][0] <= now_s - _MINUTE_S:
            self._recent.popleft()

    def report(self, now_s: float) -> PauseReport:
        """Return what is known at `now_s`."""
        self._forget(now_s)
        return PauseReport(
            self._longest_s,
            self._recent[0][1] if self._recent else 0.0,
            self._bound_s,
            self._over_bound,
            self._longest_turn_s,
            self._longest_turn,
            self._idle,
        )


def describe(event: object) -> str:
    """Name an event of the engine, or a method of it, for the log: types, and the number of partitions."""
    if callable(event):
        return str(getattr(event, "__qualname__", event))
    body = getattr(event, "body", None)
    parts = [type(event).__name__]
    if body is not None:
        parts.append(type(body).__name__)
    for name in ("partitions", "records", "topics"):
        found = getattr(body, name, None)
        if isinstance(found, Sized):
            parts.append(f"of {len(found)} {'topics' if name == 'topics' else 'partitions'}")
            break
    return " ".join(parts)
