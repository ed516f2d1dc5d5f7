"""Several nodes in one process: carries their effects out, one message at a time, in order.

    nodes ──effects──▶ queue (first in, first out) ──events──▶ nodes
                         │ `intercept` may hold, drop or double any of them
    clock ── set by the caller, or jumping to the next deadline while the queue is empty
    store ── answers at once; its replies and watches go through the queue too

For a program that embeds its replicas, for transcripts of failure schedules, and for the demo. There are no
threads here and nothing blocks. With a virtual clock (`run_until`, `advance`) a test of minutes takes
milliseconds. With a real one the caller passes the time to `poll`, and sleeps until the deadline it returns.

A killed node is dropped as it is: its logs are not closed, its peers see broken connections, and its store
session lives on until its timeout. A power cut also drops from its disk what was not synced.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.manager import LogManager
from logstore.replication.carrying import Outlets, carry_out
from logstore.replication.config import NodeConfig
from logstore.replication.in_process import Envelope, Links, PendingReply, Slot, StoreLink
from logstore.replication.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchPartition,
    FetchRequest,
    NewTopic,
    ProduceRequest,
    RequestBody,
    ResponseBody,
)
from logstore.replication.metastore.memory import MemoryStore, MetadataStore
from logstore.replication.node import Node
from logstore.replication.opening_configs import config_reads, configs_in
from logstore.replication.state_change import Sink, unheard

LOG_DIR = "data"
_LONGEST_DEPARTURE_MS = 3_600_000
"""A bound for a node that is never ready to stop; attempts and pauses end long before."""


class PowerCut(Protocol):
    """A disk that can lose its power (`logstore/testing/disks/`) and returns what is left of it."""

    def power_cut(self, random: random_module.Random) -> Disk: ...


class InProcessCluster:
    """Nodes, their disks, one metadata store, one queue, one clock."""

    def __init__(
        self,
        configs: Iterable[NodeConfig],
        *,
        disk_of: Callable[[int], Disk],
        seed: int = 0,
        now_ms: int = 1_000_000_000_000,
        log_config: LogConfig | None = None,
        log_dirs_of: Callable[[int], tuple[str, ...]] = lambda node_id: (LOG_DIR,),
        store: MetadataStore | None = None,
        state_changes: Sink = unheard,
    ) -> None:
        """No node runs yet: see `start_node`. The cluster keeps the sessions of `store` alive.

        `state_changes` receives every decision about a partition, of all nodes in their order.
        """
        self.now_ms = now_ms
        self.intercept: Callable[[Envelope], bool] = lambda envelope: False
        """Called with each message as it is sent; True puts it aside into `held`."""
        self.halted: dict[int, str] = {}
        """Nodes that ended themselves because every log dir had failed, with the reason, until restarted."""
        self._slots = {
            config.node_id: Slot(config, disk_of(config.node_id), log_dirs_of(config.node_id))
            for config in configs
        }
        self._links = Links(self._slots, lambda envelope: bool(self.intercept(envelope)))
        self.queue, self.held = self._links.queue, self._links.held
        self.store: MetadataStore = store if store is not None else MemoryStore()
        self.store_link = StoreLink(self.store, self._links, lambda: self.now_ms)
        self._outlets: Outlets[Slot] = Outlets(
            send=self._links.send,
            respond=self._links.respond,
            reply=self._links.reply,
            call_store=self.store_link.call,
            open_session=self.store_link.open_session,
            close_session=self.store_link.close_session,
            sync=self._links.sync,
            halt=partial(_halt, self),
        )
        self._random = random_module.Random(seed)
        self._log_config = log_config if log_config is not None else LogConfig()
        self._state_changes = state_changes

    # --- nodes --------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The running nodes, by id."""
        return {node_id: slot.node for node_id, slot in self._slots.items() if slot.node is not None}

    def disk(self, node_id: int) -> Disk:
        """Return the node's disk; a power cut replaces it."""
        return self._slots[node_id].disk

    def replace_disk(self, node_id: int, disk: Disk) -> None:
        """Put another disk into the machine of a stopped node."""
        assert self._slots[node_id].node is None, f"node {node_id} is running"
        self._slots[node_id].disk = disk

    def start_node(self, node_id: int) -> Node:
        """Open the node's logs (with recovery if needed) and let it join."""
        slot = self._slots[node_id]
        assert slot.node is None, f"node {node_id} is running"
        reads = config_reads(slot.disk, slot.log_dirs)
        logs = LogManager(
            slot.log_dirs,
            disk=slot.disk,
            clock=lambda: self.now_ms,
            random=random_module.Random(self._random.getrandbits(64)),
            config=self._log_config,
            configs=configs_in(self.store_link.read(reads), self._log_config) if reads else None,
        )
        slot.life += 1
        self.halted.pop(node_id, None)
        slot.node = Node(
            slot.config,
            logs,
            random=random_module.Random(self._random.getrandbits(64)),
            log_config=self._log_config,
            state_changes=self._state_changes,
        )
        carry_out(slot.node.start(self.now_ms), slot, self._outlets)
        return slot.node

    def start(self) -> None:
        """Start every node that does not run."""
        for node_id, slot in self._slots.items():
            if slot.node is None:
                self.start_node(node_id)

    def kill_node(
        self, node_id: int, *, power_cut: random_module.Random | None = None, expire_session: bool = False
    ) -> None:
        """End a node's process, or with `power_cut` its machine: unsynced data may then be lost.

        `power_cut` draws what survives. With `expire_session` the session ends at once instead of after its
        timeout.
        """
        slot = self._slots[node_id]
        logs, session_id = slot.running.logs, slot.session_id
        outstanding = slot.end_life()
        if power_cut is not None:
            disk: PowerCut = slot.disk  # type: ignore[assignment]  # an AttributeError says so otherwise
            slot.disk = disk.power_cut(power_cut)
        logs.abandon()
        if expire_session and session_id is not None:
            self.store_link.close_session(slot, session_id)
        self._links.break_off(node_id, outstanding)

    def begin_shutdown(self, node_id: int) -> None:
        """Let a node ask the controller to move its leaderships; it runs on until `stop_node`.

        With a real clock: `poll` until `nodes[node_id].is_ready_to_stop`, then `stop_node`.
        """
        slot = self._slots[node_id]
        carry_out(slot.running.begin_shutdown(self.now_ms), slot, self._outlets)

    def stop_node(self, node_id: int, *, controlled: bool = False) -> None:
        """Stop a node in order: its roles end, its logs are closed, its session ends.

        The logs get the clean-shutdown marker if the node's start lost nothing, or the loss is recorded. With
        `controlled` its leaderships are moved first. That takes messages and, if the controller does not
        answer, virtual time; with a real clock use `begin_shutdown`.
        """
        slot = self._slots[node_id]
        node = slot.running
        if controlled:
            self.begin_shutdown(node_id)
            self.run_until(lambda: node.is_ready_to_stop, _LONGEST_DEPARTURE_MS)
        carry_out(node.stop(self.now_ms), slot, self._outlets)
        node.logs.close(mark_clean=node.is_clean)
        carry_out(node.leave(self.now_ms), slot, self._outlets)
        self._links.break_off(node_id, slot.end_life())

    def close(self) -> None:
        """Stop every node."""
        for node_id in list(self.nodes):
            self.stop_node(node_id)

    # --- the network --------------------------------------------------------------------------

    def isolate(self, node_id: int) -> None:
        """Cut a node off from all others and from the store; clients still reach it."""
        self._links.cuts.update(frozenset((node_id, other)) for other in self._slots if other != node_id)
        self.store_link.cut_off.add(node_id)

    def heal(self) -> None:
        """Repair every cut connection. Nodes whose session expired meanwhile learn it now."""
        self._links.cuts.clear()
        self.store_link.mend()

    def release(self, envelope: Envelope) -> None:
        """Put a held message back, at the end of the queue."""
        self.held.remove(envelope)
        self.queue.append(envelope)

    def release_all(self) -> None:
        """Put every held message back, in the order of sending."""
        self.queue.extend(self.held)
        self.held.clear()

    def deliver(self, envelope: Envelope) -> None:
        """Deliver one message to its target now, queued or held."""
        slot = self._links.arrive(envelope)
        if slot is not None:
            carry_out(slot.running.receive(envelope.event, self.now_ms), slot, self._outlets)

    # --- time ---------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """The time of the next timed action; None if there is none."""
        deadlines = [node.deadline_ms for node in self.nodes.values()]
        deadlines.append(self.store.deadline_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def step(self) -> bool:
        """Deliver the next message; False if there is none."""
        if not self.queue:
            return False
        self.deliver(self.queue.popleft())
        return True

    def settle(self, *, limit: int = 1_000_000) -> None:
        """Deliver everything, while the clock stands still."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(
            f"{limit} messages delivered, and more queued: two nodes answer each other endlessly"
        )

    def poll(self, now_ms: int) -> int | None:
        """Bring the cluster up to `now_ms`; returns when to call it again (None: no need)."""
        _set_clock(self, now_ms)
        self.settle()
        return self.deadline_ms

    def run_until(self, predicate: Callable[[], bool], limit_ms: int = 60_000) -> bool:
        """Run until `predicate` is true; False if it is not within `limit_ms` of virtual time."""
        end_ms = self.now_ms + limit_ms
        while not predicate():
            if self.step():
                continue
            deadline_ms = self.deadline_ms
            if self.now_ms >= end_ms:
                return False
            # A deadline in the past was ticked already: try again in the next millisecond.
            following_ms = end_ms if deadline_ms is None else max(deadline_ms, self.now_ms + 1)
            _set_clock(self, min(following_ms, end_ms))
        return True

    def advance(self, duration_ms: int) -> None:
        """Let time pass, with everything that falls due."""
        self.run_until(lambda: False, duration_ms)
        self.settle()

    # --- clients ------------------------------------------------------------------------------

    def client(self, request: RequestBody, node_id: int) -> PendingReply:
        """Send a client's request to a node; the reply fills in as the cluster runs."""
        return self._links.ask(node_id, request)

    def call(self, request: RequestBody, node_id: int, *, limit_ms: int = 60_000) -> ResponseBody | None:
        """Send a client's request and run until it is answered; None if it is not."""
        reply = self.client(request, node_id)
        self.run_until(lambda: reply.is_done, limit_ms)
        return reply.body

    def produce(
        self, topic_partition: TopicPartition, records: bytes, *, acks: int = -1, timeout_ms: int = 30_000
    ) -> PendingReply:
        """Send a ready batch to the leader, or to any node (which refuses it) if there is none."""
        request = ProduceRequest({topic_partition: records}, acks, timeout_ms)
        return self.client(request, _leader_or_any(self, topic_partition))

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        node_id: int | None = None,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 0,
    ) -> PendingReply:
        """Read as a consumer, from `node_id` or the leader."""
        wanted = FetchPartition(offset, max_bytes)
        request = FetchRequest(-1, max_wait_ms, 1, max_bytes, {topic_partition: wanted})
        return self.client(request, _leader_or_any(self, topic_partition) if node_id is None else node_id)

    def create_topic(self, topic: NewTopic, *, timeout_ms: int = 60_000) -> CreateTopicsResponse:
        """Create a topic and wait until each of its partitions has a leader.

        Listed nodes that have just been started are waited for. Raises `TimeoutError` if that takes longer
        than `timeout_ms`, `ValueError` if the topic is refused.
        """
        listed = {node_id for replicas in topic.assignment for node_id in replicas} & self.nodes.keys()
        self.run_until(lambda: listed <= self._registered(), timeout_ms)
        body = self.administer(CreateTopicsRequest((topic,)), timeout_ms=timeout_ms)
        if not isinstance(body, CreateTopicsResponse):
            raise TimeoutError(f"create topic {topic.name}: no answer from the controller in {timeout_ms} ms")
        result = body.topics[topic.name]
        if result.error:
            raise ValueError(f"create topic {topic.name}: {result.error.name} {result.message}")
        count = len(topic.assignment) or topic.partitions
        partitions = [TopicPartition(topic.name, number) for number in range(count)]
        if not self.run_until(
            lambda: all(self.leader_of(known) is not None for known in partitions), timeout_ms
        ):
            raise TimeoutError(f"topic {topic.name} has partitions without a leader after {timeout_ms} ms")
        return body

    def _registered(self) -> set[int]:
        """Return the nodes that the controller knows."""
        contexts = (node.controller.context for node in self.nodes.values() if node.controller.is_active)
        return {broker for context in contexts if context is not None for broker in context.brokers}

    def reassign(
        self, topic_partition: TopicPartition, replicas: tuple[int, ...] | None, *, timeout_ms: int = 60_000
    ) -> None:
        """Move a partition to these nodes, preferred leader first, and wait for the end.

        None cancels the reassignment under way. Raises `TimeoutError` if it takes longer than `timeout_ms`
        (it continues), `ValueError` if it is refused.
        """
        asked = AlterPartitionReassignmentsRequest({topic_partition: replicas})
        body = self.administer(asked, timeout_ms=timeout_ms)
        if not isinstance(body, AlterPartitionReassignmentsResponse):
            raise TimeoutError(
                f"reassign {topic_partition}: no answer from the controller in {timeout_ms} ms"
            )
        result = body.partitions[topic_partition]
        if result.error:
            raise ValueError(f"reassign {topic_partition}: {result.error.name} {result.message}")

        def is_there() -> bool:
            contexts = [node.controller.context for node in self.nodes.values()]
            return any(context and not context.is_reassigning(topic_partition) for context in contexts)

        if not self.run_until(is_there, timeout_ms):
            raise TimeoutError(f"{topic_partition} has not reached {replicas} after {timeout_ms} ms")

    def administer(self, request: RequestBody, *, timeout_ms: int = 60_000) -> ResponseBody | None:
        """Send the controller a request, once there is one; None without an answer. Raises `TimeoutError`."""

        def controllers() -> list[int]:
            return [node_id for node_id, node in self.nodes.items() if node.controller.is_active]

        if not self.run_until(lambda: bool(controllers()), timeout_ms):
            raise TimeoutError(f"no controller was elected in {timeout_ms} ms")
        return self.call(request, controllers()[0], limit_ms=timeout_ms)

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """Return the leader in the newest epoch that a running node acts in; None without a leader."""
        known = {
            node_id: node.replicas.partitions.get(topic_partition) for node_id, node in self.nodes.items()
        }
        leaders = {
            node_id: partition.leader_epoch
            for node_id, partition in known.items()
            if partition is not None and partition.is_leader
        }
        return max(leaders, key=lambda node_id: leaders[node_id], default=None)

    def describe(self, topic_partition: TopicPartition) -> list[str]:
        """Return each running replica in the notation of the schedules: `1 = 0 0 1 | hw 3`."""
        return [
            str(node.replicas.partitions[topic_partition])
            for node in self.nodes.values()
            if topic_partition in node.replicas.partitions
        ]


def _set_clock(cluster: InProcessCluster, now_ms: int) -> None:
    assert now_ms >= cluster.now_ms, "the clock of a cluster does not go back"
    cluster.now_ms = now_ms
    cluster.store_link.tick()
    for node_id, node in cluster.nodes.items():
        deadline_ms = node.deadline_ms
        if deadline_ms is not None and deadline_ms <= now_ms:
            carry_out(node.tick(now_ms), cluster._slots[node_id], cluster._outlets)


def _halt(cluster: InProcessCluster, slot: Slot, reason: str) -> None:
    cluster.halted[slot.node_id] = reason
    cluster.kill_node(slot.node_id)


def _leader_or_any(cluster: InProcessCluster, topic_partition: TopicPartition) -> int:
    leader = cluster.leader_of(topic_partition)
    return next(iter(cluster.nodes), next(iter(cluster._slots))) if leader is None else leader


def three_nodes(*, base: NodeConfig | None = None) -> list[NodeConfig]:
    """Return configurations of nodes 0, 1 and 2, otherwise like `base`."""
    base = base if base is not None else NodeConfig(node_id=0)
    return [replace(base, node_id=node_id) for node_id in range(3)]
