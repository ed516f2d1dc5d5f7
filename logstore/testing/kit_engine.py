"""The engine behind the calls of a simulated cluster: virtual time, and the controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.messages import ResponseBody
from logstore.testing.checkers import PartitionChecker
from logstore.testing.hosts import Host
from logstore.testing.kit_account import CallRecord
from logstore.testing.stored import Violation
from logstore.testing.timeline import Timeline
from logstore.testing.world import World

_LAST = 2.0
"""Orders an event behind all others of its millisecond: their ties are drawn below 1."""
_MOST_STEPS = 200_000


class VirtualTime:
    """Let virtual time pass, event by event, while no other call does."""

    def __init__(self, time: Timeline, calls: CallRecord) -> None:
        self.is_running = False
        self._time = time
        self._calls = calls

    def run(self, predicate: Callable[[], object], limit_ms: int) -> bool:
        """Process events until `predicate` holds (True) or `limit_ms` have passed (False)."""
        if self.is_running:
            raise RuntimeError("no call can wait inside a callback: time is passing already")
        time, is_over = self._time, False

        def end() -> None:
            nonlocal is_over
            time.was_nothing()
            is_over = True

        time.push(time.now_ms + limit_ms, _LAST, end, ())
        steps, moved_ms = 0, time.now_ms
        self.is_running = True
        try:
            while not predicate():
                if is_over:
                    return False
                with self._calls.explained():
                    time.step()
                    steps = steps + 1 if time.now_ms == moved_ms else 0
                    moved_ms = time.now_ms
                    if steps > _MOST_STEPS:
                        raise Violation("C17", f"{steps} events in one millisecond: a node never rests")
        finally:
            self.is_running = False
        return True


def checker_of(world: World, topic: str, partition: int) -> PartitionChecker:
    """Return the checker of a partition. Raises `ValueError` if there is no such partition."""
    checker = world.checkers.get(TopicPartition(topic, partition))
    if checker is None:
        raise ValueError(f"no partition {topic}-{partition}")
    return checker


def host_of(world: World, node: int) -> Host:
    """Return the machine of a node. Raises `ValueError` if there is no such node."""
    if node not in world.hosts:
        raise ValueError(f"no node {node}; the nodes are {list(world.hosts)}")
    return world.hosts[node]


def running_host(world: World, node: int) -> Host:
    """Return the machine of a node. Raises `ValueError` if there is none or the node is down."""
    host = host_of(world, node)
    if host.node is None:
        raise ValueError(f"node {node} is down")
    return host


def controller_of(world: World) -> int | None:
    """Return the active controller that knows every registered node; None if there is none."""
    registered = sum(host.broker_epoch >= 0 for host in world.running)
    for host in world.running:
        assert host.node is not None
        known = host.node.controller.context
        if host.node.controller.is_active and known is not None and len(known.brokers) >= registered > 0:
            return host.node_id
    return None


def is_from_no_controller(answer: ResponseBody) -> bool:
    """Whether the answer came from a node that is not the controller, or no longer."""
    items: Mapping[Any, Any] = getattr(answer, "topics", {})
    errors = [getattr(answer, "error", ErrorCode.NONE), *(result.error for result in items.values())]
    return ErrorCode.NOT_CONTROLLER in errors
