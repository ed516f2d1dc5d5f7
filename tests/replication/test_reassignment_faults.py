"""Reassignments whose controller dies or loses its session at any call to the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import reassignment
from logstore.replication.controller.assignment import Assignment
from logstore.replication.controller.context import Context
from logstore.replication.controller.reassignment import closing_state
from logstore.replication.messages import (
    LeaderAndIsrRequest,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.layout import LeaderAndIsr
from logstore.replication.metastore.operations import Multi, Operation, Set
from tests.replication.test_reassignment import (
    CONTROLLER,
    ORIGIN,
    STATE_PATH,
    TARGET,
    TOPIC_PATH,
    TP,
    Scene,
    is_sent,
)


class Call(NamedTuple):
    number: int
    is_write: bool


def calls_by_phase() -> dict[str, list[Call]]:
    """The controller's store calls where nothing fails, by what the store said before each."""
    scene = Scene()
    phases: dict[str, list[Call]] = {"asked": [], "begun": [], "partly": [], "ended": [], "struck": []}

    def note(number: int, operation: Operation) -> None:
        if scene.is_begun():
            phase = "partly" if set(scene.state.isr) > set(ORIGIN) else "begun"
        elif scene.assignment.target == ORIGIN:
            phase = "asked"
        else:
            phase = "ended" if scene.has_request else "struck"
        phases[phase].append(Call(number, isinstance(operation, Multi)))

    scene.store.on_call = note
    scene.request()
    scene.finish()
    return phases


PHASES = calls_by_phase()


FATES = {
    "dies after it": (True, True),
    "reply lost": (True, False),
    # Of a read these two are the same as the two above.
    "dies before it": (False, True),
    "call lost": (False, False),
}


def calls(phase: str) -> list[object]:
    return [
        pytest.param(call.number, fate, id=f"{call.number} {fate}")
        for call in PHASES[phase]
        for fate in list(FATES)[: 4 if call.is_write else 2]
    ]


def fail_at(scene: Scene, number: int, fate: str) -> None:
    scene.store.calls.clear()
    scene.store.fails_at = number
    scene.store.is_applied, scene.store.is_fatal = FATES[fate]


def asked_and_failing(number: int, fate: str) -> None:
    scene = Scene()
    fail_at(scene, number, fate)
    scene.request()
    scene.finish()
    assert scene.store.has_failed, "the call never came"


def test_every_phase_has_calls() -> None:
    """Begin, ISR three times, end, strike off, three confirmations: nine writes."""
    every = sorted(call for found in PHASES.values() for call in found)
    assert [call.number for call in every] == list(range(len(every)))
    assert sum(call.is_write for call in every) == 9
    assert all(PHASES.values())


@pytest.mark.parametrize(("number", "fate"), calls("asked"))
def test_r1_asked_and_not_begun(number: int, fate: str) -> None:
    """At each call between the request and the first write."""
    asked_and_failing(number, fate)


def test_r2_begun_and_nobody_told() -> None:
    scene = Scene()
    scene.request()
    scene.run(scene.is_begun)
    scene.crash_controller(lose_messages=True)
    assert scene.assignment == Assignment((*TARGET, *ORIGIN), TARGET, ORIGIN, ORIGIN)
    assert scene.state.leader_epoch == 1
    scene.finish()


@pytest.mark.parametrize("deaf", [(4, 5, 6), (1,), (2, 3), (1, 4), (1, 2, 3, 4, 5)])
def test_r3_begun_and_some_not_told(deaf: tuple[int, ...]) -> None:
    scene = Scene()
    scene.cluster.intercept = lambda envelope: (
        is_sent(envelope, LeaderAndIsrRequest) and envelope.target in deaf
    )
    scene.request()
    scene.run(lambda: len(scene.cluster.held) == len(deaf))
    scene.crash_controller()
    scene.cluster.held.clear()
    scene.release()
    scene.finish()


@pytest.mark.parametrize(("number", "fate"), calls("begun"))
def test_r4_begun(number: int, fate: str) -> None:
    asked_and_failing(number, fate)


def test_r4_the_new_replicas_are_there() -> None:
    scene = Scene()
    scene.hold(4, 5, 6)
    scene.request()
    scene.run(scene.all_host)
    scene.crash_controller()
    scene.release()
    scene.finish()


@pytest.mark.parametrize(("number", "fate"), calls("partly"))
def test_r5_partly_in_sync(number: int, fate: str) -> None:
    asked_and_failing(number, fate)


def test_r5_one_lags() -> None:
    scene = Scene()
    scene.hold(6)
    scene.request()
    scene.run(lambda: set(scene.state.isr) == {1, 2, 3, 4, 5})
    scene.crash_controller()
    scene.write(b"meanwhile")
    scene.cluster.advance(3000)
    assert scene.assignment.is_reassigning
    scene.release()
    scene.finish()


def in_sync_but_not_ended() -> Scene:
    scene = Scene()
    scene.request()
    scene.run(lambda: set(TARGET) <= set(scene.state.isr))
    assert not scene.is_ended()
    scene.crash_controller()
    return scene


def test_r6_in_sync_and_not_ended() -> None:
    in_sync_but_not_ended().finish()


def left_by_kafka(isr: tuple[int, ...]) -> Scene:
    """Return what Kafka's controller leaves between steps B3 and B4, or B4 and B6."""
    scene = in_sync_but_not_ended()
    node = layout.parse_topic(scene.store.peek(TOPIC_PATH).data)
    plain = layout.TopicAssignment(
        node.topic_id, node.partitions, node.adding_replicas, node.removing_replicas
    )
    scene.put(Set(TOPIC_PATH, layout.encode_topic(plain), -1))
    state = replace(
        scene.state, leader=4, leader_epoch=scene.state.leader_epoch + 1, isr=isr, isr_broker_epochs=()
    )
    scene.put(Set(STATE_PATH, layout.encode_state(state), -1))
    return scene


def test_r7_the_leader_has_moved() -> None:
    left_by_kafka((4, 5, 6, 1, 2, 3)).finish()


@pytest.mark.parametrize("restarts", [False, True], ids=["", "the leader restarts"])
def test_r8_the_isr_has_shrunk(restarts: bool) -> None:
    """Brokers 1 2 3 are not restored, although the stored list still has them."""
    scene = left_by_kafka((4, 5, 6))
    if restarts:
        scene.cluster.stop_node(4)
        scene.cluster.start_node(4)
    scene.finish()


def test_r9_deleted_and_not_confirmed() -> None:
    scene = Scene()
    scene.cluster.intercept = lambda envelope: is_sent(envelope, StopReplicaResponse)
    scene.request()
    scene.run(lambda: not any(map(scene.has_log, ORIGIN)))
    scene.crash_controller()
    assert scene.assignment == Assignment(TARGET, leaving=ORIGIN)
    scene.cluster.held.clear()
    scene.release()
    scene.finish()


def test_r9_the_orders_are_lost() -> None:
    scene = Scene()
    scene.cluster.intercept = lambda envelope: is_sent(envelope, StopReplicaRequest)
    scene.request()
    scene.run(lambda: len(scene.cluster.held) == len(ORIGIN))
    scene.crash_controller()
    scene.cluster.held.clear()
    scene.release()
    assert all(map(scene.has_log, ORIGIN))
    scene.finish()


@pytest.mark.parametrize(("number", "fate"), calls("ended"))
def test_r10_ended_and_still_listed(number: int, fate: str) -> None:
    asked_and_failing(number, fate)


@pytest.mark.parametrize(("number", "fate"), calls("struck"))
def test_r11_struck_off_the_list(number: int, fate: str) -> None:
    """Nothing is left but the confirmations, if those."""
    asked_and_failing(number, fate)


@pytest.mark.parametrize("crash", [False, True], ids=["", "controller dies"])
@pytest.mark.parametrize("when", ["before", "begun", "in sync"])
def test_r12_a_target_is_dead(when: str, crash: bool) -> None:
    scene = Scene()
    if when == "before":
        scene.cluster.kill_node(5, expire_session=True)
        scene.cluster.settle()
    scene.hold(6)
    scene.request()
    if when != "before":
        wanted = {1, 2, 3, 4} if when == "begun" else {1, 2, 3, 4, 5}
        scene.run(lambda: scene.is_begun() and (when == "begun" or set(scene.state.isr) == wanted))
        scene.cluster.kill_node(5, expire_session=True)
    scene.release()
    scene.run(lambda: set(scene.state.isr) == {1, 2, 3, 4, 6})
    if crash:
        scene.crash_controller()
    scene.write(b"meanwhile")
    scene.cluster.advance(10_000)
    scene.check()
    assert scene.has_request
    assert scene.assignment.is_reassigning
    scene.cluster.start_node(5)
    scene.finish()


LATER = (4, 7, 8)


def on_the_way(*slow: int) -> Scene:
    """Begun, all have logs, and all of the target but `slow` are in sync."""
    scene = Scene()
    scene.hold(*slow)
    scene.ask(TARGET)
    scene.run(lambda: scene.all_host() and set(scene.state.isr) == {*ORIGIN, *TARGET} - {*slow})
    scene.cluster.settle()
    return scene


@pytest.mark.parametrize("crash", [False, True], ids=["", "nobody told"])
@pytest.mark.parametrize("slow", [(4, 5, 6), (6,), (5,)], ids=str)
def test_r13_superseded(slow: tuple[int, ...], crash: bool) -> None:
    scene = on_the_way(*slow)
    in_sync = set(scene.state.isr)
    scene.ask(LATER)
    if crash:
        scene.crash_controller(lose_messages=True)
    # 7 and 8 are quick: what was in sync stays until they are.
    scene.release()
    scene.run(lambda: set(LATER) <= set(scene.state.isr) or not in_sync <= set(scene.state.isr))
    scene.finish()


@pytest.mark.parametrize("fate", ["dies after it", "reply lost"])
@pytest.mark.parametrize("number", range(14))
def test_r13_at_each_call(number: int, fate: str) -> None:
    scene = on_the_way(6)
    fail_at(scene, number, fate)
    scene.ask(LATER)
    scene.release()
    scene.finish()
    assert scene.store.has_failed


@pytest.mark.parametrize("crash", [False, True], ids=["", "nobody told"])
@pytest.mark.parametrize("slow", [(4, 5, 6), (6,), (5, 6)], ids=str)
def test_r14_called_off(slow: tuple[int, ...], crash: bool) -> None:
    scene = on_the_way(*slow)
    scene.ask(None)
    if crash and scene.cluster.nodes.get(CONTROLLER):
        scene.crash_controller(lose_messages=True)
    scene.release()
    scene.finish()


@pytest.mark.parametrize("fate", ["dies after it", "reply lost"])
@pytest.mark.parametrize("number", range(6))
def test_r14_at_each_call(number: int, fate: str) -> None:
    scene = on_the_way(6)
    fail_at(scene, number, fate)
    scene.ask(None)
    scene.release()
    scene.finish()
    assert scene.store.has_failed


def test_r14_the_original_order_comes_back() -> None:
    """The full list of 3 1 4 puts 3 before 1: the order of 1 2 3 is in the store besides."""
    scene = Scene()
    scene.hold(4)
    scene.ask((3, 1, 4))
    scene.run(lambda: scene.has_log(4))
    assert scene.assignment.replicas == (3, 1, 4, 2)
    scene.crash_controller()
    scene.release()
    scene.hold(4)
    scene.ask(None)
    scene.release()
    scene.finish()
    assert scene.assignment == Assignment((1, 2, 3))


def test_r14_a_lagging_original_keeps_it_pending() -> None:
    """4 is in sync and 3 is not: calling off waits, with 4, until 3 has caught up."""
    scene = on_the_way(5, 6)
    scene.hold(3, 5, 6)
    scene.cluster.advance(1)
    scene.write(b"more")
    scene.run(lambda: 3 not in scene.state.isr)
    scene.ask(None)
    scene.cluster.advance(5000)
    scene.check()
    assert scene.assignment == Assignment((1, 2, 3, 4), removing=(4,), original=ORIGIN)
    assert set(scene.state.isr) == {1, 2, 4}
    scene.release()
    scene.finish()


@pytest.mark.parametrize("crash", [False, True], ids=["", "and the controller"])
def test_r15_the_leader_dies(crash: bool) -> None:
    scene = on_the_way(5, 6)
    scene.cluster.kill_node(1, expire_session=True)
    if crash:
        scene.crash_controller()
    scene.release()
    scene.run(lambda: scene.assignment == Assignment(TARGET, leaving=(1,)))
    scene.write(b"meanwhile")
    assert scene.has_log(1)
    scene.cluster.start_node(1)
    scene.finish()


@pytest.mark.parametrize("target", [(4, 1, 2), (2, 3, 4), (4, 5, 6), (1,), (2, 1, 3, 4, 5)], ids=str)
def test_any_target(target: tuple[int, ...]) -> None:
    """0.8 reassign: leader in target; not in target; disjoint: ends AR=target, leader in target."""
    scene = Scene()
    scene.request(target)
    scene.finish()
    leader = scene.cluster.nodes[scene.state.leader].replicas.partitions[TP]
    assert not leader.is_under_replicated


def test_a_role_that_comes_after_the_deletion_brings_nothing_back() -> None:
    scene = Scene()
    scene.cluster.intercept = lambda envelope: is_sent(envelope, LeaderAndIsrRequest) and envelope.target == 5
    scene.ask(TARGET)
    scene.run(lambda: bool(scene.cluster.held))
    (late,) = scene.cluster.held
    scene.ask(LATER)
    scene.cluster.intercept = lambda envelope: False
    scene.finish()
    scene.cluster.release(late)
    scene.run(lambda: late not in scene.cluster.queue)
    scene.cluster.settle()
    scene.check()
    assert not scene.has_log(5)


def test_an_order_to_delete_that_comes_after_the_return_deletes_nothing() -> None:
    scene = Scene()
    scene.cluster.intercept = lambda envelope: is_sent(envelope, StopReplicaRequest)
    scene.ask((1, 2))
    scene.run(lambda: bool(scene.cluster.held))
    (late,) = scene.cluster.held
    scene.cluster.intercept = lambda envelope: False
    scene.finish()
    scene.ask(ORIGIN)
    scene.finish()
    scene.cluster.release(late)
    scene.cluster.settle()
    scene.check()
    assert scene.has_log(3)


def test_new_replicas_do_not_count_until_they_are_there() -> None:
    """min.insync.replicas is 2: a partition of one replica takes acks=all while it is to get two more."""
    scene = Scene((1,))
    scene.hold(2, 3)
    scene.ask((1, 2, 3))
    scene.run(lambda: scene.has_log(2))
    scene.write(b"alone")
    leader = scene.cluster.nodes[1].replicas.partitions[TP]
    assert leader.replicas == (1, 2, 3)
    assert (leader.replication_factor, leader.min_insync, leader.is_under_replicated) == (1, 1, False)
    scene.release()
    scene.finish()
    leader = scene.cluster.nodes[1].replicas.partitions[TP]
    assert (leader.replication_factor, leader.min_insync) == (3, 2)


def test_under_replicated_by_what_was_there() -> None:
    scene = Scene()
    scene.hold(3, 4, 5, 6)
    scene.ask(TARGET)
    scene.run(lambda: scene.has_log(4))
    leader = scene.cluster.nodes[1].replicas.partitions[TP]
    assert not leader.is_under_replicated
    scene.write(b"more")
    scene.run(lambda: leader.is_under_replicated)


def test_a_program_moves_its_partition() -> None:
    scene = Scene()
    scene.target = TARGET
    scene.cluster.reassign(TP, TARGET)
    scene.finish()
    with pytest.raises(ValueError, match="list at least one broker"):
        scene.cluster.reassign(TP, ())
    scene.cluster.kill_node(3, expire_session=True)
    scene.cluster.settle()
    with pytest.raises(ValueError, match="not alive"):
        scene.cluster.reassign(TP, (3,))
    scene.hold(1)
    with pytest.raises(TimeoutError, match="not reached"):
        scene.cluster.reassign(TP, (1,), timeout_ms=100)
    scene.cluster.reassign(TP, None)
    assert scene.assignment.replicas == TARGET


def test_planted_deletion_before_the_isr_excludes(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = reassignment.stop_leaving

    def early(context: Context, topic_partitions: Iterable[TopicPartition] | None = None, **to: Any) -> None:
        honest(context, topic_partitions, **to)
        for each in topic_partitions or ():
            for broker_id in context.assignment_of(each).removing:
                order = {each: StopReplicaPartition(context.states[each].state.leader_epoch, delete=True)}
                context.channels[broker_id].enqueue(StopReplicaRequest, order)

    monkeypatch.setattr(reassignment, "stop_leaving", early)
    scene = Scene()
    scene.request()
    with pytest.raises(AssertionError, match="I5"):
        scene.finish()


def test_planted_list_before_isr(monkeypatch: pytest.MonkeyPatch) -> None:
    """B6 before B4."""
    honest = closing_state

    def hasty(assignment: Assignment, state: LeaderAndIsr, *rest: Any) -> LeaderAndIsr | None:
        after = honest(assignment, state, *rest)
        return after and replace(after, isr=state.isr, isr_broker_epochs=state.isr_broker_epochs)

    monkeypatch.setattr("logstore.replication.controller.reassignment.closing_state", hasty)
    scene = Scene()
    scene.request()
    with pytest.raises(AssertionError, match="I11"):
        scene.finish()


def test_planted_superseded_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Assignment.reassign_to
    monkeypatch.setattr(
        Assignment, "reassign_to", lambda self, *to: replace(honest(self, *to), leaving=self.leaving)
    )
    scene = on_the_way(4, 5, 6)
    with pytest.raises(AssertionError, match="stray logs"):
        scene.ask(LATER)


def test_planted_removed_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Assignment.finished
    monkeypatch.setattr(Assignment, "finished", lambda self: replace(honest(self), leaving=self.leaving))
    scene = Scene()
    scene.request()
    with pytest.raises(AssertionError, match="stray logs"):
        scene.finish()


def test_planted_order_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Assignment.reassign_to
    monkeypatch.setattr(Assignment, "reassign_to", lambda self, *to: replace(honest(self, *to), original=()))
    scene = Scene()
    scene.hold(4)
    scene.ask((3, 1, 4))
    scene.ask(None)
    scene.release()
    with pytest.raises(AssertionError, match=r"replicas=\(3, 1, 2\)"):
        scene.finish()


def test_planted_target_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended as soon as one of the target is in sync: the ISR is led out of the data."""

    def impatient(
        assignment: Assignment, state: LeaderAndIsr, live: object, down: object, controller_epoch: int
    ) -> LeaderAndIsr:
        epoch = state.leader_epoch + 1
        return replace(state, leader=4, leader_epoch=epoch, isr=assignment.target, isr_broker_epochs=())

    monkeypatch.setattr("logstore.replication.controller.reassignment.closing_state", impatient)
    scene = Scene()
    scene.request()
    with pytest.raises(AssertionError, match="I5"):
        scene.finish()
