"""How far a job is: one line that is painted over on a terminal, a line now and then anywhere else.

On stderr, so that stdout is the job's answer and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TextIO

REPAINT_S: Final = 0.2
LINE_S: Final = 10.0


class Progress:
    """Told in some unit (records, bytes, items); nothing is said of what takes less than a second.

    For one thread. `clock` is monotonic seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream.isatty()
        self._what, self._unit = "", ""
        self._total = self._done = 0
        self._began_s = self._said_s = 0.0
        self._painted = False

    def begin(self, what: str, total: int, unit: str) -> None:
        """A new stretch of work of so many units."""
        self._what, self._total, self._unit, self._done = what, total, unit, 0
        self._began_s = self._clock()
        self._said_s = self._began_s + (1.0 - REPAINT_S if self._terminal else 1.0 - LINE_S)

    def advance(self, amount: int) -> None:
        """So much more is done."""
        self._done += amount
        now_s = self._clock()
        if now_s - self._said_s >= (REPAINT_S if self._terminal else LINE_S):
            self._said_s = now_s
            self._say(self.line(now_s))

    def end(self) -> None:
        """The stretch is over: the terminal's line goes."""
        if self._painted:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._painted = False

    def line(self, now_s: float) -> str:
        """`export: 3.1 M of 10 M records, 31 %, 1.02 M/s, 7 s left`."""
        passed_s = max(now_s - self._began_s, 1e-9)
        rate = self._done / passed_s
        text = f"{self._what}: {amount(self._done)} of {amount(self._total)} {self._unit}"
        if self._total:
            text += f", {100 * self._done // self._total} %"
        text += f", {amount(rate)}/s"
        if rate and self._done < self._total:
            text += f", {duration((self._total - self._done) / rate)} left"
        return text

    def _say(self, text: str) -> None:
        if self._terminal:
            self._stream.write(f"\r{text}\x1b[K")
            self._painted = True
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()


def amount(number: float) -> str:
    """`999`, `12.3 k`, `4.56 M`, `7.89 G`."""
    for scale, sign in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= scale:
            return f"{number / scale:.3g}{sign}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """`42 s`, `3 min`, `5.2 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
