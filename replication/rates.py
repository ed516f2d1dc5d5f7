"""Rates over a number of samples, as Kafka's metrics compute them. Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

LONGEST_THROTTLE_MS: Final = 2**31 - 1
"""What an answer can tell."""


class Windows(NamedTuple):
    """The windows of a rate: a number of samples of `size_ms` each."""

    samples: int = 11
    size_ms: int = 1_000

    @property
    def total_ms(self) -> int:
        return self.samples * self.size_ms


class _Sample:
    __slots__ = ("amount", "last_ms", "start_ms")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.amount = 0.0


class Rate:
    """The use in the last samples (Kafka's SampledStat and Rate)."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: list[_Sample] = []
        self._at = 0

    def record(self, amount: float, now_ms: int) -> None:
        """Add an amount; a negative one takes an earlier one back."""
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        if now_ms - samples[self._at].start_ms >= self._windows.size_ms:
            self._at = (self._at + 1) % (self._windows.samples + 1)
            if self._at == len(samples):
                samples.append(_Sample(now_ms))
            else:
                samples[self._at].reset(now_ms)
        samples[self._at].amount += amount
        samples[self._at].last_ms = now_ms

    def per_second(self, now_ms: int) -> float:
        """Return the rate."""
        for each in self._samples:
            if now_ms - each.last_ms >= self._windows.total_ms:
                each.reset(now_ms)
        return sum(each.amount for each in self._samples) / (self._window_ms(self._elapsed_ms(now_ms)) / 1000)

    def _elapsed_ms(self, now_ms: int) -> int:
        """Return the time since the oldest sample began."""
        return now_ms - min((each.start_ms for each in self._samples), default=now_ms)

    def _window_ms(self, elapsed_ms: int) -> int:
        count, size_ms = self._windows
        missing = count - 1 - elapsed_ms // size_ms
        return max(1, elapsed_ms + max(0, missing) * size_ms)

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Return how long a client must pause to fall back to `bound`; 0 if it is not above."""
        rate = self.per_second(now_ms)
        if rate <= bound:
            return 0
        window_ms = self._window_ms(self._elapsed_ms(now_ms))
        return rounded((rate - bound) / bound * window_ms if bound else math.inf)

    def is_idle(self, now_ms: int) -> bool:
        """Return whether forgetting it changes nothing."""
        return self.per_second(now_ms) == 0


class SimpleRate(Rate):
    """The same over the time that has passed, at least one sample (Kafka's SimpleRate)."""

    def _window_ms(self, elapsed_ms: int) -> int:
        return max(elapsed_ms, self._windows.size_ms)


class LimitedRate:
    """The bytes a second of something, and their limit."""

    def __init__(self, windows: Windows) -> None:
        self.bound: int | None = None
        """Bytes a second; None for as many as there are."""
        self._windows, self._rate = windows, SimpleRate(windows)

    def limit(self, bound: int | None) -> None:
        """Set the limit. Bytes moved under the previous one still count."""
        if self.bound is None:
            self._rate = SimpleRate(self._windows)
        self.bound = bound

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes."""
        self._rate.record(size, now_ms)

    def per_second(self, now_ms: int) -> float:
        """Return the bytes a second."""
        return self._rate.per_second(now_ms)

    def is_exceeded(self, now_ms: int) -> bool:
        """Return whether what is limited has to wait."""
        return self.bound is not None and self.per_second(now_ms) > self.bound


def rounded(milliseconds: float) -> int:
    """Return whole milliseconds, as Kafka's `Math.round`, limited to the range of a response field."""
    return math.floor(min(milliseconds, LONGEST_THROTTLE_MS) + 0.5)
