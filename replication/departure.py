"""A controlled shutdown, as the broker sees it: a limited number of ControlledShutdown requests.

    begin ──▶ ask the controller ──▶ no leadership left ──▶ over
                ▲        │ partitions remain, an error, no answer, no known controller
                └─ pause ┼─▶ last attempt used ──▶ over, and the broker stops anyway
                         └─▶ every other broker stops or is down ──▶ the same

Each attempt goes to the controller of that moment. If the connection to one breaks, the pause ends as soon as
another is known. Nothing here is persisted: a broker that dies meanwhile has simply died.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.effects import Send
from logstore.replication.messages import ControlledShutdownRequest, ControlledShutdownResponse


@dataclass(frozen=True, slots=True)
class _InFlight:
    controller_id: int
    correlation_id: int
    deadline_ms: int


class Departure:
    """One controlled shutdown, from its beginning until the broker may stop."""

    def __init__(self, config: NodeConfig, now_ms: int) -> None:
        self._config = config
        is_asking = config.controlled_shutdown_enable
        self._attempts_left = config.controlled_shutdown_max_retries if is_asking else 0
        self._in_flight: _InFlight | None = None
        self._not_before_ms = now_ms
        self._has_failed = False
        self._gone: int | None = None
        """The controller whose connection broke in the last attempt."""
        self.has_left = False
        """Whether the controller reported that this broker leads nothing that another broker could lead."""
        self.remaining: tuple[TopicPartition, ...] = ()
        """The partitions still led here, in the controller's last answer."""

    @property
    def is_over(self) -> bool:
        """Whether the broker may stop: the controller agreed, or all attempts were used."""
        return self.has_left or (self._in_flight is None and self._attempts_left == 0)

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the request expires or the next attempt is due; None once it is over."""
        if self._in_flight is not None:
            return self._in_flight.deadline_ms
        return None if self.is_over else self._not_before_ms

    def next_request(
        self,
        next_id: Callable[[], int],
        controller_id: int,
        broker_epoch: int,
        now_ms: int,
        *,
        others_stay: bool = True,
    ) -> Send | None:
        """Return the request that is due, if any.

        An attempt without a known controller, or without a registration, counts too. Unless `others_stay`,
        brokers that could lead after this one, a failed attempt is the last.
        """
        if self._in_flight is not None and self._in_flight.deadline_ms <= now_ms:
            self._failed(now_ms)
        if self._in_flight is None and self._has_failed and not others_stay and not self.is_over:
            mark("departure: no other broker stays")
            self._attempts_left = 0
        is_paused = now_ms < self._not_before_ms and self._gone in (None, controller_id)
        if self.is_over or self._in_flight is not None or is_paused:
            return None
        self._gone = None
        self._attempts_left -= 1
        if controller_id < 0 or broker_epoch < 0:
            mark("departure: nobody to ask")
            self._failed(now_ms)
            return None
        self._in_flight = _InFlight(controller_id, next_id(), now_ms + self._config.request_timeout_ms)
        body = ControlledShutdownRequest(self._config.node_id, broker_epoch)
        return Send(controller_id, self._in_flight.correlation_id, body)

    def owns(self, correlation_id: int) -> bool:
        """Whether the request in flight has this correlation id."""
        return self._in_flight is not None and self._in_flight.correlation_id == correlation_id

    def on_response(self, body: ControlledShutdownResponse, now_ms: int) -> None:
        """Take the controller's answer."""
        self.remaining = body.remaining
        if body.remaining:
            mark("departure: some partitions have nobody else")
        if body.error is ErrorCode.NONE and not body.remaining:
            self._in_flight = None
            self.has_left = True
        else:
            self._failed(now_ms)

    def on_disconnected(self, now_ms: int) -> None:
        """Count the attempt as failed. The request may have been served, and may be repeated."""
        mark("departure: a connection broke")
        self._gone = self._in_flight.controller_id if self._in_flight is not None else None
        self._failed(now_ms)

    def _failed(self, now_ms: int) -> None:
        self._in_flight, self._has_failed = None, True
        self._not_before_ms = now_ms + self._config.controlled_shutdown_retry_backoff_ms
        if self._attempts_left == 0:
            mark("departure: asked often enough, stops all the same")
