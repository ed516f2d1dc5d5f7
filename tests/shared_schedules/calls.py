"""The requests of a worker: others may run before each, and some go wrong."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any, TypeVar

from logstore.broker.blocking import BlockingCalls
from logstore.broker.client import Client
from logstore.broker.errors import RequestUnanswered
from logstore.format.record import Record
from tests.turns import Turns

T = TypeVar("T")
PLANNED = "planned"


class Died(BaseException):
    """The process of a worker ended here, as by `kill -9`."""


class Stepped(BlockingCalls):
    """The calls of a worker: others may run before each request, which may fail, or be the last one."""

    def __init__(
        self, inner: BlockingCalls, turns: Turns, fate: Callable[[], str], idle: Callable[[], None]
    ) -> None:
        """`fate` is asked at each request: well, unsent, unanswered, died-before or died-after.

        `idle` is called instead of a wait for records.
        """
        self._inner, self._turns, self._fate, self._idle = inner, turns, fate, idle

    @property
    def _client(self) -> Client:
        return self._inner._client

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        with closing(work):
            self._turns.pass_on()
            fate = self._fate()
            if fate not in ("unsent", "died-before"):
                result = self._inner._wait(work)
                if fate == "well":
                    return result
        if fate.startswith("died"):
            raise Died
        raise RequestUnanswered(f"{PLANNED}: {fate}")

    def read(  # type: ignore[override]  # the only arguments in use
        self, topic: str, partition: int = 0, offset: int | None = None, *, wait: float = 0.5
    ) -> list[Record]:
        found = super().read(topic, partition, offset, wait=0)
        if wait and not found:
            self._idle()
        return found
