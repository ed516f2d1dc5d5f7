"""How a broker asks to be let go: ControlledShutdown to the controller, a few times at most.

    begin ──▶ ask the controller ──▶ nothing remains ──▶ over
                ▲        │ partitions remain, an error, no answer, no controller to ask
                └─ pause ┴─▶ that was the last attempt ──▶ over, and it stops all the same

Each attempt asks whoever is the controller by then. Nothing here is written down: a broker that dies on the
way is one that died.
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
    correlation_id: int
    deadline_ms: int


class Departure:
    """One broker's leave-taking, from the wish to stop to the moment when it may."""

    def __init__(self, config: NodeConfig, now_ms: int) -> None:
        self._config = config
        is_asking = config.controlled_shutdown_enable
        self._attempts_left = config.controlled_shutdown_max_retries if is_asking else 0
        self._in_flight: _InFlight | None = None
        self._not_before_ms = now_ms
        self.has_left = False
        """Whether the controller said that nothing is led here any more (of what others could lead)."""
        self.remaining: tuple[TopicPartition, ...] = ()
        """What was still led here when the controller last answered."""

    @property
    def is_over(self) -> bool:
        """Whether the broker may stop: it was let go, or has asked often enough."""
        return self.has_left or (self._in_flight is None and self._attempts_left == 0)

    @property
    def deadline_ms(self) -> int | None:
        if self._in_flight is not None:
            return self._in_flight.deadline_ms
        return None if self.is_over else self._not_before_ms

    def next_request(
        self, next_id: Callable[[], int], controller_id: int, broker_epoch: int, now_ms: int
    ) -> Send | None:
        """The request that is due, if any. An attempt with nobody to ask, or unregistered, counts too."""
        if self._in_flight is not None and self._in_flight.deadline_ms <= now_ms:
            self._failed(now_ms)
        if self.is_over or self._in_flight is not None or now_ms < self._not_before_ms:
            return None
        self._attempts_left -= 1
        if controller_id < 0 or broker_epoch < 0:
            mark("departure: nobody to ask")
            self._failed(now_ms)
            return None
        self._in_flight = _InFlight(next_id(), now_ms + self._config.request_timeout_ms)
        body = ControlledShutdownRequest(self._config.node_id, broker_epoch)
        return Send(controller_id, self._in_flight.correlation_id, body)

    def owns(self, correlation_id: int) -> bool:
        return self._in_flight is not None and self._in_flight.correlation_id == correlation_id

    def on_response(self, body: ControlledShutdownResponse, now_ms: int) -> None:
        """The controller's answer to what is in flight."""
        self.remaining = body.remaining
        if body.remaining:
            mark("departure: some partitions have nobody else")
        if body.error is ErrorCode.NONE and not body.remaining:
            self._in_flight = None
            self.has_left = True
        else:
            self._failed(now_ms)

    def on_disconnected(self, now_ms: int) -> None:
        """No answer will come; the request may have been served, and is harmless twice."""
        mark("departure: a connection broke")
        self._failed(now_ms)

    def _failed(self, now_ms: int) -> None:
        self._in_flight = None
        self._not_before_ms = now_ms + self._config.controlled_shutdown_retry_backoff_ms
        if self._attempts_left == 0:
            mark("departure: asked often enough, stops all the same")
