"""The requests of a worker: others may run before each, and some go wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any, TypeVar

from logstore.broker.blocking import BlockingCalls
from logstore.broker.client import Client
from logstore.broker.errors import RequestUnanswered
from logstore.format.record import Record
from logstore.testing import VolatileBroker
from tests.turns import Turns

T = TypeVar("T")
PLANNED = "planned"


class Died(BaseException):
    """The process of a worker ended here, as by `kill -9` or a power cut."""


class Clock:
    """The time of all processes, which stands still except where the schedule moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class World:
    """The broker, which may be killed or lose power with all workers, the clock, and the workers' turns."""

    turns: Turns

    def __init__(self, clock: Clock, machine: VolatileBroker, page_bytes: int) -> None:
        """A read returns about `page_bytes`."""
        self.clock, self.machine, self.page_bytes = clock, machine, page_bytes
        self.starts = self.cuts = 0
        self.appends = Counter[str]()
        self._alarms: dict[object, int] = {}

    def restart(self, *, is_cut: bool) -> None:
        """Kill the broker, or cut the power of everything."""
        self.starts += 1
        self.cuts += is_cut
        (self.machine.power_cut if is_cut else self.machine.kill)()

    def wait(self, until_ms: int, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let others go on until a time, which comes when all of them wait, or until `is_over()`."""
        clock, alarm = self.clock, object()
        self._alarms[alarm] = until_ms
        try:
            while clock.now_ms < until_ms and not is_over():
                self.turns.wait_until(lambda: clock.now_ms >= until_ms or is_over(), may_end=True)
                if self.turns.has_ended():
                    clock.now_ms = max(clock.now_ms, min(self._alarms.values()))
        finally:
            del self._alarms[alarm]


class Stepped(BlockingCalls):
    """The calls of a worker: others may run before each request, which may fail, or be the last one."""

    def __init__(self, world: World, fate: Callable[[], str]) -> None:
        """`fate` is asked at each request: well, unsent, unanswered, died-before or died-after."""
        self._world, self._fate, self._cuts = world, fate, world.cuts

    @property
    def _client(self) -> Client:
        return self._world.machine.broker._client

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        world = self._world
        starts = world.starts
        with closing(work):
            world.turns.pass_on()
            fate = self._fate()
            if self._cuts < world.cuts:
                raise Died
            if starts < world.starts:
                fate = "unsent"
            if fate not in ("unsent", "died-before"):
                result = world.machine.broker._wait(work)
                if fate == "well":
                    return result
        if fate.startswith("died"):
            raise Died
        raise RequestUnanswered(f"{PLANNED}: {fate}")

    def append(self, topic: str, *records: Any, **settings: Any) -> Any:
        try:
            return super().append(topic, *records, **settings)
        finally:
            self._world.appends[topic] += 1

    def read(  # type: ignore[override]  # the only arguments in use
        self, topic: str, partition: int = 0, offset: int | None = None, *, wait: float = 0.5
    ) -> list[Record]:
        world = self._world
        until_ms = world.clock.now_ms + math.ceil(wait * 1000)
        while True:
            seen = world.appends[topic]
            found = super().read(topic, partition, offset, max_bytes=world.page_bytes, wait=0)
            if found or world.clock.now_ms >= until_ms:
                return found
            world.wait(until_ms, lambda: world.appends[topic] != seen)  # noqa: B023
