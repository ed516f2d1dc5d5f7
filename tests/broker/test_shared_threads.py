"""A `SharedQueue` object in several threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from logstore.broker import Broker, SharedQueue
from logstore.broker.errors import RequestFailed
from logstore.disk.files import wall_clock_ms

CALLS: list[Callable[[SharedQueue], object]] = [
    lambda queue: queue.put(b"job"),
    lambda queue: queue.put_many([b"job"]),
    lambda queue: queue.get(timeout=0),
    lambda queue: queue.get_many(1, timeout=0),
    lambda queue: queue.peek(),
    lambda queue: queue.redrive(),
    lambda queue: queue.stats(),
]


def test_a_call_during_another_one_is_refused() -> None:
    """Two threads of one process were given the same message, within its lease."""
    refusals: list[BaseException | None] = []

    def clock() -> int:
        if not refusals:  # in the first call
            refusals.append(None)
            refusals.extend(threads.submit(call, queue).exception() for call in CALLS)
        return wall_clock_ms()

    with (
        Broker() as broker,
        ThreadPoolExecutor(1) as threads,
        SharedQueue(broker, "jobs", clock=clock) as queue,
    ):
        queue.put(b"job")
        for refusal in refusals[1:]:
            with pytest.raises(RequestFailed, match="make one in each"):
                raise refusal or AssertionError("it was served")
        message = queue.get(timeout=0)  # and the queue goes on
        assert message is not None
        queue.ack(message)
    assert len(refusals) == 1 + len(CALLS)
