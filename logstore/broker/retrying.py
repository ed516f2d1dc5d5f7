"""Retries of a client: one attempt after the other until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.translation import error_of
from logstore.disk.errors import EngineError

T = TypeVar("T")

BACKOFF_S: Final = 0.05
NO_BROKER: Final = "no broker answers"


class TryAgain(Exception):
    """An attempt failed for a passing reason; `reason` is raised if no later attempt succeeds."""

    def __init__(self, reason: EngineError | None = None) -> None:
        super().__init__()
        self.reason = reason


@contextmanager
def or_again() -> Iterator[None]:
    """Raise `TryAgain` if a request in the block is not answered."""
    try:
        yield
    except RequestUnanswered as error:
        raise TryAgain(error) from error


def check_code(error_code: int, what: str) -> None:
    """Raise `TryAgain` for a retriable error code and `RequestRefused` for any other, except 0."""
    if error_code:
        refusal = RequestRefused(error_of(error_code), what)
        raise TryAgain(refusal) if refusal.is_passing else refusal


def left_s(deadline: float) -> float:
    """Return the seconds until a time of the running loop, 0.0 if it has passed."""
    return max(deadline - asyncio.get_running_loop().time(), 0.0)


async def retried(
    attempt: Callable[[], Coroutine[Any, Any, T]],
    unanswered: str,
    deadline: float,
    *,
    check: Callable[[], None],
    failed: Callable[[], None],
    pause_s: float = BACKOFF_S,
) -> T:
    """Return the result of the first attempt that succeeds before `deadline`, in the loop's time.

    `check` runs before each attempt and `failed` after each that raised `TryAgain`. Raises the reason of the
    last attempt that had one, else `RequestUnanswered` with the text `unanswered`. A refused login and a
    request that failed are not repeated.
    """
    last: EngineError = RequestUnanswered(unanswered)
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                check()
                try:
                    return await attempt()
                except TryAgain as again:
                    if isinstance(again.reason, RequestUnanswered) and not again.reason.retriable:
                        raise again.reason from None
                    last = again.reason or last
                failed()
                await asyncio.sleep(pause_s)
    except TimeoutError:
        pass
    check()
    raise last
