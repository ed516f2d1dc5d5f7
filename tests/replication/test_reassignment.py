"""Reassignment with real nodes: after any crash the partition arrives, and no stray log remains.

The schedules R1 to R15: one partition goes from nodes 1 2 3 to 4 5 6 while node 9 is the controller. After
every message the rules are checked against the store and all nodes:

I5    whoever is in the ISR and runs holds every acknowledged record
I11   the ISR lies inside the stored list, the leader inside the ISR
I16   the stored list holds the original replicas until the target is in sync; a log is gone only from nodes
      that list, leadership and ISR exclude
      no node has a log that the store does not know of: it is in the list, or noted as leaving
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import Envelope, InProcessCluster, NodeConfig
from logstore.replication.controller.assignment import Assignment, assignment_in
from logstore.replication.effects import Request, Response, WatchFired
from logstore.replication.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    FetchRequest,
    NewTopic,
    ProduceResponse,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.metastore.memory import MemoryStore
from logstore.replication.metastore.operations import Create, Delete, Get, Operation, Outcome, StoreError
from logstore.testing.stage import batch

TP = TopicPartition("t", 0)
ORIGIN: tuple[int, ...] = (1, 2, 3)
TARGET: tuple[int, ...] = (4, 5, 6)
CONTROLLER = 9
NODES = range(1, 10)
BASE = NodeConfig(
    node_id=0,
    zookeeper_session_timeout_ms=6000,
    replica_lag_time_max_ms=6000,
    request_timeout_ms=5000,
    replica_fetch_backoff_ms=200,
)
TOPIC_PATH, STATE_PATH = layout.topic_path("t"), layout.partition_state_path(TP)


class Store(MemoryStore):
    """A store that counts one session's calls, and stops answering it at one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.admin = self.open_session(10**15, 0)
        self.watched: int | None = None
        self.calls: list[Operation] = []
        """of the watched session, applied or not"""
        self.fails_at = -1
        self.is_applied = self.is_fatal = False
        self.has_failed = False
        self.on_call: Callable[[int, Operation], None] = lambda number, operation: None

    def call(self, session_id: int, operation: Operation, now_ms: int) -> tuple[Outcome, list[WatchFired]]:
        if session_id != self.watched:
            return super().call(session_id, operation, now_ms)
        number = len(self.calls)
        self.on_call(number, operation)
        self.calls.append(operation)
        if self.has_failed and self.is_fatal:
            return Outcome(StoreError.CONNECTION_LOSS), []  # the process is dead already
        if number != self.fails_at:
            return super().call(session_id, operation, now_ms)
        self.has_failed = True
        fired: list[WatchFired] = []
        if self.is_applied:
            _, fired = super().call(session_id, operation, now_ms)
        return Outcome(StoreError.CONNECTION_LOSS), fired

    def peek(self, path: str) -> Outcome:
        return super().call(self.admin, Get(path), 0)[0]


class Scene:
    """Nodes 1 to 9, the partition on 1 2 3 (or `origin`) with three records, the controller on 9."""

    def __init__(self, origin: tuple[int, ...] = ORIGIN) -> None:
        self.store = Store()
        self.cluster = InProcessCluster(
            [replace(BASE, node_id=node_id) for node_id in NODES],
            disk_of=lambda node_id: MemoryDisk(),
            log_config=LogConfig(min_insync_replicas=2, retention_ms=-1),
            store=self.store,
        )
        self.cluster.start_node(CONTROLLER)
        self.cluster.settle()
        self.cluster.start()
        self.cluster.create_topic(NewTopic("t", assignment=(origin,)))
        self.target, self.origin = TARGET, origin
        self.acked: list[bytes] = []
        self.has_arrived = False
        self._seen: object = None
        for value in (b"a", b"b", b"c"):
            self.write(value)
        self.run(lambda: self.state.isr == origin)
        self.store.watched = self.session_of(CONTROLLER)
        self.store.calls.clear()

    # --- what the store says ------------------------------------------------------------------

    @property
    def assignment(self) -> Assignment:
        return assignment_in(layout.parse_topic(self.store.peek(TOPIC_PATH).data), 0)

    @property
    def state(self) -> LeaderAndIsr:
        return layout.parse_state(self.store.peek(STATE_PATH).data)

    @property
    def has_request(self) -> bool:
        return self.store.peek(layout.REASSIGNMENT_PATH).stat is not None

    def session_of(self, node_id: int) -> int | None:
        return self.cluster.nodes[node_id].session_id

    def put(self, operation: Operation) -> None:
        """An operator, or another controller, writes."""
        outcome, fired = self.store.call(self.store.admin, operation, self.cluster.now_ms)
        assert outcome.error is None
        self.cluster.store_link.fire(fired)

    def request(self, target: tuple[int, ...] = TARGET) -> None:
        """An operator writes the request node, which outlives any controller."""
        self.target = target
        data = layout.encode_reassignment({TP: target})
        self.put(Create(layout.REASSIGNMENT_PATH, data, make_parents=True))

    def ask(self, target: tuple[int, ...] | None) -> None:
        """Ask the controller, as a client, until it reports that the reassignment has begun."""
        self.target = self.origin if target is None else target
        self.has_arrived = False
        error = ErrorCode.NOT_CONTROLLER
        for _ in range(10):
            self.run(lambda: self.active is not None)
            assert self.active is not None
            reply = self.cluster.client(AlterPartitionReassignmentsRequest({TP: target}), self.active)
            self.run(lambda reply=reply: reply.is_done)  # type: ignore[misc]
            if isinstance(reply.body, AlterPartitionReassignmentsResponse):
                error = reply.body.partitions[TP].error
                if error is not ErrorCode.NOT_CONTROLLER:
                    break
        # Called off by a controller that died before it could say so: the next one finds nothing to call off.
        assert error is ErrorCode.NONE or (target is None and error is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)

    @property
    def active(self) -> int | None:
        found = [key for key, node in self.cluster.nodes.items() if node.controller.is_active]
        return found[0] if found else None

    # --- running ------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], limit_ms: int = 60_000) -> None:
        """Run until it holds, with checks after every message and a crash of the controller."""

        def holds() -> bool:
            if self.store.has_failed and self.store.is_fatal and CONTROLLER in self.cluster.nodes:
                self.crash_controller()
            self.check()
            return until()

        assert self.cluster.run_until(holds, limit_ms), f"{self.assignment} {self.state}"

    def crash_controller(self, *, lose_messages: bool = False) -> None:
        self.cluster.kill_node(CONTROLLER, expire_session=True)
        if lose_messages:
            kept = [each for each in self.cluster.queue if each.source != CONTROLLER]
            self.cluster.queue.clear()
            self.cluster.queue.extend(kept)

    def write(self, value: bytes) -> None:
        """Write with acks=all, as a client, until it is acknowledged."""
        for _ in range(100):
            reply = self.cluster.produce(TP, batch(value), timeout_ms=2000)
            self.run(lambda reply=reply: reply.is_done)  # type: ignore[misc]
            body = reply.body
            if isinstance(body, ProduceResponse) and body.partitions[TP].error is ErrorCode.NONE:
                self.acked.append(value)
                return
            self.cluster.advance(100)
        raise AssertionError(f"{value!r} was never acknowledged")

    def hold(self, *node_ids: int) -> None:
        """Hold the fetches of these nodes: they do not catch up."""
        self.cluster.intercept = lambda envelope: (
            isinstance(envelope.event, Request)
            and isinstance(envelope.event.body, FetchRequest)
            and envelope.source in node_ids
        )

    def release(self) -> None:
        self.cluster.intercept = lambda envelope: False
        self.cluster.release_all()

    # --- the rules ----------------------------------------------------------------------------

    def values(self, node_id: int) -> list[bytes | None]:
        log = self.cluster.nodes[node_id].logs.get(TP)
        return [record.value for record in log.read()] if log is not None else []

    def has_log(self, node_id: int) -> bool:
        node = self.cluster.nodes.get(node_id)
        if node is not None:
            return node.logs.get(TP) is not None
        return any(entry.name == "t-0" for entry in self.cluster.disk(node_id).scan("data"))

    def check(self) -> None:
        logs = [node_id for node_id in NODES if self.has_log(node_id)]
        seen = self.store.peek(TOPIC_PATH), self.store.peek(STATE_PATH), logs, list(self.cluster.nodes)
        if self.store.peek(STATE_PATH).stat is None or seen == self._seen:
            return
        self._seen = seen
        assignment, state = self.assignment, self.state
        replicas, isr = set(assignment.replicas), set(state.isr)
        assert isr <= replicas, f"I11: ISR {state.isr} outside the list {assignment}"
        assert state.leader in (-1, *state.isr), "I11"
        self.has_arrived |= set(self.target) <= isr
        if not self.has_arrived:
            assert replicas >= set(self.origin), f"I16: {assignment} forgets the original replicas"
        if assignment.is_reassigning:
            assert set(assignment.origin) == set(self.origin)
        assert set(logs) <= {*replicas, *assignment.leaving}, f"stray logs: {logs}, {assignment}"
        for node_id in sorted(isr & self.cluster.nodes.keys()):
            held = self.values(node_id)
            assert [each for each in self.acked if each not in held] == [], f"I5: {node_id} of the ISR lacks"

    def is_over(self) -> bool:
        return (
            self.assignment == Assignment(self.target)
            and set(self.state.isr) == set(self.target)
            and self.state.leader in self.target
            and not self.has_request
            and all(self.has_log(node_id) == (node_id in self.target) for node_id in NODES)
        )

    def finish(self) -> None:
        """Run to the end that every row has."""
        self.run(self.is_over)
        assert self.assignment.replicas == self.target  # in order
        self.write(b"last")

        def is_everywhere() -> bool:
            first, *others = map(self.values, self.target)
            return set(self.acked) <= set(first) and all(other == first for other in others)

        self.run(is_everywhere)

        def is_known() -> bool:
            caches = [node.replicas.metadata.partitions[TP] for node in self.cluster.nodes.values()]
            return all((each.leader, each.replicas) == (self.state.leader, self.target) for each in caches)

        self.run(is_known)
        self.cluster.advance(7_000)
        self.check()
        assert self.is_over()
        for node in self.cluster.nodes.values():
            assert (TP in node.replicas.partitions) == (node.node_id in self.target)
        self.origin = self.target

    # --- how far it is ------------------------------------------------------------------------

    def is_begun(self) -> bool:
        return self.assignment.is_reassigning

    def is_ended(self) -> bool:
        return self.assignment.target == self.target and not self.assignment.is_reassigning

    def all_host(self) -> bool:
        return all(TP in self.cluster.nodes[node_id].replicas.partitions for node_id in TARGET)


def is_sent(envelope: Envelope, kind: type) -> bool:
    return isinstance(envelope.event, Request | Response) and isinstance(envelope.event.body, kind)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_request_goes_with_the_topic_that_somebody_removes(has_begun: bool) -> None:
    """It stayed in the store for good: nothing ended a reassignment of nothing (seed 4459)."""
    scene = Scene()
    scene.hold(*TARGET)
    scene.request()
    if has_begun:
        scene.run(scene.is_begun)
    for path in (STATE_PATH, f"{TOPIC_PATH}/partitions/0", f"{TOPIC_PATH}/partitions", TOPIC_PATH):
        scene.put(Delete(path))
    scene.release()
    assert scene.cluster.run_until(lambda: not scene.has_request)
