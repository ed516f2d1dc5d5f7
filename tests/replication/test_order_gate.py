"""Orders that anybody could have forged: unknown controllers, deletions for an unknown registration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from logstore.disk.errors import ErrorCode
from logstore.replication.effects import Effect, Request, SessionExpired, StoreReply
from logstore.replication.messages import (
    BEING_DELETED,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from logstore.replication.metastore.operations import Outcome, Stat, StoreError
from logstore.replication.state_change import StateChange
from tests.replication.test_node import TP, Registering, epoch_node, responses

ID = "aaaaaaaaaaaaaaaaaaaaaA"
HIGHEST_EPOCH = 2**31 - 1


def role(controller_epoch: int = 1) -> LeaderAndIsrRequest:
    state = PartitionState(controller_epoch, 0, 3, (0,), 1, (0,))
    return LeaderAndIsrRequest(9, controller_epoch, 100, {TP: state}, {"t": ID})


def deletion(
    controller_epoch: int = 1, broker_epoch: int = 100, topic_id: str = ID, leader_epoch: int = BEING_DELETED
) -> StopReplicaRequest:
    orders = {TP: StopReplicaPartition(leader_epoch, delete=True)}
    return StopReplicaRequest(9, controller_epoch, broker_epoch, orders, {"t": topic_id} if topic_id else {})


def with_role() -> Registering:
    rig = Registering()
    rig.register()
    rig.order(role())
    assert rig.node.replicas.partitions[TP].is_leader
    return rig


def the_code(effects: list[Effect]) -> ErrorCode:
    [response] = responses(effects)
    code: ErrorCode = response.error  # type: ignore[attr-defined]
    return code


def has_log(rig: Registering) -> bool:
    return TP in rig.logs.logs()


def forged(kind: type[Any]) -> Any:
    """Each order, as one with access to the port would send it to be obeyed for ever."""
    return {
        StopReplicaRequest: deletion(HIGHEST_EPOCH),
        LeaderAndIsrRequest: role(HIGHEST_EPOCH),
        UpdateMetadataRequest: UpdateMetadataRequest(66, HIGHEST_EPOCH, -1, {TP: role().partitions[TP]}, ()),
    }[kind]


@pytest.mark.parametrize("kind", [StopReplicaRequest, LeaderAndIsrRequest, UpdateMetadataRequest])
def test_a_controller_that_the_store_does_not_know_is_refused(kind: type[Any]) -> None:
    rig = with_role()
    assert not responses(rig.receive(Request(66, 2, forged(kind)))), "not before the store has answered"
    assert the_code(rig.confirm(1)) is ErrorCode.NOT_CONTROLLER
    assert has_log(rig)
    assert rig.node.replicas.controller_epoch == 1
    assert rig.node.replicas.counters.protocol_violations == 1
    assert the_code(rig.order(deletion())) is ErrorCode.NONE, "the real controller is obeyed as before"
    assert not has_log(rig)


def test_a_refused_order_leaves_a_line_that_says_why() -> None:
    lines: list[StateChange] = []
    rig = with_role()
    rig.node.replicas._state_changes = lines.append
    rig.order(deletion(HIGHEST_EPOCH))
    assert [line.change for line in lines] == ["refuses an order"]
    assert str(HIGHEST_EPOCH) in lines[0].reason
    assert "the newest controller in the store has epoch 1" in lines[0].reason


def test_a_new_controller_is_looked_up_once() -> None:
    rig = with_role()
    assert the_code(rig.order(role(2), epoch_in_store=2)) is ErrorCode.NONE
    assert rig.node.replicas.controller_epoch == 2
    assert the_code(rig.receive(Request(9, 3, role(2)))) is ErrorCode.NONE
    assert not rig.look_ups()


def test_orders_of_one_controller_wait_for_one_reply() -> None:
    rig = with_role()
    rig.receive(Request(9, 2, role(2)))
    [call] = rig.look_ups()
    rig.receive(Request(9, 3, role(2)))
    assert not rig.look_ups()
    rig.receive(StoreReply(call.call_id, epoch_node(2)))
    assert [each.error for each in responses(rig.effects)] == [ErrorCode.NONE] * 2  # type: ignore[attr-defined]


def test_an_order_is_never_refused_by_a_reply_that_may_be_older() -> None:
    """Controller 3 was elected after the question for 2, or before: only a second question tells."""
    rig = with_role()
    rig.receive(Request(9, 2, role(2)))
    [first] = rig.look_ups()
    rig.receive(Request(9, 3, role(3)))
    assert the_code(rig.receive(StoreReply(first.call_id, epoch_node(2)))) is ErrorCode.NONE
    [second] = rig.look_ups()
    assert the_code(rig.receive(StoreReply(second.call_id, epoch_node(3)))) is ErrorCode.NONE
    assert rig.node.replicas.controller_epoch == 3


@pytest.mark.parametrize("outcome", [Outcome(StoreError.CONNECTION_LOSS), Outcome(StoreError.NO_NODE)])
def test_without_the_store_nobody_new_is_obeyed(outcome: Outcome) -> None:
    rig = with_role()
    rig.receive(Request(9, 2, deletion(2)))
    [call] = rig.look_ups()
    assert the_code(rig.receive(StoreReply(call.call_id, outcome))) is ErrorCode.NOT_CONTROLLER
    assert has_log(rig)


def test_an_epoch_that_cannot_be_read_confirms_nobody() -> None:
    rig = with_role()
    rig.receive(Request(9, 2, deletion(2)))
    [call] = rig.look_ups()
    reply = StoreReply(call.call_id, Outcome(data=b"?", stat=Stat(0, 1, 0)))
    assert the_code(rig.receive(reply)) is ErrorCode.NOT_CONTROLLER


def test_a_store_that_never_replies_ends_in_a_refusal() -> None:
    """The sender's connection must not wait for ever; a late reply finds nobody."""
    rig = with_role()
    rig.receive(Request(9, 2, deletion(2)))
    [call] = rig.look_ups()
    rig.now_ms += rig.node.config.request_timeout_ms
    deadline_ms = rig.node.deadline_ms
    assert deadline_ms is not None
    assert deadline_ms <= rig.now_ms
    assert ErrorCode.NOT_CONTROLLER in [
        getattr(each, "error", None) for each in responses(rig.node.tick(rig.now_ms))
    ]
    assert not responses(rig.receive(StoreReply(call.call_id, epoch_node(2))))
    assert has_log(rig)


def test_the_end_of_the_session_does_not_lose_the_order() -> None:
    """It waits for the next registration, and is then one for a former life."""
    rig = with_role()
    rig.receive(Request(9, 2, deletion(2)))
    rig.receive(SessionExpired(7))
    rig.register(8, 120)
    assert the_code(rig.confirm(2)) is ErrorCode.STALE_BROKER_EPOCH
    assert has_log(rig)


@pytest.mark.parametrize("broker_epoch", [-1, 99, 101, 2**63 - 1])
def test_a_deletion_names_this_very_registration(broker_epoch: int) -> None:
    rig = with_role()
    assert the_code(rig.order(deletion(broker_epoch=broker_epoch))) is ErrorCode.STALE_BROKER_EPOCH
    assert has_log(rig)


@pytest.mark.parametrize("topic_id", ["", "bbbbbbbbbbbbbbbbbbbbbA"])
def test_a_deletion_names_the_topics_id(topic_id: str) -> None:
    rig = with_role()
    [response] = responses(rig.order(deletion(topic_id=topic_id)))
    assert response.partitions == {TP: ErrorCode.INCONSISTENT_TOPIC_ID}  # type: ignore[attr-defined]
    assert has_log(rig)
    assert rig.node.replicas.partitions[TP].is_leader


def test_a_log_that_never_had_an_id_is_deleted_without_one() -> None:
    """Of a topic that an old Kafka created: its controller has no id to name."""
    rig = Registering()
    rig.register()
    rig.leader_and_isr(100)
    [response] = responses(rig.order(deletion(topic_id="")))
    assert response.partitions == {TP: ErrorCode.NONE}  # type: ignore[attr-defined]
    assert not has_log(rig)


def test_a_role_without_a_registration_does_not_end_a_suspension() -> None:
    """Others may have led meanwhile: only a role for the new registration says that nobody did."""
    rig = with_role()
    rig.receive(SessionExpired(7))
    rig.register(8, 120)
    for broker_epoch, code in ((-1, ErrorCode.STALE_BROKER_EPOCH), (120, ErrorCode.NONE)):
        [response] = responses(rig.order(replace(role(), broker_epoch=broker_epoch)))
        assert response.partitions == {TP: code}  # type: ignore[attr-defined]
        assert rig.node.replicas.partitions[TP].is_leader is (code is ErrorCode.NONE)
