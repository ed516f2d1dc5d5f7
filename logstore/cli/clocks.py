"""The clocks of brokers compared with this host's, and the wrong ones. Pure.

A broker tells its clock in an answer: it was that at some moment between the question and the answer, so the
difference is known to half of that time. Brokers are compared with each other, as long as there are three;
fewer with this host.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import Final, NamedTuple

TOLERANCE_MS: Final = 5_000
"""A difference that counts, beyond what may be due to the time of the question."""


class Clock(NamedTuple):
    """Difference of a broker's clock from the local one in ms (positive: ahead), plus or minus `error_ms`."""

    ahead_ms: int
    error_ms: int


class WrongClock(NamedTuple):
    """A broker whose clock is off, by how much in words, and what was compared."""

    broker: int
    says: str
    evidence: str


def clock(asked_ms: int, told_ms: int, answered_ms: int) -> Clock:
    """Return a broker's clock from the time of the request, the reported time, and the time of the answer."""
    return Clock(told_ms - (asked_ms + answered_ms) // 2, (answered_ms - asked_ms + 1) // 2)


def wrong_clocks(clocks: Mapping[int, Clock]) -> list[WrongClock]:
    """Return the brokers whose clocks are off."""
    has_majority = len(clocks) >= 3
    reference_ms = median_low(each.ahead_ms for each in clocks.values()) if has_majority else 0
    found = []
    for broker, each in sorted(clocks.items()):
        off_ms = each.ahead_ms - reference_ms
        if abs(off_ms) - each.error_ms > TOLERANCE_MS:
            others = "those of the other brokers" if has_majority else "the one of this host"
            way = "ahead of" if off_ms > 0 else "behind"
            told = ", ".join(f"broker {one} {known.ahead_ms / 1000:+z.1f} s" for one, known in clocks.items())
            found.append(
                WrongClock(
                    broker,
                    f"its clock is {abs(off_ms) / 1000:.0f} s {way} {others}",
                    f"beside the clock of this host: {told}",
                )
            )
    return found
