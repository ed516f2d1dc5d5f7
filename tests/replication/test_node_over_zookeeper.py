"""A node over a real ZooKeeper server: replies that are lost, sessions that end, nodes that were its own."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

import pytest

from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.manager import LogManager
from logstore.replication.carrying import flush
from logstore.replication.config import NodeConfig
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.effects import (
    ClientRequest,
    CloseSession,
    Effect,
    Event,
    OpenSession,
    Request,
    Respond,
    Response,
    Send,
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    Sync,
)
from logstore.replication.messages import CreateTopicsRequest, NewTopic
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Delete, Get, Outcome
from logstore.replication.metastore.zookeeper import ZooKeeperStore
from logstore.replication.node import Node
from tests.zookeeper import DEADLINE_S, Client, Proxy

TP = TopicPartition("t", 0)
STATE_PATH = layout.partition_state_path(TP)


class Host:
    """Runs one node: its store is real, its network ends in itself."""

    def __init__(self, url: str, *, session_ms: int = 10_000) -> None:
        self._events: deque[Event] = deque()
        self._inbox: SimpleQueue[StoreEvent] = SimpleQueue()
        self.store = ZooKeeperStore(url, self._inbox.put)
        self.session_ms = session_ms
        self.sessions: list[int] = []
        logs = LogManager(["data"], disk=MemoryDisk(), clock=lambda: self.now_ms, random=random.Random(0))
        config = NodeConfig(
            node_id=0, registration_retry_ms=20, controller=ControllerConfig(retry_backoff_ms=20)
        )
        self.node = Node(config, logs, random=random.Random(0))
        self._carry_out(self.node.start(self.now_ms))

    @property
    def now_ms(self) -> int:
        return int(time.monotonic() * 1000)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case OpenSession():
                    self.store.open_session(self.session_ms)
                case CloseSession(session_id):
                    self.store.close_session(session_id)
                case StoreCall():
                    self.store.submit(effect)
                case Send(target, correlation_id, body) if target == self.node.node_id:
                    self._events.append(Request(target, correlation_id, body))
                case Respond(target, correlation_id, body) if target == self.node.node_id:
                    self._events.append(Response(target, correlation_id, body))
                case Sync():
                    self._events.append(flush(self.node.logs, effect))

    def receive(self, event: Event) -> None:
        self._carry_out(self.node.receive(event, self.now_ms))

    def run_until(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < end, f"{what} did not happen"
            if self._events:
                self.receive(self._events.popleft())
                continue
            deadline_ms = self.node.deadline_ms
            if deadline_ms is not None and deadline_ms <= self.now_ms:
                self._carry_out(self.node.tick(self.now_ms))
            try:
                event = self._inbox.get(timeout=0.005)
            except Empty:
                continue
            if isinstance(event, SessionOpened):
                self.sessions.append(event.session_id)
            self.receive(event)

    def run_until_controller(self) -> None:
        self.run_until(lambda: self.node.controller.is_active, "an election")

    def create_topic(self) -> None:
        request = CreateTopicsRequest((NewTopic("t", 1, 1),))
        self.receive(ClientRequest(1, request))
        self.run_until(lambda: self.leads, "leadership")

    @property
    def leads(self) -> bool:
        partition = self.node.replicas.partitions.get(TP)
        return partition is not None and partition.is_leader

    def close(self) -> None:
        self.store.close()
        self.node.logs.close(mark_clean=False)


@pytest.fixture
def proxy(zookeeper_port: int) -> Iterator[Proxy]:
    with Proxy(zookeeper_port) as proxy:
        yield proxy


@pytest.fixture
def url(proxy: Proxy, zookeeper_url: str) -> str:
    """The test's tree, by way of the proxy."""
    return f"{proxy.url}/{zookeeper_url.rpartition('/')[2]}"


@pytest.fixture
def witness(zookeeper_url: str) -> Iterator[Client]:
    """Sees what is in the store, past the proxy."""
    with Client(zookeeper_url) as witness:
        yield witness


@pytest.fixture
def host(url: str) -> Iterator[Host]:
    host = Host(url)
    yield host
    host.close()


def about(path: str) -> Callable[[int, bytes], bool]:
    """A write of this node: by itself or in a multi (whose paths stand in its body)."""
    last = path.encode() + b"\0"  # what follows a path begins with the length of the data
    return lambda kind, body: kind == 14 and last in body


def registration(witness: Client) -> Outcome:
    return witness.call(Get(layout.broker_path(0)))


def test_s49_the_claims_reply_is_lost(proxy: Proxy, host: Host, witness: Client) -> None:
    """/controller exists and names our session: we are the controller, of the first term, and know it."""
    proxy.lose_reply(about(layout.CONTROLLER_PATH))
    host.run_until_controller()
    assert proxy.lost.is_set()
    context = host.node.controller.context
    assert context is not None
    assert context.epoch == 1
    assert witness.call(Get(layout.CONTROLLER_EPOCH_PATH)).data == b"1"
    owner = witness.call(Get(layout.CONTROLLER_PATH)).stat
    assert owner is not None
    assert owner.ephemeral_owner == host.node.session_id


@pytest.mark.parametrize("is_lost", [True, False])
def test_s48_an_elections_reply_is_lost(proxy: Proxy, host: Host, witness: Client, is_lost: bool) -> None:
    """The first election, then one after a session that ended: written once each, whether heard of or not."""
    host.run_until_controller()
    if is_lost:
        proxy.lose_reply(about(STATE_PATH))
    host.create_topic()
    assert proxy.lost.is_set() == is_lost
    first = witness.call(Get(STATE_PATH))
    assert first.stat is not None
    assert (layout.parse_state(first.data).leader_epoch, first.stat.version) == (0, 0)

    if is_lost:
        proxy.lose_reply(about(STATE_PATH))
    proxy.end_session(host.sessions[-1])
    host.run_until(lambda: not host.leads, "the end of the leadership")
    host.run_until(lambda: host.leads, "a new leadership")
    assert proxy.lost.is_set() == is_lost
    second = witness.call(Get(STATE_PATH))
    assert second.stat is not None
    state = layout.parse_state(second.data)
    assert (state.leader, state.leader_epoch, state.controller_epoch, second.stat.version) == (0, 1, 2, 1)
    assert host.node.replicas.partitions[TP].leader_epoch == 1


def test_s50_somebody_deletes_the_controllers_node(host: Host, witness: Client) -> None:
    host.run_until_controller()
    context = host.node.controller.context
    witness.call(Delete(layout.CONTROLLER_PATH))
    host.run_until(lambda: host.node.controller.context not in (None, context), "another term")
    assert witness.call(Get(layout.CONTROLLER_EPOCH_PATH)).data == b"2"


def test_the_registrations_reply_is_lost(proxy: Proxy, host: Host, witness: Client) -> None:
    """KAFKA-7165: the node is there already, and its owner is this very session."""
    proxy.lose_reply(about(layout.broker_path(0)))
    host.run_until(lambda: host.node.broker_epoch >= 0, "the registration")
    assert proxy.lost.is_set()
    stat = registration(witness).stat
    assert stat is not None
    assert (stat.ephemeral_owner, stat.created_txid) == (host.sessions[-1], host.node.broker_epoch)


def test_the_node_of_a_former_session_of_ours_is_replaced(host: Host, witness: Client) -> None:
    """ZOOKEEPER-2985: given up here, not yet there, the session would later take our registration along."""
    host.run_until(lambda: host.node.broker_epoch >= 0, "the registration")
    former = host.node.broker_epoch
    (session,) = host.sessions
    host.receive(SessionExpired(session))
    host.run_until(lambda: host.node.broker_epoch > former, "the next registration")
    stat = registration(witness).stat
    assert stat is not None
    assert stat.ephemeral_owner == host.sessions[-1] != session
    host.store.close_session(session)
    assert registration(witness).stat == stat


def test_the_node_of_a_former_process_is_waited_for(
    proxy: Proxy, url: str, zookeeper_url: str, witness: Client
) -> None:
    """It was killed: its session, and with it its node, lasts until the timeout."""
    former = Host(url, session_ms=1_000)
    former.run_until(lambda: former.node.broker_epoch >= 0, "the registration")
    proxy.cut()
    host = Host(zookeeper_url)
    host.run_until(lambda: host.node.broker_epoch > former.node.broker_epoch, "the next registration")
    proxy.mend()
    former.run_until(lambda: former.node.session_id != former.sessions[0], "news of its end")
    assert former.node.broker_epoch < 0
    former.close()
    stat = registration(witness).stat
    assert stat is not None
    assert stat.ephemeral_owner == host.sessions[-1]
    host.close()
