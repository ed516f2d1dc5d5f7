"""Nodes that run as they do in a process of their own, all in one event loop, around one store in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from logstore.broker.broker import Assembly
from logstore.broker.client import Client
from logstore.broker.groups.config import GroupConfig
from logstore.broker.limits import Address, Limits
from logstore.broker.runtime import Runtime
from logstore.broker.settings import Settings
from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.manager_config import LogManagerConfig
from logstore.replication.config import NodeConfig
from logstore.replication.effects import (
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    StoreReply,
    WatchFired,
)
from logstore.replication.messages import CreateTopicsRequest, CreateTopicsResponse, NewTopic
from logstore.replication.metastore.memory import MemoryStore
from logstore.replication.metastore.operations import Outcome, StoreError

LOOPBACK = Address("127.0.0.1", 0)


class ManualClock:
    """Real time, and what a test adds to it: a pause is a jump."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.jumped_ms = 0

    def __call__(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1000) + self.jumped_ms


class SharedStore:
    """One store for all; sessions end when a test says so. `is_up` False: calls wait for its return."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.ends: dict[int, StoreEnd] = {}
        self.is_up = True
        self._waiting: list[tuple[StoreEnd, StoreCall]] = []

    def client(self, on_event: Callable[[StoreEvent], None]) -> StoreEnd:
        return StoreEnd(self, on_event)

    def call(self, end: StoreEnd, call: StoreCall) -> None:
        if not self.is_up:
            self._waiting.append((end, call))
            return
        outcome, fired = self.store.call(call.session_id, call.operation, 0)
        self.fire(fired)
        end.on_event(StoreReply(call.call_id, outcome))

    def return_(self) -> None:
        self.is_up = True
        waiting, self._waiting = self._waiting, []
        for end, call in waiting:
            self.call(end, call)

    def fire(self, watches: list[WatchFired]) -> None:
        for watch in watches:
            if watch.session_id in self.ends:
                self.ends[watch.session_id].on_event(watch)

    def end(self, session_id: int) -> StoreEnd | None:
        """End a session; its owner is not told."""
        self.fire(self.store.close_session(session_id))
        return self.ends.pop(session_id, None)

    def expire(self, session_id: int) -> None:
        """End a session and tell its owner."""
        owner = self.end(session_id)
        assert owner is not None
        owner.on_event(SessionExpired(session_id))


class StoreEnd:
    """One node's client of the store."""

    name = "of a test"

    def __init__(self, shared: SharedStore, on_event: Callable[[StoreEvent], None]) -> None:
        self._shared, self.on_event = shared, on_event
        self.lose_replies = 0

    def open_session(self, timeout_ms: int) -> None:
        session_id = self._shared.store.open_session(timeout_ms, 0)
        self._shared.ends[session_id] = self
        self.on_event(SessionOpened(session_id))

    def submit(self, call: StoreCall) -> None:
        if self.lose_replies:
            self.lose_replies -= 1
            self.on_event(StoreReply(call.call_id, Outcome(StoreError.CONNECTION_LOSS)))
        else:
            self._shared.call(self, call)

    def close_session(self, session_id: int) -> None:
        self._shared.end(session_id)

    def close(self) -> None:
        for session_id in [each for each, end in self._shared.ends.items() if end is self]:
            self._shared.end(session_id)


class Nodes:
    """A cluster of them; leave it with `async with`."""

    def __init__(
        self,
        count: int = 3,
        *,
        base: NodeConfig | None = None,
        limits: Limits | None = None,
        groups: GroupConfig | None = None,
    ) -> None:
        quick = replace(
            base or NodeConfig(node_id=0),
            replica_fetch_wait_max_ms=100,
            replica_fetch_backoff_ms=20,
            registration_retry_ms=20,
            controlled_shutdown_retry_backoff_ms=20,
        )
        self.configs = [replace(quick, node_id=node_id) for node_id in range(count)]
        self.limits = limits or Limits(request_timeout_ms=5_000)
        self.shared = SharedStore()
        self.brokers: dict[int, Assembly] = {}
        self.running: dict[int, Runtime] = {}
        self.clocks: dict[int, ManualClock] = {}
        self.disks: dict[int, Disk] = {node_id: MemoryDisk() for node_id in range(count)}
        self.log_dirs = ["data"]
        self.boot_id = ""
        """Of the machine that all of them run on."""
        self.addresses: dict[int, Address] = {}
        self.client = Client([])
        self.groups = groups or GroupConfig(
            offsets_topic_num_partitions=4,
            offsets_topic_replication_factor=min(3, count),
            group_initial_rebalance_delay_ms=0,
            offsets_commit_timeout_ms=1_000,
        )
        self.log_config = LogConfig(min_insync_replicas=min(2, count))

    async def __aenter__(self) -> Nodes:
        for config in self.configs:
            await self.start(config.node_id)
        self.client = Client(list(self.addresses.values()), limits=self.limits, timeout_s=20)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.client.close()
        for node_id in list(self.running):
            # An orderly end may wait for what the failed test has taken away.
            await (self.stop(node_id) if kind is None else self.kill(node_id))

    async def start(self, node_id: int) -> Runtime:
        """Start a node, and wait until it is registered."""
        clock = self.clocks[node_id] = ManualClock()
        settings = Settings(
            self.configs[node_id],
            LogManagerConfig(topic_defaults=self.log_config),
            self.limits,
            groups=self.groups,
        )
        broker = await Assembly.open(
            settings,
            LOOPBACK,
            self.log_dirs,
            self.shared.client,
            disk=self.disks[node_id],
            clock=clock,
            random=random.Random(node_id),
            boot_id=self.boot_id,
        )
        self.addresses[node_id] = broker.address
        self.brokers[node_id] = broker
        runtime = self.running[node_id] = broker.runtime
        broker.start()
        await runtime.registered.wait()
        return runtime

    async def stop(self, node_id: int) -> None:
        del self.running[node_id]
        await self.brokers.pop(node_id).stop()

    async def kill(self, node_id: int) -> None:
        """Without a word to anybody, as far as that goes within one process; the session ends at once."""
        del self.running[node_id]
        await self.brokers.pop(node_id).abandon()

    async def create_topic(self, name: str, assignment: tuple[int, ...]) -> TopicPartition:
        answer = await self.client.of_controller(
            CreateTopicsRequest((NewTopic(name, assignment=(assignment,)),))
        )
        assert isinstance(answer, CreateTopicsResponse)
        assert not answer.topics[name].error, answer
        topic_partition = TopicPartition(name, 0)
        await self.until(lambda: len(self.isr(topic_partition)) == len(assignment))
        return topic_partition

    def leader(self, topic_partition: TopicPartition) -> int:
        """Who leads among the running; -1 for nobody."""
        leading = {
            partition.leader_epoch: node_id
            for node_id, runtime in self.running.items()
            if (partition := runtime.node.replicas.partitions.get(topic_partition)) is not None
            and partition.is_leader
        }
        return leading[max(leading)] if leading else -1

    def isr(self, topic_partition: TopicPartition) -> frozenset[int]:
        """The ISR as the leader knows it; empty if there is none."""
        leader = self.leader(topic_partition)
        if leader < 0:
            return frozenset()
        return self.running[leader].node.replicas.partitions[topic_partition].isr.committed

    def controller(self) -> int:
        return next((node_id for node_id, each in self.running.items() if each.node.controller.is_active), -1)

    @staticmethod
    async def until(holds: Callable[[], bool]) -> None:
        """Let the loop run until it holds; whoever calls has a deadline."""
        while not holds():
            await asyncio.sleep(0.002)

    def ends(self, topic_partition: TopicPartition) -> Mapping[int, int]:
        """Each running replica's log end offset."""
        return {
            node_id: runtime.node.replicas.partitions[topic_partition].log.log_end_offset
            for node_id, runtime in self.running.items()
            if topic_partition in runtime.node.replicas.partitions
        }
