"""A node's registration, and its routing of events."""

from __future__ import annotations

import random

import pytest

from logstore.disk.errors import ErrorCode
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.manager import LogManager
from logstore.replication.carrying import flush
from logstore.replication.config import NodeConfig
from logstore.replication.effects import (
    ClientRequest,
    CloseSession,
    Effect,
    OpenSession,
    Reply,
    Request,
    Respond,
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreReply,
    Sync,
)
from logstore.replication.errors import InvalidRequest
from logstore.replication.messages import (
    FetchPartition,
    FetchRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    ProduceRequest,
    ProduceResponse,
    RequestBody,
    UpdateMetadataResponse,
)
from logstore.replication.metastore.layout import (
    CONTROLLER_EPOCH_PATH,
    LOG_DIR_EVENT_PREFIX,
    broker_path,
    encode_controller_epoch,
    parse_broker,
    parse_log_dir_event,
)
from logstore.replication.metastore.operations import Create, Delete, Get, Outcome, Stat, StoreError
from logstore.replication.node import Node
from logstore.testing.disks.faulty import Fault, FaultyDisk
from logstore.testing.stage import batch

TP = TopicPartition("t", 0)
PATH = broker_path(0)


def finished_in(node: Node, effects: list[Effect], now_ms: int) -> list[Effect]:
    """Carry out the `Sync`s that roles wait for, then the requests that waited; return the other effects."""
    left: list[Effect] = []
    while effects:
        effect, *effects = effects
        roles = node.replicas.roles_under_way
        if isinstance(effect, Sync) and roles is not None and effect.topic_partition in roles.unflushed:
            effects += node.receive(flush(node.logs, effect), now_ms)
        else:
            left.append(effect)
    return left


class Registering:
    """One node; the test is the store."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.now_ms = 1_000_000
        self.disk = disk if disk is not None else MemoryDisk()
        self.logs = LogManager(
            ["data", "more"], disk=self.disk, clock=lambda: self.now_ms, random=random.Random(0)
        )
        self.node = Node(NodeConfig(node_id=0), self.logs, random=random.Random(0))
        self.effects = self.node.start(self.now_ms)

    def receive(self, event: object) -> list[Effect]:
        effects = self.node.receive(event, self.now_ms)  # type: ignore[arg-type]
        self.effects = finished_in(self.node, effects, self.now_ms)
        return self.effects

    def call(self) -> StoreCall:
        """The node's own store call among the last effects."""
        found = [
            e for e in self.effects if isinstance(e, StoreCall) and getattr(e.operation, "path", "") == PATH
        ]
        assert len(found) == 1, self.effects
        return found[0]

    def answer(self, outcome: Outcome) -> list[Effect]:
        return self.receive(StoreReply(self.call().call_id, outcome))

    def register(self, session_id: int = 7, txid: int = 100) -> None:
        self.receive(SessionOpened(session_id))
        self.answer(Outcome(stat=Stat(0, txid, session_id), path=PATH))

    def leader_and_isr(
        self, broker_epoch: int, correlation_id: int = 1, *, is_full: bool = True
    ) -> list[Effect]:
        state = PartitionState(1, 0, 3, (0,), 1, (0,))
        assigned = {TP: ""} if is_full else None
        body = LeaderAndIsrRequest(9, 1, broker_epoch, {TP: state}, assigned=assigned)
        return self.order(body, correlation_id)

    def order(self, body: RequestBody, correlation_id: int = 1, *, epoch_in_store: int = 1) -> list[Effect]:
        """Send an order; the store's controller epoch is `epoch_in_store`."""
        self.receive(Request(9, correlation_id, body))
        return self.confirm(epoch_in_store)

    def confirm(self, epoch: int) -> list[Effect]:
        """Answer the node's question for the controller epoch, if it has one."""
        for call in self.look_ups():
            self.receive(StoreReply(call.call_id, epoch_node(epoch)))
        return self.effects

    def look_ups(self) -> list[StoreCall]:
        return [
            each
            for each in self.effects
            if isinstance(each, StoreCall) and each.operation == Get(CONTROLLER_EPOCH_PATH)
        ]


def epoch_node(epoch: int) -> Outcome:
    return Outcome(data=encode_controller_epoch(epoch), stat=Stat(0, 1, 0))


def responses(effects: list[Effect]) -> list[object]:
    return [effect.body for effect in effects if isinstance(effect, Respond)]


def test_a_node_registers_as_an_ephemeral_node_and_takes_its_transaction_as_broker_epoch() -> None:
    rig = Registering()
    assert rig.effects == [OpenSession(18_000)]
    rig.receive(SessionOpened(7))
    operation = rig.call().operation
    assert isinstance(operation, Create)
    assert operation.ephemeral
    assert not parse_broker(operation.data).clean, "a dir without the mark of a clean stop proves nothing"
    rig.answer(Outcome(stat=Stat(0, 100, 7), path=PATH))
    assert rig.node.broker_epoch == 100
    assert any(isinstance(effect, StoreCall) for effect in rig.effects), "it competes to be controller"


def test_a_clean_stop_is_told_at_registration() -> None:
    disk = MemoryDisk()
    first = Registering(disk)
    assert not first.node.is_clean, "its stop would not be marked clean: nothing is on record yet"
    first.register()
    first.leader_and_isr(100, is_full=False)
    assert not first.node.is_clean, "the controller cannot read a topic, perhaps one with a replica here"
    first.leader_and_isr(100, 2)
    assert first.node.is_clean
    first.logs.close()
    rig = Registering(disk)
    rig.receive(SessionOpened(7))
    operation = rig.call().operation
    assert isinstance(operation, Create)
    assert parse_broker(operation.data).clean


def test_the_reply_was_lost_but_the_node_is_ours() -> None:
    """KAFKA-7165: the owner of the node decides."""
    rig = Registering()
    rig.receive(SessionOpened(7))
    rig.answer(Outcome(StoreError.NODE_EXISTS))
    assert isinstance(rig.call().operation, Get)
    rig.answer(Outcome(stat=Stat(0, 100, 7)))
    assert rig.node.broker_epoch == 100


def test_a_former_sessions_node_is_removed() -> None:
    """ZOOKEEPER-2985: it would disappear later, and this broker would count as dead then."""
    rig = Registering()
    rig.register(7, 100)
    rig.receive(SessionExpired(7))
    assert rig.node.broker_epoch == -1
    assert OpenSession(18_000) in rig.effects
    rig.receive(SessionOpened(8))
    rig.answer(Outcome(StoreError.NODE_EXISTS))
    rig.answer(Outcome(stat=Stat(3, 100, 7)))
    assert rig.call().operation == Delete(PATH, 3)
    rig.answer(Outcome())
    assert isinstance(rig.call().operation, Create)
    rig.answer(Outcome(stat=Stat(0, 120, 8), path=PATH))
    assert rig.node.broker_epoch == 120


def test_a_former_processs_node_is_waited_for() -> None:
    """Its session has to run out first: until then the cluster counts on what that process held."""
    rig = Registering()
    rig.receive(SessionOpened(8))
    rig.answer(Outcome(StoreError.NODE_EXISTS))
    rig.answer(Outcome(stat=Stat(0, 90, 3)))
    assert rig.effects == []
    due_ms = rig.node.deadline_ms
    assert due_ms == rig.now_ms + 500
    rig.now_ms = due_ms
    rig.effects = rig.node.tick(rig.now_ms)
    assert isinstance(rig.call().operation, Create)


@pytest.mark.parametrize("lost", [True, False])
def test_a_store_that_does_not_answer_is_asked_again(lost: bool) -> None:
    """After a lost connection, and after no reply at all."""
    rig = Registering()
    rig.receive(SessionOpened(8))
    if lost:
        assert rig.answer(Outcome(StoreError.CONNECTION_LOSS)) == []
    for _ in range(9):  # its logs have deadlines, too
        due_ms = rig.node.deadline_ms
        assert due_ms is not None
        assert due_ms > rig.now_ms
        rig.now_ms = due_ms
        rig.effects = rig.node.tick(rig.now_ms)
        if rig.effects:
            break
    assert isinstance(rig.call().operation, Create)


def test_a_node_that_vanished_while_we_looked_is_created_after_all() -> None:
    """The former life's session ran out between our Create and our Get, or before our Delete."""
    for error in (StoreError.NO_NODE, StoreError.BAD_VERSION):
        rig = Registering()
        rig.receive(SessionOpened(8))
        rig.answer(Outcome(StoreError.NODE_EXISTS))
        rig.answer(Outcome(error))
        assert isinstance(rig.call().operation, Create)


def test_a_session_that_ends_during_registration_is_replaced() -> None:
    rig = Registering()
    rig.receive(SessionOpened(8))
    assert rig.answer(Outcome(StoreError.SESSION_EXPIRED)) == [OpenSession(18_000)]
    rig.register(9, 130)
    assert rig.node.broker_epoch == 130


def test_a_session_whose_end_nobody_told_ends_with_the_next() -> None:
    """R7: leaderships of the old session end."""
    rig = Registering()
    rig.register(8, 100)
    rig.leader_and_isr(100)
    rig.receive(SessionOpened(9))
    assert not rig.node.replicas.partitions[TP].is_leader
    assert rig.node.broker_epoch == -1


def test_the_controllers_word_is_held_until_we_know_who_we_are() -> None:
    """Without the broker epoch a request could be for a former life."""
    rig = Registering()
    rig.receive(SessionOpened(7))
    rig_call = rig.call()
    assert rig.leader_and_isr(90, 1) == []
    assert rig.leader_and_isr(100, 2) == []
    rig.receive(StoreReply(rig_call.call_id, Outcome(stat=Stat(0, 100, 7), path=PATH)))
    answers = responses(rig.confirm(1))
    assert [body.error for body in answers if isinstance(body, LeaderAndIsrResponse)] == [
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.NONE,
    ]
    assert rig.node.replicas.partitions[TP].is_leader


def test_session_expiry_stops_the_leader_at_once() -> None:
    """R7."""
    rig = Registering()
    rig.register()
    rig.leader_and_isr(100)
    rig.receive(SessionExpired(7))
    rig.receive(ClientRequest("c", ProduceRequest({TP: batch(b"x")}, 1, 1000)))
    [reply] = [effect for effect in rig.effects if isinstance(effect, Reply)]
    assert isinstance(reply.body, ProduceResponse)
    assert reply.body.partitions[TP].error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_old_sessions_end_is_no_news() -> None:
    rig = Registering()
    rig.register(8, 100)
    assert rig.receive(SessionExpired(7)) == []
    assert rig.node.broker_epoch == 100


def test_a_later_registration_names_the_epochs_it_continues() -> None:
    """This very process has lost nothing since it was 200; what it lost before that, it still has lost."""
    disk = MemoryDisk()
    first = Registering(disk)
    first.register()
    first.leader_and_isr(100)
    first.logs.abandon()
    rig = Registering(disk)
    rig.register(8, 200)
    assert TP in rig.logs.logs()
    rig.receive(SessionExpired(8))
    rig.receive(SessionOpened(9))
    operation = rig.call().operation
    assert isinstance(operation, Create)
    registration = parse_broker(operation.data)
    assert not registration.clean
    assert registration.continues == (200,)
    assert not rig.node.is_clean, "what it may have lost is not on record yet"
    rig.answer(Outcome(stat=Stat(0, 300, 9), path=PATH))
    state = PartitionState(1, -1, 4, (0,), 2, (0,))
    rig.order(LeaderAndIsrRequest(9, 1, 300, {TP: state}, assigned={TP: ""}), 5)
    assert rig.node.is_clean
    rig.receive(SessionExpired(9))
    rig.receive(SessionOpened(10))
    operation = rig.call().operation
    assert isinstance(operation, Create)
    assert parse_broker(operation.data).continues == (200, 300)


def test_stopping_gives_the_session_up() -> None:
    rig = Registering()
    rig.register()
    rig.leader_and_isr(100)
    effects = rig.node.stop(rig.now_ms)
    assert not rig.node.replicas.partitions[TP].is_leader
    assert CloseSession(7) not in effects, "not before the logs are closed"
    assert rig.node.leave(rig.now_ms) == [CloseSession(7)]
    assert rig.node.leave(rig.now_ms) == []


def reports(effects: list[Effect]) -> list[StoreCall]:
    calls = [effect for effect in effects if isinstance(effect, StoreCall)]
    return [
        call
        for call in calls
        if isinstance(call.operation, Create) and call.operation.path == LOG_DIR_EVENT_PREFIX
    ]


def test_a_failed_log_is_told_through_the_store_until_the_store_has_it() -> None:
    """F2: the controller cannot detect it, and asks for nothing by itself."""
    disk = FaultyDisk(MemoryDisk())
    rig = Registering(disk)
    rig.register()
    rig.leader_and_isr(100)
    disk.inject(Fault(operation="pwrite", path=lambda path: path.endswith(".log")))
    rig.receive(ClientRequest("c", ProduceRequest({TP: batch(b"x")}, 1, 1000)))
    [report] = reports(rig.effects)
    assert isinstance(report.operation, Create)
    assert parse_log_dir_event(report.operation.data) == 0
    assert not reports(rig.node.tick(rig.now_ms)), "once"
    rig.receive(StoreReply(report.call_id, Outcome(StoreError.CONNECTION_LOSS)))
    assert not reports(rig.effects), "after a pause"
    rig.now_ms += 500
    [again] = reports(rig.node.tick(rig.now_ms))
    rig.now_ms += 30_000
    [third] = reports(rig.node.tick(rig.now_ms))
    rig.receive(StoreReply(again.call_id, Outcome()))
    rig.receive(StoreReply(third.call_id, Outcome()))
    rig.now_ms += 30_000
    assert not reports(rig.node.tick(rig.now_ms))


def test_a_registration_tells_of_failed_logs_by_itself() -> None:
    """The controller assigns every role to a new incarnation, and learns which ones it cannot take."""
    disk = FaultyDisk(MemoryDisk())
    rig = Registering(disk)
    rig.register(7, 100)
    rig.leader_and_isr(100)
    rig.receive(SessionExpired(7))
    disk.inject(Fault(operation="open", path=lambda path: path.startswith("data"), forever=True))
    rig.node.replicas.logs.checkpoint_high_watermarks()
    assert not reports(rig.node.tick(rig.now_ms + 60_000)), "nobody to tell"
    rig.receive(SessionOpened(8))
    rig.answer(Outcome(stat=Stat(0, 120, 8), path=PATH))
    assert rig.node.replicas.offline
    assert not reports(rig.effects)


def test_followers_and_consumers_are_served_by_the_same_reads() -> None:
    rig = Registering()
    rig.register()
    rig.leader_and_isr(100)
    fetch = FetchRequest(-1, 0, 1, 1 << 20, {TP: FetchPartition(0, 1 << 20)})
    assert isinstance(rig.receive(ClientRequest("c", fetch))[0], Reply)
    assert isinstance(rig.receive(Request(1, 4, fetch))[0], Respond)


def test_what_no_peer_sends_is_refused() -> None:
    rig = Registering()
    rig.register()
    with pytest.raises(InvalidRequest):
        rig.receive(Request(1, 4, ProduceRequest({}, 1, 0)))


def test_late_answers_find_nobody() -> None:
    """Delivery is at most once and in no order: an unknown correlation or call id is no error."""
    from logstore.replication.effects import Disconnected, Response
    from logstore.replication.messages import AlterPartitionResponse, FetchResponse

    rig = Registering()
    rig.register()
    for body in (
        FetchResponse({}),
        AlterPartitionResponse(ErrorCode.NONE),
        UpdateMetadataResponse(ErrorCode.NONE),
        LeaderAndIsrResponse(ErrorCode.NONE),
    ):
        assert rig.receive(Response(1, 999, body)) == []
    assert rig.receive(Disconnected(1, 999)) == []
    assert rig.receive(StoreReply(999, Outcome())) == []
