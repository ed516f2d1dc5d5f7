"""Partitions that were made: answered for when this broker sees who leads them.

The controller has recorded them before, and they stay whatever becomes of the client. One that nobody leads
yet when the time is over is not refused: it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from logstore.broker.call import Call
from logstore.broker.services import Services
from logstore.broker.wire.declarations import Struct
from logstore.disk.topic_partition import TopicPartition

Answer = TypeVar("Answer", bound=Struct)

_LOOK_AGAIN_MS: Final = 10
_PATIENCE_MS: Final = 2_000
"""The longest wait, whatever the client allows: nobody leads what was put on brokers that are down, and a
request that another broker has handed on holds up those behind it."""


def when_led(
    call: Call,
    services: Services,
    partitions: Mapping[str, int],
    timeout_ms: int,
    answer: Callable[[], Answer | None],
) -> Answer | None:
    """`answer()` when all `partitions` (how many, by topic) have a leader here, or the time is over."""
    return _look(call, services, partitions, services.now_ms() + min(timeout_ms, _PATIENCE_MS), answer)


def _look(
    call: Call,
    services: Services,
    partitions: Mapping[str, int],
    ends_ms: int,
    answer: Callable[[], Answer | None],
) -> Answer | None:
    metadata = services.metadata
    are_led = all(
        metadata.is_alive(metadata.leader_of(TopicPartition(topic, number)))
        for topic, count in partitions.items()
        for number in range(count)
    )
    if are_led or services.now_ms() >= ends_ms:
        return answer()
    services.later(call, _LOOK_AGAIN_MS, partial(_look, call, services, partitions, ends_ms, answer))
    return None
