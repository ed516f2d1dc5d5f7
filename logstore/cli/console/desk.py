"""Requests of the console to brokers, one at a time in a separate thread; and the latest reading."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Generic, Protocol, TypeVar

from logstore.cli.causes import causes
from logstore.cli.trouble import Trouble
from logstore.cli.troubles import Observed, troubles
from logstore.disk.errors import EngineError

T = TypeVar("T")
C = TypeVar("C", bound="Closable")

PATIENCE_S: Final = 2.0
"""The time without an answer after which the console takes a broker for silent."""
FRESH_S: Final = 1.0
"""A reading of this age is not repeated."""
_MOST_SHARE: Final = 5
"""Reading the cluster again waits for so many times as long as the last reading took."""


class Closable(Protocol):
    """A client of brokers: `Brokers` or `BlockingClient`."""

    def close(self) -> None: ...


class Desk(Generic[C]):
    """A client of brokers that lives in a thread. Any thread may ask; the questions wait for each other."""

    def __init__(self, client: C) -> None:
        self._client = client
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="console")

    def ask(self, question: Callable[[C], T]) -> T:
        """Return what `question` returns; raise what it raises, and `RuntimeError` after `close`."""
        return self._thread.submit(question, self._client).result()

    def close(self) -> None:
        """Close the connections once the question under way is answered. Does not wait for that."""
        self._thread.submit(self._client.close)
        self._thread.shutdown(wait=False)


@dataclass(frozen=True)
class Seen:
    """A reading of the cluster: when it was made, in epoch milliseconds, and how long it took, in seconds."""

    observed: Observed
    at_ms: int
    took_s: float

    @cached_property
    def troubles(self) -> list[Trouble]:
        """All problems, worst first."""
        return troubles(self.observed)

    @cached_property
    def causes(self) -> list[Trouble]:
        """The problems by cause, as `logstore health` reports them."""
        return causes(self.troubles)


class Watch:
    """The latest reading of the cluster. A request during a reading waits for the new one."""

    def __init__(
        self, read: Callable[[], Observed], clock_s: Callable[[], float], wall_clock_ms: Callable[[], int]
    ) -> None:
        self._read, self._clock_s, self._wall_clock_ms = read, clock_s, wall_clock_ms
        self._lock = threading.Lock()
        self._seen: Seen | None = None
        self._error: EngineError | None = None
        self._until_s = float("-inf")

    def latest(self) -> Seen:
        """Return a reading that is fresh enough. Raises what `read` raises."""
        with self._lock:
            if self._clock_s() >= self._until_s:
                self._renew()
            if self._seen is None:
                assert self._error is not None, "there is a reading or an error"
                raise self._error
            return self._seen

    def forget(self) -> None:
        """Discard the cached state after a change, so that the next request reads it again."""
        with self._lock:
            self._until_s = float("-inf")

    def _renew(self) -> None:
        began_s, at_ms = self._clock_s(), self._wall_clock_ms()
        try:
            observed = self._read()
        except EngineError as error:
            self._seen, self._error, took_s = None, error, 0.0
        else:
            took_s = self._clock_s() - began_s
            self._seen, self._error = Seen(observed, at_ms, took_s), None
        self._until_s = self._clock_s() + max(FRESH_S, _MOST_SHARE * min(took_s, FRESH_S))
